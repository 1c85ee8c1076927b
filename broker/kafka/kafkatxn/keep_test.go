package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// keeping returns options with a rule that says which record is kept.
func (b *bubble) keeping(k stream.Keep) TransactorOptions {
	opts := b.options()
	opts.Keep = &k
	return opts
}

func ruleFor(t *testing.T, text string) *key.Rule {
	t.Helper()
	rule, err := key.ParseRule(text)
	kafkatest.Must(t, err)
	return rule
}

// values returns the bodies of a topic's records, in order.
func (b *bubble) values(topic string) string {
	b.Helper()
	var list []string
	for _, r := range b.Read(topic) {
		list = append(list, string(r.Value))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestWhichRecordIsKept has records of each fate, and a restart after each step.
func TestWhichRecordIsKept(t *testing.T) {
	t.Parallel()
	type step struct{ records, outputs, parked string } // a record is a key, a second or version, and a letter
	for _, c := range []struct {
		name                       string
		keep                       func(t *testing.T) stream.Keep
		steps                      []step
		fresh, superseded, dup, up int
	}{
		{"first", func(t *testing.T) stream.Keep {
			return stream.Keep{First: ruleFor(t, ".n"), Grace: 30 * time.Second, Idle: semel.Forever}
		}, []step{
			{"a10x a5y a20z b12x", "", ""},
			{"a6w b12y", "", ""},
			{"c60x", "a5y b12x", ""},               // the watermark is 30
			{"a40v b10v d29x", "a5y b12x", "d29x"}, // duplicates, and a late one
			{"e200x", "a5y b12x c60x", "d29x"},
			{"f210x e210x f300x f211x e200y g260x g300y", "a5y b12x c60x e200x f210x", "d29x g260x"}, // in the transaction in which they take effect
			{"h400x", "a5y b12x c60x e200x f210x g300y", "d29x g260x"},
		}, 6, 5, 5, 2},
		{"last", func(*testing.T) stream.Keep {
			return stream.Keep{Last: stream.Tumbling(time.Minute), Grace: 10 * time.Second, Idle: semel.Forever}
		}, []step{
			{"a10x a50y b12x", "", ""},
			{"a50z a49w a69x", "", ""},
			{"c70x", "a50z b12x", ""},
			{"a59v a69y", "a50z b12x", "a59v"},
			{"c200x", "a50z a69y b12x c70x", "a59v"},
		}, 4, 4, 0, 1},
		{"last by a time in it", func(t *testing.T) stream.Keep {
			return stream.Keep{Last: stream.Tumbling(time.Minute), Time: ruleFor(t, ".n"), Unit: stream.Milliseconds, Grace: 10 * time.Second, Idle: semel.Forever}
		}, []step{
			{"a10x a50y b12x", "", ""},
			{"a50z a49w a69x", "", ""},
			{"c70x", "a50z b12x", ""},
			{"a59v a69y", "a50z b12x", "a59v"},
			{"c200x", "a50z a69y b12x c70x", "a59v"},
		}, 4, 4, 0, 1},
		{"session by a time in it", func(t *testing.T) stream.Keep {
			return stream.Keep{Last: stream.Session(20*time.Second, time.Minute), Time: ruleFor(t, ".n"), Grace: 40 * time.Second, Idle: semel.Forever}
		}, []step{
			{"a10x a50y a30z", "", ""},
			{"b10x a69x a70x a71x", "b10x", ""},
			{"c131x", "a70x b10x", ""},
			{"b69x c300x", "a70x a71x b10x c131x", "b69x"},
		}, 4, 4, 0, 1},
		{"session", func(*testing.T) stream.Keep {
			return stream.Keep{Last: stream.Session(20*time.Second, time.Minute), Grace: 40 * time.Second, Idle: semel.Forever}
		}, []step{
			{"a10x a50y a30z", "", ""},          // the third joins the others
			{"b10x a69x a70x a71x", "b10x", ""}, // the last would make the session too long
			{"c131x", "a70x b10x", ""},
			{"b69x c300x", "a70x a71x b10x c131x", "b69x"},
		}, 4, 4, 0, 1},
		{"newest", func(t *testing.T) stream.Keep { return stream.Keep{Newest: ruleFor(t, ".n")} }, []step{
			{"a5x a4x a5y b1x", "a5x b1x", ""},
			{"a5x a6x b0x", "a5x a6x b1x", ""},
			{"a10x a9x", "a10x a5x a6x b1x", ""},
		}, 4, 5, 0, 0},
	} {
		for _, keep := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, state directory %t", c.name, keep), func(t *testing.T) {
				t.Parallel()
				inBubble(t, 1, func(b *bubble) {
					opts := b.keeping(c.keep(t))
					if keep {
						opts.State.Dir = t.TempDir()
					}
					base := time.Now().Add(-time.Hour).Truncate(time.Minute)
					fresh, superseded, duplicates, late := 0, 0, 0, 0
					for _, s := range c.steps {
						p := b.start(opts)
						for _, text := range strings.Fields(s.records) {
							n, err := strconv.Atoi(text[1 : len(text)-1])
							kafkatest.Must(t, err)
							at := base.Add(time.Duration(n) * time.Second)
							value := strconv.Itoa(n)
							ownTime := c.name != "first" && !strings.HasSuffix(c.name, "in it")
							if !ownTime {
								value = strconv.FormatInt(at.UnixMilli(), 10)
							}
							r := kafkatest.Record(0, text[:1], fmt.Sprintf(`{"n":%s,"of":%q}`, value, text))
							if ownTime {
								r.Timestamp = at
							}
							r.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte(text)}}
							b.Write(r)
						}
						p.Wait(len(strings.Fields(s.records)), kafkatest.Settled)
						p.Stop()
						fresh += p.Events.Decisions(semel.Fresh)
						superseded += p.Events.Decisions(semel.Superseded)
						duplicates += p.Events.Decisions(semel.Duplicate)
						late += p.Events.Decisions(semel.Late)
						for topic, want := range map[string]string{"out": s.outputs, "aside": s.parked} {
							var list []string
							for _, r := range b.Read(topic) {
								_, of, _ := strings.Cut(string(r.Value), `"of":"`)
								of = strings.TrimSuffix(of, `"}`)
								if string(r.Key) != of[:1] || string(r.Headers[0].Value) != of || r.Timestamp.IsZero() {
									t.Errorf("%s with key %s and headers %v", of, r.Key, r.Headers)
								}
								list = append(list, of)
							}
							if slices.Sort(list); strings.Join(list, " ") != want {
								t.Errorf("after %s: %s has %q, want %q", s.records, topic, list, want)
							}
						}
					}
					if fresh != c.fresh || superseded != c.superseded || duplicates != c.dup || late != c.up {
						t.Errorf("%d fresh, %d superseded, %d duplicate, %d late; want %d, %d, %d, %d", fresh, superseded, duplicates, late, c.fresh, c.superseded, c.dup, c.up)
					}
				})
			})
		}
	}
}

// TestAHeldRecordTakesEffectInAnIdlePartition has no record after it.
func TestAHeldRecordTakesEffectInAnIdlePartition(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		const size, grace, idle = 10 * time.Second, 3 * time.Second, 20 * time.Second
		opts := b.keeping(stream.Keep{Last: stream.Tumbling(size), Grace: grace, Idle: idle})
		p := b.start(opts)
		base := time.Now().Truncate(size)
		for i, body := range []string{"1", "2", "3"} {
			r := kafkatest.Record(int32(i%2), "k"+strconv.Itoa(i%2), body)
			r.Timestamp = base.Add(time.Duration(i))
			b.Write(r)
		}
		p.Wait(3, kafkatest.Settled)
		time.Sleep(time.Until(base.Add(size + grace + idle + stream.ClockMargin - time.Second))) // in a bubble
		gauges, err := p.tr.Gauges(b.Context())
		kafkatest.Must(t, err)
		held := 0.0
		for _, g := range gauges {
			if g.Name == "dedup.keep.open" {
				held += g.Value
			}
		}
		if got := b.values("out"); got != "" || held != 2 {
			t.Errorf("%q came early, %v are held", got, held)
		}
		time.Sleep(4 * time.Second)
		if got := b.values("out"); got != "2 3" {
			t.Errorf("outputs %q", got)
		}
		p.Stop()
	})
}

// TestRecordsThatCannotBeKept are parked.
func TestRecordsThatCannotBeKept(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		park := func(k stream.Keep, want string, bodies ...string) {
			t.Helper()
			before := len(b.Read("aside"))
			opts := b.keeping(k)
			opts.Group = fmt.Sprint("g", before)
			p := b.start(opts)
			for _, body := range bodies {
				b.Write(kafkatest.Record(0, "k", body))
			}
			p.Wait(len(bodies), kafkatest.Settled)
			p.Stop()
			if parked := b.Read("aside"); len(parked) <= before || !strings.Contains(headerText(parked[len(parked)-1]), want) {
				t.Errorf("%q is not among the parked records", want)
			}
		}
		park(stream.Keep{First: ruleFor(t, ".n")}, "the time .n: \"yesterday\" is no time", `{"n":"yesterday"}`)
		park(stream.Keep{First: ruleFor(t, ".m")}, "the time .m", `{"n":1}`)
		park(stream.Keep{First: ruleFor(t, ".n")}, "ahead of the clock", fmt.Sprintf(`{"n":%d}`, time.Now().Add(time.Hour).UnixMilli()))
		park(stream.Keep{Newest: ruleFor(t, ".n")}, "they cannot be compared", `{"n":1}`, `{"n":"v2"}`)
		park(stream.Keep{Newest: ruleFor(t, ".n")}, "1.5 is not a whole number", `{"n":1.5}`)
		park(stream.Keep{Newest: ruleFor(t, ".n")}, "neither a text nor a number", `{"n":true}`)
		park(stream.Keep{Newest: ruleFor(t, ".n")}, "a text has at most 32", fmt.Sprintf(`{"n":%q}`, strings.Repeat("v", 33)))
	})
}

// TestAnotherKeepIsRefused changes what is kept in a group.
func TestAnotherKeepIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		p := b.start(b.keeping(stream.Keep{Last: stream.Tumbling(time.Minute)}))
		b.Write(kafkatest.Record(0, "k", "1"))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		for _, opts := range []TransactorOptions{b.keeping(stream.Keep{Last: stream.Tumbling(time.Hour)}), b.counting(time.Minute, 0, 0)} {
			opts.Client = b.Reach()
			tr, err := NewTransactor(&opts)
			kafkatest.Must(t, err)
			if err := tr.Run(b.Context()); err == nil || !strings.Contains(err.Error(), "Restore the former settings, or use a new group") {
				t.Errorf("another keep: %v", err)
			}
		}
	})
}

func TestKeepWithOtherOptions(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		last := stream.Keep{Last: stream.Tumbling(time.Minute)}
		first := stream.Keep{First: ruleFor(t, ".t")}
		for want, change := range map[string]func(*TransactorOptions){
			"exactly one of them":               func(o *TransactorOptions) { o.Keep = &stream.Keep{} },
			"keep a message several times":      func(o *TransactorOptions) { o.Keep = &stream.Keep{Last: stream.Hopping(time.Hour, time.Minute)} },
			"cannot be combined with Aggregate": func(o *TransactorOptions) { o.Aggregate = b.counting(time.Minute, 0, 0).Aggregate },
			"Keep.First has the times":          func(o *TransactorOptions) { o.Keep, o.EventTime = &first, &EventTime{} },
			"Transform them with a pipeline": func(o *TransactorOptions) {
				o.Transform = func(context.Context, pipeline.Delivery) ([]*kgo.Record, error) { return nil, nil }
			},
			"Parked is missing":                func(o *TransactorOptions) { o.Parked = "" },
			"Grace: -1ns is no such time":      func(o *TransactorOptions) { o.Keep = &stream.Keep{Last: last.Last, Grace: -1} },
			"is another topic of the pipeline": func(o *TransactorOptions) { o.Output.Topic = "g-state" },
		} {
			opts := b.keeping(last)
			change(&opts)
			if _, err := NewTransactor(&opts); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	})
}

// TestMembersComeAndGoWithHeldRecords checks that each window and key has exactly one
// record, while programs come, go and die.
func TestMembersComeAndGoWithHeldRecords(t *testing.T) {
	t.Parallel()
	seed := kafkatest.NewSeed(t)
	const parts, size = 4, 200 * time.Millisecond
	inRealTime(t, parts, func(b *bubble) {
		random := rand.New(rand.NewPCG(seed, 1))
		times := map[int]time.Time{}
		keys := map[int]string{}
		write := func(from, n int) {
			var list []*kgo.Record
			for i := from; i < from+n; i++ {
				if times[i].IsZero() {
					times[i] = time.Now().Add(-time.Duration(random.IntN(400)) * time.Millisecond).Truncate(time.Millisecond)
					keys[i] = fmt.Sprintf("%d-%d", i%parts, random.IntN(3))
				}
				r := kafkatest.Record(int32(i%parts), keys[i], strconv.Itoa(i))
				r.Timestamp = times[i]
				list = append(list, r)
			}
			b.Write(list...)
		}
		options := func() TransactorOptions {
			opts := b.keeping(stream.Keep{Last: stream.Tumbling(size), Grace: 100 * time.Millisecond, Idle: 500 * time.Millisecond})
			opts.slack = 500
			return opts
		}
		late := map[int]bool{}
		window := func(i int) string { return keys[i] + " " + times[i].Truncate(size).String() }
		kept := map[string]int{}
		whole := func() bool {
			clear(late)
			clear(kept)
			for _, r := range b.Read("aside") {
				i, err := strconv.Atoi(string(r.Value))
				kafkatest.Must(t, err)
				late[i] = true
			}
			for _, r := range b.Read("out") {
				i, err := strconv.Atoi(string(r.Value))
				kafkatest.Must(t, err)
				if other, ok := kept[window(i)]; ok {
					t.Errorf("%d and %d are of one window", other, i)
				}
				kept[window(i)] = i
			}
			for i := range times {
				if _, ok := kept[window(i)]; !ok && !late[i] {
					return false
				}
			}
			return true
		}
		b.comeAndGo(random, 30, []string{t.TempDir(), "", t.TempDir()}, options, write, func() {
			b.drained("g", "in")
			if !kafkatest.Within(5*time.Minute, whole) {
				t.Error("outputs are missing")
			}
		})
		for i := range times {
			if last := kept[window(i)]; !late[i] && times[i].After(times[last]) {
				t.Errorf("%d is later than %d, which was kept", i, last)
			}
		}
		t.Logf("%d records, %d late, %d kept", len(times), len(late), len(kept))
	}, kfake.NumBrokers(3))
}

func TestANewestVersionCountsByTheWatermarkAndTheClock(t *testing.T) {
	t.Parallel()
	minute := func(o *TransactorOptions) {
		o.Keep, o.Window, o.EventTime = &stream.Keep{Newest: ruleFor(t, ".v")}, time.Minute, &EventTime{}
	}
	tr := try(t, minute)
	tr.at(100, 100, "b", `{"v":1}`)
	tr.at(100, 10, "a", `{"v":2}`) // as of the watermark, 100
	if o := tr.at(150, 150, "a", `{"v":1}`); o.Decision != semel.Superseded {
		t.Errorf("an older version is %s within the window", o.Decision)
	}
	if o := tr.at(161, 161, "a", `{"v":1}`); o.Decision != semel.Fresh {
		t.Errorf("a version is %s behind the window", o.Decision)
	}
	tr = try(t, minute)
	tr.at(0, 0, "a", `{"v":2}`)
	tr.at(0, 200, "b", `{"v":1}`) // from the future: as of now
	if o := tr.at(1, 1, "a", `{"v":1}`); o.Decision != semel.Superseded {
		t.Errorf("after a record from the future an older version is %s", o.Decision)
	}
	tr = try(t, minute)
	tr.at(100, 0, "a", `{"v":2}`)
	if o := tr.at(200, 30, "a", `{"v":1}`); o.Decision != semel.Superseded {
		t.Errorf("an older version is %s within the window by the times of records", o.Decision)
	}
	tr = try(t, func(o *TransactorOptions) { minute(o); o.EventTime = nil })
	tr.at(0, 0, "a", `{"v":2}`)
	if o := tr.at(59, 3600, "a", `{"v":1}`); o.Decision != semel.Superseded { // by the clock
		t.Errorf("an older version is %s by the clock", o.Decision)
	}
	tr.at(61, 0, "b", `{"v":1}`)
	if o := tr.at(61, 0, "a", `{"v":1}`); o.Decision != semel.Fresh {
		t.Errorf("a version is %s when the clock has passed the window", o.Decision)
	}
}

func TestAVersionThatIsParkedIsNotRemembered(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) {
		o.Keep = &stream.Keep{Newest: ruleFor(t, ".v")}
		o.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
			if string(d.Body) == `{"v":5}` {
				return nil, false, errors.New("it fails")
			}
			return d.Body, true, nil
		}
	})
	if o := tr.at(0, 0, "a", `{"v":5}`); o.Reason == "" {
		t.Fatalf("%+v", o)
	}
	if o := tr.at(0, 0, "a", `{"v":4}`); o.Decision != semel.Fresh {
		t.Errorf("a version below one without an effect is %s", o.Decision)
	}
}

// TestARedrivenRecordTakesEffectAlthoughItIsLate takes effect although it is late, and is remembered. One
// that is held then does not take effect.
func TestARedrivenRecordTakesEffectAlthoughItIsLate(t *testing.T) {
	t.Parallel()
	first := func(o *TransactorOptions) {
		o.Keep = &stream.Keep{First: ruleFor(t, ".at"), Grace: time.Second, Idle: semel.Forever}
	}
	body := func(tr *tried, second int) string {
		return fmt.Sprintf(`{"at":%d}`, tr.base.Add(time.Duration(second)*time.Second).UnixMilli())
	}
	tr := try(t, first)
	tr.at(100, 0, "b", body(tr, 100))
	if o := tr.at(100, 0, "a", body(tr, 10)); o.Decision != semel.Late || o.Reason != pipeline.ReasonLate {
		t.Errorf("%+v", o)
	}
	held := tr.at(100, 0, "a", body(tr, 100))
	redriven := tr.at(100, 0, "a", body(tr, 10), pipeline.RedriveHeader, "1")
	if !held.Held || redriven.Decision != semel.Fresh || len(redriven.Outputs) != 1 {
		t.Errorf("held: %t; redriven: %+v", held.Held, redriven)
	}
	if o := tr.at(101, 0, "a", body(tr, 101)); o.Decision != semel.Duplicate {
		t.Errorf("after a redriven one another record is %s", o.Decision)
	}
	tr.at(110, 0, "c", body(tr, 110))
	released, err := tr.Pass(t.Context(), tr.base.Add(110*time.Second))
	kafkatest.Must(t, err)
	for _, r := range released {
		if string(r.Key) == "a" {
			t.Error("a record took effect after a redriven one of its key")
		}
	}
}

// TestAHeldRecordIsDeliveredAsItWasRead is delivered as it was read, and parked so if it fails then.
func TestAHeldRecordIsDeliveredAsItWasRead(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) {
		o.Keep, o.Key.Rule = &stream.Keep{Last: stream.Tumbling(time.Minute), Idle: semel.Forever}, ruleFor(t, "header:id")
		o.Output.KeyHeaders = true
		o.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
			if string(d.Body) == "fails" {
				return nil, false, errors.New("it fails")
			}
			return append([]byte("mapped "), d.Body...), true, nil
		}
	})
	tr.at(10, 10, "unused", "earlier", "id", "0")
	m := &semel.Message{Body: []byte("text"), Time: tr.base.Add(10 * time.Second), Headers: []semel.Header{{Name: "id", Value: []byte("1")}}}
	if o, err := tr.Send(t.Context(), m.Time, m); err != nil || !o.Held {
		t.Fatalf("%+v, %v", o, err)
	}
	if o := tr.at(60, 60, "", "fails", "id", "2"); !o.Held {
		t.Fatalf("%+v", o)
	}
	released, err := tr.Pass(t.Context(), tr.base.Add(time.Minute))
	kafkatest.Must(t, err)
	if len(released) != 2 {
		t.Fatalf("%d records took effect", len(released))
	}
	var r *kgo.Record
	for _, one := range released {
		if string(one.Value) == "mapped text" {
			r = one
		}
	}
	if r == nil || r.Key != nil || !r.Timestamp.Equal(m.Time) || !strings.Contains(headerText(r), "semel-origin=in 0/1") {
		t.Errorf("%+v", released)
	}
	tr.at(120, 120, "", "later", "id", "3")
	tr.written = nil
	if _, err := tr.Pass(t.Context(), tr.base.Add(2*time.Minute)); err == nil || !strings.Contains(err.Error(), "it fails") {
		t.Errorf("a held record that fails: %v", err)
	}
	if body := string(tr.aside.Item.Message.Body); body != "fails" {
		t.Errorf("%q is parked", body)
	}
}

// TestRecordsThatAreTooLargeToBeHeldAreParked do not take effect: with their key they do not fit
// into the topic that holds them.
func TestRecordsThatAreTooLargeToBeHeldAreParked(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) {
		o.Keep, o.Key.Rule = &stream.Keep{Last: stream.Tumbling(time.Minute)}, ruleFor(t, "header:id")
	})
	const most = 1_000_012 // for a topic that nothing is known of
	id, held, refused, written := strings.Repeat("k", 3000), 0, 0, 0
	tr.s.work.env.Produce = func(r *kgo.Record) {
		if r.Topic == "g-state" {
			written++
		}
		if len(r.Value)+cluster.BatchOverhead > most {
			t.Fatalf("a record of %d bytes is written to %s", len(r.Value), r.Topic)
		}
		tr.write(r)
	}
	for size := most - 3*len(id); size < most; size += 50 {
		if o := tr.at(0, 0, "", strings.Repeat("x", size), "id", id); o.Held {
			held++
		} else if refused++; o.Reason == "" {
			t.Fatalf("%+v", o)
		}
	}
	if held == 0 || refused == 0 || written < held {
		t.Errorf("%d are held, and %d refused; %d records have what is held", held, refused, written)
	}
}
