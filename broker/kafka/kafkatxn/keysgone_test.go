package kafkatxn

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/kafkatest"
)

// commits has a group that has read a topic up to its end.
func (b *bubble) commits(group, topic string) {
	b.Helper()
	var read kadm.Offsets
	for _, p := range b.Cluster.PartitionInfos(topic) {
		read.AddOffset(topic, p.Partition, p.HighWatermark, -1)
	}
	kafkatest.Must(b.T, kadm.NewClient(b.Client).CommitAllOffsets(b.Context(), group, read))
}

// TestAMissingChangelogIsRefusedIfTheGroupHasRead has inputs that a group has read, and
// no changelog of them.
func TestAMissingChangelogIsRefusedIfTheGroupHasRead(t *testing.T) {
	t.Parallel()
	const byHand = "kafka-topics.sh --create --topic "
	for name, c := range map[string]struct {
		setUp func(b *bubble, opts *TransactorOptions)
		want  []string
	}{
		"deleted": {func(b *bubble, opts *TransactorOptions) {
			b.handle(*opts)
			kafkatest.Must(b.T, b.Cluster.DeleteTopic("g-keys"))
		}, []string{"group g has read in, and changelog g-keys, which holds its keys, does not exist", byHand + "g-keys --partitions 2 --config cleanup.policy=delete --config retention.bytes=-1 --config retention.ms=7200000"}},
		"deleted, with a copy on disk": {func(b *bubble, opts *TransactorOptions) {
			opts.State.Dir = b.TempDir()
			b.handle(*opts)
			kafkatest.Must(b.T, b.Cluster.DeleteTopic("g-keys"))
		}, []string{"group g has read in, and changelog g-keys"}},
		"of a stage": {func(b *bubble, opts *TransactorOptions) {
			opts.Repartition = &Repartition{Topic: "g-repartition"}
			b.handle(*opts)
			kafkatest.Must(b.T, b.Cluster.DeleteTopic("g-keys"))
		}, []string{"group g has read g-repartition, and changelog g-keys"}},
		"one input more": {func(b *bubble, opts *TransactorOptions) {
			b.handle(*opts)
			opts.Inputs = []string{"in", "in2"}
		}, []string{"group g has read in, and changelog g-keys-in", "with one input its keys were in g-keys: give the new inputs a pipeline of their own", byHand + "g-keys-in "}},
		"one input less": {func(b *bubble, opts *TransactorOptions) {
			opts.Inputs = []string{"in", "in2"}
			b.handle(*opts)
			opts.Inputs = []string{"in"}
		}, []string{"group g has read in, and changelog g-keys,", "with several inputs its keys were in g-keys-in: name that one (transaction.changelog: g-keys-in)", byHand + "g-keys "}},
		"read by a consumer without keys": {func(b *bubble, _ *TransactorOptions) {
			b.commits("g", "in")
		}, []string{"group g has read in, and changelog g-keys"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				kafkatest.Must(t, b.Cluster.CreateTopic("in2", 2, nil))
				opts := b.options()
				opts.State.Changelog = "g-keys"
				b.to("in")
				c.setUp(b, &opts)
				for _, want := range c.want {
					b.refused(opts, want)
				}
				for _, topic := range opts.decided() {
					if b.Cluster.TopicInfo(opts.changelogNames(topic)[0]) != nil {
						t.Errorf("%s was made", opts.changelogNames(topic)[0])
					}
				}
				// A way out that the error names: what is new continues.
				for _, topic := range opts.decided() {
					kafkatest.Must(t, b.Cluster.CreateTopic(opts.changelogNames(topic)[0], 2, map[string]string{"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "7200000"}))
				}
				b.acceptLoss("g")
				b.to("in")
				b.handle(opts)
			})
		})
	}
}

// TestKeysOfAnInputStayWithOneInputLess names the changelog that several inputs
// had for one of them.
func TestKeysOfAnInputStayWithOneInputLess(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		kafkatest.Must(t, b.Cluster.CreateTopic("in2", 2, nil))
		opts := b.options()
		opts.Inputs = []string{"in", "in2"}
		b.to("in")
		b.handle(opts)
		opts.Inputs, opts.State.Changelog = []string{"in"}, "g-keys-in"
		b.to("in")
		b.handle(opts)
		b.Exactly(10)
	})
}

// TestAFirstStartMakesItsChangelog starts where nothing, or not all, was read.
func TestAFirstStartMakesItsChangelog(t *testing.T) {
	t.Parallel()
	for name, setUp := range map[string]func(b *bubble, opts *TransactorOptions){
		"of a new group":   func(*bubble, *TransactorOptions) {},
		"that ended early": func(b *bubble, _ *TransactorOptions) { kafkatest.Must(b.T, b.Cluster.CreateTopic("g-keys", 2, nil)) },
		"of another input": func(b *bubble, opts *TransactorOptions) {
			kafkatest.Must(b.T, b.Cluster.CreateTopic("in2", 2, nil))
			kafkatest.Must(b.T, b.Cluster.CreateTopic("in3", 2, nil))
			opts.Inputs = []string{"in2", "in3"}
			b.to("in2")
			b.handle(*opts)
			opts.Inputs = []string{"in", "in2", "in3"}
		},
		"of a group that has read other topics": func(b *bubble, _ *TransactorOptions) { b.commits("g", "out") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.options()
				opts.State.Changelog = "g-keys"
				setUp(b, &opts)
				b.to("in")
				b.handle(opts)
				if b.Cluster.TopicInfo(opts.changelogNames("in")[0]) == nil {
					t.Error("there is no changelog")
				}
			})
		})
	}
}

func TestAChangelogIsNoOtherTopicOfThePipeline(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		for _, c := range []struct {
			set func(*TransactorOptions)
			bad string
		}{
			{func(o *TransactorOptions) { o.State.Changelog = "out" }, "out"},
			{func(o *TransactorOptions) { o.State.Changelog = "in" }, "in"},
			{func(o *TransactorOptions) { o.State.Changelog = "aside" }, "aside"},
			{func(o *TransactorOptions) { o.Parked = "g-keys" }, "g-keys"},
			{func(o *TransactorOptions) { o.Output.Topic, o.Inputs = "g-keys-in", []string{"in", "on"} }, "g-keys-in"},
			{func(o *TransactorOptions) { o.State.Changelog, o.Inputs = "on", []string{"in", "on"} }, ""},
			{func(*TransactorOptions) {}, ""},
		} {
			opts := b.options()
			c.set(&opts)
			want := "TransactorOptions.State.Changelog: " + c.bad + " is another topic of the pipeline; it needs one of its own"
			if _, err := NewTransactor(&opts); c.bad == "" && err != nil || c.bad != "" && (err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, semel.ErrInvalidRequest)) {
				t.Errorf("%v, want %s", err, want)
			}
		}
	})
}

// TestAnInputThatGrowsEndsTheProgram has partitions added while it runs.
func TestAnInputThatGrowsEndsTheProgram(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.options()
		b.to("in")
		p := b.start(opts)
		p.Wait(10, kafkatest.Settled)
		_, err := kadm.NewClient(b.Client).CreatePartitions(b.Context(), 2, "in")
		kafkatest.Must(t, err)
		const want = "in has 4 partitions and its changelog g-keys 2: keys would not be found, and duplicates would pass"
		select {
		case <-p.Done:
			if p.Err == nil || !strings.Contains(p.Err.Error(), want) || !errors.Is(p.Err, semel.ErrInvalidRequest) {
				t.Errorf("it ended with %v, want %q", p.Err, want)
			}
		case <-time.After(time.Hour): // in a bubble: until it has heard of them
			t.Error("it goes on")
			p.Kill()
		}
		b.Exactly(10)
	})
}
