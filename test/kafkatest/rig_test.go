package kafkatest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

func TestRigReadsTheRecordsThatItWrote(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		Virtual(t, 2, func(b *Rig) {
			b.Write(Numbered(3, 4, 2)...)
			records := b.Read("in")
			if got := KeysOf(records); !slices.Equal(got, []string{"3", "4", "5", "6"}) {
				b.Errorf("keys %q", got)
			}
			if values := b.Values(records); values["4"] != "value 4" || len(values) != 4 {
				b.Errorf("values %q", values)
			}
			b.Write(Record(1, "", "without a key"))
			if again := b.Read("in"); len(again) != 5 || again[slices.IndexFunc(again, func(r *kgo.Record) bool { return r.Key == nil })].Partition != 1 {
				b.Errorf("%d records after the second read", len(again))
			}
			for _, r := range Numbered(0, 2, 1) {
				r.Topic = "out"
				b.Write(r)
			}
			b.Exactly(2)
		})
	})
}

func TestRigEndsWhileTwoRequestsAreDelayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		Virtual(t, 1, func(b *Rig) {
			b.Cluster.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
				b.Cluster.KeepControl()
				b.Sleep(time.Minute)
				return nil, nil, false
			})
			for range 2 {
				client, err := kgo.NewClient(b.Reach()...)
				Must(b.T, err)
				defer client.Close()
				go func() { _, _ = kadm.NewClient(client).ListEndOffsets(b.Context(), "in") }() // its answer comes too late
			}
			time.Sleep(time.Second) // in a bubble
		})
	})
}

func TestRigReadsAfterOpenTransactionsEnd(t *testing.T) {
	t.Parallel()
	Real(t, 1, func(b *Rig) {
		other := b.Other("other", "in", time.Minute)
		defer other.Close()
		ended := make(chan error, 1)
		go func() { ended <- other.EndTransaction(b.Context(), kgo.TryCommit) }()
		if records := b.Read("in"); len(records) != 1 || string(records[0].Value) != "open" {
			b.Errorf("read %q", KeysOf(records))
		}
		Must(b.T, <-ended)
	})
}

func TestRigMakesCoordinatorsForgetATransaction(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]int{"": 0, "PrepareAbort": 1} {
		Real(t, 1, func(b *Rig) { // one each: the first answer that is set stays
			other := b.Other("other", "in", time.Minute)
			defer other.Close()
			b.Forget(other, state)
			found, err := kadm.NewClient(b.Client).ListTransactions(b.Context(), nil, nil)
			if err != nil || len(found) != want || found["other"].State != state {
				b.Errorf("%q: %+v, %v", state, found, err)
			}
		})
	}
}

// TestConnectionIsCutBeforeOrAfterARequest asks through a line that is cut before and after a request.
func TestConnectionIsCutBeforeOrAfterARequest(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		Real(t, 1, func(b *Rig) {
			line := b.NewLine()
			client, err := kgo.NewClient(b.ClientOn(line)...)
			Must(b.T, err)
			defer client.Close()
			adm := kadm.NewClient(client)
			_, err = adm.ListStartOffsets(b.Context(), "in")
			Must(b.T, err)
			if once := Once(kmsg.ListOffsets, 1); after {
				line.On(nil, once)
			} else {
				line.On(once, nil)
			}
			patient, cancel := context.WithTimeout(b.Context(), 2*time.Second)
			defer cancel()
			if offsets, err := adm.ListStartOffsets(patient, "in"); err == nil && offsets.Error() == nil {
				b.Error("the line was not cut")
			}
			if _, err := line.Dial(b.Context(), "tcp", b.Cluster.ListenAddrs()[0]); !errors.Is(err, ErrCut) {
				b.Errorf("a new connection: %v", err)
			}
			line.Mend()
			conn, err := line.Dial(b.Context(), "tcp", b.Cluster.ListenAddrs()[0])
			Must(b.T, err)
			Must(b.T, conn.Close())
		})
	}
}

// TestALineIsMendedAfterItIsCut repairs it while a function cuts it, which does not keep new
// connections away for ever.
func TestALineIsMendedAfterItIsCut(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		Real(t, 1, func(b *Rig) {
			line, mended := b.NewLine(), make(chan struct{})
			once := Once(kmsg.ListOffsets, 1)
			cut := func(kind kmsg.Key) bool {
				if !once(kind) {
					return false
				}
				go func() {
					defer close(mended)
					line.Mend()
				}()
				select {
				case <-mended:
					b.Error("the line is repaired before it is cut")
				case <-time.After(50 * time.Millisecond):
				}
				return true
			}
			if after {
				line.On(nil, cut)
			} else {
				line.On(cut, nil)
			}
			client, err := kgo.NewClient(b.ClientOn(line)...)
			Must(b.T, err)
			defer client.Close()
			adm := kadm.NewClient(client)
			_, _ = adm.ListStartOffsets(b.Context(), "in") // which is cut
			<-mended
			offsets, err := adm.ListStartOffsets(b.Context(), "in")
			Must(b.T, errors.Join(err, offsets.Error()))
		})
	}
}

func TestOnceCountsRequestsOfOneKind(t *testing.T) {
	t.Parallel()
	second := Once(kmsg.Produce, 2)
	var got []bool
	for _, kind := range []kmsg.Key{kmsg.Produce, kmsg.Fetch, kmsg.Produce, kmsg.Produce} {
		got = append(got, second(kind))
	}
	if !slices.Equal(got, []bool{false, false, true, false}) {
		t.Errorf("%v", got)
	}
}

// runs is a program that observes and waits for its end.
type runs struct {
	o   pipeline.Observer
	err error
}

func (r runs) Run(ctx context.Context) error {
	for _, e := range []pipeline.Event{
		{Kind: pipeline.EventSettled, Count: 2}, {Kind: pipeline.EventSettled}, {Kind: pipeline.EventDecided, Decision: semel.Duplicate, Count: 3},
		{Kind: pipeline.EventStandby, Count: 5}, {Kind: pipeline.EventStalled, Count: 1}, {Kind: pipeline.EventParked, Count: 1, Reason: "invalid", Item: Item("k", "body")},
	} {
		r.o.ObservePipeline(e)
	}
	<-ctx.Done()
	return r.err
}

func TestRigCountsTheEventsOfAProgram(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		Virtual(t, 1, func(b *Rig) {
			start := func(err error) *Program {
				return b.Run(b.NewLine(), func(_ []kgo.Opt, o pipeline.Observer) (Runner, error) { return runs{o, err}, nil })
			}
			p := start(nil)
			p.Wait(3, Settled)
			e := p.Events
			if e.Decisions(semel.Duplicate) != 3 || e.Decisions(semel.Fresh) != 0 || e.Lag() != 5 || e.Count(pipeline.EventParked) != 1 {
				b.Errorf("decided %v, lag %d", e.decided, e.Lag())
			}
			if told := e.Told(); len(told) != 1 || !strings.Contains(told[0], "invalid") || !strings.HasSuffix(told[0], `"s"/"k" of /0 at 0, attempt 1`) {
				b.Errorf("told %q", told)
			}
			if strings.Count(e.Stalls(), "\n") != 0 || !strings.Contains(e.Stalls(), pipeline.EventStalled.String()) {
				b.Errorf("stalls %q", e.Stalls())
			}
			p.Stop()
			killed := start(errors.New("killed"))
			killed.Kill()
			<-killed.Done
			if killed.Err == nil || !strings.Contains(killed.Events.Log[len(killed.Events.Log)-1], "Run ended: killed") {
				b.Errorf("%v: %q", killed.Err, killed.Events.Log)
			}
		})
	})
}

func TestWithinWaitsForAConditionUpToItsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Within(time.Minute, func() bool { return time.Since(began) >= time.Second }) {
			t.Error("the condition became true")
		}
		if Within(time.Minute, func() bool { return false }) || time.Since(began) < time.Minute {
			t.Errorf("the condition is false after %v", time.Since(began))
		}
	})
}

func TestRigLimitsTheBatchSizeOfATopic(t *testing.T) {
	t.Parallel()
	Real(t, 1, func(b *Rig) {
		Takes(b.T, b.Client, Megabyte, "small")
		client := LargeClient(b.T, b.Reach())
		refused := 0
		for _, r := range Large("small") {
			if err := client.ProduceSync(b.Context(), r).FirstErr(); errors.Is(err, kerr.MessageTooLarge) {
				refused++
			} else if err != nil {
				b.Error(err)
			}
		}
		if refused != 4 { // both copies of two records
			b.Errorf("%d records are refused", refused)
		}
		SetTakes(b.T, b.Client, 5*Megabyte, "small")
		for _, r := range Large("small") {
			Must(b.T, client.ProduceSync(b.Context(), r).FirstErr())
		}
		b.Hide("small", kerr.TopicAuthorizationFailed, 1)
		adm := kadm.NewClient(b.Client)
		for _, want := range []bool{true, false} {
			configs, err := adm.DescribeTopicConfigs(b.Context(), "small")
			hidden := err != nil || configs[0].Err != nil
			if hidden != want {
				b.Errorf("the settings are hidden: %v, want %v (%v)", hidden, want, err)
			}
		}
	})
}

// lags reports the lag of two partitions.
type lags struct{}

func (lags) Lag(context.Context) ([]pipeline.Lag, error) {
	return []pipeline.Lag{{Source: "in", Messages: 2, Bytes: pipeline.UnknownLag}, {Source: "in", Partition: 1, Messages: 3, Bytes: pipeline.UnknownLag}}, nil
}

func TestLagsOfPartitionsAreAdded(t *testing.T) {
	t.Parallel()
	Real(t, 1, func(b *Rig) {
		if messages, partitions := b.Lag(lags{}); messages != 5 || partitions != 2 {
			b.Errorf("%d messages in %d partitions", messages, partitions)
		}
	})
}

func TestFindingsAreListedAsLines(t *testing.T) {
	t.Parallel()
	lines := Found([]doctor.Finding{
		{Severity: doctor.Fine, Subject: "a", Found: "x"}, {Severity: doctor.Warning, Subject: "b", Found: "y", Cost: "c", Remedy: "r"}, {Severity: doctor.Broken, Subject: "c", Found: "z"},
	})
	if want := []string{"fine a: x", "warning b: y", "half a finding: c", "broken c: z"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	Has(t, lines[:2], "fine a", "warning b: y")
}

func TestTheRecordKeyIsTheID(t *testing.T) {
	t.Parallel()
	m := &semel.Message{RecordKey: []byte("k")}
	if k, err := RecordKey(t).Key("s", m); err != nil || k != (semel.Key{Scope: "s", ID: "k"}) {
		t.Errorf("%v, %v", k, err)
	}
	it := Item("k", "body")
	if it.Call.Key != (semel.Key{Scope: "s", ID: "k"}) || string(it.Message.Body) != "body" {
		t.Errorf("%+v", it)
	}
}

func TestASeedIsTakenFromTheEnvironment(t *testing.T) {
	t.Setenv("SEMEL_SEED", "7")
	if seed := NewSeed(t); seed != 7 {
		t.Errorf("%d", seed)
	}
	t.Setenv("SEMEL_SEED", "")
	if one, other := NewSeed(t), NewSeed(t); one == other {
		t.Errorf("twice %d", one)
	}
}

// TestPartitionIsUnassignedAfterAnInterruptedRebalance leaves a group of four partitions between the two
// halves of a rebalance.
func TestPartitionIsUnassignedAfterAnInterruptedRebalance(t *testing.T) {
	t.Parallel()
	Real(t, 4, func(b *Rig) {
		adm := kadm.NewClient(b.Client)
		b.LostHalf("g", "static", func() bool {
			groups, err := adm.DescribeGroups(b.Context(), "g")
			group := groups["g"]
			assigned := group.AssignedPartitions()
			return err != nil || group.State != "Stable" || assigned.Lookup("in", 3)
		})
	})
}
