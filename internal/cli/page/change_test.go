package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

func TestAChangeWaitsForAnotherAndGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at := make(chan struct{}, 1)
		end, err := alone(t.Context(), at, "change")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := alone(ctx, at, "change"); err == nil {
			t.Error("two are at work at once")
		}
		end()
		if _, err := alone(t.Context(), at, "change"); err != nil {
			t.Error(err)
		}
	})
}

func TestOnlyADoneKeyIsReleased(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.claims(semel.Unknown, "a")
	page := s.get("/key?store=ledger&digest=" + s.digest("a"))
	w := s.ask(admin.Operator, "POST", "/change", url.Values{"store": {"ledger"}, "ref": {value(t, page, "ref")}, "expect": {value(t, page, "expect")}, "do": {"release"}, "reason": {"test"}})
	if w.Code != http.StatusConflict || s.state("a") != semel.Unknown {
		t.Errorf("%d, and the key is %s: %s", w.Code, s.state("a"), w.Body)
	}
}

func TestAKeyThatExpiresSoonIsNotReleased(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	answers := make([]semel.ClaimAnswer, 1)
	if err := s.store.Claim(t.Context(), []semel.ClaimRequest{{Key: semel.Key{Scope: "orders", ID: "a"}, Owner: semel.Owner{Name: "x", Nonce: 1}, Window: changeFor, Done: true}}, answers); err != nil {
		t.Fatal(err)
	}
	page := s.get("/key?store=ledger&digest=" + s.digest("a"))
	w := s.ask(admin.Operator, "POST", "/change", url.Values{"store": {"ledger"}, "ref": {value(t, page, "ref")}, "expect": {value(t, page, "expect")}, "do": {"release"}, "reason": {"test"}})
	if w.Code != http.StatusConflict {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	has(t, w.Body.String(), "expires by itself")
}

func TestSearchesAreForOperatorsAndLimited(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	ref := refOf(&semel.Record{Key: semel.Key{ID: "a"}})
	if w := s.ask(admin.Viewer, "POST", "/key", url.Values{"ref": {ref}}); w.Code != http.StatusForbidden {
		t.Errorf("a viewer: %d: %s", w.Code, w.Body)
	}
	if page := s.ask(admin.Viewer, "POST", "/key", url.Values{"id": {"a"}}).Body.String(); len(values(page, "ref")) > 0 {
		t.Errorf("a viewer is offered a search: %s", page)
	}
	form := url.Values{}
	for i := range mostReadings + 1 {
		form.Add("ref", refOf(&semel.Record{Key: semel.Key{ID: fmt.Sprint(i)}}))
	}
	if w := s.ask(admin.Operator, "POST", "/key", form); w.Code != http.StatusBadRequest {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

func TestThePreviewSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	var ids []string
	for i := range mostChanged + 20 {
		ids = append(ids, fmt.Sprint("order-", i))
	}
	s.park(pipeline.ReasonPermanent, ids...)
	preview := s.post("/preview", url.Values{"all": {"1"}, "pipeline": {"orders"}, "reason": {"permanent"}, "do": {"skip"}})
	has(t, preview, "This takes 500 of 520 that match.", "Filter: pipeline orders, reason permanent.", "parked as permanent: it is removed")
}

func TestGuessesInTheHeaderHaveToWaitToo(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	withinTheWait(t, func(address string) (last time.Time, check func()) {
		from := func(r *http.Request) { r.RemoteAddr = address + ":1" }
		failed := 0
		s.page.Process.Tries.Failed = func(user, by string) {
			if failed++; user != "ops" || by != address {
				t.Errorf("%s from %s", user, by)
			}
		}
		guess := func(r *http.Request) { r.SetBasicAuth("ops", "x") }
		paths := []string{"/key", "/status"} // of the page, and of the server itself
		for i := range admin.FreeFailures {
			last = time.Now()
			if w := s.ask(admin.Nobody, "GET", paths[i%2], nil, guess, from); w.Code != http.StatusUnauthorized {
				t.Fatalf("%s: %d: %s", paths[i%2], w.Code, w.Body)
			}
		}
		var blocked []*httptest.ResponseRecorder
		for _, path := range paths {
			blocked = append(blocked, s.ask(admin.Operator, "GET", path, nil, from))
		}
		form := s.ask(admin.Nobody, "POST", "/login", url.Values{"user": {"ops"}, "password": {canary + "-pw"}}, from)
		return last, func() {
			for i, w := range blocked {
				if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
					t.Errorf("%s: %d, %v", paths[i], w.Code, w.Header())
				}
			}
			if form.Code != http.StatusTooManyRequests {
				t.Errorf("the form: %d", form.Code)
			}
			if w := s.ask(admin.Viewer, "GET", "/key", nil, from); w.Code != http.StatusOK {
				t.Errorf("another user of this address: %d: %s", w.Code, w.Body)
			}
			if failed != admin.FreeFailures {
				t.Errorf("%d failures were reported", failed)
			}
		}
	})
}

func TestWrongLinksBlockNobody(t *testing.T) {
	t.Parallel()
	s := newSite(t, "")
	for range 10 * admin.FreeFailures {
		if w := s.ask(admin.Nobody, "GET", "/login?token=x", nil); w.Code == http.StatusTooManyRequests {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
	}
	s.loggedIn()
}

// TestTheAuditSaysWhatBecameOfARetry retries messages, of which the pipeline parks one again.
func TestTheAuditSaysWhatBecameOfARetry(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.park(pipeline.ReasonPermanent, "a", "b")
	has(t, s.post("/settle", url.Values{"pick": values(s.get("/parked"), "pick"), "do": {"retry"}, "reason": {"the target is up"}}), "2 queued")
	queued, err := s.letters.Queued(t.Context(), "orders", 10)
	if err != nil || len(queued) != 2 {
		t.Fatal(len(queued), err)
	}
	has(t, s.get("/audit"), "</span> – queued<")
	for _, m := range queued { // as the pipeline does
		if m.Key.ID == "a" {
			err = s.letters.Settle(t.Context(), m, pipeline.Settlement{How: pipeline.HowRedriven, Delivered: true, Actor: "host/1", Reason: "done"})
		} else {
			again := *m
			again.At, again.Redrives, again.Queued, again.Reason = time.Now().Add(time.Second), m.Redrives+1, false, pipeline.ReasonAttempts
			err = s.letters.Park(t.Context(), []pipeline.Parked{again})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.page.parkedLists.named("orders").forget()
	audit := s.get("/audit")
	has(t, audit, "message orders/ppermanent0</span> – queued<", "message orders/ppermanent1</span> – parked again: attempts<", "redriven ppermanent0 of orders, key a</span> – done")
	if strings.Contains(audit, "message orders/ppermanent1</span> – done") {
		t.Error(audit)
	}
}

// TestAKeySaysWhyItsLastDeliveryHadNoEffect asks for keys whose deliveries were late, filtered out, and
// duplicates with other content.
func TestAKeySaysWhyItsLastDeliveryHadNoEffect(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	p, _ := s.page.Conf.Pipeline("orders")
	p.OnLate = "drop"
	s.claims(semel.Done, "filtered", "differs")
	tell := s.page.Process.Journal.Observer("orders").ObservePipeline
	items := func(id string) []*pipeline.Item {
		return []*pipeline.Item{{Call: semel.Call{Key: semel.Key{Scope: "orders", ID: id}}}}
	}
	tell(pipeline.Event{Kind: pipeline.EventDecided, Decision: semel.Late, Items: items("late")})
	tell(pipeline.Event{Kind: pipeline.EventFiltered, Count: 1, Items: items("filtered")})
	tell(pipeline.Event{Kind: pipeline.EventDiffering, Count: 1, Items: items("differs")})
	has(t, s.post("/key", url.Values{"id": {"late"}}), "it is dropped again as late (on_late: drop), because its own time is older than the window of 7d")
	has(t, s.post("/key", url.Values{"id": {"filtered"}}), "The message had no effect: the filter of the pipeline left it out.")
	has(t, s.post("/key", url.Values{"id": {"differs"}}), "a duplicate whose content differs from that of the first message", "is processed <strong>again</strong>: an effect that it had happens twice")
}

// TestAKeyOfAProxyIsFoundWithoutItsCaller asks a proxy without pipelines.
func TestAKeyOfAProxyIsFoundWithoutItsCaller(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.page.Conf.Proxy = &config.Proxy{Store: schema.Reference{Name: "ledger"}, Scope: "orders"}
	s.page.Conf.Pipelines = nil
	key := httpidem.Key("orders", "alice", "pay-1")
	s.claims(semel.Unknown, key.ID)
	for _, id := range []string{"pay-1", key.ID} {
		page := s.post("/key", url.Values{"id": {id}})
		has(t, page, "<dt>state</dt><dd>unknown</dd>", "it is not processed (a pipeline parks it, a request gets 409)")
		if strings.Contains(page, "Nothing is known") || strings.Contains(page, "Find the key in a message") {
			t.Error(page)
		}
	}
	has(t, s.ask(admin.Operator, "POST", "/key", url.Values{"message": {"{}"}}).Body.String(), "no pipeline is here, whose key rule would find the key")
}

// TestAKeySaysWhatItsPipelineDoes asks for a key of a pipeline that is paused, while a message of
// it waits for its next try.
func TestAKeySaysWhatItsPipelineDoes(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.page.Process.Journal.UnderWay = func(keys []semel.Key) []admin.UnderWay {
		if !slices.Contains(keys, semel.Key{Scope: "hooks", ID: "waits"}) {
			return nil
		}
		return []admin.UnderWay{{Pipeline: "hooks", State: admin.StateRetrying, NextRetry: time.Now().Add(19500 * time.Millisecond)}}
	}
	page := s.post("/key", url.Values{"id": {"waits"}, "pipeline": {"hooks"}})
	has(t, page, "hooks is not ready: the server answers ", "hooks has a message of this key: to be tried again in 1")
	if strings.Contains(page, "Nothing is known of this key") {
		t.Error(page)
	}
	has(t, s.post("/key", url.Values{"id": {"other"}, "pipeline": {"hooks"}}), "Nothing is known of this key", "hooks is not ready: the server answers ")
	if page := s.post("/key", url.Values{"id": {"other"}, "pipeline": {"orders"}}); strings.Contains(page, "is not ready") {
		t.Error(page)
	}
}
