package sqs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// request is what a source asks of SQS.
type request struct {
	Action                  string
	ReceiveRequestAttemptId string
	Entries                 []struct {
		Id                string
		VisibilityTimeout int
	}
}

// recorder notes requests on their way to a real server.
type recorder struct {
	lose int // answers to ReceiveMessage that do not arrive

	mu      sync.Mutex
	list    []request
	changed chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(q *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	q.Body = io.NopCloser(bytes.NewReader(body))
	answer, err := http.DefaultTransport.RoundTrip(q)
	in := request{Action: strings.TrimPrefix(q.Header.Get("X-Amz-Target"), "AmazonSQS.")}
	if err := errors.Join(err, json.Unmarshal(body, &in)); err != nil {
		return answer, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, in)
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
	if in.Action == "ReceiveMessage" && r.lose > 0 {
		r.lose--
		return nil, errors.Join(errors.New("the answer is lost"), answer.Body.Close())
	}
	return answer, nil
}

// await waits until there are n requests that match, and returns them.
func (r *recorder) await(t *testing.T, n int, match func(request) bool) []request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		r.mu.Lock()
		found := slices.DeleteFunc(slices.Clone(r.list), func(q request) bool { return !match(q) })
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		if len(found) >= n {
			return found
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%d requests, want %d", len(found), n)
		}
	}
}

// recorded opens a source whose requests are noted.
func recorded(t *testing.T, r *recorder, queue string, visibility time.Duration) *sqs.Source {
	t.Helper()
	url := servers.SQS(t)
	source, err := sqs.OpenSource(t.Context(), &sqs.SourceOptions{Queue: queue, Visibility: visibility, Client: awssqs.New(awssqs.Options{
		Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}, HTTPClient: &http.Client{Transport: r},
	})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := source.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return source
}

func readOne(t *testing.T, source *sqs.Source) []*pipeline.Item {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	items, err := source.Read(ctx)
	if err != nil || len(items) != 1 {
		t.Fatalf("%d messages, %v", len(items), err)
	}
	return items
}

// TestLostReceiveAnswerDoesNotBlockItsMessageGroup loses the answer that has the message. The source asks
// for the same answer, and does not wait for the end of its visibility time-out.
func TestLostReceiveAnswerDoesNotBlockItsMessageGroup(t *testing.T) {
	t.Parallel()
	api := client(t, servers.SQS(t))
	queue := newQueue(t, api, servicestest.Topic()+".fifo", map[string]string{"FifoQueue": "true"})
	if err := send(t.Context(), api, queue, &brokertest.Numbered{Body: []byte("b")}, true); err != nil {
		t.Fatal(err)
	}
	r := &recorder{lose: 2}
	source := recorded(t, r, queue, time.Hour)
	items := readOne(t, source)
	received := r.await(t, 3, func(q request) bool { return q.Action == "ReceiveMessage" })
	for _, q := range received[:3] {
		if q.ReceiveRequestAttemptId == "" || q.ReceiveRequestAttemptId != received[0].ReceiveRequestAttemptId {
			t.Errorf("the attempts are %+v, want the same three times", received[:3])
		}
	}
	if err := source.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	if err := send(t.Context(), api, queue, &brokertest.Numbered{Place: 1, Body: []byte("b")}, true); err != nil {
		t.Fatal(err)
	}
	items = readOne(t, source)
	received = r.await(t, 4, func(q request) bool { return q.Action == "ReceiveMessage" })
	if received[3].ReceiveRequestAttemptId == received[0].ReceiveRequestAttemptId {
		t.Error("a new request has the attempt of one that was answered: SQS would repeat its answer")
	}
	if err := source.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
}

// TestVisibilityIsExtendedAndShortened holds a message longer than its visibility
// time-out, and gives it back.
func TestVisibilityIsExtendedAndShortened(t *testing.T) {
	t.Parallel()
	api := client(t, servers.SQS(t))
	queue := newQueue(t, api, servicestest.Topic(), nil)
	if err := send(t.Context(), api, queue, &brokertest.Numbered{Body: []byte("b")}, false); err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	source := recorded(t, r, queue, 6*time.Second)
	items := readOne(t, source)
	changes := func(to int) func(request) bool {
		return func(q request) bool {
			return q.Action == "ChangeMessageVisibilityBatch" && len(q.Entries) == 1 && q.Entries[0].VisibilityTimeout == to
		}
	}
	r.await(t, 3, changes(6)) // each after a third of that
	if got, err := bodies(t.Context(), api, queue); err != nil || len(got) > 0 {
		t.Errorf("another process got %q, %v", got, err)
	}
	if err := source.Return(t.Context(), items, 0); err != nil {
		t.Fatal(err)
	}
	r.await(t, 1, changes(0))
	if again := readOne(t, source); again[0].Message.Origin.Delivery != 2 {
		t.Errorf("delivery %d, want 2", again[0].Message.Origin.Delivery)
	}
}
