package kafkatxn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// enveloped puts a record into an envelope, which has its time and its body.
func enveloped(r *kgo.Record) *kgo.Record {
	out := *r
	out.Value = fmt.Appendf(nil, "%d<%s>", r.Timestamp.UnixMilli(), r.Value)
	out.Headers, out.Timestamp = nil, time.Time{}
	return &out
}

// opener is an Unwrapper.
type opener func(semel.Message) (semel.Message, error)

func (o opener) Unwrap(m semel.Message) (semel.Message, error) { return o(m) }
func (o opener) String() string                                { return "an envelope" }

// openEnvelope is the Unwrap of messages in such envelopes. It adds a header.
func openEnvelope(m semel.Message) (semel.Message, error) {
	at, body, ok := bytes.Cut(m.Body, []byte("<"))
	ms, err := strconv.ParseInt(string(at), 10, 64)
	if !ok || err != nil {
		return m, errors.New("it has no envelope")
	}
	m.Time, m.Body = time.UnixMilli(ms), bytes.TrimSuffix(body, []byte(">"))
	m.Headers = append(slices.Clip(m.Headers), semel.Header{Name: "inner", Value: []byte("yes")})
	return m, nil
}

// TestAMessageInsideAnotherIsDecidedAsIfItHadNone writes the same messages with and without
// envelopes. A program is killed and another one stopped in the meantime. The outputs are equal,
// but for the messages that were parked: these keep their envelopes.
func TestAMessageInsideAnotherIsDecidedAsIfItHadNone(t *testing.T) {
	t.Parallel()
	const grid = 10 * time.Second
	counts := func(b *bubble) TransactorOptions { return b.counting(grid, 2*grid, semel.Forever) }
	kept := func(k stream.Keep) func(b *bubble) TransactorOptions {
		k.Grace, k.Idle = 2*grid, semel.Forever
		return func(b *bubble) TransactorOptions { return b.keeping(k) }
	}
	filtered := func(of func(b *bubble) TransactorOptions) func(b *bubble) TransactorOptions {
		return func(b *bubble) TransactorOptions {
			opts := of(b)
			opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
				if strings.Contains(string(d.Body), `"v":5`) {
					return nil, false, errors.New("no fives")
				}
				return bytes.Replace(d.Body, []byte(`"v":`), []byte(`"v":1`), 1), !strings.Contains(string(d.Body), `"v":7`), nil
			}
			return opts
		}
	}
	mixed := func(of func(b *bubble) TransactorOptions) func(b *bubble) TransactorOptions {
		return func(b *bubble) TransactorOptions {
			opts := of(b)
			opts.Repartition = &Repartition{}
			if opts.Aggregate != nil { // which messages are late depends on the copiers
				opts.Aggregate.Grace = time.Hour / 2
			}
			if opts.Keep != nil {
				opts.Keep.Grace = time.Hour / 2
			}
			return opts
		}
	}
	plain := (*bubble).options
	for name, options := range map[string]func(b *bubble) TransactorOptions{
		"pass": plain, "filter": filtered(plain), "mixed": mixed(plain),
		"key headers": func(b *bubble) TransactorOptions {
			opts := b.options()
			opts.Output.KeyHeaders = true
			return opts
		},
		"transform": func(b *bubble) TransactorOptions {
			opts := b.options()
			opts.Transform = func(_ context.Context, d pipeline.Delivery) ([]*kgo.Record, error) {
				if strings.Contains(string(d.Body), `"v":5`) {
					return nil, semel.Permanent(errors.New("no fives"))
				}
				inner, _ := d.Message.Header("inner")
				return []*kgo.Record{{Key: d.RecordKey, Value: fmt.Appendf(nil, "%s %s", d.Body, inner), Timestamp: d.Time}}, nil
			}
			return opts
		},
		"event time": func(b *bubble) TransactorOptions {
			opts := b.options()
			opts.Window, opts.EventTime = grid, &EventTime{Grace: grid}
			return opts
		},
		"content": func(b *bubble) TransactorOptions {
			opts := b.options()
			opts.Key.OnMissing = pipeline.MissingHash
			return opts
		},
		"without a key": func(b *bubble) TransactorOptions {
			opts := b.options()
			opts.Key.OnMissing = pipeline.MissingPass
			return opts
		},
		"windows": counts, "windows, filter": filtered(counts), "windows, mixed": mixed(filtered(counts)),
		"first": kept(stream.Keep{First: ruleFor(t, ".at")}), "last": filtered(kept(stream.Keep{Last: stream.Tumbling(grid)})), "newest": kept(stream.Keep{Newest: ruleFor(t, ".v")}),
		"first, mixed": mixed(kept(stream.Keep{First: ruleFor(t, ".at")})), "last, mixed": mixed(kept(stream.Keep{Last: stream.Tumbling(grid)})),
	} {
		seed := kafkatest.NewSeed(t)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var outputs, parked [2][]string
			for i, inside := range []bool{false, true} {
				inBubble(t, 2, func(b *bubble) {
					opts := options(b)
					opts.Key.Rule = ruleFor(t, ".id")
					if inside {
						opts.Unwrap = opener(openEnvelope)
					}
					opts.State.Dir = t.TempDir()
					random, base, n := rand.New(rand.NewPCG(seed, 0)), time.Now().Add(-3*time.Hour).Truncate(time.Hour), 0
					write := func(partition int32, body string, at time.Time) {
						r := kafkatest.Record(partition, strconv.Itoa(random.IntN(10)), body)
						r.Timestamp, r.Headers = at, []kgo.RecordHeader{{Key: "inner", Value: []byte("yes")}}
						if n++; inside {
							r = enveloped(r)
						}
						b.Write(r)
					}
					p := b.start(opts)
					for round := range 3 {
						for range 40 {
							at := base.Add(time.Duration(round)*2*grid + time.Duration(random.IntN(60))*time.Second)
							id := random.IntN(20)
							body := fmt.Sprintf(`{"id":"%d","g":"g%d","v":%d,"at":%d}`, id, random.IntN(3), random.IntN(10), at.UnixMilli())
							if random.IntN(10) == 0 {
								body = fmt.Sprintf(`{"g":"g","v":%d,"at":%d}`, n, at.UnixMilli())
							}
							partition := int32(id % 2)
							write(partition, body, at)
						}
						p.Wait(40, kafkatest.Settled)
						if round == 0 {
							p.Kill()
							<-p.Done
						} else {
							p.Stop()
						}
						p = b.start(opts)
					}
					const ends = 10 // of all windows, and of held records; some in each copy
					for i := range 2 * ends {
						at := base.Add(time.Hour)
						write(int32(i%2), fmt.Sprintf(`{"id":"end%d","g":"end%d","v":1,"at":%d}`, i, i, at.UnixMilli()), at)
					}
					p.Wait(2*ends, kafkatest.Settled)
					if inside {
						b.Write(kafkatest.Record(0, "bare", `{"id":"1000","g":"bare","v":1}`), kafkatest.Record(1, "", ""))
						p.Wait(2*ends+2, kafkatest.Settled)
					}
					time.Sleep(10 * time.Second) // in a bubble: what is due is written
					p.Stop()
					outputs[i] = texts(b.Read("out"))
					unreadable := 0
					for _, r := range b.Read("aside") {
						if strings.Contains(headersOf(r), "semel-reason=unreadable ") {
							if unreadable++; !strings.Contains(headersOf(r), "semel-error=it has no envelope") {
								t.Errorf("%s is parked with %s", r.Value, headersOf(r))
							}
							continue
						}
						if strings.Contains(headersOf(r), "inner=") == inside {
							t.Errorf("%s is parked with %s", r.Value, headersOf(r))
						}
						_, body, _ := bytes.Cut(r.Value, []byte("<"))
						if inside {
							parked[i] = append(parked[i], string(bytes.TrimSuffix(body, []byte(">"))))
						} else {
							parked[i] = append(parked[i], string(r.Value))
						}
					}
					slices.Sort(parked[i])
					if want := 2; inside && unreadable != want {
						t.Errorf("%d are parked as unreadable, want %d", unreadable, want)
					}
				})
			}
			if !slices.Equal(outputs[0], outputs[1]) || len(outputs[0]) < 5 {
				t.Errorf("without envelopes:\n%s\nwith them:\n%s", strings.Join(outputs[0], "\n"), strings.Join(outputs[1], "\n"))
			}
			if !slices.Equal(parked[0], parked[1]) {
				t.Errorf("parked without envelopes:\n%s\nwith them:\n%s", strings.Join(parked[0], "\n"), strings.Join(parked[1], "\n"))
			}
		})
	}
}

// TestAMessageThatCannotBeUnwrappedIsTreatedAsOneWithoutAKey, and is never delivered.
func TestAMessageThatCannotBeUnwrappedIsTreatedAsOneWithoutAKey(t *testing.T) {
	t.Parallel()
	for policy, want := range map[pipeline.Missing]string{
		pipeline.MissingPark: "parked", pipeline.MissingPass: "parked", pipeline.MissingHash: "parked", pipeline.MissingDrop: "dropped", pipeline.MissingStop: "stopped",
	} {
		for _, stage := range []*Repartition{nil, {}} {
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.Unwrap, opts.Key.OnMissing, opts.Repartition = opener(openEnvelope), policy, stage
				b.Write(enveloped(kafkatest.Record(0, "a", "x")), kafkatest.Record(0, "b", "bare"))
				p := b.start(opts)
				if want == "stopped" {
					<-p.Done
					if stopped, ok := errors.AsType[*pipeline.StoppedError](p.Err); !ok || stopped.Reason != pipeline.ReasonUnreadable {
						t.Errorf("it ended with %v", p.Err)
					}
					return
				}
				p.Wait(2, kafkatest.Settled)
				p.Stop()
				if got := b.values("out"); got != "x" {
					t.Errorf("outputs %q", got)
				}
				got := b.values("aside")
				if p.Events.Count(pipeline.EventDropped) == 1 {
					got = "dropped " + got
				}
				if got = strings.TrimSpace(got); got != strings.ReplaceAll(want, "parked", "bare") {
					t.Errorf("%s, want %s", got, want)
				}
			})
		}
	}
}

// TestARedrivenMessageIsKnownByTheHeadersOfItsEnvelope: the message inside has other headers, and a
// message that is late takes effect when it is redriven.
func TestARedrivenMessageIsKnownByTheHeadersOfItsEnvelope(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]func(o *TransactorOptions){
		"window": func(o *TransactorOptions) { o.Window, o.EventTime = time.Minute, &EventTime{Grace: time.Second} },
		"first": func(o *TransactorOptions) {
			o.Keep = &stream.Keep{First: ruleFor(t, ".at"), Grace: time.Second, Idle: semel.Forever}
		},
	} {
		var told []int
		want := []int{2}
		tr := try(t, func(o *TransactorOptions) {
			by(o)
			o.Unwrap = opener(func(m semel.Message) (semel.Message, error) {
				inner, err := openEnvelope(m)
				inner.Headers = nil
				return inner, err
			})
			o.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
				told = append(told, d.Redrive)
				return d.Body, true, nil
			}
			if o.Keep != nil {
				return
			}
			want = []int{2, 2}
			o.Transform = func(_ context.Context, d pipeline.Delivery) ([]*kgo.Record, error) {
				told = append(told, d.Redrive)
				return []*kgo.Record{{Value: d.Body}}, nil
			}
		})
		send := func(id string, second int, headers ...string) TrialOutcome {
			at := tr.base.Add(time.Duration(second) * time.Second).UnixMilli()
			return tr.at(300, 300, id, fmt.Sprintf(`%d<{"at":%d}>`, at, at), headers...)
		}
		send("b", 300)
		if o := send("a", 10); o.Decision != semel.Late {
			t.Errorf("%s: a message that is late: %+v", name, o)
		}
		told = nil
		if o := send("a", 10, pipeline.RedriveHeader, "2"); o.Decision != semel.Fresh || len(o.Outputs) != 1 || !slices.Equal(told, want) {
			t.Errorf("%s: when it is redriven: %+v; the functions get %v", name, o, told)
		}
	}
}

// TestUnwrapNeedsATopicForParkedMessages, whatever happens to messages without a key.
func TestUnwrapNeedsATopicForParkedMessages(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Unwrap, opts.Key.OnMissing, opts.Parked = opener(openEnvelope), pipeline.MissingPass, ""
		if _, err := NewTransactor(&opts); err == nil || !strings.Contains(err.Error(), "Parked is missing") {
			t.Error(err)
		}
	})
}

// TestHeldMessagesAreParkedIfUnwrapFails: the program that held them could unwrap them.
func TestHeldMessagesAreParkedIfUnwrapFails(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.keeping(stream.Keep{Last: stream.Tumbling(time.Second), Idle: semel.Forever})
		opts.Unwrap = opener(openEnvelope)
		r := kafkatest.Record(0, "a", "x")
		r.Timestamp = time.Now().Add(-time.Minute)
		b.Write(enveloped(r))
		p := b.start(opts)
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		opts.Unwrap = opener(func(m semel.Message) (semel.Message, error) {
			if bytes.Contains(m.Body, []byte("<")) {
				return m, errors.New("it has an envelope")
			}
			return m, nil
		})
		p = b.start(opts)
		b.Write(kafkatest.Record(0, "b", "y"))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		if got, want := b.values("aside"), string(enveloped(r).Value); got != want || b.values("out") != "" {
			t.Errorf("parked %q, want %q; outputs %q", got, want, b.values("out"))
		}
	})
}
