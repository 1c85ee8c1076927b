package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/internal/storeapi"
)

// answer returns the answer to one operation, or its problem.
func (s *Server) answer(o *operation, now time.Time) (any, *storeapi.Problem) {
	if o.problem == nil && o.err != nil {
		o.problem = s.problemOf(o)
	}
	if o.problem != nil {
		return nil, o.problem
	}
	switch o.verb {
	case verbClaim:
		return claimedOf(o, now), nil
	case verbComplete:
		return &storeapi.Settled{State: semel.Done.String()}, nil
	case verbRelease:
		state := semel.Absent
		if o.release.Unknown {
			state = semel.Unknown
		}
		return &storeapi.Settled{State: state.String()}, nil
	case verbExtend:
		return &storeapi.Extended{LeaseMS: o.extend.Lease.Milliseconds(), LeaseEnd: timeText(o.extended.LeaseEnd)}, nil
	}
	return recordOf(&o.record, !o.hidden), nil
}

// problemOf returns the problem of an operation that the store refused. Errors of stores may
// name a server, so a client gets only what is known of their kind.
func (s *Server) problemOf(o *operation) *storeapi.Problem {
	detail := "Nothing was changed. Send the request again later."
	switch class := semel.Classify(o.err); {
	case errors.Is(o.err, semel.ErrStaleToken):
		detail = "The lease ended and another call took the key over, or the key was completed, released, resolved or removed."
	case errors.Is(o.err, semel.ErrInvalidKey), errors.Is(o.err, semel.ErrResultTooLarge):
		detail = s.opts.Redact(o.err.Error())
	case errors.Is(o.err, semel.ErrStoreFull):
		detail = "Nothing was changed. The store deletes nothing to make room: its operator must."
	case class == semel.ClassUnknown:
		detail = "Send the same request again: it recognises itself."
	case class == semel.ClassPermanent:
		detail = "Nothing was changed. The log of the server has the cause."
	}
	p := storeapi.FromError(o.err, detail)
	if p.Kind() == storeapi.StaleToken && p.State == semel.Claimed.String() {
		p.Holder = o.record.Holder
	}
	return p
}

// leaseLeft returns how long a lease lasts, in milliseconds.
func leaseLeft(end, now time.Time) *int64 {
	ms := max(end.Sub(now).Milliseconds(), 0)
	return &ms
}

// claimedOf returns the answer to a claim that was decided.
func claimedOf(o *operation, now time.Time) *storeapi.Claimed {
	c := &o.claimed
	a := &storeapi.Claimed{Decision: c.Decision.String(), Attempt: c.Claim.Attempt, Holder: c.Holder}
	if c.Decision == semel.Fresh {
		a.ClaimID = o.claimID
		if c.Claim.Token != 0 {
			// The store counts from when it had the request, which is not before the client sent it.
			ms := o.claim.Lease.Milliseconds()
			a.Token, a.LeaseMS, a.LeaseEnd = storeapi.FormatToken(c.Claim.Token), &ms, timeText(c.Claim.LeaseEnd)
		}
		return a
	}
	if c.Claim.Token != 0 {
		a.HolderToken = storeapi.FormatToken(c.Claim.Token)
	}
	if !c.Claim.LeaseEnd.IsZero() {
		a.LeaseEnd = timeText(c.Claim.LeaseEnd)
	}
	from := provenanceOf(o.record.Origin)
	a.Origin, a.RequestID = strings.ToValidUTF8(from.origin, "?"), from.requestID
	if a.Holder == "" {
		a.Holder = from.holder
	}
	a.FirstSeen = timeText(o.record.FirstSeen)
	switch c.Decision {
	case semel.Duplicate:
		a.Expires = expiryText(&o.record)
		a.Result = resultOf(&c.Result)
	case semel.InFlight:
		a.LeaseMS = leaseLeft(c.Claim.LeaseEnd, now)
		after := min(max(*a.LeaseMS, 50), 2000)
		a.RetryAfterMS = &after
	}
	return a
}

// resultOf returns a kept result.
func resultOf(r *semel.Result) *storeapi.Result {
	a := &storeapi.Result{Kind: "none"}
	switch r.Kind {
	case semel.NotKept:
		a.Kind = "not_kept"
	case semel.Value:
		a.Kind = "value"
		a.Text, a.Base64 = bytesText(r.Data)
	case semel.Failed:
		a.Kind = "failed"
		a.Text, a.Base64 = bytesText(r.Data)
	}
	return a
}

// bytesText returns bytes as text, or in base64 if they are not UTF-8.
func bytesText(data []byte) (*string, *[]byte) {
	if !utf8.Valid(data) {
		return nil, &data
	}
	text := string(data)
	return &text, nil
}

// recordOf returns a record; with its result if data is set.
func recordOf(r *semel.Record, data bool) *storeapi.Record {
	from := provenanceOf(r.Origin)
	line := &storeapi.Record{
		State: r.State.String(), FirstSeen: timeText(r.FirstSeen), Attempts: r.Attempt, Holder: r.Holder, Orphaned: r.Orphaned,
		RequestID: from.requestID, LeaseEnd: timeText(r.LeaseEnd), Fingerprint: r.Fingerprint.String(),
	}
	if utf8.ValidString(from.origin) {
		line.Origin = from.origin
	} else {
		line.OriginBase64 = []byte(from.origin)
	}
	if r.Digest != (semel.Digest{}) {
		line.Digest = r.Digest.String()
	}
	if r.Token != 0 {
		line.Token = storeapi.FormatToken(r.Token)
	}
	if r.Holder == "" {
		line.Holder = from.holder
	}
	if r.Key.ID != "" {
		line.Scope, line.ScopeBase64 = jsonid.Text(r.Key.Scope)
		var ok bool
		if line.ID, ok = jsonid.Format(r.Key.ID); !ok {
			line.IDBase64 = []byte(r.Key.ID)
		}
	}
	if r.State != semel.Done {
		return line
	}
	line.Expires = expiryText(r)
	result := resultOf(&r.Result)
	if r.Result.Kind != semel.NoResult {
		line.Result, line.ResultSize = result.Kind, &r.ResultSize
	}
	if data {
		line.ResultText, line.ResultBase64 = result.Text, result.Base64
	}
	return line
}

// timeText formats a time, and no time as "".
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// expiryText returns when a done record is forgotten, or "forever".
func expiryText(r *semel.Record) string {
	switch {
	case r.State != semel.Done:
		return ""
	case r.Expires.IsZero():
		return "forever"
	}
	return timeText(r.Expires)
}

// appender is an answer that writes itself.
type appender interface{ Append(b []byte) []byte }

// encode returns an answer as JSON.
func encode(value any) []byte { return appendAnswer(nil, value) }

// appendAnswer appends an answer as JSON.
func appendAnswer(b []byte, value any) []byte {
	if a, ok := value.(appender); ok {
		return a.Append(b)
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("serve: an answer cannot be written: %v", err)) // it has texts and numbers
	}
	return append(b, data...)
}

// send sends an answer. The memory of a large one is counted until the client has it.
func (s *Server) send(w http.ResponseWriter, status int, kind string, data []byte) {
	if taken := int64(len(data)); s.memory.take(taken, taken) {
		defer s.memory.give(taken)
	} else if status == http.StatusOK { // not /overloaded, which says that nothing was changed
		p := storeapi.Of(storeapi.OutcomeUnknown, "There is no memory for the answer (serve.max_memory). What was asked for was done: send the same request again.")
		status, kind, data = p.Status, problemJSON, encode(p)
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client may have left
}

const problemJSON = "application/problem+json"

// refuse sends a problem.
func (s *Server) refuse(w http.ResponseWriter, p *storeapi.Problem) {
	switch {
	case p.Status == http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="semel"`)
	case p.RetryAfterMS > 0:
		w.Header().Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
	s.send(w, p.Status, problemJSON, encode(p))
}
