package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/output"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/sampletest"
)

// TestATrialDecidesAsASessionOnABroker gives the same messages to both, while time passes.
// Messages come in the middle of ten seconds, and nothing becomes due near that time.
func TestATrialDecidesAsASessionOnABroker(t *testing.T) {
	t.Parallel()
	// Time passes while outputs are read. So nothing becomes due within the 5 s after a
	// tick, which is in the middle of two steps of the grid. The partition of a record is
	// idle 17 s after it, and windows of that step close 27 s (idle, grace and
	// stream.ClockMargin, less half a step) after it.
	//
	// A session looks for idle partitions when it has decided a record, which takes up to a
	// second, and a trial looks immediately. A record that is late then is before the time of the look,
	// less idle, grace and ClockMargin. So a tick is half a second after the middle: the two
	// times of a look are both behind the time of a record, which is on the grid, or before it.
	const grid, grace, idle = 10 * time.Second, 10 * time.Second, 17 * time.Second
	const middle = grid/2 + time.Second/2
	keep := func(k stream.Keep) func(b *bubble) TransactorOptions {
		return func(b *bubble) TransactorOptions {
			k.Grace, k.Idle = grace, idle
			opts := b.keeping(k)
			opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
				if strings.Contains(string(d.Body), `"v":7`) {
					return nil, false, nil
				}
				return d.Body, true, nil
			}
			return opts
		}
	}
	counts := func(over stream.Window, correct time.Duration) func(b *bubble) TransactorOptions {
		return func(b *bubble) TransactorOptions {
			opts := b.counting(grid, grace, idle)
			opts.Aggregate.Over, opts.Aggregate.Correct = over, correct
			return opts
		}
	}
	bySource := func(of func(b *bubble) TransactorOptions) func(b *bubble) TransactorOptions {
		return func(b *bubble) TransactorOptions {
			opts := of(b)
			opts.Repartition = &Repartition{}
			return opts
		}
	}
	for name, options := range sampletest.Sampled(map[string]func(b *bubble) TransactorOptions{
		"several sources, tumbling": bySource(counts(stream.Tumbling(grid), 0)), "several sources, last": bySource(keep(stream.Keep{Last: stream.Tumbling(grid)})),
		"several sources, first": bySource(keep(stream.Keep{First: ruleFor(t, ".at")})), "several sources, sessions": bySource(counts(stream.Session(grid, 4*grid), 0)),
		"keys": func(b *bubble) TransactorOptions {
			opts := b.options()
			opts.Window = 36 * time.Second
			return opts
		},
		"event time": func(b *bubble) TransactorOptions {
			opts := b.options()
			opts.Window, opts.EventTime = 2*grid, &EventTime{Grace: grace}
			return opts
		},
		"tumbling": counts(stream.Tumbling(grid), 0), "corrected": counts(stream.Tumbling(grid), grid),
		"hopping": counts(stream.Hopping(3*grid, grid), 0), "sessions": counts(stream.Session(grid, 4*grid), 0),
		"first": keep(stream.Keep{First: ruleFor(t, ".at")}), "last": keep(stream.Keep{Last: stream.Tumbling(grid)}),
		"last session": keep(stream.Keep{Last: stream.Session(grid, 4*grid)}), "newest": keep(stream.Keep{Newest: ruleFor(t, ".v")}),
	}, 4) {
		seed := kafkatest.NewSeed(t)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				random := rand.New(rand.NewPCG(seed, 0))
				tick := func(n int) { // n times ten seconds
					if n == 0 && time.Now().Add(-middle).Truncate(grid).Add(time.Second).Before(time.Now().Add(-middle)) {
						n = 1 // the reading took long
					}
					time.Sleep(time.Until(time.Now().Truncate(grid).Add(time.Duration(n)*grid + middle))) // in a bubble
				}
				tick(1)
				opts := options(b)
				trial, err := NewTrial(&opts, time.Now(), 2)
				kafkatest.Must(t, err)
				p := b.start(opts)
				var released []*kgo.Record
				outcomes := map[string]int{}
				reasons := 0
				for n := 1; n <= 80; n++ {
					at := time.Now().Truncate(grid).Add(-grid * time.Duration(random.IntN(5)))
					if random.IntN(20) == 0 {
						at = time.Now().Truncate(time.Hour).Add(time.Hour) // too far ahead
					}
					body := fmt.Sprintf(`{"g":"g%d","v":%d,"at":%d}`, random.IntN(2), random.IntN(30), at.UnixMilli())
					if random.IntN(20) == 0 {
						body = `{"v":"none"}`
					}
					r := kafkatest.Record(int32(random.IntN(2)), strconv.Itoa(random.IntN(10)), body)
					r.Timestamp = at
					if random.IntN(10) == 0 {
						r.Key = nil
					}
					m := &semel.Message{RecordKey: r.Key, Body: r.Value, Time: at, Origin: semel.Origin{Partition: r.Partition}}
					outcome, err := trial.Send(b.Context(), time.Now(), m)
					kafkatest.Must(t, err)
					switch {
					case outcome.Reason != "":
						outcomes[outcome.Decision.String()+" "+string(outcome.Reason)]++
						reasons++
					case outcome.Held:
						outcomes["held"]++
					case outcome.Filtered:
						outcomes["filtered"]++
					default:
						outcomes[outcome.Decision.String()]++
					}
					released = append(released, outcome.Outputs...)
					more, err := trial.Pass(b.Context(), time.Now())
					kafkatest.Must(t, err)
					released = append(released, more...)
					b.Write(r)
					p.Wait(n, kafkatest.Settled)
					if opts.Repartition == nil {
						tick([]int{0, 1, 1, 2, 6}[random.IntN(5)])
					} else { // until the copier has told of the message
						tick([]int{1, 1, 2, 6}[random.IntN(4)])
					}
					more, err = trial.Pass(b.Context(), time.Now())
					kafkatest.Must(t, err)
					released = append(released, more...)
					if got, want := texts(released), texts(b.Read("out")); !slices.Equal(got, want) {
						t.Fatalf("after %d messages a trial wrote %d records, and the session %d:\n%s\n%s", n, len(got), len(want), strings.Join(got, "\n"), strings.Join(want, "\n"))
					}
				}
				p.Stop()
				e := p.Events
				if parked := e.Count(pipeline.EventParked); parked != reasons || len(b.Read("aside")) != reasons {
					t.Errorf("%d are parked, and %d by a trial: %v", parked, reasons, outcomes)
				}
				if late, want := e.Decisions(semel.Late), outcomes["late late"]; late != want {
					t.Errorf("%d are late, and %d by a trial", late, want)
				}
				if got, want := e.Decisions(semel.Duplicate), outcomes["duplicate"]; got != want {
					t.Errorf("%d are duplicates, and %d by a trial", got, want)
				}
				t.Logf("%v, %d outputs", outcomes, len(released))
				if len(released) < 5 {
					t.Error("too few outputs")
				}
			})
		})
	}
}

// texts returns records as sorted texts.
func texts(list []*kgo.Record) (out []string) {
	for _, r := range list {
		headers := slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return h.Key == output.HeaderRevision || h.Key == header.FirstSeen })
		out = append(out, fmt.Sprintf("%s %s %d %v", r.Key, r.Value, r.Timestamp.UnixMilli(), headers))
	}
	slices.Sort(out)
	return out
}

// TestATrialReturnsTheOutcomeOfAMessage has outcomes that depend on policies.
// TestATrialLeavesTheStateDirectoryAlone has options of a program that has one.
func TestATrialLeavesTheStateDirectoryAlone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.State.Dir = dir })
	if o := tr.at(0, 0, "1", `{"g":"a"}`); o.Decision != semel.Fresh {
		t.Errorf("%+v", o)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a trial has made %s: %v", dir, err)
	}
}

func TestATrialReturnsTheOutcomeOfAMessage(t *testing.T) {
	t.Parallel()
	id, err := key.ParseRule(".id")
	kafkatest.Must(t, err)
	now := time.Date(2026, 11, 24, 13, 0, 0, 0, time.UTC)
	send := func(change func(*TransactorOptions), bodies ...string) (last TrialOutcome) {
		t.Helper()
		opts := TransactorOptions{Group: "g", Inputs: []string{"in", "more"}, Output: Output{Topic: "out"}, Parked: "aside", Key: KeyOptions{Rule: id, Scope: "s"}}
		change(&opts)
		trial, err := NewTrial(&opts, now, 1)
		kafkatest.Must(t, err)
		for _, body := range bodies {
			source, text, _ := strings.Cut(body, " ")
			number, _ := strconv.Atoi(source[len(source)-1:])
			m := &semel.Message{Body: []byte(text), Origin: semel.Origin{Source: strings.TrimRight(source, "01"), Partition: int32(number)}}
			if last, err = trial.Send(t.Context(), now, m); err != nil {
				t.Fatal(err)
			}
		}
		return last
	}
	same := func(*TransactorOptions) {}
	if o := send(same, `in0 {"id":1}`); o.Decision != semel.Fresh || len(o.Outputs) != 1 || string(o.Outputs[0].Value) != `{"id":1}` || o.Key.ID == "" || !o.Outputs[0].Timestamp.Equal(now) {
		t.Errorf("%+v", o)
	}
	for _, other := range []string{"in1", "more0"} { // keys of their own
		if o := send(same, `in0 {"id":1}`, other+` {"id":1}`); o.Decision != semel.Fresh {
			t.Errorf("%+v", o)
		}
		if o := send(func(opts *TransactorOptions) { opts.Repartition = &Repartition{} }, `in0 {"id":1}`, other+` {"id":1}`); o.Decision != semel.Duplicate || len(o.Outputs) > 0 {
			t.Errorf("%+v", o)
		}
	}
	if o := send(func(opts *TransactorOptions) { opts.Key.OnMissing = pipeline.MissingStop }, `in0 {}`); o.Reason != pipeline.ReasonKeyMissing || o.Err == nil || o.Key.ID != "" {
		t.Errorf("%+v", o)
	}
	if o := send(same, `in0 {"id":1,"n":"`+strings.Repeat("x", 1_100_000)+`"}`); o.Reason != pipeline.ReasonPermanent || o.Err == nil {
		t.Errorf("%+v", o.Err)
	}
	fails := func(opts *TransactorOptions) {
		opts.FilterMap = func(context.Context, pipeline.Delivery) ([]byte, bool, error) { panic("it fails") }
		opts.Failure.Then = pipeline.Stop
	}
	if o := send(fails, `in0 {"id":1}`, `in0 {"id":1}`); o.Reason == "" || o.Decision != semel.Fresh || !strings.Contains(o.Err.Error(), "it fails") {
		t.Errorf("%+v", o)
	}
	if _, err := NewTrial(&TransactorOptions{}, now, 1); err == nil {
		t.Error("options without a group are accepted")
	}
}

// tried is a trial that begins at a time.
type tried struct {
	*testing.T
	*Trial
	base time.Time
}

// try starts a trial of records with the record key as id.
func try(t *testing.T, change func(*TransactorOptions)) *tried {
	t.Helper()
	base := time.Date(2026, 11, 24, 13, 0, 0, 0, time.UTC)
	opts := TransactorOptions{Group: "g", Inputs: []string{"in"}, Output: Output{Topic: "out"}, Parked: "aside", Key: KeyOptions{Rule: ruleFor(t, "record-key"), Scope: "s"}}
	change(&opts)
	trial, err := NewTrial(&opts, base, 1)
	kafkatest.Must(t, err)
	return &tried{t, trial, base}
}

// at sends a message, which arrives at a second and has the time of another one.
func (t *tried) at(second, when int, id, body string, headers ...string) TrialOutcome {
	t.Helper()
	m := &semel.Message{RecordKey: []byte(id), Body: []byte(body), Time: t.base.Add(time.Duration(when) * time.Second)}
	for i := 0; i < len(headers); i += 2 {
		m.Headers = append(m.Headers, semel.Header{Name: headers[i], Value: []byte(headers[i+1])})
	}
	o, err := t.Send(t.Context(), t.base.Add(time.Duration(second)*time.Second), m)
	kafkatest.Must(t.T, err)
	return o
}
