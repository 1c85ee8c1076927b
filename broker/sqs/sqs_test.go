package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// client returns a client for the server at url.
func client(tb testing.TB, url string) *awssqs.Client {
	tb.Helper()
	transport := &http.Transport{IdleConnTimeout: 200 * time.Millisecond} // the suite counts the goroutines of connections
	return awssqs.New(awssqs.Options{
		Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}, HTTPClient: &http.Client{Transport: transport},
	})
}

// newQueue creates a queue with attributes and returns its URL.
func newQueue(tb testing.TB, api *awssqs.Client, name string, attributes map[string]string) string {
	tb.Helper()
	made, err := api.CreateQueue(tb.Context(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	if err != nil {
		tb.Fatal(err)
	}
	return *made.QueueUrl
}

// at returns the URL of a queue with another host, to which requests then go.
func at(queue, address string) string {
	u, err := url.Parse(queue)
	if err != nil {
		panic(err) // it is the server's own
	}
	u.Host = address
	return u.String()
}

// place is a kind of queue for the suites.
type place struct {
	name       string
	end        string // of the queue's name
	attributes map[string]string
}

var places = []place{{name: "standard"}, {name: "FIFO", end: ".fifo", attributes: map[string]string{"FifoQueue": "true"}}}

// restart kills a server and starts it again. It starts slowly, so with -short the
// suites do not.
func restart(server *services.Server) func(context.Context) error {
	if testing.Short() {
		return nil
	}
	return func(ctx context.Context) error {
		return errors.Join(server.Kill(), server.Restart(ctx))
	}
}

// send sends a message until the server has it.
func send(ctx context.Context, api *awssqs.Client, queue string, m *brokertest.Numbered, fifo bool) error {
	in := &awssqs.SendMessageInput{QueueUrl: &queue, MessageBody: aws.String(string(m.Body)), MessageAttributes: map[string]types.MessageAttributeValue{}}
	for _, h := range m.Headers {
		in.MessageAttributes[h.Name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(string(h.Value))}
	}
	if fifo {
		in.MessageGroupId = aws.String(strconv.Itoa(m.Partition))
		in.MessageDeduplicationId = aws.String(strconv.Itoa(m.Partition) + "-" + strconv.Itoa(m.Place))
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := api.SendMessage(attempt, in, func(o *awssqs.Options) { o.Retryer = aws.NopRetryer{} })
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func TestSourcesAndSinksPassTheSuites(t *testing.T) {
	t.Parallel()
	server := servicestest.StartElasticMQ(t)
	for _, p := range places {
		if testing.Short() && p.end != "" {
			continue // it waits for blocked groups; TestGroupsKeepTheirOrder looks at them
		}
		t.Run("source/"+p.name, func(t *testing.T) { runSource(t, server, p) })
		t.Run("sink/"+p.name, func(t *testing.T) { runSink(t, server, p) })
	}
}

// runSource runs the suite. ElasticMQ forgets in a restart which groups are blocked, so
// TestGroupsKeepTheirOrder looks at the order. It refuses receipt handles from before a
// restart, so a message that is deleted with one comes again.
func runSource(t *testing.T, server *services.Server, p place) {
	messages := 120
	if testing.Short() {
		messages = 60
	}
	place := func(tb testing.TB, api *awssqs.Client, attributes map[string]string) brokertest.SourcePlace {
		name := servicestest.Topic() + p.end
		queue := newQueue(tb, api, name, attributes)
		open := func(ctx context.Context, api *awssqs.Client, queue string, visibility time.Duration) (pipeline.Source, error) {
			source, err := sqs.OpenSource(ctx, &sqs.SourceOptions{Client: api, Queue: queue, Visibility: visibility})
			if err != nil {
				return nil, err
			}
			return source, nil
		}
		return brokertest.SourcePlace{
			Partitions: 3,
			Produce: func(ctx context.Context, list []brokertest.Numbered) error {
				for i := range list {
					if err := send(ctx, api, queue, &list[i], p.end != ""); err != nil {
						return err
					}
				}
				return nil
			},
			Open:   func(ctx context.Context) (pipeline.Source, error) { return open(ctx, api, queue, 5*time.Second) }, // which no pause of a slow machine ends
			Server: server.Addr(),
			OpenAt: func(ctx context.Context, address string) (pipeline.Source, error) {
				return open(ctx, client(tb, "http://"+address), at(queue, address), 2*time.Second) // until a lost message comes again
			},
			Again: func(ctx context.Context) error {
				if _, err := api.DeleteQueue(ctx, &awssqs.DeleteQueueInput{QueueUrl: &queue}); err != nil {
					return err
				}
				_, err := api.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
				return err
			},
			Restart: restart(server),
		}
	}
	brokertest.RunSource(t, brokertest.SourceHarness{
		Messages: messages, Unordered: true, ForgetsAcks: true, Blocking: p.end != "",
		New: func(tb testing.TB) brokertest.SourcePlace { return place(tb, client(tb, server.URL()), p.attributes) },
		NewLimited: func(tb testing.TB) brokertest.SourcePlace {
			api := client(tb, server.URL())
			dead := servicestest.Topic() + p.end
			newQueue(tb, api, dead, p.attributes)
			attributes := map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:` + dead + `","maxReceiveCount":4}`}
			maps.Copy(attributes, p.attributes)
			return place(tb, api, attributes)
		},
	})
}

// runSink runs the suite. A queue has no order among the groups of one partition.
func runSink(t *testing.T, server *services.Server, p place) {
	brokertest.RunSink(t, brokertest.SinkHarness{Messages: 200, Unordered: true, AtLeastOnce: p.end == "", New: func(tb testing.TB) brokertest.SinkTarget {
		api := client(tb, server.URL())
		queue := newQueue(tb, api, servicestest.Topic()+p.end, p.attributes)
		var had []brokertest.Effect
		return brokertest.SinkTarget{
			Sink: func(ctx context.Context) (pipeline.Sink, error) {
				return sqs.OpenSink(ctx, &sqs.SinkOptions{Client: api, Queue: queue})
			},
			Server: server.Addr(),
			SinkAt: func(ctx context.Context, address string) (pipeline.Sink, error) {
				return sqs.OpenSink(ctx, &sqs.SinkOptions{Client: client(tb, "http://"+address), Queue: at(queue, address)})
			},
			Refused: make([]byte, 2<<20), // a queue takes 1 MiB
			Effects: func(ctx context.Context) ([]brokertest.Effect, error) {
				more, err := effects(ctx, api, queue)
				had = append(had, more...)
				return had, err
			},
			Restart: restart(server),
		}
	}})
}

// TestGroupsKeepTheirOrder has one message of each group fail twice, and the first
// group's first message until the others are settled.
func TestGroupsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	api := client(t, servers.SQS(t))
	queue := newQueue(t, api, servicestest.Topic()+".fifo", map[string]string{"FifoQueue": "true"})
	const groups, each = 3, 12
	for n := range each {
		for g := range groups {
			m := brokertest.Numbered{Partition: g, Place: n, Body: fmt.Appendf(nil, `{"id":"%d-%d"}`, g, n)}
			if err := send(t.Context(), api, queue, &m, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	source, err := sqs.OpenSource(t.Context(), &sqs.SourceOptions{Client: api, Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // only what hangs needs it
	defer cancel()
	var mu sync.Mutex
	effects, tries, done := map[string][]string{}, map[string]int{}, 0
	session, err := pipeline.NewTwoPhase(memory(t), pipeline.NewHandler(func(_ context.Context, d pipeline.Delivery) (semel.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		tries[d.Key.ID]++
		others := done - len(effects["0"])
		if d.Key.ID == "0-0" && others < (groups-1)*each || strings.HasSuffix(d.Key.ID, "-5") && tries[d.Key.ID] < 3 {
			return semel.Result{}, errors.New("not yet")
		}
		group := string(d.RecordKey)
		effects[group] = append(effects[group], d.Key.ID)
		if done++; done == groups*each {
			cancel()
		}
		return semel.Result{}, nil
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	letters, err := pipeline.OpenDeadLetterDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	runner, err := pipeline.NewRunner(source, session, &pipeline.Options{
		Key: rule(t, ".id"), Scope: "s", DeadLetters: letters, Failure: pipeline.Failure{Attempts: 1000, From: 10 * time.Millisecond, To: 10 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := runner.Run(ctx); err != nil {
		t.Fatal(err)
	}
	for g := range groups {
		var want []string
		for n := range each {
			want = append(want, fmt.Sprintf("%d-%d", g, n))
		}
		if got := effects[strconv.Itoa(g)]; !slices.Equal(got, want) {
			t.Errorf("group %d had its effects as %v, want %v", g, got, want)
		}
	}
}

func memory(t *testing.T) semel.Store {
	t.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func rule(t *testing.T, text string) *key.Rule {
	t.Helper()
	r, err := key.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// bodies takes all messages from a queue.
func bodies(ctx context.Context, api *awssqs.Client, queue string) (list [][]byte, err error) {
	taken, err := effects(ctx, api, queue)
	for _, e := range taken {
		list = append(list, e.Body)
	}
	return list, err
}

// effects takes all messages from a queue, with their attributes.
func effects(ctx context.Context, api *awssqs.Client, queue string) (list []brokertest.Effect, err error) {
	for {
		got, err := api.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
			QueueUrl: &queue, MaxNumberOfMessages: 10, VisibilityTimeout: 60, MessageAttributeNames: []string{"All"},
		})
		if err != nil || len(got.Messages) == 0 {
			return list, err
		}
		in := &awssqs.DeleteMessageBatchInput{QueueUrl: &queue}
		for i, m := range got.Messages {
			effect := brokertest.Effect{Body: []byte(*m.Body)}
			for name, value := range m.MessageAttributes {
				effect.Headers = append(effect.Headers, semel.Header{Name: name, Value: []byte(aws.ToString(value.StringValue))})
			}
			list = append(list, effect)
			in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle})
		}
		if _, err := api.DeleteMessageBatch(ctx, in); err != nil {
			return list, err
		}
	}
}
