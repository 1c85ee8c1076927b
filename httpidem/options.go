package httpidem

import (
	"crypto/cipher"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
)

// Options are the options of New. Scope is required.
type Options struct {
	// Scope returns who the caller is. Two callers may use the same key: they never see
	// each other's answers. It must be something that was verified before this handler
	// runs, such as the subject of a token: authorization comes before the replay of an
	// answer. Package caller has functions for headers, certificates, tokens and others.
	// An empty scope is refused with 401, and so is an error, unless it is a [*Denied]
	// with another status. [AnyCaller] is one scope for all callers. It may be called
	// concurrently.
	Scope func(*http.Request) (string, error)
	// Route is the name of the API in the store: the scope of its keys. Handlers with
	// the same Route share keys. Defaults to "http".
	Route string
	// Profile says where the key is, which requests take one, which responses are kept,
	// and with which statuses requests are refused. Fields that are not set, and so an
	// empty Profile, are those of the profile ietf.
	Profile Profile
	// Fingerprint says what of a JSON body must be the same when a request is repeated.
	// Defaults to each byte of the body.
	Fingerprint FingerprintOptions
	// Replay are the names of headers that are kept with a response, in addition to
	// those that describe its content (Content-Type, Content-Encoding, ETag, Location,
	// Link and others). Set-Cookie, and headers of a connection, cannot be among them.
	Replay []string
	// MaxBody is the longest request body in bytes, and MaxResponse the longest
	// response body that is kept. A longer body is refused with 413 before anything
	// runs. A longer response reaches the client, and a repetition gets 409. Both
	// default to 1 MiB, and MaxResponse to what fits into a result of the store if that is
	// less: its result also has up to 68 KiB for headers.
	MaxBody, MaxResponse int64
	// MaxBuffered limits the memory for all requests in progress in bytes: their bodies,
	// decompressed bodies while they are compared, kept responses, and 16 KiB for each. A
	// request for which there is no room is refused with 503 before it runs. A response
	// above 16 KiB without room reaches the client, and a repetition gets 409, as with
	// MaxResponse. A repetition for whose kept response there is no room gets 503, and can
	// be sent again. One kept response or decompressed body at a time may exceed the limit.
	// A client that takes more than 30 s for 64 KiB of a kept response loses its
	// connection. Memory and place of a request are taken until its response is recorded.
	// Defaults to 64 times MaxBody, and to 64 MiB at least.
	MaxBuffered int64
	// MaxPerCaller is the maximum number of requests of one caller in progress, with those
	// that wait. More are refused with 503. Defaults to no limit.
	MaxPerCaller int
	// MaxKeysPerCaller is the maximum number of new keys that one caller uses in an hour,
	// as this handler counts them. Requests with further ones are refused with 503, and
	// do not run. Repetitions are answered. Defaults to no limit.
	MaxKeysPerCaller int
	// HideKey removes the headers with the key from the request that the handler gets. A
	// key in the body stays. Defaults to false: the handler may use the key as well.
	HideKey bool
	// Encryption encrypts kept responses in the store, for instance with AES-GCM
	// (cipher.NewGCMWithRandomNonce). Keys, callers and paths stay readable. A response
	// that it cannot decrypt is not replayed: a repetition gets 409. Defaults to none.
	Encryption cipher.AEAD
	// Wait is how long a request waits for the answer of the first one with its key, if
	// that still runs. Then it gets 409. Requests in this process wait in memory. If the
	// first one runs in another process, one of them asks the store from time to time.
	// Leave GuardOptions.Wait at 0. Defaults to 0: 409 immediately.
	Wait time.Duration
	// MaxWaiters is the maximum number of requests that wait, and MaxWaitersPerKey that of
	// one key. More get 409 immediately. They default to 1024 and 64.
	MaxWaiters, MaxWaitersPerKey int
	// FailOpen runs a request although the store does not answer. The request may then
	// run twice, and its response has the header Idempotency-Status: unprotected. Defaults
	// to false: such a request gets 503, and nothing runs.
	FailOpen bool

	// Go starts a function that waits in the background until a response is recorded. New
	// calls it once for each response that the store takes longer than a second to record,
	// before the client gets its end. Set it to the method Go of a
	// sync.WaitGroup, and wait for that after http.Server.Shutdown and before you close the
	// store. Defaults to a new goroutine.
	Go func(func())

	// What follows is made of the fields above, and of the guard.
	release []int         // see Profile.complete
	kept    []string      // names of the headers that are kept, sorted
	prints  *printer      // of Fingerprint
	window  time.Duration // how long an answer is kept
}

// resultHead is the most that a kept response has in the store besides its body: its
// headers, origin and numbers, and what encryption adds.
const resultHead = maxHead + 4<<10

// AnyCaller is the scope of an API whose callers may see each other's answers.
func AnyCaller(*http.Request) (string, error) { return "global", nil }

// described are the headers that are always kept. Those of CORS are replayed to the
// origin that got them first, see answer.readable.
func described() []string {
	return []string{
		"Access-Control-Allow-Credentials", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers",
		"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Location", "Content-Type",
		"Etag", "Last-Modified", "Link", "Location", "Preference-Applied", "Retry-After", "Vary",
	}
}

// transient reports whether a header may not be replayed, because it belongs to a connection, to
// a caller's session, or to the first request.
func (o *Options) transient(name string) bool {
	switch name {
	case "Set-Cookie", "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Alt-Svc", "Date", "Content-Length",
		o.Profile.Marker, o.Profile.Result, Executed, Expires:
		return true
	}
	return strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "Access-Control-")
}

func (o *Options) complete(guard *semel.Guard) error {
	if o.Route == "" {
		o.Route = "http"
	}
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	t := guard.Store().Traits()
	most := int64(math.MaxInt64)
	if t.MaxResult > 0 {
		most = t.MaxResult - resultHead
	}
	if o.MaxResponse == 0 {
		o.MaxResponse = min(1<<20, max(most, 1))
	}
	if o.MaxBuffered == 0 {
		o.MaxBuffered = max(64*o.MaxBody, 64<<20)
	}
	if o.Go == nil {
		o.Go = func(f func()) { go f() }
	}
	orElse(&o.MaxWaiters, 1024)
	orElse(&o.MaxWaitersPerKey, 64)
	wrong := invalid.In("httpidem: Options.")
	if o.Scope == nil {
		wrong.Add("Scope is required: say who the caller is, or set AnyCaller if all callers may see each other's answers")
	}
	o.release = o.Profile.complete(wrong)
	if o.Profile.MCP {
		o.Fingerprint.Exclude = slices.Concat(o.Fingerprint.Exclude, varying())
	}
	o.prints = o.Fingerprint.complete(wrong)
	o.prints.most = o.MaxBody
	o.window = guard.Request(&semel.Call{}).Window
	if o.MaxBody < 1 || o.MaxResponse < 1 || o.MaxBuffered < o.MaxBody+requestCost {
		wrong.Add("MaxBody, MaxResponse, MaxBuffered: %d, %d, %d: want at least 1, 1, and MaxBody and %d", o.MaxBody, o.MaxResponse, o.MaxBuffered, requestCost)
	}
	if o.Wait < 0 || o.MaxPerCaller < 0 || o.MaxKeysPerCaller < 0 || o.MaxWaiters < 0 || o.MaxWaitersPerKey < 0 {
		wrong.Add("Wait, MaxPerCaller, MaxKeysPerCaller, MaxWaiters, MaxWaitersPerKey: %v, %d, %d, %d, %d: they must not be negative", o.Wait, o.MaxPerCaller, o.MaxKeysPerCaller, o.MaxWaiters, o.MaxWaitersPerKey)
	}
	o.Replay = slices.Clone(o.Replay)
	for i, name := range o.Replay {
		if o.Replay[i] = http.CanonicalHeaderKey(name); o.transient(o.Replay[i]) {
			wrong.Add("Replay: %s belongs to one connection or one caller", name)
		}
	}
	o.kept = append(described(), o.Replay...)
	slices.Sort(o.kept)
	o.kept = slices.Compact(o.kept)
	if !t.Results {
		wrong.Add("the store of the guard keeps no results: choose one that does")
	} else if o.MaxResponse > most {
		wrong.Add("MaxResponse: %d bytes, and the store keeps %d with %d for the headers: at most %d", o.MaxResponse, t.MaxResult, resultHead, max(most, 0))
	}
	return wrong.Err()
}

// released reports whether a response means that the request took no effect.
func (o *Options) released(status int, h http.Header) bool {
	return slices.Contains(o.release, status) || slices.Contains(o.release, status/100) ||
		o.Profile.Transient != "" && strings.EqualFold(h.Get(o.Profile.Transient), "true")
}
