package httpidem

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// Problem is the cause of an answer that this package gives itself. It is the last part
// of the type in the problem details.
type Problem string

// The problems, each with the status of its answer.
const (
	InFlight         Problem = "in-flight"         // 409: the first request still runs
	KeyReused        Problem = "key-reused"        // 422: the key belongs to another request
	OutcomeUnknown   Problem = "outcome-unknown"   // 409: the first request may have taken effect; 502 or 504 for the first request itself
	ResponseNotKept  Problem = "response-not-kept" // 409: the first request took effect, its answer is not kept
	KeyMissing       Problem = "key-missing"       // 400
	KeyInvalid       Problem = "key-invalid"       // 400
	BodyTooLarge     Problem = "body-too-large"    // 413
	BodyUnreadable   Problem = "body-unreadable"   // 400
	StoreUnavailable Problem = "store-unavailable" // 503: nothing has run
	Overloaded       Problem = "overloaded"        // 503: nothing has run
	ScopeMissing     Problem = "scope-missing"     // 401: it is not known who asks
	UpstreamDown     Problem = "upstream-down"     // 502: the service got nothing of the request
)

// problemTypes begins the type of each problem. It is a name and need not be a page.
const problemTypes = "https://github.com/semel-dev/semel/problems/"

// refusal is an answer that this package gives itself.
type refusal struct {
	problem Problem
	status  int
	title   string
	detail  string
	after   time.Duration // Retry-After, if it is above 0
}

// write sends the problem details. They are never kept.
func (f *refusal) write(w http.ResponseWriter) {
	body, err := json.Marshal(map[string]any{
		"type": problemTypes + string(f.problem), "title": f.title, "status": f.status, "detail": f.detail,
	})
	if err != nil {
		panic(err) // strings and a number
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if f.after > 0 {
		h.Set("Retry-After", strconv.Itoa(max(int(math.Ceil(f.after.Seconds())), 1)))
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(body) // the client may have left
}
