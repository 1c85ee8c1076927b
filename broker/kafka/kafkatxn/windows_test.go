package kafkatxn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// counting returns options for counts and sums of windows by the member g.
func (b *bubble) counting(size, grace, idle time.Duration) TransactorOptions {
	b.Helper()
	by, err := key.ParseRule(".g")
	kafkatest.Must(b.T, err)
	values, err := stream.Values(stream.Value{Name: "n", Of: "count"}, stream.Value{Name: "s", Of: "sum .v"})
	kafkatest.Must(b.T, err)
	opts := b.options()
	opts.Aggregate = &stream.Aggregate{By: by, Over: stream.Tumbling(size), Func: values, Grace: grace, Idle: idle}
	return opts
}

// counted returns a record with an id, a group and a value.
func counted(partition int32, id, group string, value int, at time.Time) *kgo.Record {
	r := kafkatest.Record(partition, id, fmt.Sprintf(`{"g":%q,"v":%d}`, group, value))
	r.Timestamp = at
	return r
}

// result is a result that was written.
type result struct {
	Key        string
	Start, End time.Time
	Values     struct{ N, S int }
}

// results returns the written results, with the checks that hold for all of them.
func (b *bubble) results() (list []result) {
	b.Helper()
	seen := map[string]bool{}
	for _, r := range b.Read("out") {
		var got result
		kafkatest.Must(b.T, json.Unmarshal(r.Value, &got))
		list = append(list, got)
		name := got.Key + " " + got.Start.Format(time.RFC3339Nano)
		if seen[name] {
			b.Errorf("two results of %s", name)
		}
		seen[name] = true
		window := got.Start.Format(time.RFC3339Nano) + "/" + got.End.Format(time.RFC3339Nano)
		if string(r.Key) != got.Key || !r.Timestamp.Equal(got.End.Add(-time.Millisecond)) || len(r.Headers) != 2 || string(r.Headers[0].Value) != "true" || string(r.Headers[1].Value) != window {
			b.Errorf("%s at %v with %v", r.Key, r.Timestamp, r.Headers)
		}
	}
	return list
}

// lines returns results as text, counted in minutes from a time.
func lines(list []result, from time.Time) string {
	var out []string
	for _, r := range list {
		out = append(out, fmt.Sprintf("%s%v n=%d s=%d", r.Key, r.Start.Sub(from).Minutes(), r.Values.N, r.Values.S))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestResultsOfWindows has messages of each fate, and restarts in between.
func TestResultsOfWindows(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("state directory %t", keep), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.counting(time.Minute, 30*time.Second, semel.Forever)
				if keep {
					opts.State.Dir = t.TempDir()
				}
				base := time.Now().Add(-time.Hour).Truncate(time.Minute)
				id := 0
				late, duplicates, delivered := 0, 0, 0
				run := func(want string, records ...*kgo.Record) {
					t.Helper()
					p := b.start(opts)
					b.Write(records...)
					p.Wait(len(records), kafkatest.Settled)
					p.Stop()
					late += p.Events.Decisions(semel.Late)
					duplicates += p.Events.Decisions(semel.Duplicate)
					delivered += p.Events.Decisions(semel.Fresh)
					e := p.Events // every record is counted once
					if read, sum := e.Count(pipeline.EventRead), e.Count(pipeline.EventDelivered)+e.Count(pipeline.EventFiltered)+e.Decisions(semel.Duplicate)+e.Count(pipeline.EventParked); read != len(records) || sum != read {
						t.Errorf("%d records were read, want %d, and %d are in windows, filtered, duplicates or parked", read, len(records), sum)
					}
					if got := lines(b.results(), base); got != want {
						t.Errorf("results %s, want %s", got, want)
					}
				}
				at := func(group string, second int) *kgo.Record {
					id++
					return counted(0, strconv.Itoa(id), group, second, base.Add(time.Duration(second)*time.Second))
				}
				first, again := at("a", 1), at("a", 2)
				run("", first, again, again, at("b", 59))
				run("", at("a", 80), at("a", 3)) // within the grace
				run("a0 n=3 s=6, b0 n=1 s=59", at("b", 90), first, at("a", 4))
				run("a0 n=3 s=6, b0 n=1 s=59", at("a", 5), again)
				far := at("a", 3600+600) // ahead of the clock
				broken := kafkatest.Record(0, "broken", `{"g":"a","v":"0.5"}`)
				broken.Timestamp = base.Add(100 * time.Second)
				nameless := kafkatest.Record(0, "nameless", `{"v":1}`)
				nameless.Timestamp = base.Add(100 * time.Second)
				run("a0 n=3 s=6, a1 n=1 s=80, b0 n=1 s=59, b1 n=1 s=90", far, broken, nameless, at("c", 150))
				if late != 2 || duplicates != 3 || delivered != 10 {
					t.Errorf("%d late, %d duplicates, %d fresh", late, duplicates, delivered)
				}
				var parked []string
				for _, r := range b.Read("aside") {
					parked = append(parked, fmt.Sprint(string(r.Key), " ", headerText(r)))
				}
				slices.Sort(parked)
				wants := []string{"7 ", "8 ", "9 ", "broken ", "nameless "}
				for i, want := range []string{"is closed, as all windows up to", "is closed, as all windows up to", "ahead of the clock", `.v is "0.5": only numbers`, "group key .g"} {
					if len(parked) != 5 || !strings.HasPrefix(parked[i], wants[i]) || !strings.Contains(parked[i], want) {
						t.Errorf("parked %q", parked)
						break
					}
				}
			})
		})
	}
}

// TestResultsOfOtherWindows has hopping windows, sessions, and corrections, with a restart
// after each record.
func TestResultsOfOtherWindows(t *testing.T) {
	t.Parallel()
	type step struct {
		second, value int
		want          string // of all results
	}
	for name, c := range map[string]struct {
		over    stream.Window
		correct time.Duration
		late    int
		steps   []step
	}{
		"hopping": {over: stream.Hopping(2*time.Minute, time.Minute), late: 1, steps: []step{
			{1, 1, ""},
			{70, 10, "a-1 n=1 s=1"},
			{59, 100, "a-1 n=1 s=1"}, // late for one of its windows
			{125, 0, "a-1 n=1 s=1, a0 n=3 s=111"},
			{58, 1000, "a-1 n=1 s=1, a0 n=3 s=111"}, // late
			{240, 0, "a-1 n=1 s=1, a0 n=3 s=111, a1 n=2 s=10, a2 n=1 s=0"},
		}},
		"session": {over: stream.Session(10*time.Second, 30*time.Second), late: 1, steps: []step{
			{0, 1, ""},
			{12, 10, "a0 n=1 s=1"}, // more than the gap
			{22, 100, "a0 n=1 s=1"},
			{11, 1000, "a0 n=1 s=1"},
			{0, 5, "a0 n=1 s=1"}, // late
			{40, 0, "a0 n=1 s=1, a0.18333333333333332 n=3 s=1110"},
		}},
		"corrected": {over: stream.Tumbling(time.Minute), correct: time.Minute, late: 1, steps: []step{
			{1, 1, ""},
			{60, 10, "a0 n=1 s=1"},
			{2, 100, "a0 n=1 s=1, a0 n=2 s=101"},
			{119, 0, "a0 n=1 s=1, a0 n=2 s=101"},
			{3, 1000, "a0 n=1 s=1, a0 n=2 s=101, a0 n=3 s=1101"},
			{120, 0, "a0 n=1 s=1, a0 n=2 s=101, a0 n=3 s=1101, a1 n=2 s=10"},
			{4, 5, "a0 n=1 s=1, a0 n=2 s=101, a0 n=3 s=1101, a1 n=2 s=10"}, // late
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.counting(time.Minute, 0, semel.Forever)
				opts.Aggregate.Over, opts.Aggregate.Correct = c.over, c.correct
				base, late := time.Now().Add(-time.Hour).Truncate(time.Minute), 0
				for i, step := range c.steps {
					p := b.start(opts)
					b.Write(counted(0, strconv.Itoa(i), "a", step.value, base.Add(time.Duration(step.second)*time.Second)))
					p.Wait(1, kafkatest.Settled)
					p.Stop()
					late += p.Events.Decisions(semel.Late)
					if got := lines(b.written(), base); got != step.want {
						t.Errorf("results at %d: %s, want %s", step.second, got, step.want)
					}
				}
				if late != c.late {
					t.Errorf("%d late, want %d", late, c.late)
				}
				revisions := map[string]uint64{}
				for _, r := range b.Read("out") {
					if n := len(r.Headers); (n == 3) != (c.correct > 0) {
						t.Errorf("headers %v", r.Headers)
					} else if n == 3 {
						revision, err := strconv.ParseUint(string(r.Headers[2].Value), 10, 64)
						window := string(r.Headers[1].Value)
						if last, ok := revisions[window]; err != nil || ok && revision <= last {
							t.Errorf("revision %s of %s after %d", r.Headers[2].Value, window, last)
						}
						revisions[window] = revision
					}
				}
			})
		})
	}
}

// TestEarlyResultsComeBeforeTheFinalOne has changes at several times, and a restart.
func TestEarlyResultsComeBeforeTheFinalOne(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.counting(10*time.Minute, 0, time.Minute)
		opts.Aggregate.Early = 10 * time.Second
		base := time.Now().Truncate(10 * time.Minute)
		var finals []string
		check := func(want string) {
			b.Helper()
			var list []string
			finals = finals[:0]
			for _, r := range b.Read("out") {
				var got result
				kafkatest.Must(b.T, json.Unmarshal(r.Value, &got))
				if string(r.Headers[0].Value) == "true" {
					finals = append(finals, fmt.Sprint(got.Key, got.Values.N))
				} else {
					list = append(list, fmt.Sprint(got.Key, got.Values.N))
				}
			}
			slices.Sort(list) // the topic has partitions
			slices.Sort(finals)
			if got := strings.Join(list, " "); got != want {
				b.Errorf("early results %s, want %s", got, want)
			}
		}
		p := b.start(opts)
		b.Write(counted(0, "1", "a", 1, time.Now()), counted(0, "2", "b", 1, time.Now()))
		p.Wait(2, kafkatest.Settled)
		time.Sleep(12 * time.Second) // in a bubble
		check("a1 b1")
		time.Sleep(time.Minute)
		check("a1 b1") // nothing has changed
		b.Write(counted(0, "3", "a", 1, time.Now()))
		p.Wait(3, kafkatest.Settled)
		b.Write(counted(0, "4", "a", 1, time.Now()))
		p.Wait(4, kafkatest.Settled)
		time.Sleep(3 * time.Second)
		check("a1 a2 b1") // the time between early results has not passed
		time.Sleep(9 * time.Second)
		check("a1 a2 a3 b1")
		p.Stop()
		p = b.start(opts)
		time.Sleep(12 * time.Second)
		check("a1 a2 a3 a3 b1 b1") // this process does not know that they were written
		time.Sleep(time.Until(base.Add(13 * time.Minute)))
		check("a1 a2 a3 a3 b1 b1")
		if got := strings.Join(finals, " "); got != "a3 b1" {
			b.Errorf("final results %s", got)
		}
		p.Stop()
	})
}

// TestEarlyResultsOfManyGroupsComeTogether has more than one transaction takes.
func TestEarlyResultsOfManyGroupsComeTogether(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.counting(10*time.Minute, 0, semel.Forever)
		opts.Aggregate.Early, opts.results = time.Minute, 2
		p := b.start(opts)
		for i := range 9 {
			b.Write(counted(0, strconv.Itoa(i), "g"+strconv.Itoa(i), i, time.Now()))
		}
		p.Wait(9, kafkatest.Settled)
		time.Sleep(90 * time.Second) // in a bubble
		seen := map[string]bool{}
		for _, r := range b.written() {
			seen[r.Key] = true
		}
		if len(seen) != 9 {
			t.Errorf("there are early results of %d groups, want 9", len(seen))
		}
		p.Stop()
	})
}

// written returns all results that were written.
func (b *bubble) written() (list []result) {
	b.Helper()
	for _, r := range b.Read("out") {
		var got result
		kafkatest.Must(b.T, json.Unmarshal(r.Value, &got))
		list = append(list, got)
	}
	return list
}

func headerText(r *kgo.Record) string {
	var all []string
	for _, h := range r.Headers {
		all = append(all, h.Key+"="+string(h.Value))
	}
	return strings.Join(all, " ")
}

// TestAnIdlePartitionClosesItsWindows has no message after the last window. Its
// transaction must commit the offset again.
func TestAnIdlePartitionClosesItsWindows(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		const size, grace, idle = 10 * time.Second, 3 * time.Second, 20 * time.Second
		p := b.start(b.counting(size, grace, idle))
		base := time.Now().Truncate(size)
		b.Write(counted(0, "1", "a", 1, time.Now()), counted(1, "2", "b", 2, time.Now()))
		p.Wait(2, kafkatest.Settled)
		offsets := b.offsets()
		due := base.Add(size + grace + idle + stream.ClockMargin)
		time.Sleep(time.Until(due.Add(-time.Second))) // in a bubble
		if got := b.results(); len(got) != 0 {
			t.Errorf("%v came early", got)
		}
		time.Sleep(4 * time.Second)
		if got := lines(b.results(), base); got != "a0 n=1 s=1, b0 n=1 s=2" {
			t.Errorf("results %s", got)
		}
		if got := strings.Join(slices.Compact(offsets()), ", "); got != "0 at 1, 1 at 1" {
			t.Errorf("committed offsets %q", got)
		}
		b.Write(counted(0, "3", "a", 1, base.Add(size-1))) // the step is remembered
		p.Wait(3, kafkatest.Settled)
		p.Stop()
		p = b.start(b.counting(size, grace, idle))
		b.Write(counted(1, "4", "b", 1, base.Add(size-1)))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		if n := len(b.Read("aside")); n != 2 {
			t.Errorf("%d late records are parked, want 2", n)
		}
	})
}

// offsets returns a function for the offsets that transactions have committed since, sorted.
func (b *bubble) offsets() func() []string {
	var mu sync.Mutex
	var list []string
	b.Cluster.ControlKey(int16(kmsg.TxnOffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		for _, topic := range req.(*kmsg.TxnOffsetCommitRequest).Topics {
			for _, part := range topic.Partitions {
				list = append(list, fmt.Sprintf("%d at %d", part.Partition, part.Offset))
			}
		}
		return nil, nil, false
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(list))
	}
}

// TestResultsWithoutRecordsCommitAnOffset has results that the clock causes. Their transaction
// has no records, and brokers only refuse that of a replaced member if it commits an offset. In
// a bubble, the client waits forever for the end of a transaction without one.
func TestResultsWithoutRecordsCommitAnOffset(t *testing.T) {
	t.Parallel()
	inRealTime(t, 2, func(b *bubble) {
		offsets := b.offsets()
		p := b.start(b.counting(10*time.Second, 0, 3*time.Second)) // long enough for the records to be committed before
		old := time.Now().Add(-time.Minute)
		b.Write(counted(0, "1", "a", 1, old), counted(1, "2", "b", 2, old))
		if !kafkatest.Within(5*time.Minute, func() bool { return b.finals() == "a n=1 s=1, b n=1 s=2" }) {
			t.Errorf("results %s", b.finals())
		}
		p.Stop()
		got := strings.Join(offsets(), ", ") // once with a record, and once with a result
		if !strings.Contains(got, "0 at 1, 0 at 1") || !strings.Contains(got, "1 at 1, 1 at 1") {
			t.Errorf("committed offsets %q", got)
		}
	})
}

// TestAnIdlePartitionClosesItsWindowsInTime has windows that ended before the clocks' margin, so
// that only the idle time is left. The member does not ask for ends more often than it must.
func TestAnIdlePartitionClosesItsWindowsInTime(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		const size, idle, rounds = 10 * time.Second, 20 * time.Second, 7
		p := b.start(b.counting(size, 0, idle))
		var asked atomic.Int32
		b.Cluster.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			asked.Add(1)
			return nil, nil, false
		})
		began := time.Now()
		for n := range rounds {
			time.Sleep(137 * time.Millisecond) // in a bubble
			first := time.Now()                // the member may read the record before the end of Write
			b.Write(counted(0, strconv.Itoa(n), strconv.Itoa(n), 1, first.Add(-size-stream.ClockMargin-time.Second)))
			last := time.Now()
			p.Wait(1, kafkatest.Settled)
			time.Sleep(time.Until(first.Add(idle - time.Millisecond))) // in a bubble
			before := watermarkOf(p)
			time.Sleep(time.Until(last.Add(idle + 200*time.Millisecond))) // in a bubble
			if after := watermarkOf(p); before >= first.Add(-size).UnixMilli() || after < first.Add(-size).UnixMilli() {
				t.Errorf("round %d: the window is not closed when the idle time has passed", n)
			}
		}
		seconds := int32(time.Since(began) / time.Second)
		most := seconds + 10*rounds // the monitoring asks once a second
		if got := asked.Load(); got > most {
			t.Errorf("there were %d requests for the ends of partitions in %d seconds", got, seconds)
		}
		asked.Store(0)
		time.Sleep(10 * time.Minute)                  // in a bubble
		if got := asked.Load(); got > 10*60+2*60+10 { // and twice in 10 s for damage
			t.Errorf("there were %d requests for the ends of partitions in 10 minutes without open windows", got)
		}
		p.Stop()
		if got := len(b.results()); got != rounds {
			t.Errorf("%d results, want %d", got, rounds)
		}
	})
}

// TestAnOpenTransactionKeepsAPartitionFromBeingIdle has records in the input that cannot be read yet.
func TestAnOpenTransactionKeepsAPartitionFromBeingIdle(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		const size, idle = 10 * time.Second, 20 * time.Second
		p := b.start(b.counting(size, 0, idle))
		base := time.Now().Truncate(size)
		b.Write(counted(0, "1", "a", 1, time.Now()))
		p.Wait(1, kafkatest.Settled)
		open := time.Now()
		other := b.Other("other", "in", 5*time.Minute)
		time.Sleep(4 * time.Minute) // in a bubble
		if got := b.results(); len(got) != 0 {
			t.Errorf("%v came while a record was hidden", got)
		}
		kafkatest.Must(t, other.ProduceSync(b.Context(), counted(0, "2", "a", 5, open)).FirstErr())
		kafkatest.Must(t, other.EndTransaction(b.Context(), kgo.TryCommit))
		other.Close()
		p.Wait(2, kafkatest.Settled)
		time.Sleep(idle + size + 2*stream.ClockMargin)
		if got := lines(b.results(), base); got != "a0 n=2 s=6" {
			t.Errorf("results %s", got)
		}
		if n := len(b.Read("aside")); n != 1 { // the one that opened the transaction has no key
			t.Errorf("%d records are parked, and ends of transactions are not records", n)
		}
		p.Stop()
	}, kafkatest.LongTransactions)
}

// TestManyResultsAreWrittenInSeveralTransactions closes more windows than one transaction
// takes, and ends programs in between.
func TestManyResultsAreWrittenInSeveralTransactions(t *testing.T) {
	t.Parallel()
	const groups, most = 1000, 20
	limited := func(b *bubble) TransactorOptions {
		opts := b.counting(time.Minute, 0, semel.Forever)
		opts.results = most
		opts.Limits.Interval = 20 * time.Millisecond
		opts.Timeouts.Session, opts.Timeouts.Transaction, opts.Timeouts.Shutdown = time.Second, 2*time.Second, 3*time.Second
		return opts
	}
	inRealTime(t, 1, func(b *bubble) {
		base := time.Now().Add(-time.Hour).Truncate(time.Minute)
		var records []*kgo.Record
		for i := range groups {
			records = append(records, counted(0, strconv.Itoa(i), "g"+strconv.Itoa(i), i, base))
		}
		b.Write(records...)
		p := b.start(limited(b))
		p.Wait(groups, kafkatest.Settled)
		b.Write(counted(0, "last", "last", 0, base.Add(time.Hour)))
		for ends := 0; ends < 5; ends++ { // each end is somewhere in the closing
			p.Wait(1, kafkatest.Settled)
			p.Kill()
			<-p.Done
			p = b.start(limited(b))
			b.Write(counted(0, fmt.Sprint("end", ends), "last", 0, base.Add(time.Hour)))
		}
		total := 0
		if !kafkatest.Within(5*time.Minute, func() bool { total = len(b.results()); return total >= groups }) || total != groups {
			t.Errorf("%d results, want %d", total, groups)
		}
		p.Stop()
	})
}

// TestLargeResultsWaitForBrokers closes windows with large results together, with brokers
// that take them slowly.
func TestLargeResultsWaitForBrokers(t *testing.T) {
	t.Parallel()
	const groups, size, most = 150, 512 << 10, 64 << 20
	inBubble(t, 1, func(b *bubble) {
		base := time.Now().Add(-time.Hour).Truncate(time.Minute)
		for i := range groups {
			b.Write(counted(0, strconv.Itoa(i), "g"+strconv.Itoa(i), i, base))
		}
		b.Cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			time.Sleep(time.Millisecond) // ends when nothing else can continue
			return nil, nil, false
		})
		opts, held := b.counting(time.Minute, 0, semel.Forever), &held{}
		opts.Aggregate.Func = padded{opts.Aggregate.Func, size}
		p := b.Run(b.NewLine(), func(client []kgo.Opt, o pipeline.Observer) (kafkatest.Runner, error) {
			opts.Client, opts.Observer = append(client, kgo.WithHooks(held)), o
			return NewTransactor(&opts)
		})
		p.Wait(groups, kafkatest.Settled)
		b.Write(counted(0, "last", "last", 0, base.Add(time.Hour)))
		if !kafkatest.Within(5*time.Minute, func() bool { return len(b.results()) >= groups }) || len(b.results()) != groups {
			b.Errorf("%d results, want %d", len(b.results()), groups)
		}
		p.Stop()
		if peak := held.peak.Load(); peak < most-2*size || peak > most+2*size {
			b.Errorf("the client held %d bytes of results, want about %d", peak, most)
		}
	})
}

// padded has results with white space behind them.
type padded struct {
	stream.Aggregator
	size int
}

func (p padded) Result(c *stream.Closed) ([]byte, error) {
	body, err := p.Aggregator.Result(c)
	return append(body, bytes.Repeat([]byte(" "), p.size)...), err
}

// held is a hook of a client that measures the bytes of records that brokers have not
// taken.
type held struct{ now, peak atomic.Int64 }

func (h *held) OnProduceRecordBuffered(r *kgo.Record) {
	h.peak.Store(max(h.peak.Load(), h.now.Add(int64(len(r.Value)))))
}

func (h *held) OnProduceRecordUnbuffered(r *kgo.Record, _ error) { h.now.Add(-int64(len(r.Value))) }

// TestMembersComeAndGoWithWindows checks that each message is in one result or parked,
// while programs come, go and die.
func TestMembersComeAndGoWithWindows(t *testing.T) {
	t.Parallel()
	for _, long := range []int{0, 300} { // bytes of a value that makes accumulators long
		seed := kafkatest.NewSeed(t)
		t.Run(fmt.Sprint(long, " bytes"), func(t *testing.T) {
			t.Parallel()
			const parts = 4
			values, err := stream.Values(stream.Value{Name: "n", Of: "count"}, stream.Value{Name: "s", Of: "sum .v"}, stream.Value{Name: "long", Of: "last .long"})
			kafkatest.Must(t, err)
			inRealTime(t, parts, func(b *bubble) {
				random := rand.New(rand.NewPCG(seed, 1))
				times := map[int]time.Time{}
				write := func(from, n int) {
					var list []*kgo.Record
					for i := from; i < from+n; i++ {
						if times[i].IsZero() {
							times[i] = time.Now().Add(-time.Duration(random.IntN(400)) * time.Millisecond)
						}
						r := counted(int32(i%parts), strconv.Itoa(i), fmt.Sprintf("%d-%d", i%parts, random.IntN(3)), i, times[i])
						r.Value = fmt.Appendf(bytes.TrimSuffix(r.Value, []byte("}")), `,"long":%q}`, strings.Repeat("x", long))
						list = append(list, r)
					}
					b.Write(list...)
				}
				options := func() TransactorOptions {
					opts := b.counting(200*time.Millisecond, 100*time.Millisecond, 500*time.Millisecond)
					opts.Aggregate.Func, opts.slack, opts.fileSize = values, 500, 2000
					return opts
				}
				found := map[int]bool{} // parked
				n, s := 0, 0
				whole := func() bool {
					clear(found)
					n, s = 0, 0
					for _, r := range b.results() {
						n, s = n+r.Values.N, s+r.Values.S
					}
					for _, r := range b.Read("aside") {
						id, err := strconv.Atoi(string(r.Key))
						kafkatest.Must(t, err)
						found[id] = true
					}
					return n+len(found) >= len(times)
				}
				total := b.comeAndGo(random, 30, []string{t.TempDir(), "", t.TempDir()}, options, write, func() {
					b.drained("g", "in")
					if !kafkatest.Within(5*time.Minute, whole) {
						t.Error("results are missing")
					}
				})
				for id := range maps.Keys(found) {
					n, s = n+1, s+id
				}
				if want := total * (total - 1) / 2; n != total || s != want {
					t.Errorf("%d messages with the sum %d are in results or parked, want %d and %d", n, s, total, want)
				}
				t.Logf("%d messages, %d late", total, len(found))
			}, kfake.NumBrokers(3))
		})
	}
}

// TestWindowsWithoutAnOffsetWait has no offset that the brokers could check a member by:
// the group's offsets and all records were deleted. Another partition has one.
func TestWindowsWithoutAnOffsetWait(t *testing.T) {
	t.Parallel()
	for _, early := range []time.Duration{0, 5 * time.Second} {
		inBubble(t, 2, func(b *bubble) {
			opts := b.counting(10*time.Second, 0, 20*time.Second)
			opts.Aggregate.Early = early
			p := b.start(opts)
			b.Write(counted(0, "1", "a", 1, time.Now()))
			p.Wait(1, kafkatest.Settled)
			p.Stop()
			client, err := kgo.NewClient(b.Reach()...)
			kafkatest.Must(b.T, err)
			defer client.Close()
			adm := kadm.NewClient(client)
			time.Sleep(time.Minute) // in a bubble: the group forgets the member
			gone, err := adm.DeleteGroups(b.Context(), "g")
			kafkatest.Must(b.T, err)
			kafkatest.Must(b.T, gone.Error())
			var all kadm.Offsets
			all.AddOffset("in", 0, -1, -1)
			_, err = adm.DeleteRecords(b.Context(), all)
			kafkatest.Must(b.T, err)
			before := len(b.Read("out"))
			p = b.start(opts)
			time.Sleep(2 * time.Minute) // in a bubble
			b.Write(counted(1, "b", "b", 1, time.Now()))
			p.Wait(1, kafkatest.Settled)
			time.Sleep(early + time.Second) // in a bubble
			if got := slices.DeleteFunc(b.Read("out"), func(r *kgo.Record) bool { return string(r.Key) == "b" }); len(got) != before {
				t.Errorf("%d results were written without an offset", len(got)-before)
			}
			b.Write(counted(0, "2", "a", 2, time.Now()))
			p.Wait(2, kafkatest.Settled)
			time.Sleep(5 * time.Second)
			if got := b.finals(); got != "a n=1 s=1" {
				t.Errorf("results %s", got)
			}
			p.Stop()
		})
	}
}

// finals returns the final results.
func (b *bubble) finals() string {
	b.Helper()
	var list []string
	for _, r := range b.Read("out") {
		var got result
		kafkatest.Must(b.T, json.Unmarshal(r.Value, &got))
		if string(r.Headers[0].Value) == "true" {
			list = append(list, fmt.Sprintf("%s n=%d s=%d", got.Key, got.Values.N, got.Values.S))
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// TestWindowsWaitForOffsetsThatComeLate has results that are due before the group's offsets
// are known. Brokers hold them back while the transaction of an earlier owner is open.
func TestWindowsWaitForOffsetsThatComeLate(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.counting(10*time.Second, 0, 20*time.Second)
		opts.Aggregate.Early = 5 * time.Second
		p := b.start(opts)
		b.Write(counted(0, "1", "a", 1, time.Now()))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		known := time.Now().Add(15 * time.Second)
		b.Cluster.ControlKey(int16(kmsg.OffsetFetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			if time.Now().After(known) {
				return nil, nil, false
			}
			req := kreq.(*kmsg.OffsetFetchRequest)
			answer := req.ResponseKind().(*kmsg.OffsetFetchResponse)
			for _, g := range req.Groups {
				group := kmsg.NewOffsetFetchResponseGroup()
				group.Group = g.Group
				for _, topic := range g.Topics {
					part := kmsg.NewOffsetFetchResponseGroupTopicPartition()
					part.ErrorCode = kerr.UnstableOffsetCommit.Code
					group.Topics = append(group.Topics, kmsg.OffsetFetchResponseGroupTopic{Topic: topic.Topic, TopicID: topic.TopicID, Partitions: []kmsg.OffsetFetchResponseGroupTopicPartition{part}})
				}
				answer.Groups = append(answer.Groups, group)
			}
			return answer, nil, true
		})
		before := len(b.Read("out"))
		p = b.start(opts)
		time.Sleep(time.Until(known.Add(-time.Second))) // in a bubble
		if got := b.Read("out"); len(got) != before {
			t.Errorf("%d results were written without an offset", len(got)-before)
		}
		time.Sleep(2 * time.Minute)
		if got := b.finals(); got != "a n=1 s=1" {
			t.Errorf("results %q", got)
		}
		p.Stop()
	})
}

// TestDecimalSumsSurviveARestart has sums that do not fit into a whole number of 64 bits, which are
// stored and read again after each record.
func TestDecimalSumsSurviveARestart(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("state directory %t", keep), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.counting(time.Minute, 0, semel.Forever)
				var err error
				opts.Aggregate.Func, err = stream.Values(stream.Value{Name: "s", Of: "sum .v"}, stream.Value{Name: "lo", Of: "min .v"}, stream.Value{Name: "first", Of: "first .v"})
				kafkatest.Must(t, err)
				if keep {
					opts.State.Dir = t.TempDir()
				}
				base := time.Now().Add(-time.Hour).Truncate(time.Minute)
				for i, number := range []string{"7", "0.1", "123456789012345678901234567890.05", "-0.15", "1e999999999", "2"} {
					r := kafkatest.Record(0, strconv.Itoa(i), `{"g":"a","v":`+number+`}`)
					if r.Timestamp = base.Add(time.Duration(i) * time.Second); number == "2" {
						r.Timestamp = base.Add(time.Minute)
					}
					p := b.start(opts)
					b.Write(r)
					p.Wait(1, kafkatest.Settled)
					p.Stop()
				}
				if got := b.values("out"); !strings.Contains(got, `"values":{"s":123456789012345678901234567897,"lo":-0.15,"first":7}}`) || strings.Count(got, `"values"`) != 1 {
					t.Errorf("the results are %s", got)
				}
				if parked := b.Read("aside"); len(parked) != 1 || !strings.Contains(headerText(parked[0]), "at most 60 digits before the point") {
					t.Errorf("%d are parked", len(parked))
				}
			})
		})
	}
}
