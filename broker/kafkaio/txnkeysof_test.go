package kafkaio

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semel-dev/semel/internal/services/servicestest"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// to writes the keys 0 to 9 to a topic.
func (b *bubble) to(topic string) {
	b.Helper()
	records := numbered(0, 10, 2)
	for _, r := range records {
		r.Topic = topic
	}
	b.write(records...)
}

// handle runs a Transactor until it is done with ten records.
func (b *bubble) handle(opts TransactorOptions) {
	b.Helper()
	p := b.start(opts)
	p.wait(10, settled)
	p.stop()
}

// TestKeysOfAnotherInputAreRefused has records of another topic whose keys are in
// the changelog. They would pass for duplicates and be lost.
func TestKeysOfAnotherInputAreRefused(t *testing.T) {
	t.Parallel()
	denied := func(b *bubble) {
		id := b.cluster.TopicInfo("in").TopicID
		b.cluster.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
			b.cluster.KeepControl()
			req := r.(*kmsg.MetadataRequest)
			if len(req.Topics) != 1 || req.Topics[0].TopicID != id {
				return nil, nil, false
			}
			answer := req.ResponseKind().(*kmsg.MetadataResponse)
			topic := kmsg.NewMetadataResponseTopic()
			topic.TopicID, topic.ErrorCode = id, kerr.TopicAuthorizationFailed.Code
			answer.Topics = append(answer.Topics, topic)
			return answer, nil, true
		})
	}
	for name, c := range map[string]struct {
		setUp func(b *bubble, opts *TransactorOptions)
		want  string
		fake  []kfake.Opt
	}{
		"from the changelog":             {func(*bubble, *TransactorOptions) {}, "changelog g-keys holds keys of topic in:", nil},
		"from older brokers":             {func(*bubble, *TransactorOptions) {}, "changelog g-keys holds keys of topic in:", []kfake.Opt{kfake.MaxVersions(kversion.V3_0_0())}},
		"of a topic that it may not see": {func(b *bubble, _ *TransactorOptions) { denied(b) }, "changelog g-keys holds keys of a topic that may not be seen:", nil},
		"from the local copy": {func(_ *bubble, opts *TransactorOptions) {
			opts.StateDir = t.TempDir()
		}, "changelog g-keys holds keys of topic in:", nil},
		"with a standby": {func(_ *bubble, opts *TransactorOptions) { opts.Standby = true }, "changelog g-keys holds keys of topic in:", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				must(t, b.cluster.CreateTopic("in2", 2, nil))
				opts := b.options()
				c.setUp(b, &opts)
				b.to("in")
				b.handle(opts)
				opts.Inputs = []string{"in2"}
				b.to("in2")
				b.refused(opts, c.want)
				offsets, err := kadm.NewClient(b.client).FetchOffsets(b.Context(), "g")
				must(t, err)
				if len(offsets["in2"]) > 0 {
					t.Errorf("in2 counts as read up to %v", offsets["in2"])
				}
				// The way out that the error names.
				opts.Group, opts.Instance, opts.Changelog = "g2", "g2-0", ""
				b.handle(opts)
				if n := len(b.read("out")); n != 20 {
					t.Errorf("there are %d outputs, want 20", n)
				}
			}, c.fake...)
		})
	}
}

// TestKeysOfAnInputThatIsMadeAnewStay has the topic deleted and made again.
func TestKeysOfAnInputThatIsMadeAnewStay(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.options()
		b.to("in")
		b.handle(opts)
		must(t, b.cluster.DeleteTopic("in"))
		must(t, b.cluster.CreateTopic("in", 2, nil))
		p := b.start(opts)
		b.client.PurgeTopicsFromClient("in")
		b.write(numbered(0, 20, 2)...)
		p.wait(10, settled)
		p.stop()
		b.exactly(20)
	})
}

// TestKeysOnARealBrokerAreThoseOfTheirInput has what a fake may see otherwise:
// topics that are asked for by id, deleted, and made again.
func TestKeysOnARealBrokerAreThoseOfTheirInput(t *testing.T) {
	t.Parallel()
	server := servicestest.StartKafka(t, nil)
	reach := append(quick(server.Addr()), kgo.UnknownTopicRetries(-1))
	client := largeClient(t, reach)
	takes(t, client, megabyte, "in", "in2", "out")
	rule, err := key.ParseRule("record-key")
	must(t, err)
	// run has a Transactor read an input until a number of messages are settled, or
	// it ends.
	run := func(input string, n int) error {
		events := &events{}
		tr, err := NewTransactor(&TransactorOptions{
			Client: reach, Group: "g", Inputs: []string{input}, Output: "out", OnMissing: pipeline.MissingHash, Key: rule, Window: time.Hour, SkipSample: true, Observer: events,
		})
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- tr.Run(ctx) }()
		if !within(time.Minute, func() bool { return settled(events) >= n || len(ended) > 0 }) {
			t.Errorf("%d messages of %s are settled, want %d", settled(events), input, n)
		}
		stop()
		return <-ended
	}
	write := func(topic string) {
		r := record(0, "k", "v")
		r.Topic = topic
		must(t, client.ProduceSync(t.Context(), r).FirstErr())
	}
	write("in")
	write("in2")
	must(t, run("in", 1))
	if err := run("in2", 1); err == nil || !strings.Contains(err.Error(), "changelog g-keys holds keys of topic in:") {
		t.Errorf("it ended with %v", err)
	}
	_, err = kadm.NewClient(client).DeleteTopics(t.Context(), "in")
	must(t, err)
	must(t, run("in2", 1)) // whose keys nobody can tell from its own before
	_, err = kadm.NewClient(client).DeleteTopics(t.Context(), "g-keys")
	must(t, err)
	write("in2")
	if err := run("in2", 1); err == nil || !strings.Contains(err.Error(), "group g has read in2, and changelog g-keys, which holds its keys, does not exist") {
		t.Errorf("it ended with %v", err)
	}
}
