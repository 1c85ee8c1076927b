package httpsrc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/httpsrc/provider"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// mostAlike is how many messages may fail for one cause before one succeeds.
	mostAlike = 20
	// doubtFor is how long a source without further messages is not ready. Otherwise no
	// balancer would send it the message that ends the doubt.
	doubtFor = time.Minute
	// tellEvery is how often the log has a line about messages that fail all alike: strangers
	// can send messages with ever other names.
	tellEvery = time.Minute
)

// doubts notices that messages fail all alike: every one since the start, or mostAlike for one
// cause before one succeeds. Then the configuration is wrong, or its senders are. They must hear
// of it, because 202 says that all is well.
type doubts struct {
	pipeline string
	observer pipeline.Observer // may be nil

	mu sync.Mutex // guards the fields below
	// signatures and messages are apart: strangers can send requests without a valid signature,
	// and must neither end a doubt about messages nor raise one. checks are the signatures and
	// handshakes for which another server is needed.
	signatures, checks, messages row
}

// words say that a row of failures begins or ends.
type words struct{ begins, ends string }

// wordsOf returns the words about a row.
func (d *doubts) wordsOf(of *row) words {
	switch of {
	case &d.signatures:
		return words{"requests are refused", "a request has a valid signature again"}
	case &d.checks:
		return words{"a request cannot be checked", "requests can be checked again"}
	}
	return words{"messages fail all alike", "messages no longer fail all alike"}
}

// row is what came since the last one that was right.
type row struct {
	right   bool           // one was right since the start
	failed  map[string]int // by cause
	explain string         // what is wrong, without a part of a message; empty without a doubt
	ready   bool           // although there is a doubt
	last    time.Time      // of a failure
	told    string         // the explain that the log has
	toldAt  time.Time
}

// failure says why a message failed.
type failure struct {
	verb   string // what became of the message: "parked" or "refused"
	cause  string // equal for messages that fail alike
	text   string // the cause for people, without a part of a message
	err    error  // the cause, perhaps with parts of the message
	remedy string
	single bool // the message may be the only one that fails so, even if it is the first
	alone  bool // one is enough for a doubt, although others were right
	// stranger says that anyone may have sent it. It does not make the source not ready.
	stranger bool
}

// succeeds notes that one was right: a message, or a signature.
func (d *doubts) succeeds(of *row) {
	d.mu.Lock()
	told := of.told != ""
	*of = row{right: true, toldAt: of.toldAt}
	d.mu.Unlock()
	if told {
		d.tell(d.wordsOf(of).ends, nil)
	}
}

// fails notes a message that failed. If messages fail all alike, it returns the reason, without
// a part of a message, and otherwise "". Only one that is right ends a doubt.
func (d *doubts) fails(of *row, f *failure, m *semel.Message) string {
	explain, told := d.note(of, f)
	if told == "" {
		return explain
	}
	said := fmt.Sprintf("%s: %v: %s", strings.TrimSuffix(told, ": "+f.text), f.err, f.remedy)
	if !f.alone { // not while the lock is held: the body may be long
		said += ": " + has(m, f.err)
	}
	// The cause is not wrapped: advice about a server would replace the names.
	d.tell(d.wordsOf(of).begins, &diagnose.Error{Cause: said, Shown: told})
	return explain
}

// note counts a failure. It returns the doubt that there is now, if any, and the text for the
// log, if any.
func (d *doubts) note(of *row, f *failure) (explain, tell string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if of.failed == nil {
		of.failed = map[string]int{}
	}
	of.failed[f.cause]++
	of.last = time.Now()
	mayTell := of.toldAt.IsZero() || of.last.Sub(of.toldAt) >= tellEvery
	switch {
	case f.alone:
		explain = f.text
	case !of.right && !f.single:
		explain = fmt.Sprintf("every message since the start was %s: %s", f.verb, f.text)
	case of.failed[f.cause] >= mostAlike:
		explain = fmt.Sprintf("%d messages, and none in between that succeeded, were %s: %s", mostAlike, f.verb, f.text)
	case of == &d.signatures && of.explain == "" && mayTell: // it is no doubt, but an operator may look for it
		of.toldAt = of.last
		return "", "a request was " + f.verb + ": " + f.text
	default:
		return of.explain, ""
	}
	of.ready = f.stranger && (of.explain == "" || of.ready)
	of.explain = explain
	if explain == of.told || !mayTell {
		return explain, ""
	}
	of.told, of.toldAt = explain, of.last
	return explain, explain
}

func (d *doubts) tell(reason string, err error) {
	if d.observer != nil {
		d.observer.ObservePipeline(pipeline.Event{Kind: pipeline.EventSourceChanged, Pipeline: d.pipeline, Reason: reason, Err: err})
	}
}

// ready returns an error while messages fail all alike. It has no part of a message.
func (d *doubts) ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, of := range []*row{&d.signatures, &d.checks, &d.messages} {
		if of.explain != "" && !of.ready && time.Since(of.last) < doubtFor {
			if of == &d.checks {
				return errors.New(of.explain + ": the log has the error")
			}
			return errors.New(of.explain + ": the log has the names that arrived")
		}
	}
	return nil
}

// settled notes the outcome of an acknowledged message. It returns the answer.
func (d *doubts) settled(it *pipeline.Item) answer {
	a := settled(it)
	switch {
	case a.status == http.StatusOK:
		d.succeeds(&d.messages)
	case a.decision == decidedParked:
		if doubt := d.fails(&d.messages, parked(it), &it.Message); doubt != "" {
			return doubtful(a, doubt)
		}
	}
	return a
}

// parked says why a message was parked.
func parked(it *pipeline.Item) *failure {
	f := &failure{verb: "parked", cause: string(it.Parked), text: "reason " + string(it.Parked), err: it.Err, remedy: "correct the senders or the pipeline"}
	missing, isMissing := errors.AsType[*key.MissingError](it.Err)
	notScalar, isNotScalar := errors.AsType[*key.NotScalarError](it.Err)
	switch {
	case it.Err == nil:
		f.err = errors.New(f.text)
	case it.Parked == pipeline.ReasonUnreadable:
		f.text, f.remedy = "there is no message inside the body, where unwrap looks for it", "correct unwrap or the senders"
		return f
	case isMissing:
		f.cause, f.text = "no key", strings.TrimPrefix(missing.Error(), "key: ")
	case isNotScalar:
		f.cause, f.text = "no key", strings.TrimPrefix(notScalar.Error(), "key: ")
	case errors.Is(it.Err, key.ErrSyntax):
		f.cause, f.text = "no JSON", "the body is not JSON, in which the key is looked for"
	case it.Parked == pipeline.ReasonKeyInvalid:
		f.text = "its key cannot be used"
	case it.Parked == pipeline.ReasonPermanent:
		f.text += ": the target refuses it"
		return f
	case it.Parked == pipeline.ReasonAttempts:
		f.text += ": every attempt at the target failed"
		return f
	default:
		f.single = true // the record of its key decided
		return f
	}
	f.remedy = "correct the rule of the key or the senders"
	return f
}

// unsigned says why a request was refused that has no valid signature. If valid ones have
// come, it is perhaps that of a stranger. If it has none at all, it is, too, unless mostAlike
// came before any valid one: then the sender has perhaps no secret.
func (d *doubts) unsigned(err error) *failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	refusal, ok := errors.AsType[*provider.Refusal](err)
	f := refused("signature", "it has no valid signature", err)
	f.stranger = d.signatures.right || ok && refusal.Missing && d.signatures.failed[f.cause]+1 < mostAlike
	return f
}

// unchecked says why a request could not be checked, or a handshake not be answered.
func unchecked(err error) *failure {
	f := &failure{
		verb: "not checked", cause: "check", text: "a request of the sender cannot be checked, because another server does not answer as it should",
		err: err, remedy: "let this machine connect to that server, or correct hosts in verify", alone: true,
	}
	if unavailable, ok := errors.AsType[*provider.UnavailableError](err); ok && unavailable.MadeUp {
		f.stranger, f.remedy = true, "a stranger may have sent the request: if none comes through, correct hosts in verify"
	}
	if _, refused := errors.AsType[*provider.Refusal](err); refused {
		f.stranger, f.text, f.remedy = true, "a handshake of the sender was refused", "correct hosts in verify, if it is right"
	}
	return f
}

// refused says why a request was refused that has no messages.
func refused(cause, text string, err error) *failure {
	return &failure{verb: "refused", cause: cause, text: text, err: err, remedy: "correct the configuration or the senders"}
}

// has lists the names that a message has, for the log. Without a Body, it lists headers
// alone.
func has(m *semel.Message, err error) string {
	var names []string
	for i := range m.Headers {
		if name := m.Headers[i].Name; !isCommon(name) {
			names = append(names, name)
		}
	}
	text := "the last one has no headers of its own"
	if len(names) > 0 {
		text = strings.Replace(diagnose.Fields("the last one", names), "has", "has the headers", 1)
	}
	if missing, ok := errors.AsType[*key.MissingError](err); ok {
		wanted, isHeader := strings.CutPrefix(missing.Rule, "header:")
		if near, ok := diagnose.Nearest(strings.ToLower(wanted), names); ok && isHeader {
			text += ": did you mean header:" + near + "?"
		}
	}
	members, _ := diagnose.Member(m.Body, ".id")
	members, isObject := strings.CutPrefix(members, "it has")
	switch {
	case m.Body == nil:
		return text
	case len(m.Body) == 0:
		return text + "; its body is empty"
	case isObject:
		return text + "; its body has" + members
	}
	return text + "; " + shape(m.Body)
}

// shape says what a body is that is no JSON object.
func shape(body []byte) string {
	line, rest, _ := bytes.Cut(bytes.TrimSpace(body), []byte{'\n'})
	switch {
	case json.Valid(body) && bytes.HasPrefix(line, []byte{'['}):
		return "its body is a JSON array: if its elements are messages, set split to array"
	case len(rest) > 0 && json.Valid(line):
		return "its body has several JSON lines: set split to lines"
	}
	return cmp.Or(diagnose.Body(body, new(key.SyntaxError)), "its body is not a JSON object")
}

// isCommon reports whether a header says nothing about a message: nearly every client or proxy
// sends it.
func isCommon(name string) bool {
	switch name {
	case "accept", "accept-encoding", "accept-language", "connection", "content-type", "forwarded", "user-agent", "via":
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-")
}
