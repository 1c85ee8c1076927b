package httpidem

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Problem is the cause of an answer that this package gives itself. It is the last part
// of the type in the problem details.
type Problem string

// The problems, each with the status of its answer.
const (
	InFlight         Problem = "in-flight"         // 409: the first request still runs; see Profile.InFlightStatus
	KeyReused        Problem = "key-reused"        // 422: the key belongs to another request; see Profile.MismatchStatus
	OutcomeUnknown   Problem = "outcome-unknown"   // 409: the first request may have taken effect; 502 or 504 for the first request itself
	ResponseNotKept  Problem = "response-not-kept" // 409: the first request took effect, its answer is not kept
	KeyMissing       Problem = "key-missing"       // 400
	KeyInvalid       Problem = "key-invalid"       // 400
	KeyExpired       Problem = "key-expired"       // 412: it is too old to know whether it has run; see Profile.FirstSent
	BodyTooLarge     Problem = "body-too-large"    // 413
	BodyUnreadable   Problem = "body-unreadable"   // 400
	StoreUnavailable Problem = "store-unavailable" // 503: nothing has run
	Overloaded       Problem = "overloaded"        // 503: nothing has run; or the first request took effect, as the detail says, and there is no memory for its answer
	ScopeMissing     Problem = "scope-missing"     // 401: it is not known who asks
	ScopeDenied      Problem = "scope-denied"      // 403: the caller may not send the request
	ScopeUnavailable Problem = "scope-unavailable" // 503: the caller cannot be checked; nothing has run
	RolledBack       Problem = "rolled-back"       // 500: the request took no effect; see NewAtomic
	UpstreamDown     Problem = "upstream-down"     // 502: the service got nothing of the request
)

// known returns the status and the title of a problem.
func (p Problem) known() (status int, title string) {
	switch p {
	case InFlight:
		return http.StatusConflict, "The first request with this key still runs"
	case KeyReused:
		return http.StatusUnprocessableEntity, "The key belongs to another request"
	case OutcomeUnknown:
		return http.StatusConflict, "It is not known whether the request took effect"
	case ResponseNotKept:
		return http.StatusConflict, "The answer is not kept"
	case KeyMissing:
		return http.StatusBadRequest, "The request needs a key"
	case KeyInvalid:
		return http.StatusBadRequest, "The key is not valid"
	case KeyExpired:
		return http.StatusPreconditionFailed, "The request is too old"
	case BodyTooLarge:
		return http.StatusRequestEntityTooLarge, "The body is too large"
	case BodyUnreadable:
		return http.StatusBadRequest, "The body could not be read"
	case Overloaded:
		return http.StatusServiceUnavailable, "Too many requests are in progress"
	case ScopeMissing:
		return http.StatusUnauthorized, "It is not known who sends the request"
	case ScopeDenied:
		return http.StatusForbidden, "The caller may not send the request"
	case ScopeUnavailable:
		return http.StatusServiceUnavailable, "The caller cannot be checked now"
	case RolledBack:
		return http.StatusInternalServerError, "The request took no effect"
	case UpstreamDown:
		return http.StatusBadGateway, "The service cannot be reached"
	}
	return http.StatusServiceUnavailable, "The request cannot be checked now" // StoreUnavailable
}

// kept reports whether the key protects the request although this is its answer.
func (p Problem) kept() bool {
	return p == InFlight || p == OutcomeUnknown || p == ResponseNotKept
}

// passing reports whether the same request may get another answer soon.
func (p Problem) passing() bool {
	switch p {
	case InFlight, BodyUnreadable, StoreUnavailable, Overloaded, ScopeUnavailable, UpstreamDown:
		return true
	}
	return false
}

// problemTypes begins the type of each problem, which is the address of its page.
const problemTypes = "https://github.com/semel-dev/semel/tree/main/docs/problems/"

// refusal is an answer that this package gives itself.
type refusal struct {
	problem Problem
	status  int // 0: the one of the problem
	detail  string
	kept    bool          // the key protects the request, whatever the problem says
	after   time.Duration // Retry-After, if it is above 0
}

// write sends the problem details, as a profile has them, or a JSON-RPC error with them. They
// are never kept. A nil profile is for a request without a key.
func (f *refusal) write(w http.ResponseWriter, p *Profile) {
	status, title := f.problem.known()
	h := w.Header()
	if p != nil {
		switch f.problem {
		case InFlight:
			status = p.InFlightStatus
		case KeyReused:
			status = p.MismatchStatus
		}
		p.accepted(h, f.kept || f.problem.kept())
		if p.Transient != "" && f.problem.passing() {
			h.Set(p.Transient, "true")
		}
	}
	if f.status != 0 {
		status = f.status
	}
	details := map[string]any{"type": problemTypes + string(f.problem), "title": title, "status": status, "detail": f.detail}
	h.Set("Cache-Control", "no-store")
	after := max(int(math.Ceil(f.after.Seconds())), 1)
	if f.after > 0 {
		h.Set("Retry-After", strconv.Itoa(after))
		expose(h, "Retry-After")
	}
	c := callOf(w)
	if c != nil && f.after > 0 {
		details["retry_after"] = after // a client of a tool sees no headers
	}
	body, err := json.Marshal(details)
	if err != nil {
		panic(err) // strings and numbers
	}
	if c != nil {
		c.fail(status, title+". "+f.detail, body)
		return
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have left
}

// accepted says whether the key protects the request, if the profile has a header for it.
func (p *Profile) accepted(h http.Header, yes bool) {
	switch {
	case p.Result == "":
		return
	case yes:
		h.Set(p.Result, "accepted")
	default:
		h.Set(p.Result, "rejected")
	}
	expose(h, p.Result)
}

// expose lets scripts of other origins read headers, if they may read the response.
func expose(h http.Header, names ...string) {
	if h.Get("Access-Control-Allow-Origin") == "" {
		return
	}
	h.Set("Access-Control-Expose-Headers", strings.Join(append(h.Values("Access-Control-Expose-Headers"), names...), ", "))
}

// Unavailable answers that requests cannot be checked now: 503 of type StoreUnavailable,
// with Retry-After. A server uses it while it opens its store.
func Unavailable(w http.ResponseWriter) {
	unavailable(w, nil)
}

func unavailable(w http.ResponseWriter, p *Profile) {
	(&refusal{problem: StoreUnavailable, detail: "Nothing has run. Repeat the request.", after: time.Second}).write(w, p)
}
