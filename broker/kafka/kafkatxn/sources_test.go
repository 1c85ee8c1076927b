package kafkatxn

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// countingMixed is counting behind a Repartition.
func (b *bubble) countingMixed(size, grace, idle time.Duration) TransactorOptions {
	opts := b.counting(size, grace, idle)
	opts.Repartition = &Repartition{}
	return opts
}

// TestTheSlowestSourceClosesWindows has one partition that is an hour ahead of another. Their
// groups are scattered over both.
func TestTheSlowestSourceClosesWindows(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.countingMixed(time.Minute, 0, semel.Forever)
		opts.State.Dir = t.TempDir()
		base := time.Now().Add(-5 * time.Hour).Truncate(time.Minute)
		id, read, late := 0, 0, 0
		at := func(partition int32, group string, minute int) *kgo.Record {
			id++
			return counted(partition, strconv.Itoa(id), group, 1, base.Add(time.Duration(minute)*time.Minute))
		}
		run := func(want string, records ...*kgo.Record) {
			t.Helper()
			p := b.start(opts)
			b.Write(records...)
			read += len(records)
			p.Wait(len(records), kafkatest.Settled)
			time.Sleep(5 * time.Second) // in a bubble: until the copier has told how far it is
			p.Stop()
			late += p.Events.Decisions(semel.Late)
			if got := p.Events.Count(pipeline.EventRead); got != len(records) {
				t.Errorf("%d records were read, want %d", got, len(records))
			}
			if got := lines(b.results(), base); got != want {
				t.Errorf("results %s, want %s", got, want)
			}
		}
		run("", at(0, "a", 0), at(0, "b", 0), at(0, "c", 0), at(0, "a", 60), at(0, "b", 61)) // nothing is known of the other
		run("", at(1, "a", 0), at(1, "b", 0), at(1, "c", 0), at(1, "a", 0))
		first := "a0 n=3 s=3, b0 n=2 s=2, c0 n=2 s=2"
		run(first, at(1, "a", 1)) // b and c may be in another partition than a
		run(first, at(0, "a", 0)) // late
		again := at(1, "c", 2)
		run("a0 n=3 s=3, a1 n=1 s=1, b0 n=2 s=2, c0 n=2 s=2", again, again)
		run("a0 n=3 s=3, a1 n=1 s=1, a60 n=1 s=1, b0 n=2 s=2, c0 n=2 s=2, c2 n=1 s=1", at(1, "b", 61))
		if late != 1 {
			t.Errorf("%d are late, want 1", late)
		}
	})
}

// TestAPartitionLearnsFromCopiersHowFarOthersAre has an input whose records all go to another
// partition of the stage.
func TestAPartitionLearnsFromCopiersHowFarOthersAre(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.countingMixed(time.Minute, 0, semel.Forever)
		partitioner := repartition.NewPartitioner(repartition.PartitionerOptions{Rule: opts.Key.Rule, By: opts.Aggregate.By, Topic: "g-repartition", Partitions: 2})
		base := time.Now().Add(-5 * time.Hour).Truncate(time.Minute)
		groups := map[int32]string{} // by partition of the stage
		for i := 0; len(groups) < 2; i++ {
			name := fmt.Sprint("g", i)
			_, partition, _, _ := partitioner.Choose(b.Context(), counted(0, "", name, 0, base))
			groups[partition] = name
		}
		at := func(partition int32, group string, minute int) *kgo.Record {
			return counted(partition, fmt.Sprint(partition, group, minute), group, 1, base.Add(time.Duration(minute)*time.Minute))
		}
		p := b.start(opts)
		b.Write(at(0, groups[0], 0), at(0, groups[1], 0), at(0, groups[0], 60), at(0, groups[1], 60), at(1, groups[0], 5))
		p.Wait(5, kafkatest.Settled)
		time.Sleep(5 * time.Second) // in a bubble
		if got := len(b.results()); got != 2 {
			t.Errorf("%d windows are closed, want 2", got)
		}
		p.Stop()
	})
}

// TestACopyOfAnotherGroupKeyIsParked has a copy in a partition in which the group has no
// windows, as after a change of the map.
func TestACopyOfAnotherGroupKeyIsParked(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.countingMixed(time.Minute, 0, 20*time.Second)
		p := b.start(opts)
		partitioner := repartition.NewPartitioner(repartition.PartitionerOptions{Rule: opts.Key.Rule, By: opts.Aggregate.By, Topic: "g-repartition", Partitions: 2})
		b.Write(counted(0, "1", "a", 1, time.Now()))
		p.Wait(1, kafkatest.Settled)
		r := counted(0, "2", "a", 1, time.Now())
		r.Topic = "in"
		_, partition, _, _ := partitioner.Choose(b.Context(), r)
		repartition.Wrap(r, "g-repartition", 1-partition, []byte("2"), time.Now())
		kafkatest.Must(t, b.Client.ProduceSync(b.Context(), r).FirstErr())
		p.Wait(2, kafkatest.Settled)
		time.Sleep(5 * time.Minute) // in a bubble
		p.Stop()
		if got := b.results(); len(got) != 1 || got[0].Values.N != 1 {
			t.Errorf("results %v, want one of one record", got)
		}
		parked := b.Read("aside")
		if len(parked) != 1 || !strings.Contains(headerText(parked[0]), "the filter or the map has changed") {
			t.Errorf("%d are parked: %v", len(parked), parked)
		}
	})
}

// TestKeysAreRememberedByTheSlowestSource has event time, and an input that is further ahead
// than keys are remembered.
func TestKeysAreRememberedByTheSlowestSource(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(b *bubble, o *TransactorOptions){
		"aggregate": func(b *bubble, o *TransactorOptions) {
			o.Aggregate, o.EventTime = b.counting(time.Minute, 0, semel.Forever).Aggregate, &EventTime{}
		},
		"keep first": func(_ *bubble, o *TransactorOptions) {
			o.Keep = &stream.Keep{First: ruleFor(t, ".v"), Idle: semel.Forever}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.options()
				opts.Repartition, opts.Window = &Repartition{}, time.Hour
				change(b, &opts)
				base := time.Now().Add(-10 * time.Hour).Truncate(time.Hour)
				at := func(partition int32, id string, minute int) *kgo.Record {
					when := base.Add(time.Duration(minute) * time.Minute)
					return counted(partition, id, "g", int(when.UnixMilli()), when)
				}
				sent := 0
				p := b.start(opts)
				send := func(records ...*kgo.Record) {
					b.Write(records...)
					sent += len(records)
					p.Wait(sent, kafkatest.Settled)
					time.Sleep(3 * time.Second) // in a bubble
				}
				send(at(0, "ahead", 300))
				send(at(1, "one", 2))
				send(at(1, "other", 10))
				send(at(1, "one", 15)) // a duplicate: what took effect is 13 minutes old
				send(at(1, "last", 50))
				p.Stop()
				if late, duplicates := p.Events.Decisions(semel.Late), p.Events.Decisions(semel.Duplicate); late != 0 || duplicates != 1 {
					t.Errorf("%d are late and %d duplicates, want 0 and 1", late, duplicates)
				}
			})
		})
	}
}

// TestIdleSourcesHoldNothingBack has an input without any record, an input that ends, and an input
// with an open transaction at its end.
func TestIdleSourcesHoldNothingBack(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(b *bubble) {
		const size, idle = 10 * time.Second, 20 * time.Second
		p := b.start(b.countingMixed(size, 0, idle))
		base := time.Now().Truncate(size)
		open := b.Other("other", "in", 10*time.Minute)
		defer open.Close()
		b.Write(counted(1, "1", "a", 1, time.Now()), counted(1, "2", "b", 2, time.Now()))
		p.Wait(2, kafkatest.Settled)
		time.Sleep(5 * idle) // in a bubble
		if got := b.results(); len(got) != 0 {
			t.Errorf("%v came although a partition has an open transaction", got)
		}
		kafkatest.Must(t, open.EndTransaction(b.Context(), kgo.TryAbort))
		aborted := time.Now()
		time.Sleep(idle - time.Second)
		if got := b.results(); len(got) != 0 {
			t.Errorf("%v came before the idle time", got)
		}
		time.Sleep(time.Until(aborted.Add(idle + 5*time.Second)))
		if got := fmt.Sprint(lines(b.results(), base)); !strings.Contains(got, "a0 n=1 s=1") || !strings.Contains(got, "b0 n=1 s=2") {
			t.Errorf("results %s", got)
		}
		came := time.Now().Truncate(size).Add(size).Add(-time.Second)
		time.Sleep(time.Until(came)) // in a bubble: its window ends soon
		b.Write(counted(2, "3", "c", 3, came))
		closes := came.Add(time.Second + idle + stream.ClockMargin)
		time.Sleep(time.Until(closes.Add(-time.Second)))
		if got := len(b.results()); got != 2 {
			t.Errorf("there are %d results a second before the last is due", got)
		}
		time.Sleep(4 * time.Second)
		if got := len(b.results()); got != 3 {
			t.Errorf("there are %d results, want 3", got)
		}
		ends := b.lastRecords("g-repartition")
		time.Sleep(5 * idle)
		if got := b.lastRecords("g-repartition"); fmt.Sprint(got) != fmt.Sprint(ends) {
			t.Errorf("an idle pipeline writes to the topic between its stages: %v, before %v", got, ends)
		}
		p.Stop()
	})
}

// TestAnIdleSourceWaitsForItsCopies has a copy that is not read yet.
func TestAnIdleSourceWaitsForItsCopies(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.countingMixed(time.Minute, 0, time.Minute)
		now := time.Now()
		trial, err := NewTrial(&opts, now, 1)
		kafkatest.Must(t, err)
		send := func(id string) {
			t.Helper()
			r := counted(0, id, "g", 1, now)
			_, err := trial.Send(b.Context(), now, &semel.Message{RecordKey: r.Key, Body: r.Value, Time: r.Timestamp})
			kafkatest.Must(t, err)
		}
		settle := func(at time.Duration, end int64) bool {
			ends := kadm.ListedOffsets{"g-repartition": {0: {Offset: end}}}
			trial.s.t.source.settle(trial.s, now.Add(at).UnixMilli(), trial.sent, ends)
			return trial.s.due()
		}
		send("1")
		if settle(time.Second, 1) || settle(time.Hour, 2) || settle(2*time.Hour, 2) {
			t.Error("a window is closed although a copy was not read")
		}
		send("2")
		if !settle(3*time.Hour, 2) {
			t.Error("no window is closed although all copies were read")
		}
	})
}

// TestAnIdleSourceIsFoundBesideABusyOne has records in one partition only, which come again and
// again.
func TestAnIdleSourceIsFoundBesideABusyOne(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		const size, idle = 10 * time.Second, 20 * time.Second
		p := b.start(b.countingMixed(size, 0, idle))
		for i := range 60 {
			b.Write(counted(0, strconv.Itoa(i), fmt.Sprint("g", i%4), 1, time.Now()))
			time.Sleep(time.Second) // in a bubble
		}
		if n := len(b.results()); n == 0 {
			t.Error("no window is closed after a minute")
		}
		time.Sleep(2 * (size + idle))
		sum := 0
		for _, r := range b.results() {
			sum += r.Values.N
		}
		if sum != 60 {
			t.Errorf("the results have %d records, want 60", sum)
		}
		if late := p.Events.Decisions(semel.Late); late != 0 {
			t.Errorf("%d are late", late)
		}
		p.Stop()
	})
}

// TestAnInputWhoseRecordsExpiredHoldsNothingBack has records that the broker deletes before
// they are copied, while the pipeline is down.
func TestAnInputWhoseRecordsExpiredHoldsNothingBack(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		const size, idle = 10 * time.Second, 20 * time.Second
		opts := b.countingMixed(size, 0, idle)
		p := b.start(opts)
		b.Write(counted(0, "1", "a", 1, time.Now()), counted(1, "2", "a", 1, time.Now()))
		p.Wait(2, kafkatest.Settled)
		p.Stop()
		b.Write(counted(0, "3", "a", 1, time.Now()))
		expired := kadm.Offsets{}
		expired.AddOffset("in", 0, b.Cluster.PartitionInfos("in")[0].HighWatermark, -1)
		_, err := kadm.NewClient(b.Client).DeleteRecords(b.Context(), expired)
		kafkatest.Must(t, err)
		p = b.start(opts)
		b.Write(counted(1, "4", "a", 1, time.Now()))
		time.Sleep(10 * (size + idle)) // in a bubble
		sum := 0
		for _, r := range b.results() {
			sum += r.Values.N
		}
		if sum != 3 {
			t.Errorf("the results have %d records, want 3", sum)
		}
		p.Stop()
	})
}

// TestANewPartitionOfAnInputIsWaitedFor adds a partition to an input while windows are open.
// The copier learns of it minutes later.
func TestANewPartitionOfAnInputIsWaitedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		const size, idle = 10 * time.Second, 20 * time.Second
		p := b.start(b.countingMixed(size, 0, idle))
		sent := 0
		write := func(rounds int, partitions int32) {
			client, err := kgo.NewClient(append(b.Reach(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
			kafkatest.Must(t, err)
			defer client.Close()
			for range rounds {
				for n := range partitions {
					r := counted(n, strconv.Itoa(sent), fmt.Sprint("g", sent%5), 1, time.Now())
					kafkatest.Must(t, client.ProduceSync(b.Context(), r).FirstErr())
					sent++
				}
				time.Sleep(time.Second) // in a bubble
			}
		}
		write(30, 2)
		_, err := kadm.NewClient(b.Client).CreatePartitions(b.Context(), 2, "in")
		kafkatest.Must(t, err)
		write(3, 2)
		write(400, 3) // the last partition stays empty
		time.Sleep(10 * (size + idle))
		sum := 0
		for _, r := range b.results() {
			sum += r.Values.N
		}
		if late := p.Events.Decisions(semel.Late); late != 0 || sum != sent {
			t.Errorf("%d are late, and %d in results, of %d", late, sum, sent)
		}
		p.Stop()
	})
}

// TestKeepOfSeveralSources keeps the last and the earliest record of ids whose records are in
// several partitions with different progress.
func TestKeepOfSeveralSources(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]stream.Keep{
		"last":  {Last: stream.Tumbling(time.Hour), Idle: semel.Forever},
		"first": {First: ruleFor(t, ".at"), Idle: semel.Forever, Grace: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.repartitioned()
				opts.Keep, opts.State.Dir, opts.Output.KeyHeaders = &keep, t.TempDir(), true
				base := time.Now().Add(-9 * time.Hour).Truncate(time.Hour)
				at := func(partition int32, id, minute int) *kgo.Record {
					when := base.Add(time.Duration(minute) * time.Minute)
					r := kafkatest.Record(partition, "any", fmt.Sprintf(`{"id":%d,"minute":%d,"at":%q}`, id, minute, when.Format(time.RFC3339)))
					if r.Timestamp = when; name == "first" { // by the times in the bodies only
						r.Timestamp = time.Now()
					}
					return r
				}
				run := func(records ...*kgo.Record) *program {
					p := b.start(opts)
					b.Write(records...)
					p.Wait(len(records), kafkatest.Settled)
					time.Sleep(3 * time.Second) // in a bubble
					p.Stop()
					return p
				}
				run(at(0, 1, 10), at(0, 1, 20), at(0, 2, 5), at(0, 3, 300)) // far ahead
				if got := b.Read("out"); len(got) != 0 {
					t.Errorf("%d records took effect although the other input may have others", len(got))
				}
				p := run(at(1, 1, 2), at(1, 2, 7), at(1, 1, 40), at(1, 3, 200))
				if late := p.Events.Decisions(semel.Late); late != 0 {
					t.Errorf("%d are late", late)
				}
				var got []string
				for _, r := range b.Read("out") {
					got = append(got, string(r.Value)[:len(`{"id":1,"minute":40`)]+" "+headerText(r))
				}
				slices.Sort(got)
				want := []string{`{"id":1,"minute":40`, `{"id":2,"minute":7,`}
				origin := "semel-origin=in 1/"
				if name == "first" {
					want, origin = []string{`{"id":1,"minute":2,`, `{"id":2,"minute":5,`}, "semel-origin=in "
				}
				if len(got) != len(want) {
					t.Fatalf("got %q, want %q", got, want)
				}
				for i := range want {
					if !strings.HasPrefix(got[i], want[i]) || !strings.Contains(got[i], origin) {
						t.Errorf("got %q, want %s of %s", got[i], want[i], origin)
					}
				}
				run(at(0, 1, 2), at(1, 1, 20)) // both have an effect behind them
				if n := len(b.Read("out")); n != len(want) {
					t.Errorf("%d records took effect, want %d", n, len(want))
				}
			})
		})
	}
}

// TestWindowsOfSeveralSourcesBalance has inputs of random progress, with restarts, members and kills.
func TestWindowsOfSeveralSourcesBalance(t *testing.T) {
	t.Parallel()
	seed := kafkatest.NewSeed(t)
	random := rand.New(rand.NewPCG(seed, 1))
	inBubble(t, 4, func(b *bubble) {
		// A rebalance may take half a minute, and must not look like idle inputs.
		opts := b.countingMixed(time.Minute, 30*time.Second, 10*time.Minute)
		opts.Member.Sessions = 2
		base := time.Now().Add(-24 * time.Hour).Truncate(time.Minute)
		var progress [4]time.Duration
		sent, late := 0, 0
		for round := range 8 {
			p := b.start(opts)
			var records []*kgo.Record
			for range 200 {
				n := random.Int32N(4)
				progress[n] += time.Duration(random.IntN(60)) * time.Second
				when := base.Add(progress[n] - time.Duration(random.IntN(30))*time.Second)
				records = append(records, counted(n, strconv.Itoa(sent), fmt.Sprint("g", random.IntN(7)), 1, when))
				sent++
			}
			b.Write(records...)
			b.Write(records[:50]...) // again
			if round%2 == 0 {
				p.Wait(random.IntN(250), kafkatest.Settled)
				p.Kill()
			} else {
				p.Wait(250, kafkatest.Settled)
				p.Stop()
			}
		}
		p := b.start(opts)
		b.through()
		time.Sleep(30 * time.Minute) // in a bubble: until all windows are closed
		p.Stop()
		sum := 0
		for _, r := range b.results() { // which checks that each comes once
			sum += r.Values.N
		}
		for _, r := range b.Read("aside") {
			if !strings.Contains(headerText(r), "late") {
				t.Errorf("parked %s", headerText(r))
			}
			late++
		}
		if sum+late != sent || late > 0 {
			t.Errorf("%d in results and %d late, of %d", sum, late, sent)
		}
	})
}
