package httpsrc

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/httpsrc/provider"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// told keeps the events about a source.
type told struct {
	mu     sync.Mutex
	events []string
}

func (*told) Observe(semel.Event) {}

func (l *told) ObservePipeline(e pipeline.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := e.Pipeline + ": " + e.Kind.String() + ": " + e.Reason
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	l.events = append(l.events, text)
}

// take returns the events since the last call.
func (l *told) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.events = nil }()
	return strings.Join(l.events, "\n")
}

// outcome is how a message was settled.
type outcome struct {
	name   string
	parked pipeline.Reason
	err    error
	result semel.Result
}

var (
	right     = outcome{name: "right"}
	noKey     = outcome{"no key", pipeline.ReasonKeyMissing, &key.MissingError{Rule: "header:X-Event-Id"}, semel.Result{}}
	noJSON    = outcome{"no JSON", pipeline.ReasonKeyInvalid, fmt.Errorf("key: %w: secret", &key.SyntaxError{}), semel.Result{}}
	refusedBy = outcome{"refused", pipeline.ReasonPermanent, errors.New("secret"), semel.Result{}}
	mismatch  = outcome{"mismatch", pipeline.ReasonMismatch, errors.New("secret"), semel.Result{}}
	dropped   = outcome{"dropped", "", semel.ErrLate, semel.Result{}}
	wrapped   = outcome{"wrapped", pipeline.ReasonUnreadable, errors.New("unwrap: secret"), semel.Result{}}
	again     = outcome{"again", pipeline.ReasonParkedBefore, &key.MissingError{Rule: "header:X-Event-Id"}, semel.Result{}}
)

// TestASenderIsToldWhenMessagesFailAllAlike settles messages and looks at the status of each.
func TestASenderIsToldWhenMessagesFailAllAlike(t *testing.T) {
	t.Parallel()
	many := func(o outcome, n int) (list []outcome) {
		for range n {
			list = append(list, o)
		}
		return list
	}
	for name, c := range map[string]struct {
		outcomes []outcome
		want     string // the statuses, as 2 for 200, p for 202, 4 for 422, ! for 503
		ready    string
	}{
		"the first":              {many(noKey, 1), "!", "every message since the start was parked: header:X-Event-Id is missing"},
		"every one":              {many(noKey, 3), "!!!", "every message since the start was parked: header:X-Event-Id is missing"},
		"again after a restart":  {many(again, 2), "!!", "every message since the start was parked: header:X-Event-Id is missing"},
		"every one, two causes":  {[]outcome{noKey, noJSON}, "!!", "every message since the start was parked: the body is not JSON, in which the key is looked for"},
		"no message inside":      {many(wrapped, 2), "!!", "every message since the start was parked: there is no message inside the body, where unwrap looks for it"},
		"then a right one":       {[]outcome{noKey, right, noKey, noJSON}, "!2pp", ""},
		"a right one first":      {[]outcome{right, noKey, noJSON}, "2pp", ""},
		"nineteen in a row":      {append([]outcome{right}, many(noKey, 19)...), "2" + strings.Repeat("p", 19), ""},
		"twenty in a row":        {append([]outcome{right}, many(noKey, 21)...), "2" + strings.Repeat("p", 19) + "!!", "20 messages, and none in between that succeeded, were parked: header:X-Event-Id is missing"},
		"refused by the sink":    {append([]outcome{right}, many(refusedBy, 20)...), "2" + strings.Repeat("p", 19) + "!", "20 messages, and none in between that succeeded, were parked: reason permanent: the target refuses it"},
		"the first by the sink":  {many(refusedBy, 2), "!!", "every message since the start was parked: reason permanent: the target refuses it"},
		"a first mismatch":       {[]outcome{mismatch, noKey}, "p!", "every message since the start was parked: header:X-Event-Id is missing"},
		"twenty mismatches":      {many(mismatch, 20), strings.Repeat("p", 19) + "!", "20 messages, and none in between that succeeded, were parked: reason mismatch"},
		"another one in a row":   {append(append([]outcome{right}, many(noKey, 20)...), noJSON, mismatch, dropped, right, noJSON), "2" + strings.Repeat("p", 19) + "!!!42p", ""},
		"two causes in turn":     {append([]outcome{right}, slices.Repeat([]outcome{noKey, noJSON}, 20)...), "2" + strings.Repeat("p", 38) + "!!", "20 messages, and none in between that succeeded, were parked: the body is not JSON, in which the key is looked for"},
		"two causes":             {append(append([]outcome{right}, many(noKey, 19)...), many(noJSON, 19)...), "2" + strings.Repeat("p", 38), ""},
		"a right one in between": {append(append(append([]outcome{right}, many(noKey, 20)...), right), many(noKey, 19)...), "2" + strings.Repeat("p", 19) + "!2" + strings.Repeat("p", 19), ""},
		"dropped in between":     {append(append(append([]outcome{right}, many(noKey, 19)...), dropped), noKey), "2" + strings.Repeat("p", 19) + "4!", "20 messages, and none in between that succeeded, were parked: header:X-Event-Id is missing"},
		"dropped":                {many(dropped, 30), strings.Repeat("4", 30), ""},
	} {
		var d doubts
		var got strings.Builder
		for _, o := range c.outcomes {
			it := &pipeline.Item{Decision: semel.Fresh, Parked: o.parked, Err: o.err, Result: o.result}
			a := d.settled(it)
			got.WriteString(map[int]string{200: "2", 202: "p", 422: "4", 503: "!"}[a.status])
			if a.status == 503 && (a.decision != decidedParked || a.after != retryDoubtful || !strings.HasPrefix(a.text, "parked")) {
				t.Errorf("%s: %+v", name, a)
			}
			if strings.Contains(a.text, "secret") {
				t.Errorf("%s: the answer has a part of the error: %s", name, a.text)
			}
		}
		ready := ""
		if err := d.ready(); err != nil {
			ready = strings.TrimSuffix(err.Error(), ": the log has the names that arrived")
		}
		if got.String() != c.want || ready != c.ready {
			t.Errorf("%s: %s, %q, want %s, %q", name, got.String(), ready, c.want, c.ready)
		}
	}
}

// The names are the likely mistake, and people look for them in the log.
func TestTheLogHasTheNamesThatArrived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { testNamesThatArrived(t, func() { time.Sleep(tellEvery) }) })
}

func testNamesThatArrived(t *testing.T, wait func()) {
	lines := &told{}
	d := doubts{pipeline: "p", observer: lines}
	fail := func(err error, body string, headers ...string) string {
		it := &pipeline.Item{Parked: pipeline.ReasonKeyMissing, Err: err}
		if _, ok := errors.AsType[*key.SyntaxError](err); ok {
			it.Parked = pipeline.ReasonKeyInvalid
		}
		it.Message.Body = []byte(body)
		for _, name := range headers {
			it.Message.Headers = append(it.Message.Headers, semel.Header{Name: name, Value: []byte("value")})
		}
		d.settled(it)
		wait()
		return lines.take()
	}
	const since = "p: source_changed: messages fail all alike: every message since the start was parked: "
	missing := &key.MissingError{Rule: "header:X-GitHub-Delivry"}
	for _, c := range []struct{ got, want string }{
		{fail(missing, `{"action":"opened","number":7}`, "accept", "user-agent", "x-forwarded-for", "x-github-delivery", "x-github-event"), since +
			"key: header:X-GitHub-Delivry is missing: correct the rule of the key or the senders: the last one has the headers x-github-delivery, x-github-event: did you mean header:x-github-delivery?; its body has action, number"},
		{fail(missing, `{"action":"opened"}`), ""}, // one line is enough
		{fail(&key.SyntaxError{Problem: "expected a value"}, "\x1f\x8bx"), since +
			"key: invalid JSON: expected a value at byte 0: correct the rule of the key or the senders: the last one has no headers of its own; the body is compressed with gzip"},
		{fail(&key.MissingError{Rule: ".id"}, "", "a"), since +
			"key: .id is missing: correct the rule of the key or the senders: the last one has the headers a; its body is empty"},
		{fail(&key.MissingError{Rule: ".n"}, `[{"id":1}]`), since +
			"key: .n is missing: correct the rule of the key or the senders: the last one has no headers of its own; its body is a JSON array: if its elements are messages, set split to array"},
		{fail(&key.SyntaxError{Problem: "more"}, "{\"id\":1}\n{\"id\":2}\n"), since +
			"key: invalid JSON: more at byte 0: correct the rule of the key or the senders: the last one has no headers of its own; its body has several JSON lines: set split to lines"},
	} {
		if c.got != c.want {
			t.Errorf("%s\nwant\n%s", c.got, c.want)
		}
	}
	d.settled(&pipeline.Item{Decision: semel.Duplicate})
	d.settled(&pipeline.Item{Decision: semel.Fresh})
	if got := lines.take(); got != "p: source_changed: messages no longer fail all alike" {
		t.Errorf("%s", got)
	}
	if got := fail(missing, "{}"); got != "" {
		t.Errorf("one message among others: %s", got)
	}
}

// Strangers must neither fill the log nor take the source away from its senders.
func TestStrangersDoNotMakeTheSourceNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lines := &told{}
		d := doubts{observer: lines}
		refuse := func(n int, missing bool) {
			for range n {
				d.fails(&d.signatures, d.unsigned(&provider.Refusal{Why: "why", Missing: missing}), &semel.Message{})
			}
		}
		refuse(mostAlike-1, true)
		if err := d.ready(); err != nil || strings.Count(lines.take(), "\n") != 0 {
			t.Errorf("requests without a signature: %v", err)
		}
		refuse(1, true) // the sender has perhaps no secret
		if err := d.ready(); err == nil {
			t.Error("it is ready although no request was signed")
		}
		d = doubts{observer: lines}
		refuse(1, true)
		refuse(1, false) // the secret of the source is perhaps wrong
		if err := d.ready(); err == nil {
			t.Error("it is ready although no signature was valid")
		}
		refuse(1, true)
		if err := d.ready(); err == nil {
			t.Error("a stranger has made it ready")
		}
		d.succeeds(&d.signatures)
		if err := d.ready(); err != nil {
			t.Errorf("after a valid one: %v", err)
		}
		lines.take()
		time.Sleep(tellEvery)
		refuse(100, false)
		if err := d.ready(); err != nil {
			t.Errorf("invalid ones after a valid one: %v", err)
		}
		if got := lines.take(); got != ": source_changed: requests are refused: a request was refused: signature: why: correct the configuration or the senders: the last one has no headers of its own" {
			t.Errorf("the log after invalid ones: %s", got)
		}
		time.Sleep(tellEvery)
		d.succeeds(&d.signatures)
		if refuse(1, false); strings.Count(lines.take(), "a request was refused") != 1 {
			t.Error("the log lacks an invalid one among valid ones")
		}
		failing := &pipeline.Item{Parked: pipeline.ReasonKeyMissing, Err: noKey.err}
		d.settled(failing)
		refuse(1, false)
		if a := d.settled(failing); a.status != http.StatusServiceUnavailable {
			t.Errorf("a stranger in between: %d", a.status)
		}
		d.succeeds(&d.signatures)
		if d.ready() == nil {
			t.Error("a valid signature has ended the doubt about messages")
		}
	})
}

// Messages of strangers can fail for ever other causes.
func TestTheLogHasOneLineAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lines := &told{}
		d := doubts{observer: lines}
		long := strings.Repeat("n", 10_000)
		for range 100 {
			for _, err := range []error{&key.MissingError{Rule: ".a"}, &key.MissingError{Rule: ".b"}} {
				it := &pipeline.Item{Parked: pipeline.ReasonKeyMissing, Err: err}
				it.Message.Body, it.Message.Headers = []byte(`{"`+long+`":1}`), []semel.Header{{Name: long}}
				d.settled(it)
			}
		}
		if got := lines.take(); strings.Contains(got, "\n") || !strings.Contains(got, ".a is missing") || len(got) > 1000 {
			t.Errorf("%s", got)
		}
		time.Sleep(tellEvery)
		it := &pipeline.Item{Parked: pipeline.ReasonKeyMissing, Err: &key.MissingError{Rule: ".b"}}
		d.settled(it)
		d.settled(it)
		if got := lines.take(); strings.Contains(got, "\n") || !strings.Contains(got, ".b is missing") {
			t.Errorf("a minute later: %s", got)
		}
	})
}

// A balancer sends nothing to a source that is not ready, so the doubt must end without a message.
func TestDoubtEndsWhenNoMessageComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d doubts
		it := &pipeline.Item{Parked: pipeline.ReasonKeyMissing, Err: noKey.err}
		d.settled(it)
		time.Sleep(doubtFor - time.Nanosecond)
		if d.ready() == nil {
			t.Error("it is ready too early")
		}
		time.Sleep(time.Nanosecond)
		if err := d.ready(); err != nil {
			t.Errorf("it is not ready after a minute without a message: %v", err)
		}
		if a := d.settled(it); a.status != http.StatusServiceUnavailable || d.ready() == nil {
			t.Errorf("the next one like it: %d", a.status)
		}
	})
}

// A request without a valid signature, or without its messages, never becomes a message.
func TestRefusedRequestsRaiseADoubtToo(t *testing.T) {
	t.Parallel()
	lines := &told{}
	s := open(t, Options{Pipeline: "p", Observer: lines, Split: split(t, ".events"), Verify: func(r *http.Request, _ []byte) error {
		if r.Header.Get("X-Sign") != "ok" {
			return &provider.Refusal{Why: "the header X-Sign is missing"}
		}
		return nil
	}})
	defer settleAll(t, s)()
	send := func(sign, body string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address(s), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Sign", sign)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, c := range []struct {
		sign, body  string
		status      int
		ready, line string
	}{
		{"no", `{"events":["f"]}`, 401, "every message since the start was refused: it has no valid signature: the log has the names that arrived", "the header X-Sign is missing: correct the configuration or the senders: the last one has the headers x-sign"},
		{"ok", `{"event":["f"]}`, 400, "every message since the start was refused: its messages cannot be found: the log has the names that arrived", ".events is missing: it has event: did you mean .event?: correct the configuration or the senders: the last one has the headers x-sign; its body has event"},
		{"ok", `{"events":["p","p"]}`, 503, "every message since the start was parked: reason attempts: every attempt at the target failed: the log has the names that arrived", ""}, // one line a minute is enough
		{"ok", `{"events":["f"]}`, 200, "", "messages no longer fail all alike"},
		{"no", `{"events":["f"]}`, 401, "", ""},
		{"ok", `{"events":["f","p"]}`, 202, "", ""},
	} {
		status, ready, line := send(c.sign, c.body), "", lines.take()
		if err := s.Ready(t.Context()); err != nil {
			ready = err.Error()
		}
		if status != c.status || ready != c.ready || !strings.Contains(line, c.line) || c.line == "" && line != "" {
			t.Errorf("%s %s: %d, ready %q, log %q, want %d, %q, %q", c.sign, c.body, status, ready, line, c.status, c.ready, c.line)
		}
	}
}

// The sender is perhaps a stranger, so the error is for the log alone.
func TestTheLogHasWhatAnotherServerDid(t *testing.T) {
	t.Parallel()
	lines := &told{}
	var verified error
	confirm := &provider.Handshake{Method: "POST", When: map[string]string{".Type": "Bye"}, Note: "the subscription has ended", NoteAt: ".Topic", Ends: true}
	s := open(t, Options{Pipeline: "p", Observer: lines, Handshakes: []*provider.Handshake{confirm}, Verify: func(*http.Request, []byte) error { return verified }})
	down := errors.New("10.0.0.7:443 does not answer")
	for _, c := range []struct {
		name        string
		err         error
		body        string
		status      int
		ready, line string
	}{
		{"made up", &provider.UnavailableError{Err: down, MadeUp: true}, "{}", 503, "", "p: source_changed: a request cannot be checked: a request of the sender cannot be checked, because another server does not answer as it should: 10.0.0.7:443 does not answer: a stranger may have sent the request: if none comes through, correct hosts in verify"},
		{"a right one", nil, `{"Type":"Bye","Topic":"orders"}`, 200, "", "p: source_changed: requests can be checked again\np: source_changed: a subscription has ended: the subscription has ended: orders"},
	} {
		verified = c.err
		resp, text := post(t, s, c.body)
		ready := ""
		if err := s.Ready(t.Context()); err != nil {
			ready = err.Error()
		}
		got := strings.Split(lines.take(), "\n")
		slices.Sort(got)
		want := strings.Split(c.line, "\n")
		slices.Sort(want)
		if resp.StatusCode != c.status || ready != c.ready || !slices.Equal(got, want) || strings.Contains(text, "10.0.0.7") {
			t.Errorf("%s: %d %q, ready %q, log %q", c.name, resp.StatusCode, text, ready, got)
		}
	}
}

// A server that does not answer keeps all messages away, even after others were right.
func TestARequestThatCannotBeCheckedMakesTheSourceNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lines := &told{}
		d := doubts{observer: lines}
		down := unchecked(&provider.UnavailableError{Err: errors.New("no answer from 10.0.0.7")})
		d.succeeds(&d.checks)
		d.succeeds(&d.signatures)
		for range 5 {
			d.fails(&d.checks, down, nil)
		}
		if err := d.ready(); err == nil || err.Error() != "a request of the sender cannot be checked, because another server does not answer as it should: the log has the error" {
			t.Errorf("%v", err)
		}
		if got := lines.take(); strings.Contains(got, "\n") || !strings.Contains(got, "no answer from 10.0.0.7: let this machine connect to that server") {
			t.Errorf("%s", got)
		}
		d.succeeds(&d.checks)
		if err := d.ready(); err != nil || !strings.Contains(lines.take(), "requests can be checked again") {
			t.Errorf("after one that was checked: %v", err)
		}
		d.fails(&d.checks, down, nil)
		if time.Sleep(doubtFor); d.ready() != nil {
			t.Error("it is not ready although no request comes")
		}
		refused := unchecked(&provider.Refusal{Why: "SubscribeURL is elsewhere"})
		d.succeeds(&d.checks)
		if d.fails(&d.checks, refused, nil); d.ready() != nil {
			t.Error("a handshake of a stranger makes it not ready")
		}
	})
}

// TestAnErrorOfASourceIsShownWithoutNames: the status is for clients that may not see messages.
func TestAnErrorOfASourceIsShownWithoutNames(t *testing.T) {
	t.Parallel()
	var got error
	d := doubts{observer: observing(func(e pipeline.Event) { got = e.Err })}
	m := semel.Message{Headers: []semel.Header{{Name: "x-secret-name"}}}
	d.succeeds(&d.signatures)
	d.fails(&d.signatures, d.unsigned(&provider.Refusal{Why: "why"}), &m)
	said, ok := errors.AsType[*diagnose.Error](got)
	if !ok || !strings.Contains(said.Error(), "x-secret-name") || said.ForAll() == nil || said.ForAll().Error() != "a request was refused: it has no valid signature" {
		t.Errorf("%v", got)
	}
}

// observing is an observer of pipelines.
type observing func(pipeline.Event)

func (observing) Observe(semel.Event)                {}
func (o observing) ObservePipeline(e pipeline.Event) { o(e) }

// TestTheAnswerSaysWhatDoesNotWork returns messages, without a part of their errors.
func TestTheAnswerSaysWhatDoesNotWork(t *testing.T) {
	t.Parallel()
	for want, it := range map[string]*pipeline.Item{
		"the target of the receiver does not work now": {Err: pipeline.Unavailable(errors.New("secret"), 0)},
		"the store of the receiver does not work now":  {Err: &pipeline.StoreError{Err: errors.New("secret")}},
		"another delivery holds the key":               {Decision: semel.InFlight},
		"not settled: send it again":                   {Err: errors.New("secret")},
	} {
		if a := returned(it, 0); a.status != http.StatusServiceUnavailable || !strings.HasPrefix(a.text, want) || !strings.HasSuffix(a.text, "send it again") {
			t.Errorf("%+v, want %s", a, want)
		}
	}
}
