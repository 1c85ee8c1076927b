package kafkatxn

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// to is a Transform that passes records on, some of them to topics of their own by key.
func to(topics map[string]string) Transform {
	return func(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
		return []*kgo.Record{{Topic: topics[string(m.RecordKey)], Key: m.RecordKey, Value: m.Body}}, nil
	}
}

// parkedWhy returns why records were parked, by key.
func (b *bubble) parkedWhy() map[string]string {
	why := map[string]string{}
	for _, r := range b.Read("aside") {
		for _, h := range r.Headers {
			if h.Key == record.HeaderError {
				why[string(r.Key)] = string(h.Value)
			}
		}
	}
	return why
}

// refuseTopic has brokers answer for a topic with the error of one that may not be
// written, or does not exist.
func (b *bubble) refuseTopic(topic string, why *kerr.Error) {
	b.Cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster.KeepControl()
		asked := req.(*kmsg.MetadataRequest)
		if len(asked.Topics) != 1 || asked.Topics[0].Topic == nil || *asked.Topics[0].Topic != topic {
			return nil, nil, false
		}
		answer := req.ResponseKind().(*kmsg.MetadataResponse)
		answer.Brokers = append(answer.Brokers, kmsg.MetadataResponseBroker{Host: "127.0.0.1", Port: 9092})
		t := kmsg.NewMetadataResponseTopic()
		t.Topic, t.ErrorCode = &topic, why.Code
		answer.Topics = append(answer.Topics, t)
		return answer, nil, true
	})
}

// TestAnOutputForATopicThatIsMissingFailsItsMessageAlone makes the topic later, and
// then what is for it is written.
func TestAnOutputForATopicThatIsMissingFailsItsMessageAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Transform = to(map[string]string{"7": "later", "8": "never", "107": "later", "108": "never", "207": "later"})
		p := b.start(opts)
		for i, want := range []string{"7 8", "7 8 107 108"} {
			b.Write(kafkatest.Numbered(100*i, 100, 1)...)
			began := time.Now()
			p.Wait(100*(i+1), kafkatest.Settled)
			if took := time.Since(began); took > 10*time.Second || i > 0 && took > time.Second {
				t.Errorf("it took %v", took)
			}
			why := b.parkedWhy()
			for id := range strings.FieldsSeq(want) {
				if err := why[id]; !strings.Contains(err, "does not host") || !strings.Contains(err, "create it, or fix the Transform") {
					t.Errorf("%s was parked for %q", id, err)
				}
			}
			if n := len(strings.Fields(want)); len(why) != n || len(b.Read("out")) != 100*(i+1)-n {
				t.Errorf("%d were parked and %d written, want %s parked", len(why), len(b.Read("out")), want)
			}
		}
		kafkatest.Must(t, b.Cluster.CreateTopic("later", 1, nil))
		// A broker that cannot say is not one that says no.
		b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "later", Err: kerr.LeaderNotAvailable, Count: 1})
		b.Write(kafkatest.Numbered(200, 100, 1)...)
		p.Wait(300, kafkatest.Settled)
		p.becomesReady()
		p.Stop()
		if got := len(b.Read("later")); got != 1 || len(b.parkedWhy()) != 4 {
			t.Errorf("%d were written to the topic when it was there, and %d parked", got, len(b.parkedWhy()))
		}
	})
}

// TestATopicThatIsJustMadeIsNotRefused makes the topic when something was to be
// written to it.
func TestATopicThatIsJustMadeIsNotRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Transform = to(map[string]string{"7": "soon"})
		b.Write(kafkatest.Numbered(0, 10, 1)...)
		p := b.start(opts)
		p.Wait(1, func(e *kafkatest.Events) int { return e.Count(pipeline.EventRetried) })
		_ = retry.Sleep(b.Context(), cluster.LimitsWithin/2)
		kafkatest.Must(t, b.Cluster.CreateTopic("soon", 1, nil))
		p.Wait(10, kafkatest.Settled)
		p.Stop()
		if got, aside := len(b.Read("soon")), b.parkedWhy(); got != 1 || len(aside) != 0 {
			t.Errorf("%d were written and %v parked", got, aside)
		}
	})
}

func TestAnOutputForATopicThatBrokersRefuseFailsItsMessageAlone(t *testing.T) {
	t.Parallel()
	for name, why := range map[string]*kerr.Error{"bad topic/name": kerr.InvalidTopicException, "secret": kerr.TopicAuthorizationFailed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.refuseTopic(name, why)
				opts := b.options()
				opts.Transform = to(map[string]string{"7": name})
				b.Write(kafkatest.Numbered(0, 100, 1)...)
				p := b.start(opts)
				p.Wait(100, kafkatest.Settled)
				p.becomesReady()
				p.Stop()
				if got := len(b.Read("out")); got != 99 {
					t.Errorf("%d were written, want 99", got)
				}
				if err := b.parkedWhy()["7"]; !strings.Contains(err, strconv.Quote(name)) || !strings.Contains(err, why.Message) {
					t.Errorf("it was parked for %q", err)
				}
			})
		})
	}
}

// TestAnOutputForATopicThatMayOnlyBeSeenFailsItsMessageAlone has brokers that take
// topics into a transaction before they are written.
func TestAnOutputForATopicThatMayOnlyBeSeenFailsItsMessageAlone(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		kafkatest.Must(t, b.Cluster.CreateTopic("secret", 1, nil))
		kafkatest.Must(t, b.Cluster.CreateTopic("open", 1, nil))
		b.denyWrites("secret")
		opts := b.options()
		opts.Transform = to(map[string]string{"6": "open", "7": "secret", "8": "open"})
		b.Write(kafkatest.Numbered(0, 100, 1)...)
		p := b.start(opts)
		p.Wait(100, kafkatest.Settled)
		p.becomesReady()
		p.Stop()
		if out, open := len(b.Read("out")), len(b.Read("open")); out != 97 || open != 2 {
			t.Errorf("%d were written to the output and %d to the topic that may be written, want 97 and 2", out, open)
		}
		if why := b.parkedWhy(); len(why) != 1 || !strings.Contains(why["7"], "allow Write on it") {
			t.Errorf("parked: %v", why)
		}
	}, kfake.MaxVersions(kversion.V3_9_0()))
}

// denyWrites has brokers let a topic be seen and not be written.
func (b *bubble) denyWrites(topic string) {
	b.Cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster.KeepControl()
		asked := req.(*kmsg.MetadataRequest)
		if !asked.IncludeTopicAuthorizedOperations || len(asked.Topics) != 1 || *asked.Topics[0].Topic != topic {
			return nil, nil, false
		}
		answer := req.ResponseKind().(*kmsg.MetadataResponse)
		answer.Brokers = append(answer.Brokers, kmsg.MetadataResponseBroker{Host: "127.0.0.1", Port: 9092})
		t := kmsg.NewMetadataResponseTopic()
		t.Topic, t.AuthorizedOperations = &topic, 1<<kmsg.ACLOperationDescribe|1<<kmsg.ACLOperationRead
		answer.Topics = append(answer.Topics, t)
		return answer, nil, true
	})
	b.Cluster.ControlKey(int16(kmsg.AddPartitionsToTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster.KeepControl()
		asked := req.(*kmsg.AddPartitionsToTxnRequest)
		if !slices.ContainsFunc(asked.Topics, func(t kmsg.AddPartitionsToTxnRequestTopic) bool { return t.Topic == topic }) {
			return nil, nil, false
		}
		answer := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
		for _, of := range asked.Topics {
			t := kmsg.NewAddPartitionsToTxnResponseTopic()
			t.Topic = of.Topic
			for _, number := range of.Partitions {
				p := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
				p.Partition, p.ErrorCode = number, kerr.OperationNotAttempted.Code
				if of.Topic == topic {
					p.ErrorCode = kerr.TopicAuthorizationFailed.Code
				}
				t.Partitions = append(t.Partitions, p)
			}
			answer.Topics = append(answer.Topics, t)
		}
		return answer, nil, true
	})
}

func TestAnOutputThatIsNilFailsItsMessage(t *testing.T) {
	t.Parallel()
	for _, headers := range []bool{false, true} {
		t.Run(strconv.FormatBool(headers), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.Output.KeyHeaders = headers
				opts.Transform = func(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
					if string(m.RecordKey) == "7" {
						return []*kgo.Record{{Value: m.Body}, nil}, nil
					}
					return []*kgo.Record{{Key: m.RecordKey, Value: m.Body}}, nil
				}
				b.Write(kafkatest.Numbered(0, 10, 1)...)
				p := b.start(opts)
				p.Wait(10, kafkatest.Settled)
				p.Stop()
				if got := len(b.Read("out")); got != 9 {
					t.Errorf("%d were written, want 9", got)
				}
				if err := b.parkedWhy()["7"]; !strings.Contains(err, "output 1 of the Transform is nil") {
					t.Errorf("it was parked for %q", err)
				}
			})
		})
	}
}
