package kafkatxn

import (
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

// timings are options for which times of records count, by name.
func timings(t *testing.T) map[string]func(*TransactorOptions) {
	byRule := func(o *TransactorOptions) { o.Aggregate.Time = ruleFor(t, ".ts") }
	return map[string]func(*TransactorOptions){
		"aggregate":      func(o *TransactorOptions) { countIn(t, o, time.Minute) },
		"aggregate time": func(o *TransactorOptions) { countIn(t, o, time.Minute); byRule(o) },
		"last":           func(o *TransactorOptions) { o.Keep = &stream.Keep{Last: stream.Tumbling(time.Minute)} },
		"last time": func(o *TransactorOptions) {
			o.Keep = &stream.Keep{Last: stream.Tumbling(time.Minute), Time: ruleFor(t, ".ts")}
		},
		"sessions": func(o *TransactorOptions) { o.Keep = &stream.Keep{Last: stream.Session(time.Minute, time.Hour)} },
		"first":    func(o *TransactorOptions) { o.Keep = &stream.Keep{First: ruleFor(t, ".ts")} },
		"header":   func(o *TransactorOptions) { o.Keep = &stream.Keep{First: ruleFor(t, "header:ts")} },
		"newest": func(o *TransactorOptions) {
			o.Keep, o.EventTime = &stream.Keep{Newest: ruleFor(t, ".v")}, &EventTime{}
		},
		"event time": func(o *TransactorOptions) { o.EventTime = &EventTime{} },
	}
}

// TestTimesThatRecordsCanHardlyHaveAreParked has records without a time, from before 1970, and
// whose seconds were read as milliseconds. A stated bound replaces that of 1973.
func TestTimesThatRecordsCanHardlyHaveAreParked(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 13, 0, 0, 0, time.UTC)
	for name, options := range timings(t) {
		for _, repartition := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, repartition %t", name, repartition), func(t *testing.T) {
				t.Parallel()
				tr := try(t, func(o *TransactorOptions) {
					options(o)
					if repartition {
						o.Repartition = &Repartition{}
					}
				})
				send := func(ms int64) TrialOutcome {
					t.Helper()
					text := strconv.FormatInt(ms, 10)
					m := &semel.Message{
						RecordKey: []byte(text), Body: fmt.Appendf(nil, `{"g":"a","v":1,"ts":%d}`, ms), Time: time.UnixMilli(ms),
						Headers: []semel.Header{{Name: "ts", Value: []byte(text)}},
					}
					o, err := tr.Send(t.Context(), now, m)
					kafkatest.Must(t, err)
					return o
				}
				ownTime := name != "first" && name != "header" && name != "aggregate time" && name != "last time"
				for ms, want := range map[int64]string{-1: "no time", -2: "is before 1970", now.Unix(): "is before 1973: 1795525200 looks like seconds since 1970, and was read as milliseconds", 99_999_999_999: "is before 1973"} {
					if !ownTime {
						switch {
						case ms < 0:
							want = "is before 1970"
						case ms == now.Unix():
							want = "" // it is recognised
						default:
							want = "ahead of the clock" // as seconds
						}
					}
					if o := send(ms); want == "" && o.Reason != "" || want != "" && (o.Reason != pipeline.ReasonPermanent || !strings.Contains(o.Err.Error(), want)) {
						t.Errorf("%d is %+v, want %q", ms, o, want)
					}
				}
				if o := send(100_000_000_000); o.Reason != "" && o.Reason != pipeline.ReasonLate {
					t.Errorf("a time of 1973 is %+v", o)
				}
				if o := send(now.UnixMilli()); o.Reason != "" {
					t.Errorf("a time of today is %+v", o)
				}
			})
		}
	}
}

func TestABoundForThePastIsObeyed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		behind time.Duration
		second int
		want   string
	}{
		{time.Hour, -3600, ""},
		{time.Hour, -3601, "more than 1h0m0s behind the clock (max_behind)"},
		{semel.Forever, -1_795_525_200 + 1000, ""}, // 1970
		{semel.Forever, -1_795_525_200 - 1000, "is before 1970"},
	} {
		for name, options := range map[string]func(*TransactorOptions){
			"aggregate": func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.MaxBehind = c.behind },
			"keep": func(o *TransactorOptions) {
				o.Keep = &stream.Keep{Last: stream.Tumbling(time.Minute), MaxBehind: c.behind}
			},
		} {
			tr := try(t, options)
			o := tr.at(0, c.second, "k", `{"g":"a"}`)
			if c.want == "" && o.Reason != "" || c.want != "" && (o.Reason != pipeline.ReasonPermanent || !strings.Contains(o.Err.Error(), c.want)) {
				t.Errorf("%s with MaxBehind %v: a record %d s from the clock is %+v, want %q", name, c.behind, c.second, o, c.want)
			}
		}
	}
}

// TestAnImplausibleTimeMovesNothing is parked, and the record that comes after it counts.
func TestAnImplausibleTimeMovesNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		p := b.start(b.counting(time.Minute, 0, semel.Forever))
		base := time.Now().Add(-time.Hour).Truncate(time.Minute)
		at := []time.Time{time.UnixMilli(-1), time.Unix(-5, 0), time.UnixMilli(base.Unix()), base, base.Add(time.Second), base.Add(time.Minute)}
		for i, when := range at {
			b.Write(counted(0, strconv.Itoa(i), "a", 1, when))
		}
		p.Wait(len(at), kafkatest.Settled)
		p.Stop()
		if got := b.results(); len(got) != 1 || got[0].Values.N != 2 || !got[0].Start.Equal(base) {
			t.Errorf("results: %+v", got)
		}
		parked := b.Read("aside")
		if len(parked) != 3 {
			t.Fatalf("%d are parked", len(parked))
		}
		for _, want := range []string{"has no time", "is before 1970", "looks like seconds"} {
			if !slices.ContainsFunc(parked, func(r *kgo.Record) bool { return strings.Contains(headerText(r), want) && r.Timestamp.UnixMilli() >= 0 }) {
				t.Errorf("none is parked because its time %s", want)
			}
		}
	})
}

// TestAFieldHasTheTimeOfARecord in any unit, in the body or a header. Records have other times.
func TestAFieldHasTheTimeOfARecord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unit  stream.TimeUnit
		write func(time.Time) string
	}{
		"seconds":                {write: func(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }},
		"seconds with decimals":  {write: func(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) + ".25" }},
		"stated seconds":         {unit: stream.Seconds, write: func(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }},
		"milliseconds":           {write: func(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }},
		"microseconds":           {write: func(at time.Time) string { return strconv.FormatInt(at.UnixMicro(), 10) }},
		"nanoseconds":            {unit: stream.Nanoseconds, write: func(at time.Time) string { return strconv.FormatInt(at.UnixNano(), 10) }},
		"a text with a number":   {write: func(at time.Time) string { return fmt.Sprintf("%q", strconv.FormatInt(at.Unix(), 10)) }},
		"a text as in RFC 3339":  {write: func(at time.Time) string { return fmt.Sprintf("%q", at.Format(time.RFC3339Nano)) }},
		"a stated text":          {unit: stream.RFC3339, write: func(at time.Time) string { return fmt.Sprintf("%q", at.Format(time.RFC3339Nano)) }},
		"a number with exponent": {write: func(at time.Time) string { return fmt.Sprintf("%.9e", float64(at.Unix())) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, rule := range []string{".ts", "header:ts"} {
				for _, repartition := range []bool{false, true} {
					with := func(change func(*TransactorOptions)) *tried {
						return try(t, func(o *TransactorOptions) {
							change(o)
							if repartition {
								o.Repartition = &Repartition{}
							}
						})
					}
					counts := with(func(o *TransactorOptions) {
						countIn(t, o, time.Minute)
						o.Aggregate.Time, o.Aggregate.Unit = ruleFor(t, rule), c.unit
						var err error
						o.Aggregate.Func, err = stream.Values(stream.Value{Name: "n", Of: "count"}, stream.Value{Name: "last", Of: "last .i"})
						kafkatest.Must(t, err)
					})
					keeps := with(func(o *TransactorOptions) {
						o.Keep = &stream.Keep{First: ruleFor(t, rule), Unit: c.unit, Grace: 30 * time.Second, Idle: semel.Forever}
					})
					var windows, first []string
					for i, second := range []int{10, 40, 20, 130} {
						text := c.write(counts.base.Add(time.Duration(second) * time.Second))
						body := fmt.Sprintf(`{"g":"a","i":"%d","ts":%s}`, second, text)
						for _, tr := range []*tried{counts, keeps} {
							id := strconv.Itoa(i)
							if tr == keeps {
								id = "k" + strconv.Itoa(second/100)
							}
							o := tr.at(second, 3600*i, id, body, "ts", strings.Trim(text, `"`))
							if o.Reason != "" && o.Reason != pipeline.ReasonLate {
								t.Errorf("%s: %+v", body, o)
							}
							released, err := tr.Pass(t.Context(), tr.base.Add(time.Duration(second)*time.Second))
							kafkatest.Must(t, err)
							if tr == keeps {
								first = append(first, texts(released)...)
							} else {
								windows = append(windows, texts(released)...)
							}
						}
					}
					if len(windows) != 1 || !strings.Contains(windows[0], `"n":3,"last":"40"`) {
						t.Errorf("by %s the windows are %q", rule, windows)
					}
					if len(first) != 1 || !strings.Contains(first[0], `"i":"10"`) {
						t.Errorf("by %s these took effect: %q", rule, first)
					}
				}
			}
		})
	}
}

// TestSessionsAreTheSameForKeepAndAggregate, even if a record comes exactly at the greatest
// length of a session, or out of order.
func TestSessionsAreTheSameForKeepAndAggregate(t *testing.T) {
	t.Parallel()
	seed := kafkatest.NewSeed(t)
	long := 0 // sessions of their greatest length
	for _, over := range []stream.Window{stream.Session(10*time.Second, 12*time.Second), stream.Session(10*time.Second, 30*time.Second), stream.Session(10*time.Second, time.Hour)} {
		for _, grace := range []time.Duration{0, 15 * time.Second} {
			random := rand.New(rand.NewPCG(seed, 0))
			counts := try(t, func(o *TransactorOptions) {
				countIn(t, o, time.Minute)
				o.Aggregate.Over, o.Aggregate.Grace = over, grace
				var err error
				o.Aggregate.Func, err = stream.Values(stream.Value{Name: "last", Of: "last .i"})
				kafkatest.Must(t, err)
			})
			keeps := try(t, func(o *TransactorOptions) {
				o.Keep = &stream.Keep{Last: over, Grace: grace, Idle: semel.Forever}
			})
			results := map[*tried][]string{}
			second := 0
			for i := range 400 {
				second += random.IntN(8)
				if random.IntN(10) == 0 {
					second += 20
				}
				when := second - random.IntN(20)
				body := fmt.Sprintf(`{"g":"a","i":"%d"}`, i)
				late := [2]bool{}
				for n, tr := range []*tried{counts, keeps} {
					id := "a"
					if tr == counts {
						id = strconv.Itoa(i)
					}
					o := tr.at(second, when, id, body)
					late[n] = o.Reason == pipeline.ReasonLate
					released, err := tr.Pass(t.Context(), tr.base.Add(time.Duration(second)*time.Second))
					kafkatest.Must(t, err)
					for _, r := range released {
						_, last, _ := strings.Cut(string(r.Value), `"i":`)
						if tr == counts {
							_, last, _ = strings.Cut(string(r.Value), `"last":`)
						}
						results[tr] = append(results[tr], strings.TrimRight(last, "}"))
						if tr == counts && strings.Contains(string(r.Value), fmt.Sprintf(`"end":%q`, r.Timestamp.UTC().Format(time.RFC3339))) {
							_, start, _ := strings.Cut(string(r.Value), `"start":"`)
							from, err := time.Parse(time.RFC3339, start[:20])
							kafkatest.Must(t, err)
							if r.Timestamp.Sub(from) == over.Most() {
								long++
							}
						}
					}
				}
				if late[0] != late[1] {
					t.Fatalf("%v, grace %v: record %d at %d is late: %t, and for keep %t", over, grace, i, when, late[0], late[1])
				}
			}
			slices.Sort(results[counts])
			slices.Sort(results[keeps])
			if !slices.Equal(results[counts], results[keeps]) || len(results[counts]) < 10 {
				t.Errorf("%v, grace %v: the last records of sessions are %q, and keep has %q", over, grace, results[counts], results[keeps])
			}
		}
	}
	if long == 0 {
		t.Error("no session has its greatest length")
	}
}

// TestAKeyThatComesAgainAfterItsWindowIsAnotherOne while the first record of it is held, or
// becomes due by the record itself.
func TestAKeyThatComesAgainAfterItsWindowIsAnotherOne(t *testing.T) {
	t.Parallel()
	for _, grace := range []time.Duration{0, 5 * time.Minute} { // the second holds both
		tr := try(t, func(o *TransactorOptions) {
			o.Keep, o.Window = &stream.Keep{First: ruleFor(t, ".ts"), Grace: grace, Idle: semel.Forever}, time.Minute
		})
		var got []string
		for _, second := range []int{0, 59, 80, 119, 160, 1000} {
			at := tr.base.Add(time.Duration(second) * time.Second)
			o := tr.at(second, second, "k", fmt.Sprintf(`{"ts":%d}`, at.Unix()))
			want := second%80 == 0 || second == 1000
			if o.Held != want {
				t.Errorf("grace %v: the record at %d s is %+v", grace, second, o)
			}
			released, err := tr.Pass(t.Context(), at)
			kafkatest.Must(t, err)
			for _, r := range released {
				got = append(got, string(r.Value))
			}
		}
		var want []string
		for _, second := range []int{0, 80, 160} {
			want = append(want, fmt.Sprintf(`{"ts":%d}`, tr.base.Unix()+int64(second)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("grace %v: %q take effect, want %q", grace, got, want)
		}
	}
}

// TestDecisionsWithFirstDoNotDependOnTransactions gives the same records to a session that
// decides many of them in one transaction, and to a trial that decides each on its own.
func TestDecisionsWithFirstDoNotDependOnTransactions(t *testing.T) {
	t.Parallel()
	seed := kafkatest.NewSeed(t)
	inBubble(t, 1, func(b *bubble) {
		random := rand.New(rand.NewPCG(seed, 0))
		opts := b.keeping(stream.Keep{First: ruleFor(b.T, ".ts"), Grace: 30 * time.Second, Idle: semel.Forever})
		opts.Window = 10 * time.Minute
		base := time.Now().Add(-24 * time.Hour)
		trial, err := NewTrial(&opts, time.Now(), 1)
		kafkatest.Must(b.T, err)
		var list []*kgo.Record
		var outputs []*kgo.Record
		want := map[semel.Decision]int{}
		second := 0
		for i := range 3000 {
			second += random.IntN(10)
			at := base.Add(time.Duration(second-random.IntN(50)) * time.Second)
			r := kafkatest.Record(0, strconv.Itoa(random.IntN(40)), fmt.Sprintf(`{"ts":%d,"i":%d}`, at.Unix(), i))
			list = append(list, r)
			o, err := trial.Send(b.Context(), time.Now(), &semel.Message{RecordKey: r.Key, Body: r.Value, Time: time.Now()})
			kafkatest.Must(b.T, err)
			if !o.Held {
				want[o.Decision]++
			}
			released, err := trial.Pass(b.Context(), time.Now())
			kafkatest.Must(b.T, err)
			outputs = append(outputs, released...)
		}
		p := b.start(opts)
		b.Write(list...)
		p.Wait(len(list), kafkatest.Settled)
		p.Stop()
		values := func(list []*kgo.Record) (bodies []string) {
			for _, r := range list {
				bodies = append(bodies, string(r.Value))
			}
			slices.Sort(bodies)
			return bodies
		}
		if got, want := values(b.Read("out")), values(outputs); !slices.Equal(got, want) {
			b.Errorf("%d take effect, and %d in a trial", len(got), len(want))
		}
		for _, d := range []semel.Decision{semel.Late, semel.Duplicate} {
			if got := p.Events.Decisions(d); got != want[d] || got < 20 {
				b.Errorf("%d are %s, and %d in a trial", got, d, want[d])
			}
		}
	})
}

// TestARowOfATimeNeedsATime parks records without one.
func TestARowOfATimeNeedsATime(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1, "min.compaction.lag.ms", "7200000")
		b.Write(customer(0, "c", "Carl", time.Now().Add(-time.Minute)))
		p := b.start(b.joining(&stream.Table{History: time.Hour}))
		for i, at := range []time.Time{time.UnixMilli(-1), time.Now()} {
			r := order(0, strconv.Itoa(i), "c")
			r.Timestamp = at
			b.Write(r)
		}
		p.Wait(2, kafkatest.Settled)
		p.Stop()
		parked := b.Read("aside")
		if len(parked) != 1 || !strings.Contains(headerText(parked[0]), "it has no time since 1970") || b.bodies("out") != "1=Carl" {
			t.Errorf("outputs %q, %d parked", b.bodies("out"), len(parked))
		}
	})
}
