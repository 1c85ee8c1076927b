package admin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// delivery is a message with a key and an offset.
func delivery(id string, offset int64) *pipeline.Item {
	it := &pipeline.Item{Message: semel.Message{Origin: semel.Origin{Source: "orders", Partition: 2, Offset: offset}}}
	it.Call.Key = semel.Key{Scope: "s", ID: id}
	return it
}

func decidedEvent(d semel.Decision, items ...*pipeline.Item) pipeline.Event {
	return pipeline.Event{Kind: pipeline.EventDecided, Count: len(items), Decision: d, Items: items}
}

func TestTheJournalHasMessagesWithAnUnusualOutcome(t *testing.T) {
	t.Parallel()
	j := NewJournal()
	observer := j.Observer("p")
	observer.ObservePipeline(decidedEvent(semel.Fresh, delivery("a", 1)))
	observer.ObservePipeline(decidedEvent(semel.Duplicate, delivery("a", 2), delivery("b", 3)))
	for range 50 { // it waits for another holder
		observer.ObservePipeline(decidedEvent(semel.InFlight, delivery("a", 4), delivery("c", 5)))
	}
	observer.ObservePipeline(pipeline.Event{Kind: pipeline.EventParked, Reason: "permanent", Count: 1, Item: delivery("a", 6)})
	observer.Observe(semel.Event{Kind: semel.EventTookOver, Key: semel.Key{Scope: "s", ID: "a"}, Attempt: 2})
	found := j.Of(semel.Key{Scope: "s", ID: "a"})
	if !found.Start || !found.Since.Equal(j.start) {
		t.Errorf("since %v (start of the process: %t), want %v", found.Since, found.Start, j.start)
	}
	var got []string
	for _, e := range found.Entries {
		if e.Pipeline != "p" || e.Time.Before(j.start.UTC()) {
			t.Errorf("%+v", e)
		}
		got = append(got, fmt.Sprintf("%s %s %s/%d/%d %d %d", e.Event, e.Reason, e.Source, e.Partition, e.Offset, e.Attempt, e.Times))
	}
	want := []string{"duplicate  orders/2/2 0 0", "in_flight  orders/2/4 0 50", "parked permanent orders/2/6 0 0", "took_over  /0/0 2 0"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
	if other := j.Of(semel.Key{Scope: "", ID: "a"}); len(other.Entries) > 0 {
		t.Errorf("another scope: %+v", other)
	}
}

func TestTheJournalForgetsTheOldest(t *testing.T) {
	t.Parallel()
	j := NewJournal()
	observer := j.Observer("p")
	items := make([]*pipeline.Item, journalSize/2)
	for i := range items {
		items[i] = delivery(fmt.Sprint(i), int64(i))
	}
	for range 2 { // full
		observer.ObservePipeline(decidedEvent(semel.Duplicate, items...))
	}
	if found := j.Of(semel.Key{Scope: "s", ID: "0"}); len(found.Entries) != 2 {
		t.Errorf("%+v", found)
	}
	observer.ObservePipeline(decidedEvent(semel.Late, delivery("0", 7)))
	found := j.Of(semel.Key{Scope: "s", ID: "0"})
	if len(found.Entries) != 2 || found.Entries[0].Event != "duplicate" || found.Entries[1].Event != "late" || found.Start || !found.Since.After(j.start) {
		t.Errorf("%+v", found)
	}
	if j.length != journalSize || len(j.blocks) != journalSize/blockSize {
		t.Errorf("%d entries in %d blocks", j.length, len(j.blocks))
	}
}

func TestWithoutCredentialsNoKeyIsShown(t *testing.T) {
	t.Parallel()
	handler := NewServer(&Process{Metrics: http.NotFoundHandler(), Journal: NewJournal()}, "localhost:4195", &config.Admin{}).Handler
	for _, c := range []struct{ method, path string }{
		{http.MethodPost, QuestionPath}, {http.MethodGet, QuestionPath}, {http.MethodGet, JournalPath + "?scope=s&id=a"},
	} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), c.method, "http://localhost"+c.path, nil))
		if body := recorder.Body.String(); recorder.Code != http.StatusForbidden || !strings.Contains(body, "credentials") || !strings.Contains(body, "admin.auth") || strings.Contains(body, "changes") {
			t.Errorf("%s %s: %d %s", c.method, c.path, recorder.Code, recorder.Body)
		}
	}
}
