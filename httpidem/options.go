package httpidem

import (
	"net/http"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
)

// Options are the options of New. Scope is required.
type Options struct {
	// Scope returns who the caller is. Two callers may use the same key: they never see
	// each other's answers. It must be something that was verified before this handler
	// runs, such as the subject of a token: authorization comes before the replay of an
	// answer. An empty scope is refused with 401, and an error with 401 as well.
	// [Global] is one scope for all callers. It may be called concurrently.
	Scope func(*http.Request) (string, error)
	// Route is the name of the API in the store: the scope of its keys. Handlers with
	// the same Route share keys. Defaults to "http".
	Route string
	// Methods are those that take a key. Requests with others pass untouched. Defaults
	// to POST and PATCH.
	Methods []string
	// Required refuses a request without a key with 400. Defaults to false: such a
	// request passes untouched, and may run twice.
	Required bool
	// Headers are the names of the header that has the key. A request may use any of
	// them. Defaults to Idempotency-Key.
	Headers []string
	// Strict accepts only strings of RFC 9651, in double quotes. Defaults to false:
	// most clients send the key without quotes.
	Strict bool
	// Release says whether a response means that the request took no effect, so that a
	// repetition runs. It gets the status. Defaults to 401, 403, 408, 425 and 429. All
	// other responses are kept, also those of the server's own errors.
	Release func(status int) bool
	// Replay are the names of headers that are kept with a response, in addition to
	// those that describe its content (Content-Type, Content-Encoding, ETag, Location,
	// Link and others). Set-Cookie, and headers of a connection, cannot be among them.
	Replay []string
	// MaxBody is the longest request body in bytes, and MaxResponse the longest
	// response body that is kept. A longer body is refused with 413 before anything
	// runs. A longer response reaches the client, and a repetition gets 409. Both
	// default to 1 MiB.
	MaxBody, MaxResponse int64
	// MaxBuffered limits the bodies of all requests in progress in bytes. More are
	// refused with 503. Defaults to 64 times MaxBody.
	MaxBuffered int64
}

// Global is the scope of an API whose callers may see each other's answers.
func Global(*http.Request) (string, error) { return "global", nil }

// described are the headers that are always kept.
func described() []string {
	return []string{
		"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location", "Content-Type",
		"Etag", "Last-Modified", "Link", "Location", "Preference-Applied", "Retry-After", "Vary",
	}
}

// transient reports whether a header may not be replayed: it belongs to a connection, to
// one caller's session, or to the request that it answered.
func transient(name string) bool {
	switch name {
	case "Set-Cookie", "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Alt-Svc", "Date", "Content-Length", Replayed:
		return true
	}
	return strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "Access-Control-")
}

func (o *Options) complete(store semel.Store) error {
	if o.Route == "" {
		o.Route = "http"
	}
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Headers == nil {
		o.Headers = []string{"Idempotency-Key"}
	}
	if o.Release == nil {
		o.Release = noEffect
	}
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	if o.MaxResponse == 0 {
		o.MaxResponse = 1 << 20
	}
	if o.MaxBuffered == 0 {
		o.MaxBuffered = 64 * o.MaxBody
	}
	wrong := invalid.In("httpidem: Options.")
	if o.Scope == nil {
		wrong.Add("Scope is required: say who the caller is, or write Global if all callers may see each other's answers")
	}
	if o.MaxBody < 1 || o.MaxResponse < 1 || o.MaxBuffered < o.MaxBody {
		wrong.Add("MaxBody, MaxResponse, MaxBuffered: %d, %d, %d: want at least 1, 1 and MaxBody", o.MaxBody, o.MaxResponse, o.MaxBuffered)
	}
	for _, method := range o.Methods {
		if slices.Contains([]string{"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"}, strings.ToUpper(method)) {
			wrong.Add("Methods: %s changes nothing, or cannot be replayed", method)
		}
	}
	o.Replay = slices.Clone(o.Replay)
	for i, name := range o.Replay {
		if o.Replay[i] = http.CanonicalHeaderKey(name); transient(o.Replay[i]) {
			wrong.Add("Replay: %s belongs to one connection or one caller", name)
		}
	}
	if t := store.Traits(); !t.Results {
		wrong.Add("the store of the guard keeps no results: choose one that does")
	} else if t.MaxResult > 0 && t.MaxResult < o.MaxResponse {
		wrong.Add("MaxResponse: %d bytes, and the store keeps %d", o.MaxResponse, t.MaxResult)
	}
	return wrong.Err()
}

// noEffect is the default of Options.Release.
func noEffect(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return false
}
