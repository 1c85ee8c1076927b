package runcmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// routedSink is a broker whose messages name their targets.
type routedSink struct {
	// yaml is the sink, with %s for the target.
	yaml   string
	create func(target string)
	// read returns the bodies in a target.
	read func(target string) []string
	// examined is what doctor says about a target that is missing.
	examined string
	// traced is the text of why about the first message of a target, with %[1]s for the target.
	traced string
}

func routedKafka(t *testing.T) routedSink {
	broker := programtest.Servers.Kafka(t)
	opts := []kgo.Opt{kgo.SeedBrokers(broker)}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return routedSink{
		yaml: fmt.Sprintf("kafka: { brokers: [%q], topic: %%s }", broker),
		create: func(topic string) {
			admin := kadm.NewClient(client)
			if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
				t.Fatal(err)
			}
			if !kafkatest.Within(time.Minute, func() bool { // the broker may learn of it later
				there, err := admin.ListTopics(t.Context(), topic)
				return err == nil && there.Has(topic)
			}) {
				t.Fatalf("%s does not appear", topic)
			}
		},
		read: func(topic string) (list []string) {
			if err := kafka.ReadAll(t.Context(), opts, []string{topic}, func(r *kgo.Record) bool {
				list = append(list, string(r.Value))
				return true
			}); err != nil {
				t.Fatal(err)
			}
			return list
		},
		examined: "does not exist", traced: "topic %[1]s 0/0: published by events",
	}
}

func routedNATS(t *testing.T) routedSink {
	url := programtest.Servers.NATS(t)
	conn, err := natsgo.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return routedSink{
		yaml: fmt.Sprintf("nats: { servers: [%q], subject: %%s }", strings.TrimPrefix(url, "nats://")),
		create: func(subject string) {
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: subject, Subjects: []string{subject}}); err != nil {
				t.Fatal(err)
			}
		},
		read: func(subject string) (list []string) {
			stream, err := js.Stream(t.Context(), subject)
			if err != nil {
				t.Fatal(err)
			}
			for n := uint64(1); n <= stream.CachedInfo().State.LastSeq; n++ {
				m, err := stream.GetMsg(t.Context(), n)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, string(m.Data))
			}
			return list
		},
		examined: "no stream takes it", traced: "stream %[1]s, subject %[1]s, sequence 1: published by events",
	}
}

func routedRabbitMQ(t *testing.T) routedSink {
	address := programtest.Servers.RabbitMQ(t)
	ch := programtest.RabbitChannel(t, "amqp://guest:guest@"+address+"/")
	return routedSink{
		yaml:   fmt.Sprintf("rabbitmq: { servers: [%q], routing_key: %%s }", address),
		create: func(queue string) { programtest.DeclareQueue(t, ch, queue, amqp.QueueTypeQuorum, nil) },
		read: func(queue string) (list []string) {
			var got []amqp.Delivery
			for {
				d, ok, err := ch.Get(queue, false)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				got, list = append(got, d), append(list, string(d.Body))
			}
			for _, d := range got {
				if err := d.Nack(false, true); err != nil {
					t.Fatal(err)
				}
			}
			return list
		},
		examined: "it does not exist", traced: "delivered to queue %[1]s by the relay",
	}
}

func routedSQS(t *testing.T) routedSink {
	url := programtest.Servers.SQS(t)
	api := awssqs.New(awssqs.Options{Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
	account := url + "/000000000000"
	return routedSink{
		yaml: fmt.Sprintf("sqs: { account: %q, queue: %%s }", account),
		create: func(queue string) {
			if _, err := api.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: &queue}); err != nil {
				t.Fatal(err)
			}
		},
		read: func(queue string) (list []string) {
			address := account + "/" + queue
			var handles []*string
			for {
				got, err := api.ReceiveMessage(t.Context(), &awssqs.ReceiveMessageInput{QueueUrl: &address, MaxNumberOfMessages: 10})
				if err != nil {
					t.Fatal(err)
				}
				if len(got.Messages) == 0 {
					break
				}
				for _, m := range got.Messages {
					list, handles = append(list, *m.Body), append(handles, m.ReceiptHandle)
				}
			}
			for _, handle := range handles {
				if _, err := api.ChangeMessageVisibility(t.Context(), &awssqs.ChangeMessageVisibilityInput{QueueUrl: &address, ReceiptHandle: handle}); err != nil {
					t.Fatal(err)
				}
			}
			return list
		},
		examined: "it does not exist", traced: "delivered to queue %[1]s by the relay",
	}
}

func TestTheTopicOfARowChoosesItsQueue(t *testing.T) {
	programtest.SetAWS(t, nil)
	topicsChooseTargets(t, routedSQS(t))
}

// TestTheTopicOfARowChoosesItsTarget has rows for two targets, for a forbidden target, for none,
// and for a missing one. The last three are parked with their reasons, and hold up their
// aggregates only. Each is delivered when its cause is gone.
func TestTheTopicOfARowChoosesItsTarget(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) routedSink{"kafka": routedKafka, "nats": routedNATS, "rabbitmq": routedRabbitMQ} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topicsChooseTargets(t, open(t))
		})
	}
}

func topicsChooseTargets(t *testing.T, to routedSink) {
	first, second, secret, gone := servicestest.Topic(), servicestest.Topic(), servicestest.Topic(), servicestest.Topic()
	for _, target := range []string{first, second, secret} {
		to.create(target)
	}
	address := programtest.Servers.Database(t)
	file := filepath.Join(t.TempDir(), "relay.yaml")
	configure := func(allow ...string) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, `stores:
  db: { postgres: { dsn: %q } }
pipelines:
  events:
    source: { outbox: { store: db, keep: 7d } }
    key: { id: property:message-id }
    sink: { %s }
    parked: { store: db }
    on_failure: { attempts: 2, backoff: 200ms }
    lease: 1m
`, address, fmt.Sprintf(to.yaml, "{ from: source, allow: ["+strings.Join(allow, ", ")+"] }")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure(first, second[:len(second)-2]+"*", gone)
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "outbox")
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const id, astray = "018f3c5a-0000-7000-8000-000000000001", "018f3c5a-0000-7000-8000-000000000002"
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		row := func(aggregate, topic, body string) outbox.Message {
			return outbox.Message{Aggregate: aggregate, Topic: topic, Payload: []byte(body)}
		}
		one, other := row("a", first, "a1"), row("x", secret, "x1")
		one.ID, other.ID = id, astray
		return outbox.Write(t.Context(), tx, one, row("a", second, "a2"), other, row("x", first, "x2"), row("y", "", "y1"), row("z", gone, "z1"))
	}); err != nil {
		t.Fatal(err)
	}
	programtest.Run(t, "", "lint", file).Check(t, term.ExitDone, "0 broken")
	if got := programtest.Run(t, "", "explain", file); !strings.Contains(got.Stdout, " by source") || !strings.Contains(got.Stdout, "a message whose target is not allowed, or does not exist, fails by itself") {
		t.Errorf("explain: %+v", got)
	}
	if got := programtest.Run(t, "", "dry-run", file); got.Status != term.ExitFound || !strings.Contains(got.Stdout, "no target             2  parked after its last attempt") || !strings.Contains(got.Stdout, secret+`", which is not allowed (`+first) {
		t.Errorf("dry-run: %+v", got)
	}
	if got := programtest.Run(t, "", "doctor", file); !strings.Contains(got.Stdout, to.examined) || !strings.Contains(got.Stdout, gone) {
		t.Errorf("doctor: %+v", got)
	}
	traced := func(id, want string) {
		t.Helper()
		if got := programtest.Run(t, "", "why", id, "--config", file); got.Status != term.ExitDone || !strings.Contains(got.Stdout, want) {
			t.Errorf("why of %s lacks %q: %+v", id, want, got)
		}
	}
	traced(id, "written to the outbox; it waits, and no relay owns its shard, to be sent to ")
	traced(astray, ", and names no target that is allowed")
	stop := programtest.Background(t, "outbox", "relay", file, "--admin", "off")
	programtest.BecomesTrue(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 0 AND (SELECT count(*) FROM semel_parked) = 3")
	if got := stop(); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	is := func(target string, want ...string) {
		t.Helper()
		got := to.read(target)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", target, got, want)
		}
	}
	is(first, "a1", "x2")
	is(second, "a2")
	is(secret)
	traced(id, fmt.Sprintf(to.traced, first))
	traced(astray, "parked messages of events: parked as ")
	if got := programtest.Run(t, "", "parked", "ls", "--config", file, "--json"); !strings.Contains(got.Stdout, "which is not allowed") || !strings.Contains(got.Stdout, "source of the message is empty") || !strings.Contains(got.Stdout, gone) {
		t.Errorf("parked: %+v", got)
	}
	to.create(gone)
	configure(first, second, gone, secret)
	stop = programtest.Background(t, "outbox", "relay", file, "--admin", "off")
	if got := programtest.Run(t, "", "parked", "retry", "--config", file, "--all", "--wait", "1m"); strings.Count(got.Stdout, ": redriven") != 2 || strings.Count(got.Stdout, ": parked again: ") != 1 {
		t.Errorf("%+v", got)
	}
	programtest.BecomesTrue(t, pool, "SELECT count(*) = 1 FROM semel_parked WHERE queued IS NULL")
	if got := stop(); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	is(gone, "z1")
	is(secret, "x1")
	is(first, "a1", "x2")
}
