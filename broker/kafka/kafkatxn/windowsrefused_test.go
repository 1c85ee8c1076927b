package kafkatxn

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

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
	for name, c := range map[string]struct {
		was, is func(b *bubble) TransactorOptions
	}{
		"size of windows": {windows(stream.Tumbling(time.Minute)), windows(stream.Tumbling(time.Hour))},
		"kind of windows": {windows(stream.Tumbling(time.Minute)), windows(stream.Session(time.Minute, time.Hour))},
		"size of last":    {held(stream.Tumbling(time.Minute)), held(stream.Tumbling(time.Hour))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.counts(c.was(b), "1")
				b.refused(c.is(b), "holds windows or records that were made otherwise")
				b.counts(c.was(b), "2") // the way out that the error names
			})
		})
	}
}

// TestAGroupWhoseWindowsAreGoneIsRefused deletes the topic that has them.
func TestAGroupWhoseWindowsAreGoneIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.counting(time.Minute, 0, 0)
		b.counts(opts, "1")
		kafkatest.Must(t, b.Cluster.DeleteTopic("g-state"))
		b.refused(opts, "topic g-state, which holds its open windows or held records, does not exist")
		// The way out that the error names: it begins without them.
		forever := kadm.StringPtr("-1")
		_, err := kadm.NewClient(b.Client).CreateTopic(b.Context(), 1, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("delete"), "retention.bytes": forever, "retention.ms": forever}, "g-state")
		kafkatest.Must(t, err)
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
		b.refused(opts, "in has 2 partitions, and topic g-state, which holds its open windows or held records, has 1")
	})
}

// TestWindowsOfAnInputThatIsMadeAnewStay: the group still counts records of the topic's
// name, and the result has those of both.
func TestWindowsOfAnInputThatIsMadeAnewStay(t *testing.T) {
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
