package sqs_test

import (
	"cmp"
	"context"
	"crypto/md5" // the protocol has it
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/pipeline"
)

// amazon is a FIFO queue that answers as Amazon documents what ElasticMQ lacks:
// DeduplicationScope, redrives, failures of single messages, and five minutes that
// pass when the test says so.
type amazon struct {
	*httptest.Server
	attributes map[string]string
	refuse     map[string]types.BatchResultErrorEntry // by body

	mu      sync.Mutex
	now     time.Time            // the clock of the deduplication
	known   map[string]time.Time // when a deduplication id was first sent
	stored  []*kept
	number  int
	changed chan struct{}
}

// kept is a message in the queue.
type kept struct {
	id, dedup, group, body string
	receipt                string    // of the last delivery
	hidden                 time.Time // until then
}

func newAmazon(t *testing.T, attributes map[string]string) *amazon {
	a := &amazon{attributes: attributes, refuse: map[string]types.BatchResultErrorEntry{}, now: time.Now(), known: map[string]time.Time{}, changed: make(chan struct{})}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *amazon) queue() string { return a.URL + "/123456789012/orders.fifo" }

type amazonRequest struct {
	VisibilityTimeout int
	Entries           []struct {
		Id, MessageBody, MessageGroupId, MessageDeduplicationId, ReceiptHandle string
		VisibilityTimeout                                                      int
	}
}

// ServeHTTP implements http.Handler.
func (a *amazon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in amazonRequest
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]any{}
	switch action {
	case "GetQueueAttributes":
		out["Attributes"] = a.attributes
	case "SendMessageBatch":
		a.sent(&in, out)
	case "ReceiveMessage":
		list := a.received(&in)
		if out["Messages"] = list; len(list) == 0 { // it asks again soon, unless it is gone
			changed := a.changed
			a.mu.Unlock()
			select {
			case <-changed:
			case <-time.After(time.Second):
			case <-r.Context().Done():
			}
			a.mu.Lock()
		}
	case "DeleteMessageBatch", "ChangeMessageVisibilityBatch":
		var done []any
		for _, e := range in.Entries {
			i := slices.IndexFunc(a.stored, func(m *kept) bool { return m.receipt == e.ReceiptHandle })
			switch {
			case i >= 0 && action == "DeleteMessageBatch":
				a.stored = slices.Delete(a.stored, i, i+1)
			case i >= 0:
				a.stored[i].hidden = time.Now().Add(time.Duration(e.VisibilityTimeout) * time.Second)
			}
			done = append(done, map[string]any{"Id": e.Id})
		}
		out["Successful"] = done
		a.wake()
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_ = json.NewEncoder(w).Encode(out) // the client may be gone
}

// wake wakes what waits for messages or for their end. a.mu is held.
func (a *amazon) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// sent stores the messages of a request. a.mu is held.
func (a *amazon) sent(in *amazonRequest, out map[string]any) {
	var done, failed []any
	for _, e := range in.Entries {
		if refusal, ok := a.refuse[e.MessageBody]; ok {
			failed = append(failed, map[string]any{"Id": e.Id, "Code": refusal.Code, "Message": refusal.Message, "SenderFault": refusal.SenderFault})
			continue
		}
		scoped := e.MessageDeduplicationId
		if a.attributes["DeduplicationScope"] == "messageGroup" {
			scoped = e.MessageGroupId + " " + scoped
		}
		if first, ok := a.known[scoped]; !ok || a.now.Sub(first) > 5*time.Minute {
			a.known[scoped] = a.now
			a.store(e.MessageDeduplicationId, e.MessageGroupId, e.MessageBody)
		}
		sum := md5.Sum([]byte(e.MessageBody))
		done = append(done, map[string]any{"Id": e.Id, "MessageId": "m", "MD5OfMessageBody": hex.EncodeToString(sum[:])})
	}
	out["Successful"], out["Failed"] = done, failed
	a.wake()
}

// store stores a message under a new MessageId, which is the deduplication id too
// unless there is one. a.mu is held.
func (a *amazon) store(dedup, group, body string) {
	a.number++
	id := fmt.Sprintf("9b1deb4d-3b7d-4bad-9bdd-%012d", a.number)
	a.stored = append(a.stored, &kept{id: id, dedup: cmp.Or(dedup, id), group: group, body: body})
}

// received hands out messages of groups without a message in flight. a.mu is held.
func (a *amazon) received(in *amazonRequest) (list []any) {
	blocked, now := map[string]bool{}, time.Now()
	for _, m := range a.stored {
		blocked[m.group] = blocked[m.group] || m.hidden.After(now)
	}
	for _, m := range a.stored {
		if blocked[m.group] || len(list) == 10 {
			continue
		}
		a.number++
		m.receipt, m.hidden = fmt.Sprint("receipt", a.number), now.Add(time.Duration(in.VisibilityTimeout)*time.Second)
		sum := md5.Sum([]byte(m.body))
		list = append(list, map[string]any{
			"MessageId": m.id, "ReceiptHandle": m.receipt, "Body": m.body, "MD5OfBody": hex.EncodeToString(sum[:]),
			"Attributes": map[string]string{"MessageGroupId": m.group, "MessageDeduplicationId": m.dedup, "ApproximateReceiveCount": "1"},
		})
	}
	return list
}

// redrive puts a message into the queue as a redrive does: with a new MessageId, and
// with that of the message before as deduplication id.
func (a *amazon) redrive(group, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.number++
	a.store(fmt.Sprintf("9b1deb4d-3b7d-4bad-9bdd-%012d", a.number), group, body)
	a.wake()
}

func (a *amazon) pass(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = a.now.Add(d)
}

func (a *amazon) left() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.stored)
}

// publish publishes orders, each an id and a group.
func (a *amazon) publish(t *testing.T, orders ...[2]string) {
	t.Helper()
	publisher, err := sqs.OpenPublisher(t.Context(), client(t, a.URL), a.queue())
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range orders {
		m := publication(order[0], orderText(order[0]))
		m.Message.MessageGroupId = &order[1]
		if publisher.Publish(t.Context(), m); m.Err != nil {
			t.Error(m.Err)
		}
	}
}

func orderText(id string) string { return fmt.Sprintf(`{"id":%q}`, id) }

// empty runs a pipeline until the queue is empty, and returns the ids of its effects.
func (a *amazon) empty(t *testing.T, store semel.Store) (effects []string) {
	t.Helper()
	source, err := sqs.OpenSource(t.Context(), &sqs.SourceOptions{Client: client(t, a.URL), Queue: a.queue(), Visibility: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	session, err := pipeline.NewTwoPhase(store, pipeline.NewHandler(func(_ context.Context, d pipeline.Delivery) (semel.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		effects = append(effects, d.Key.ID)
		return semel.Result{}, nil
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	letters, err := pipeline.OpenDeadLetterDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	runner, err := pipeline.NewRunner(source, session, &pipeline.Options{Key: rule(t, ".id"), Scope: "orders", DeadLetters: letters})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer cancel()
		for ctx.Err() == nil {
			a.mu.Lock()
			left, changed := len(a.stored), a.changed
			a.mu.Unlock()
			if left == 0 {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	})
	err = runner.Run(ctx)
	waiting.Wait()
	if left := a.left(); err != nil || left > 0 {
		t.Fatalf("%v, %d messages are left", err, left)
	}
	slices.Sort(effects)
	return effects
}

// TestTheStoreRecognisesDuplicatesThatSQSDelivers sends orders in ways that SQS does not
// deduplicate. Each order has one effect.
func TestTheStoreRecognisesDuplicatesThatSQSDelivers(t *testing.T) {
	t.Parallel()
	t.Run("in another group, with DeduplicationScope messageGroup", func(t *testing.T) {
		for scope, want := range map[string]int{"queue": 2, "messageGroup": 3} {
			a := newAmazon(t, map[string]string{"DeduplicationScope": scope})
			a.publish(t, [2]string{"1", "a"}, [2]string{"1", "b"}, [2]string{"1", "a"}, [2]string{"2", "b"})
			if left := a.left(); left != want {
				t.Errorf("scope %s: the queue has %d messages, want %d", scope, left, want)
			}
			if got := a.empty(t, memory(t)); !slices.Equal(got, []string{"1", "2"}) {
				t.Errorf("scope %s: effects of %q", scope, got)
			}
		}
	})
	t.Run("redriven, or sent again after five minutes", func(t *testing.T) {
		a, store := newAmazon(t, nil), memory(t)
		a.publish(t, [2]string{"1", "a"}, [2]string{"1", "a"})
		if got := a.empty(t, store); !slices.Equal(got, []string{"1"}) {
			t.Fatalf("effects of %q", got)
		}
		a.redrive("a", orderText("1")) // its deletion had failed until the receive limit
		a.redrive("a", orderText("2")) // it had failed
		a.publish(t, [2]string{"1", "a"})
		if left := a.left(); left != 2 {
			t.Errorf("within five minutes the queue has %d messages, want 2", left)
		}
		a.pass(5*time.Minute + time.Second)
		a.publish(t, [2]string{"1", "a"})
		if left := a.left(); left != 3 {
			t.Errorf("after five minutes the queue has %d messages, want 3", left)
		}
		if got := a.empty(t, store); !slices.Equal(got, []string{"2"}) {
			t.Errorf("the second run had effects of %q, want 2 alone", got)
		}
	})
}

// TestSendBatchReportsTheOutcomeOfEachMessage has SQS refuse some messages of a batch.
func TestSendBatchReportsTheOutcomeOfEachMessage(t *testing.T) {
	t.Parallel()
	a := newAmazon(t, map[string]string{"MaximumMessageSize": "1048576"})
	refusal := func(code string, fault bool) types.BatchResultErrorEntry {
		return types.BatchResultErrorEntry{Code: aws.String(code), Message: aws.String("refused by the test"), SenderFault: fault}
	}
	a.refuse["broken"] = refusal("InternalError", false)
	a.refuse["slow"] = refusal("ThrottlingException", false)
	a.refuse["odd"] = refusal("InvalidMessageContents", true)
	publisher, err := sqs.OpenPublisher(t.Context(), client(t, a.URL), a.queue())
	if err != nil {
		t.Fatal(err)
	}
	var list []*sqs.Publication
	for _, body := range []string{"fine", "broken", "slow", "odd", strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20+1), "fine too"} {
		list = append(list, publication(fmt.Sprint(len(list)), body))
	}
	publisher.Publish(t.Context(), list...)
	var got []string
	for _, m := range list {
		_, permanent := errors.AsType[*semel.PermanentError](m.Err)
		_, unavailable := errors.AsType[*pipeline.UnavailableError](m.Err)
		switch {
		case m.Err == nil:
			got = append(got, "stored")
		case permanent:
			got = append(got, "permanent")
		case unavailable:
			got = append(got, "unavailable")
		case errors.Is(m.Err, semel.ErrOutcomeUnknown):
			got = append(got, "unknown")
		default:
			t.Error(m.Err)
		}
	}
	if want := []string{"stored", "unavailable", "unavailable", "permanent", "stored", "permanent", "stored"}; !slices.Equal(got, want) || a.left() != 3 {
		t.Errorf("the outcomes are %q, want %q; %d messages are stored", got, want, a.left())
	}
}
