package page

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
)

// hostile are texts that a careless page would run, or that would leave their place in it.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `</textarea></title></svg><script>alert(2)</script>`,
	`javascript:alert(1)`, `{{.Who}}<b>`, "\x1b[2J\u202egnp.<i>", `--><svg onload=alert(1)>`, "&lt;b&gt;<u>", "a\tb\nc<s>",
}

// canary are secrets that no page may show.
const canary = "canary-7c1e"

const credentials = `auth: { username: ops, password: ` + canary + `-pw, token: ` + canary + `-token, viewer: { username: eve, password: ` + canary + `-view } }`

// site is the real handler of an admin server, over a real store and real parked messages.
type site struct {
	t       *testing.T
	page    *Page
	handler http.Handler
	store   *logstore.Store
	letters *pipeline.DeadLetterDir
	dir     string
	// failing makes the store and the parked messages unreachable.
	failing bool
	// silent makes the store answer no more.
	silent bool
}

// newSite returns a site with a section admin of the configuration.
func newSite(t *testing.T, section string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	text := strings.ReplaceAll(`
admin: { SECTION }
stores:
  ledger: { embedded: { path: DIR/ledger } }
  db: { postgres: { dsn: "postgres://u:`+canary+`-dsn@127.0.0.1:1/x" } }
pipelines:
  orders: { source: { file: { paths: [DIR/in.jsonl] } }, key: { id: .id }, store: ledger, window: 7d, sink: { webhook: { url: "http://127.0.0.1:1/x", headers: { Authorization: "Bearer `+canary+`-hook" }, allow_private: true } }, parked: { path: DIR/parked } }
  hooks: { source: { nats: { servers: ["127.0.0.1:1"], stream: s, consumer: c } }, key: { id: "header:Order" }, store: ledger, sink: { file: { path: DIR/out } }, parked: { path: DIR/parked } }
  relay: { source: { outbox: { store: db } }, key: { id: property:message-id }, sink: { file: { path: DIR/relayed } }, parked: { path: DIR/parked } }
  topics: { source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: g } }, key: { id: .id }, store: ledger, sink: { file: { path: DIR/topics } }, parked: { topic: aside } }
`, "DIR", s.dir)
	file := filepath.Join(s.dir, "semel.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(text, "SECTION", section, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := kind.All().Read(file, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if s.store, err = logstore.Open(filepath.Join(s.dir, "ledger"), &logstore.Options{KeepIDs: true}); err != nil {
		t.Fatal(err)
	}
	if s.letters, err = pipeline.OpenDeadLetterDir(filepath.Join(s.dir, "parked")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	process := &admin.Process{
		Status: s.status, Redact: conf.Redact, Journal: admin.NewJournal(), Metrics: http.NotFoundHandler(),
		Ready: func(context.Context) []admin.Readiness { return nil },
		Rates: func(string) []float64 { return []float64{1, 5, 2} },
		Store: func(name string) (semel.Store, error) {
			if name != "ledger" || s.failing {
				return nil, fmt.Errorf("the store %s is down with %s-dsn: %w", name, canary, semel.ErrStoreUnavailable)
			}
			return s.store, nil
		},
		Parked: func(context.Context, string) (pipeline.DeadLetters, bool, error) {
			if s.failing {
				return nil, false, errors.New("the disk is gone")
			}
			return openLetters{s.letters}, true, nil
		},
	}
	app := &term.App{Kinds: kind.All(), Stdout: io.Discard, Stderr: io.Discard, Redact: conf.Redact, Patience: time.Second, Env: func(string) string { return "" }}
	s.page = New(&Options{App: app, File: file, Conf: conf, Process: process, At: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4195}})
	process.Page = s.page
	s.handler = admin.NewServer(process, "127.0.0.1:4195", &conf.Admin).Handler
	return s
}

// openLetters are closed by each user, and stay open for the next one.
type openLetters struct{ *pipeline.DeadLetterDir }

func (openLetters) Close() error { return nil }

// status is that of a process with all parts in trouble.
func (s *site) status(ctx context.Context) *admin.Status {
	waiting, lag := int64(3), int64(2906)
	left, claim, sink := 363.0, 0.003, 0.248
	now := &admin.Status{
		Time: time.Now(), Started: time.Now().Add(-time.Hour),
		Pipelines: []admin.PipelineStatus{
			{
				Name: "orders", State: admin.StateReady, Rate: 8, Read: 100, Settled: 90, Fresh: 80, Duplicate: 10, Waiting: &waiting, Lag: &lag, LastSettled: time.Now(),
				Pace:      &admin.Pace{LeftSeconds: &left, Messages: 1, BatchSeconds: &sink, ClaimSeconds: &claim, SinkSeconds: &sink, Workers: 2, Limit: admin.LimitSink},
				LastError: &admin.LastError{At: time.Now(), Event: hostile[0], Cause: hostile[1]},
				Lags:      []admin.PartitionLag{{Source: hostile[0], Messages: &lag}, {Source: hostile[2], Partition: 1}},
			},
			{Name: "hooks", State: admin.StatePaused, Reason: "the server answers " + hostile[3]},
			{Name: "topics", State: admin.StateReady},
		},
	}
	store := admin.StoreStatus{Name: "ledger", State: admin.StateReady}
	if counts, err := s.store.Count(ctx); err == nil {
		store.Counted(&counts, time.Now())
	}
	if s.failing {
		store.State, store.Reason = admin.StateNotReady, "the server is down"
	}
	if s.silent {
		store.State, store.Reason, store.Answered = admin.StateNotReady, "no answer for 9 s", now.Time.Add(-time.Minute)
	}
	now.Stores = []admin.StoreStatus{store}
	return now
}

// claims makes keys done or unknown.
func (s *site) claims(state semel.State, ids ...string) {
	s.t.Helper()
	for i, id := range ids {
		r := semel.ClaimRequest{Key: semel.Key{Scope: "orders", ID: id}, Owner: semel.Owner{Name: hostile[i%len(hostile)], Nonce: uint64(i + 1)}, Window: semel.Forever, Origin: hostile[0]}
		if r.Done = state == semel.Done; !r.Done {
			r.Lease, r.Hold = time.Minute, true
		}
		answers, errs := make([]semel.ClaimAnswer, 1), make([]error, 1)
		err := s.store.Claim(s.t.Context(), []semel.ClaimRequest{r}, answers)
		if err == nil && !r.Done {
			err = s.store.Release(s.t.Context(), []semel.ReleaseRequest{{Key: r.Key, Token: answers[0].Claim.Token, Unknown: true}}, errs)
		}
		if err := errors.Join(err, answers[0].Err, errs[0]); err != nil {
			s.t.Fatal(err)
		}
	}
}

// park parks a message of each key.
func (s *site) park(reason pipeline.Reason, ids ...string) {
	s.t.Helper()
	var list []pipeline.Parked
	for i, id := range ids {
		list = append(list, pipeline.Parked{
			ID: fmt.Sprintf("p%s%d", reason, i), Pipeline: "orders", Key: semel.Key{Scope: "orders", ID: id}, Reason: reason, Error: "answered " + hostile[i%len(hostile)] + " " + canary + "-hook", Attempts: 3, At: time.Now().Add(-time.Minute),
			Message: semel.Message{ID: hostile[0], Body: []byte("body-" + hostile[i%len(hostile)]), Headers: []semel.Header{{Name: hostile[0], Value: []byte("header-" + hostile[1])}}, Origin: semel.Origin{Source: hostile[1]}},
		})
	}
	if err := s.letters.Park(s.t.Context(), list); err != nil {
		s.t.Fatal(err)
	}
}

// full fills a site with every kind of thing, all with hostile texts.
func (s *site) full() *site {
	s.claims(semel.Unknown, hostile...)
	s.claims(semel.Done, "order-1", "order-2")
	s.park(pipeline.ReasonUnknown, hostile...)
	s.park(pipeline.ReasonPermanent, "order-9")
	return s
}

// ask sends a request. role is who sends it; with the role Nobody it has no credentials.
func (s *site) ask(role admin.Role, method, path string, form url.Values, change ...func(*http.Request)) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequest(method, "http://127.0.0.1:4195"+path, strings.NewReader(form.Encode()))
	if method == "POST" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://127.0.0.1:4195")
	}
	switch role {
	case admin.Viewer:
		r.SetBasicAuth("eve", canary+"-view")
	case admin.Operator:
		r.SetBasicAuth("ops", canary+"-pw")
	}
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

// get returns a page, which must be there.
func (s *site) get(path string) string {
	s.t.Helper()
	w := s.ask(admin.Operator, "GET", path, nil)
	if w.Code != http.StatusOK {
		s.t.Fatalf("%s: %d: %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// post sends a form and returns the page to which it leads.
func (s *site) post(path string, form url.Values) string {
	s.t.Helper()
	w := s.ask(admin.Operator, "POST", path, form)
	if w.Code == http.StatusSeeOther {
		return s.get("/" + strings.TrimPrefix(w.Header().Get("Location"), "./"))
	}
	if w.Code != http.StatusOK {
		s.t.Fatalf("%s: %d: %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// state returns the state of a key.
func (s *site) state(id string) semel.State {
	s.t.Helper()
	records := make([]semel.Record, 1)
	if err := s.store.Look(s.t.Context(), []semel.Key{{Scope: "orders", ID: id}}, records); err != nil {
		s.t.Fatal(err)
	}
	return records[0].State
}

// digest returns the digest of a key in hexadecimal.
func (s *site) digest(id string) string {
	s.t.Helper()
	records := make([]semel.Record, 1)
	if err := s.store.Look(s.t.Context(), []semel.Key{{Scope: "orders", ID: id}}, records); err != nil {
		s.t.Fatal(err)
	}
	return records[0].Digest.String()
}

// value returns the value of a field in the first form that has it.
func value(t *testing.T, page, name string) string {
	t.Helper()
	found := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("no field %s: %s", name, page)
	}
	return html.UnescapeString(found[1])
}

// values returns the values of all fields with a name.
func values(page, name string) (list []string) {
	for _, found := range regexp.MustCompile(`name="`+name+`" value="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		list = append(list, html.UnescapeString(found[1]))
	}
	return list
}

// has checks that a page has texts.
func has(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("the page lacks %q: %s", text, page)
		}
	}
}

// forms returns a form for each POST route, with which it would work.
func (s *site) forms() map[string]url.Values {
	unknown, parked := values(s.get("/unknown"), "pick"), values(s.get("/parked"), "pick")
	key := s.get("/key?store=ledger&digest=" + s.digest(hostile[0]))
	return map[string]url.Values{
		"/key":          {"id": {"order-1"}},
		"/change":       {"store": {"ledger"}, "ref": {value(s.t, key, "ref")}, "expect": {value(s.t, key, "expect")}, "do": {"done"}, "reason": {"test"}},
		"/preview-keys": {"pick": unknown[1:2], "do": {"absent"}},
		"/resolve":      {"pick": unknown[1:2], "do": {"absent"}, "reason": {"test"}},
		"/message":      {"pipeline": {"orders"}, "id": {"ppermanent0"}},
		"/preview":      {"pick": parked[:1], "do": {"skip"}},
		"/settle":       {"pick": parked[:1], "do": {"skip"}, "reason": {"test"}},
		"/store":        {"name": {"ledger"}},
		"/login":        {"user": {"ops"}, "password": {canary + "-pw"}},
		"/logout":       {},
	}
}

// paths are those of all pages of a full site.
func (s *site) paths() []string {
	return []string{
		"/", "/key", "/unknown", "/unknown?store=ledger", "/parked", "/parked?pipeline=orders&reason=unknown&older=1s", "/message?pipeline=orders&id=ppermanent0", "/pipeline?name=orders", "/pipeline?name=hooks",
		"/store?name=ledger", "/store?name=db", "/audit", "/login", "/outcome?op=none", "/nowhere",
		"/key?store=ledger&digest=" + s.digest(hostile[0]), "/key?store=ledger&digest=" + s.digest("order-1"), "/key?pipeline=orders&message=ppermanent0",
		"/pipeline?name=" + url.QueryEscape(hostile[0]), "/store?name=" + url.QueryEscape(hostile[1]), "/parked?pipeline=" + url.QueryEscape(hostile[2]), "/message?pipeline=orders&id=" + url.QueryEscape(hostile[3]), "/parked?older=" + url.QueryEscape(hostile[0]),
	}
}

// example returns the path of a route with a query with which it works.
func (s *site) example(r route) string {
	for _, path := range s.paths() {
		if name, query, _ := strings.Cut(path, "?"); name == strings.TrimSuffix(r.path, "{$}") && (query != "" || r.path == "/{$}" || slices.Contains([]string{"/key", "/unknown", "/parked", "/audit", "/login"}, r.path)) && !strings.Contains(path, "op=none") {
			return path
		}
	}
	return strings.TrimSuffix(r.path, "{$}")
}

func TestAKeyIsFoundByIDHeaderAndMessage(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.claims(semel.Done, "order-1", "\x00n42")
	s.park(pipeline.ReasonPermanent, "order-1")
	for name, form := range map[string]url.Values{
		"id":       {"id": {"order-1"}},
		"message":  {"message": {"{\"id\":\"order-1\"}\r\n"}, "pipeline": {"orders"}},
		"number":   {"id": {"42"}},
		"json":     {"id": {"42"}, "json": {"1"}},
		"nothing":  {"id": {"order-7"}},
		"header":   {"headers": {"Order: order-1"}, "pipeline": {"hooks"}},
		"no id":    {},
		"no rule":  {"message": {"{}"}, "pipeline": {"orders"}},
		"which":    {"message": {"{}"}},
		"bad line": {"headers": {"Order"}, "pipeline": {"hooks"}},
	} {
		w := s.ask(admin.Operator, "POST", "/key", form)
		page := w.Body.String()
		switch name {
		case "id", "message":
			has(t, page, "it is a duplicate: it is acknowledged without effect", "<dt>state</dt><dd>done</dd>", "message?pipeline=orders&amp;id=ppermanent0", "history", "<circle", "Release the key", "semel keys rm order-1")
		case "number", "json":
			has(t, page, "<dt>state</dt><dd>done</dd>", "<dt>key</dt><dd>42</dd>")
		case "nothing":
			has(t, page, "Nothing is known of this key", "The next delivery: it is processed")
		case "header":
			has(t, page, "The key is in scope orders.", "<dt>state</dt><dd>absent</dd>")
		default:
			if w.Code != http.StatusUnprocessableEntity {
				t.Errorf("%s: %d: %s", name, w.Code, page)
			}
			has(t, page, `role="alert"`)
		}
	}
}

func TestAKeyIsSettledWithAReasonIfItIsWhatWasShown(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.claims(semel.Unknown, "a", "b", "c")
	s.park(pipeline.ReasonUnknown, "c")
	form := func(id, do, reason string) url.Values {
		page := s.get("/key?store=ledger&digest=" + s.digest(id))
		return url.Values{"store": {value(t, page, "store")}, "ref": {value(t, page, "ref")}, "expect": {value(t, page, "expect")}, "do": {do}, "reason": {reason}}
	}
	if w := s.ask(admin.Operator, "POST", "/change", form("a", "done", " ")); w.Code != http.StatusUnprocessableEntity || s.state("a") != semel.Unknown {
		t.Errorf("without a reason: %d, and the key is %s", w.Code, s.state("a"))
	}
	first := form("a", "done", "it is in the bank's list")
	has(t, s.post("/change", first), "The key is done: it is remembered for 7d, the window of pipeline orders.", "<dt>state</dt><dd>done</dd>")
	w := s.ask(admin.Operator, "POST", "/change", first)
	if w.Code != http.StatusConflict || s.state("a") != semel.Done {
		t.Errorf("a second time: %d, and the key is %s", w.Code, s.state("a"))
	}
	has(t, w.Body.String(), "Nothing was changed: the record changed since it was shown. It is done now.")
	stale := form("b", "absent", "the bank never saw it")
	has(t, s.post("/change", stale), "The key is absent")
	s.claims(semel.Unknown, "b") // by another holder
	if w := s.ask(admin.Operator, "POST", "/change", stale); w.Code != http.StatusConflict || s.state("b") != semel.Unknown {
		t.Errorf("after another claim: %d, and the key is %s", w.Code, s.state("b"))
	}
	has(t, s.post("/change", form("a", "release", "send it again")), "The key is released")
	if s.state("a") != semel.Absent {
		t.Errorf("the key is %s", s.state("a"))
	}
	has(t, s.post("/settle", url.Values{"pick": values(s.get("/parked"), "pick"), "do": {"retry"}, "reason": {"too early"}}), "failed", "its key is unknown, so that it would be parked again")
	has(t, s.post("/change", form("c", "absent", "the bank never saw it")), "The key is absent", "A message of this key is parked, and stays so: process it again", "message?pipeline=orders&amp;id=punknown0")
	log, err := os.ReadFile(filepath.Join(s.dir, "ledger", logstore.AuditName))
	if err != nil || strings.Count(string(log), "\n") != 8 || strings.Count(string(log), `"actor":"ops"`) != 4 {
		t.Errorf("%v: %s", err, log)
	}
	has(t, s.get("/audit"), "it is in the bank&#39;s list", "resolve a in scope orders: unknown → done", "rm a in scope orders: done → absent", "<strong>ops</strong>")
}

func TestAChangeThatCannotBeLoggedIsNotMade(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.claims(semel.Unknown, "a")
	page := s.get("/key?store=ledger&digest=" + s.digest("a"))
	if err := os.Mkdir(filepath.Join(s.dir, "ledger", logstore.AuditName), 0o700); err != nil {
		t.Fatal(err)
	}
	w := s.ask(admin.Operator, "POST", "/change", url.Values{"store": {"ledger"}, "ref": {value(t, page, "ref")}, "expect": {value(t, page, "expect")}, "do": {"done"}, "reason": {"x"}})
	if w.Code != http.StatusInternalServerError || s.state("a") != semel.Unknown {
		t.Errorf("%d, and the key is %s: %s", w.Code, s.state("a"), w.Body)
	}
	has(t, w.Body.String(), "audit log: nothing was changed")
}

// TestUnknownKeysAndTheirMessagesAreSettledInOrder settles 8 unknown keys with 12 parked messages.
func TestUnknownKeysAndTheirMessagesAreSettledInOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	var ids, messages []string
	for i := range 8 {
		ids = append(ids, fmt.Sprintf("order-%d", i))
	}
	s.claims(semel.Unknown, ids...)
	messages = append(append(messages, ids...), ids[:4]...)
	s.park(pipeline.ReasonUnknown, messages...)
	list := s.get("/unknown")
	if overview := s.get("/"); strings.Contains(overview, "unknown keys</dt>") { // of a pipeline: the store has those of all
		t.Errorf("a pipeline has the count of the whole store: %s", overview)
	}
	picks := values(list, "pick")
	if len(picks) != 8 {
		t.Fatalf("%d keys: %s", len(picks), list)
	}
	has(t, s.get("/parked"), "12 messages of this list: the key is unknown")
	has(t, s.post("/preview", url.Values{"all": {"1"}, "do": {"retry"}}), "<strong>0</strong> of 12 chosen", "settle the key with semel keys resolve")
	skip := s.post("/preview", url.Values{"all": {"1"}, "do": {"skip"}})
	has(t, skip, "<strong>12</strong> of 12 chosen", "it is removed, but its key is unknown: its effect may have happened")
	if strings.Contains(skip, "without an effect") || strings.Contains(skip, "have no effect") {
		t.Error(skip)
	}
	preview := s.post("/preview-keys", url.Values{"pick": picks[:5], "do": {"done"}})
	has(t, preview, "<strong>5</strong> of 5 chosen")
	outcome := s.post("/resolve", url.Values{"picks": {value(t, preview, "picks")}, "do": {"done"}, "reason": {"all are in the list"}})
	has(t, outcome, "5 resolved as done", " parked messages of orders: the key is settled: process them again", " of orders: the key is still unknown: settle it first", "parked?pipeline=orders&amp;reason=unknown", `<a href="unknown?store=ledger">`)
	preview = s.post("/preview-keys", url.Values{"all": {"1"}, "do": {"absent"}})
	has(t, preview, "<strong>3</strong> of 3 chosen")
	has(t, s.post("/resolve", url.Values{"picks": {value(t, preview, "picks")}, "do": {"absent"}, "reason": {"the bank never saw them"}}), "3 resolved as absent")
	has(t, s.get("/unknown"), "No key is unknown.")
	has(t, s.get("/parked"), "12 messages of this list: the key was unknown, and is settled now.")
	preview = s.post("/preview", url.Values{"all": {"1"}, "pipeline": {"orders"}, "reason": {"unknown"}, "do": {"retry"}})
	has(t, preview, "<strong>12</strong> of 12 chosen", "it is a duplicate", "it is processed")
	outcome = s.post("/settle", url.Values{"picks": {value(t, preview, "picks")}, "do": {"retry"}, "reason": {"the keys are settled"}})
	has(t, outcome, "12 queued", "The outcome of the queued ones is not known yet")
	queued, err := s.letters.Queued(t.Context(), "orders", 100)
	if err != nil || len(queued) != 12 {
		t.Fatalf("%d are queued: %v", len(queued), err)
	}
	for i, m := range queued { // as the pipeline does
		if err := s.letters.Settle(t.Context(), m, pipeline.Settlement{How: pipeline.HowRedriven, Delivered: i%2 == 0, Actor: "host/1"}); err != nil {
			t.Fatal(err)
		}
	}
	for id, op := range s.page.operations.of {
		op.followed = time.Time{} // the pause is over
		page := s.get("/outcome?op=" + id)
		if strings.Contains(page, "retry by") {
			has(t, page, "6 redriven", "6 done before")
		}
	}
	audit := s.get("/audit")
	has(t, audit, "all are in the list", "the keys are settled", "parked retry")
}

func TestParkedMessagesAreSkippedAndMarkedDone(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.park(pipeline.ReasonPermanent, "a", "b", "c")
	list := values(s.get("/parked"), "pick")
	if len(list) != 3 {
		t.Fatal(list)
	}
	has(t, s.post("/preview", url.Values{"pick": list[:1], "do": {"skip"}}), "it is removed without an effect; its key stays as it is")
	has(t, s.post("/settle", url.Values{"pick": list[:1], "do": {"skip"}, "reason": {"a test of ours"}}), "1 skipped")
	has(t, s.post("/settle", url.Values{"pick": list[:1], "do": {"skip"}, "reason": {"a test of ours"}}), "not done", "it is no longer parked")
	has(t, s.post("/settle", url.Values{"pick": list[1:2], "do": {"done"}, "reason": {"in the list"}}), "1 done")
	states, seen := map[semel.State]int{}, map[string]bool{}
	for _, id := range []string{"a", "b", "c"} {
		states[s.state(id)]++
	}
	if n, err := s.letters.Count(t.Context(), ""); err != nil || n != 1 || states[semel.Done] != 1 || states[semel.Absent] != 2 {
		t.Errorf("%d are parked, %v, states %v", n, err, states)
	}
	has(t, s.get("/audit"), "a test of ours", "skipped", "in the list", "parked done")
	skipped, marked := strings.Split(list[0], "\t")[1], strings.Split(list[1], "\t")[1]
	for _, id := range []string{"a", "b", "c"} {
		page := s.post("/key", url.Values{"id": {id}})
		switch {
		case strings.Contains(page, "skipped of parked message "+skipped+" of orders, by ops: a test of ours"):
			seen["skipped"] = true
		case strings.Contains(page, "done of parked message "+marked+" of orders, by ops: in the list"):
			has(t, page, "parked done, from absent to done")
			seen["done"] = true
		}
	}
	if len(seen) != 2 {
		t.Errorf("the history of the keys has %v of what a person did", seen)
	}
	for _, form := range []url.Values{{"pick": list[2:], "do": {"skip"}}, {"do": {"skip"}, "reason": {"x"}}, {"pick": list[2:], "do": {"burn"}, "reason": {"x"}}} {
		if w := s.ask(admin.Operator, "POST", "/settle", form); w.Code != http.StatusUnprocessableEntity {
			t.Errorf("%v: %d", form, w.Code)
		}
	}
	// A message that was redriven and parked again is not the one that was shown.
	again, err := s.letters.Get(t.Context(), strings.Split(list[2], "\t")[1])
	if err != nil {
		t.Fatal(err)
	}
	again.Redrives++
	if err := s.letters.Park(t.Context(), []pipeline.Parked{*again}); err != nil {
		t.Fatal(err)
	}
	has(t, s.post("/settle", url.Values{"pick": list[2:], "do": {"skip"}, "reason": {"x"}}), "it was redriven since it was shown, and parked again")
}

// TestARetryOfAPipelineWithoutKeysIsLoggedFirst has a pipeline that the status does not list: a form
// may still name it.
func TestARetryOfAPipelineWithoutKeysIsLoggedFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	m := pipeline.Parked{ID: "r", Pipeline: "relay", Reason: pipeline.ReasonPermanent, At: time.Now()}
	if err := s.letters.Park(t.Context(), []pipeline.Parked{m}); err != nil {
		t.Fatal(err)
	}
	strange := m
	strange.Pipeline = "strange"
	form := url.Values{"pick": {pick(&m), pick(&strange)}, "do": {"retry"}, "reason": {"the target is up"}}
	has(t, s.post("/settle", form), "1 queued", "relay r", "strange r", "not done", "there is no pipeline &#34;strange&#34;")
	queued, err := s.letters.Queued(t.Context(), "relay", 10)
	if err != nil || len(queued) != 1 {
		t.Errorf("%d are queued: %v", len(queued), err)
	}
	has(t, s.get("/audit"), "topic aside-settled has it", "the target is up", "message relay/r", "<strong>ops</strong>")
	if err := os.Remove(filepath.Join(s.dir, "parked", "audit.jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "parked", "audit.jsonl"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.letters.Park(t.Context(), []pipeline.Parked{{ID: "q", Pipeline: "relay", Reason: pipeline.ReasonPermanent, At: m.At}}); err != nil {
		t.Fatal(err)
	}
	m.ID = "q"
	has(t, s.post("/settle", url.Values{"pick": {pick(&m)}, "do": {"retry"}, "reason": {"x"}}), "failed", "audit log: nothing was changed")
	if queued, err := s.letters.Queued(t.Context(), "relay", 10); err != nil || len(queued) != 1 {
		t.Errorf("%d are queued: %v", len(queued), err)
	}
}

func TestMoreThanAHundredNeedTheirNumber(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	var ids []string
	for i := range typedFrom {
		ids = append(ids, fmt.Sprint("order-", i))
	}
	s.park(pipeline.ReasonPermanent, ids...)
	preview := s.post("/preview", url.Values{"all": {"1"}, "do": {"skip"}})
	has(t, preview, "<strong>101</strong> of 101 chosen", "Type the number 101 to confirm")
	form := url.Values{"picks": {value(t, preview, "picks")}, "do": {"skip"}, "reason": {"x"}, "count": {"100"}}
	if w := s.ask(admin.Operator, "POST", "/settle", form); w.Code != http.StatusUnprocessableEntity {
		t.Errorf("%d", w.Code)
	}
	if n, err := s.letters.Count(t.Context(), ""); err != nil || n != typedFrom {
		t.Errorf("%d, %v", n, err)
	}
	form.Set("count", "101")
	has(t, s.post("/settle", form), "101 skipped")
}

func TestTheBodyIsShownToAnOperatorWhoAsks(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.park(pipeline.ReasonPermanent, "a")
	id := url.Values{"pipeline": {"orders"}, "id": {"ppermanent0"}}
	if page := s.get("/message?" + id.Encode()); strings.Contains(page, "body-") || strings.Contains(page, "header-") {
		t.Errorf("it is shown to a person who did not ask: %s", page)
	}
	has(t, s.post("/message", id), "body-&lt;script&gt;", "header-")
	if got := plain([]byte("a\x1b")); got != "base64:"+base64.StdEncoding.EncodeToString([]byte("a\x1b")) {
		t.Error(got)
	}
}

func TestPagesOfABrokenProcessSaySo(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials).full()
	paths := s.paths()
	s.failing = true
	for _, path := range paths {
		w := s.ask(admin.Operator, "GET", path, nil)
		if strings.Contains(w.Body.String(), canary) {
			t.Errorf("%s shows a secret: %s", path, w.Body)
		}
		if w.Code == http.StatusInternalServerError && !strings.Contains(w.Body.String(), `role="alert"`) {
			t.Errorf("%s: %d: %s", path, w.Code, w.Body)
		}
	}
	has(t, s.get("/"), "store ledger is not ready: the server is down")
	has(t, s.get("/parked"), "the parked messages of orders cannot be read")
	has(t, s.get("/unknown"), "store ledger: ")
	page := s.post("/key", url.Values{"id": {"order-7"}})
	has(t, page, "A place could not be asked", "Nothing is known of this key in the places that could be asked.")
	if strings.Contains(page, "it is processed") || strings.Contains(page, "The next delivery") {
		t.Errorf("it says what the next delivery gets, without a look at the store: %s", page)
	}
}

// TestPagesAskNoSilentStore lets the server of a store stop answering, after its lists were read.
func TestPagesAskNoSilentStore(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	s.claims(semel.Unknown, "order-7")
	s.page.Process.Store = func(string) (semel.Store, error) {
		if s.silent {
			t.Error("the store is asked")
		}
		return s.store, nil
	}
	list := s.get("/unknown")
	has(t, list, "order-7")
	s.silent = true
	s.page.status.forget()
	keys := s.page.unknownLists.named("ledger")
	keys.mu.Lock()
	keys.at = time.Now().Add(-time.Minute)
	keys.mu.Unlock()
	const why = "store ledger is not asked, because it does not answer: no answer for 9 s (its last answer was 1 min 0 s ago)"
	has(t, s.get("/unknown"), why, "The list is that of 20", "order-7")
	has(t, s.get("/audit"), why)
	has(t, s.post("/key", url.Values{"id": {"order-7"}}), why, "Nothing is known of this key in the places that could be asked.")
	pick := regexp.MustCompile(`name="pick" value="([^"]*)"`).FindStringSubmatch(list)
	if w := s.ask(admin.Operator, "POST", "/preview-keys", url.Values{"pick": {html.UnescapeString(pick[1])}, "do": {"done"}}); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), why) {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	s.silent = false
	s.page.status.forget()
	keys.forget()
	has(t, s.get("/unknown"), "order-7")
	if _, known := s.page.unknownLists.named("other").last(); known {
		t.Error("a list that was never read is known")
	}
}

func TestListsArePaged(t *testing.T) {
	t.Parallel()
	s := newSite(t, credentials)
	var ids []string
	for i := range 3*perPage + 1 {
		ids = append(ids, strings.Repeat(hostile[1], 10)+fmt.Sprint(i))
	}
	s.claims(semel.Unknown, ids...)
	s.park(pipeline.ReasonUnknown, ids...)
	for _, path := range []string{"/unknown", "/parked"} {
		seen := map[string]bool{}
		for next := path; ; {
			page := s.get(next)
			if len(page) > 100<<10 {
				t.Errorf("%s has %d bytes", next, len(page))
			}
			for _, pick := range values(page, "pick") {
				seen[pick] = true
			}
			found := regexp.MustCompile(`href="([^"]*)" rel="next"`).FindStringSubmatch(page)
			if found == nil {
				break
			}
			next = path + html.UnescapeString(found[1])
		}
		if len(seen) != len(ids) {
			t.Errorf("%s shows %d of %d", path, len(seen), len(ids))
		}
	}
	preview := s.post("/preview", url.Values{"all": {"1"}, "do": {"skip"}})
	if len(preview) > 100<<10 {
		t.Errorf("the preview has %d bytes", len(preview))
	}
}

// TestTheScriptIsSmallAndNotNeeded checks the size, and that no page relies on the script.
func TestTheScriptIsSmallAndNotNeeded(t *testing.T) {
	t.Parallel()
	script, err := embedded.ReadFile("assets/page.js")
	if err != nil || strings.Count(string(script), "\n") > 400 {
		t.Errorf("%v, %d lines", err, strings.Count(string(script), "\n"))
	}
	s := newSite(t, credentials).full()
	for name, w := range s.everything() {
		for _, form := range regexp.MustCompile(`(?s)<form.*?</form>`).FindAllString(w.Body.String(), -1) {
			if !strings.Contains(form, "<button") {
				t.Errorf("%s has a form that only a script could send: %s", name, form)
			}
		}
	}
	for path := range s.page.assets {
		if w := s.ask(admin.Nobody, "GET", path, nil); w.Code != http.StatusOK || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d, %v", path, w.Code, w.Header())
		}
	}
}
