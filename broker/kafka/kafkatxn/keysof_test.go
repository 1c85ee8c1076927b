package kafkatxn

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// to writes the keys 0 to 9 to a topic.
func (b *bubble) to(topic string) {
	b.Helper()
	records := kafkatest.Numbered(0, 10, 2)
	for _, r := range records {
		r.Topic = topic
	}
	b.Write(records...)
}

// handle runs a Transactor until it is done with ten records.
func (b *bubble) handle(opts TransactorOptions) {
	b.Helper()
	p := b.start(opts)
	p.Wait(10, kafkatest.Settled)
	p.Stop()
}

// TestKeysOfAnotherInputAreRefused has records of another topic whose keys are in
// the changelog. They would pass for duplicates and be lost.
func TestKeysOfAnotherInputAreRefused(t *testing.T) {
	t.Parallel()
	denied := func(b *bubble) {
		id := b.Cluster.TopicInfo("in").TopicID
		b.Cluster.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
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
		"from the copy on disk": {func(_ *bubble, opts *TransactorOptions) {
			opts.State.Dir = t.TempDir()
		}, "changelog g-keys holds keys of topic in:", nil},
		"with a standby": {func(_ *bubble, opts *TransactorOptions) { opts.State.Standby = true }, "changelog g-keys holds keys of topic in:", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				kafkatest.Must(t, b.Cluster.CreateTopic("in2", 2, nil))
				opts := b.options()
				c.setUp(b, &opts)
				b.to("in")
				b.handle(opts)
				opts.Inputs = []string{"in2"}
				b.to("in2")
				b.refused(opts, c.want)
				offsets, err := kadm.NewClient(b.Client).FetchOffsets(b.Context(), "g")
				kafkatest.Must(t, err)
				if len(offsets["in2"]) > 0 {
					t.Errorf("in2 counts as read up to %v", offsets["in2"])
				}
				// The way out that the error names.
				opts.Group, opts.Member.Instance, opts.State.Changelog = "g2", "g2-0", ""
				b.handle(opts)
				if n := len(b.Read("out")); n != 20 {
					t.Errorf("there are %d outputs, want 20", n)
				}
			}, c.fake...)
		})
	}
}

// TestKeysOfARecreatedInputStay has the topic deleted and made again.
func TestKeysOfARecreatedInputStay(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.options()
		b.to("in")
		b.handle(opts)
		kafkatest.Must(t, b.Cluster.DeleteTopic("in"))
		kafkatest.Must(t, b.Cluster.CreateTopic("in", 2, nil))
		p := b.start(opts)
		b.Client.PurgeTopicsFromClient("in")
		b.Write(kafkatest.Numbered(0, 20, 2)...)
		p.Wait(10, kafkatest.Settled)
		p.Stop()
		b.Exactly(20)
	})
}

// TestKeysOnARealBrokerAreThoseOfTheirInput has what a fake may see otherwise:
// topics that are asked for by id, deleted, and made again.
func TestKeysOnARealBrokerAreThoseOfTheirInput(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	in, in2, out := name+"-in", name+"-in2", name+"-out"
	reach := append(kafkatest.Quick(servers.Kafka(t)), kgo.UnknownTopicRetries(-1))
	client := kafkatest.LargeClient(t, reach)
	kafkatest.Takes(t, client, kafkatest.Megabyte, in, in2, out)
	rule, err := key.ParseRule("record-key")
	kafkatest.Must(t, err)
	// run has a Transactor read an input until a number of messages are settled, or
	// it ends.
	run := func(input string, n int) error {
		events := &kafkatest.Events{}
		tr, err := NewTransactor(&TransactorOptions{
			Client: reach, Group: name, Inputs: []string{input}, Output: Output{Topic: out}, Key: KeyOptions{OnMissing: pipeline.MissingHash, Rule: rule}, Window: time.Hour, hooks: hooks{skipSample: true}, Observer: events,
		})
		kafkatest.Must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- tr.Run(ctx) }()
		if !kafkatest.Within(3*time.Minute, func() bool { return kafkatest.Settled(events) >= n || len(ended) > 0 }) {
			t.Errorf("%d messages of %s are settled, want %d", kafkatest.Settled(events), input, n)
		}
		stop()
		return <-ended
	}
	write := func(topic string) {
		r := kafkatest.Record(0, "k", "v")
		r.Topic = topic
		kafkatest.Must(t, client.ProduceSync(t.Context(), r).FirstErr())
	}
	write(in)
	write(in2)
	kafkatest.Must(t, run(in, 1))
	if err := run(in2, 1); err == nil || !strings.Contains(err.Error(), "changelog "+name+"-keys holds keys of topic "+in+":") {
		t.Errorf("it ended with %v", err)
	}
	remove := func(topic string) {
		t.Helper()
		_, err := kadm.NewClient(client).DeleteTopics(t.Context(), topic)
		kafkatest.Must(t, err)
		if !kafkatest.Within(time.Minute, func() bool { // the broker knows it for a moment
			return errors.As(cluster.HaveTopics(t.Context(), client, topic), new(*cluster.MissingTopicError))
		}) {
			t.Fatalf("%s stays", topic)
		}
	}
	remove(in)
	kafkatest.Must(t, run(in2, 1)) // whose keys look like its own before
	remove(name + "-keys")
	write(in2)
	if err := run(in2, 1); err == nil || !strings.Contains(err.Error(), "group "+name+" has read "+in2+", and changelog "+name+"-keys, which holds its keys, does not exist") {
		t.Errorf("it ended with %v", err)
	}
}

// TestAScopeOfAChangelogBelongsToOneKeyRule: order 7 and customer 7 are two messages.
func TestAScopeOfAChangelogBelongsToOneKeyRule(t *testing.T) {
	t.Parallel()
	for name, setUp := range map[string]func(opts *TransactorOptions){
		"from the changelog":    func(*TransactorOptions) {},
		"from the copy on disk": func(opts *TransactorOptions) { opts.State.Dir = t.TempDir() },
		"with a standby":        func(opts *TransactorOptions) { opts.State.Standby = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.options()
				setUp(&opts)
				b.to("in")
				b.handle(opts)
				first := opts.Key.Rule
				other, err := key.ParseRule("hash(.)")
				kafkatest.Must(t, err)
				opts.Key.Rule, opts.Key.OnMissing = other, pipeline.MissingHash
				b.to("in")
				b.refused(opts, `scope "s" has ids found by another rule, and ids found by `+other.String())
				// The ways out, and that the scope still knows its own keys.
				opts.Key.SameScope = true
				b.handle(opts)
				opts.Key.Scope, opts.Key.SameScope, opts.Key.Rule = "t", false, first
				b.to("in")
				b.handle(opts)
				opts.Key.Scope = "s"
				b.refused(opts, `scope "s" has ids found by another rule`)
				opts.Key.Scope, opts.Unwrap = "t", opener(func(m semel.Message) (semel.Message, error) { return m, nil })
				b.refused(opts, `scope "t" has ids found by another rule, and ids found by `+first.String()+" of the message inside (unwrap: an envelope)")
			})
		})
	}
}
