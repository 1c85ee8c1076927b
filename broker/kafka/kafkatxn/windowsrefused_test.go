package kafkatxn

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestStateOfAnotherDefinitionIsRefused changes the settings that the windows, or the held
// records, of a group were made with.
func TestStateOfAnotherDefinitionIsRefused(t *testing.T) {
	t.Parallel()
	held := func(over stream.Window) func(b *bubble) TransactorOptions {
		return func(b *bubble) TransactorOptions { return b.keeping(stream.Keep{Last: over}) }
	}
	windows := func(over stream.Window) func(b *bubble) TransactorOptions {
		return func(b *bubble) TransactorOptions {
			opts := b.counting(time.Minute, 0, 0)
			opts.Aggregate.Over = over
			return opts
		}
	}
	unwrapped := func(of func(b *bubble) TransactorOptions) func(b *bubble) TransactorOptions {
		return func(b *bubble) TransactorOptions {
			opts := of(b)
			opts.Unwrap = opener(func(m semel.Message) (semel.Message, error) { return m, nil })
			opts.Key.SameScope = true // its keys are refused as well
			return opts
		}
	}
	for name, c := range map[string]struct {
		was, is func(b *bubble) TransactorOptions
	}{
		"size of windows":   {windows(stream.Tumbling(time.Minute)), windows(stream.Tumbling(time.Hour))},
		"kind of windows":   {windows(stream.Tumbling(time.Minute)), windows(stream.Session(time.Minute, time.Hour))},
		"unwrap of windows": {windows(stream.Tumbling(time.Minute)), unwrapped(windows(stream.Tumbling(time.Minute)))},
		"unwrap of last":    {held(stream.Tumbling(time.Minute)), unwrapped(held(stream.Tumbling(time.Minute)))},
		"size of last":      {held(stream.Tumbling(time.Minute)), held(stream.Tumbling(time.Hour))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.counts(c.was(b), "1")
				b.refused(c.is(b), "holds a state that was made otherwise")
				b.counts(c.was(b), "2") // the way out that the error names
			})
		})
	}
}

// TestStateThatIsNotOfThisGroupIsRefused writes other records to its topics. Without them
// duplicates would pass, and results would be wrong.
func TestStateThatIsNotOfThisGroupIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		topic string
		value func(b *bubble) []byte
		want  string
	}{
		"keys of a later version": {"g-keys", func(*bubble) []byte { return []byte("later") }, "g-keys/0 at 3: no record of a changelog: start the version of Semel that wrote it"},
		"keys of another secret": {"g-keys", func(b *bubble) []byte {
			return keys.Encode(&keys.Header{Kind: keys.KindEntries, Secret: digest.NewSecret(), Topic: state.ID(b.Cluster.TopicInfo("in").TopicID)})
		}, "g-keys/0 at 3: it has another secret than the records before it, so another pipeline writes to its topic too"},
		"windows of a later version": {"g-state", func(*bubble) []byte { return []byte("later") }, "no record of a topic of state: start the version of Semel that wrote it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.counting(time.Minute, 0, 0)
				b.counts(opts, "1")
				b.Write(&kgo.Record{Topic: c.topic, Value: c.value(b)})
				b.refused(opts, c.want)
			})
		})
	}
}

// TestInputsThatDoNotFitAreRefused has a group in two partitions, of which each would write
// a result, and an output that lacks partitions of the input.
func TestInputsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 4, func(b *bubble) {
		b.Write(counted(0, "1", "a", 1, time.Now()), counted(1, "2", "a", 1, time.Now()))
		opts := b.counting(time.Minute, 0, 0)
		opts.skipSample = false
		b.refused(opts, "in partition 0 at 0 and in 1 at 0 have one group key (.g)")
		opts = b.options()
		opts.Output.SamePartition = true
		b.refused(opts, "in has 4 partitions and out 3, and records keep the number of their partition")
	})
}

// TestAGroupWhoseWindowsAreGoneIsRefused deletes the topic that has them.
func TestAGroupWhoseWindowsAreGoneIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.counting(time.Minute, 0, 0)
		b.counts(opts, "1")
		kafkatest.Must(t, b.Cluster.DeleteTopic("g-state"))
		b.refused(opts, "topic g-state, which holds its open windows, does not exist")
		// The way out that the error names: it begins without them.
		forever := kadm.StringPtr("-1")
		_, err := kadm.NewClient(b.Client).CreateTopic(b.Context(), 1, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("delete"), "retention.bytes": forever, "retention.ms": forever}, "g-state")
		kafkatest.Must(t, err)
		b.damaged(opts, "g-state/0 is another topic than before")
		b.acceptLoss("g")
		b.counts(opts, "2")
	})
}

// TestWindowsOfAnInputThatGainsPartitionsAreRefused: their records would move to other
// partitions than their windows.
func TestWindowsOfAnInputThatGainsPartitionsAreRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.counting(time.Minute, 0, 0)
		b.counts(opts, "1")
		adm := kadm.NewClient(b.Client)
		_, err := adm.CreatePartitions(b.Context(), 1, "in", "g-keys")
		kafkatest.Must(t, err)
		b.refused(opts, "in has 2 partitions, and topic g-state, which holds its open windows, has 1")
	})
}

// TestWindowsOfARecreatedInputStay: the group still counts records of the topic's
// name, and the result has those of both.
func TestWindowsOfARecreatedInputStay(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		at := time.Now().Truncate(time.Minute)
		opts := b.counting(time.Minute, 0, 0)
		p := b.start(opts)
		b.Write(counted(0, "1", "a", 1, at))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		kafkatest.Must(t, b.Cluster.DeleteTopic("in"))
		kafkatest.Must(t, b.Cluster.CreateTopic("in", 1, nil))
		b.Client.PurgeTopicsFromClient("in")
		b.Write(counted(0, "2", "a", 2, at.Add(time.Second)), counted(0, "3", "a", 4, at.Add(2*time.Minute)))
		p = b.start(opts)
		p.Wait(1, kafkatest.Settled)
		kafkatest.Within(time.Minute, func() bool { time.Sleep(time.Second); return len(b.Read("out")) > 0 })
		p.Stop()
		if got, want := lines(b.results(), at), "a0 n=2 s=3"; got != want {
			t.Errorf("results %q, want %q", got, want)
		}
	})
}

// counts runs a program until it has settled a record with an id.
func (b *bubble) counts(opts TransactorOptions, id string) {
	b.Helper()
	p := b.start(opts)
	b.Write(counted(0, id, "a", 1, time.Now()))
	p.Wait(1, kafkatest.Settled)
	p.Stop()
}

// TestTopicsOfWindowsThatWouldLoseThemAreRefused names what is wrong with each.
func TestTopicsOfWindowsThatWouldLoseThemAreRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		client, err := kgo.NewClient(b.Reach()...)
		kafkatest.Must(b.T, err)
		defer client.Close()
		adm := kadm.NewClient(client)
		forever := kadm.StringPtr("-1")
		for i, c := range []struct {
			partitions int32
			settings   map[string]*string
			want       string
		}{
			{2, map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "retention.ms": forever}, "has cleanup.policy compact"},
			{2, map[string]*string{"retention.ms": kadm.StringPtr("60000")}, "has retention.ms 60000"},
			{2, map[string]*string{"retention.ms": forever, "retention.bytes": kadm.StringPtr("1000")}, "has retention.bytes 1000"},
			{3, map[string]*string{"retention.ms": forever}, "has 2 partitions, and topic"},
		} {
			opts := b.counting(time.Minute, 0, 0)
			opts.Group, opts.Client = fmt.Sprint("g", i), b.Reach()
			_, err := adm.CreateTopic(b.Context(), c.partitions, 1, c.settings, opts.Group+"-state")
			kafkatest.Must(b.T, err)
			tr, err := NewTransactor(&opts)
			kafkatest.Must(b.T, err)
			if err := tr.Run(b.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
	})
}

// TestWindowsOfAnotherTopicAreRefused changes the input and the topic of the keys in a group.
func TestWindowsOfAnotherTopicAreRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		client, err := kgo.NewClient(b.Reach()...)
		kafkatest.Must(b.T, err)
		defer client.Close()
		_, err = kadm.NewClient(client).CreateTopic(b.Context(), 1, 1, nil, "other")
		kafkatest.Must(b.T, err)
		p := b.start(b.counting(time.Minute, 0, 0))
		b.Write(counted(0, "1", "a", 1, time.Now()))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		opts := b.counting(time.Minute, 0, 0)
		opts.Client, opts.Inputs, opts.State.Changelog = b.Reach(), []string{"other"}, "other-keys"
		tr, err := NewTransactor(&opts)
		kafkatest.Must(b.T, err)
		if err := tr.Run(b.Context()); err == nil || !strings.Contains(err.Error(), "holds the open windows of another topic than other") {
			t.Error(err)
		}
	})
}
