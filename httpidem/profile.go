package httpidem

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/semel-dev/semel/internal/invalid"
)

// Profile is the dialect of an API: all in which APIs with idempotency keys differ. To
// change a detail, take a profile from [ProfileNamed] and change its fields. A field that
// is not set has the value of the profile ietf.
type Profile struct {
	// Name is the name of the profile, for people.
	Name string
	// Headers are the names of the header that has the key. A request may use any of
	// them. An empty list that is not nil means none.
	Headers []string
	// KeyPointer is a JSON pointer (RFC 6901) to the key in a JSON body. The bodies of
	// all requests with these Methods are then read before anything else. A key in the
	// body and one in a header must be equal. Defaults to none.
	KeyPointer string
	// Strict accepts only strings of RFC 9651 as headers, in double quotes. Otherwise
	// a value without quotes is the key itself.
	Strict bool
	// MinKey and MaxKey limit the length of a key in bytes.
	MinKey, MaxKey int
	// Methods are those that take a key, in any case. Requests with others pass untouched.
	Methods []string
	// Required refuses a request without a key with 400. Otherwise such a request
	// passes untouched, and may run twice.
	Required bool
	// FirstSent is the name of a header with the time at which the client sent the
	// request first, as an HTTP date. Each request with a key must have it, and a
	// repetition has the same time. A request that is older than the guard's window,
	// and has no record left, gets 412 and does not run. Without this, a repetition
	// that comes after the window runs again. Defaults to none.
	FirstSent string
	// Result is the name of a response header that says whether the key protects the
	// request: accepted or rejected. Defaults to none.
	Result string
	// Marker is the name of the header that marks a kept response. Its value is true.
	Marker string
	// Transient is the name of a response header by which the handler says that the
	// request took no effect, with the value true: the response is not kept, and a
	// repetition runs. Refusals that a client may repeat have it, too. Defaults to none.
	Transient string
	// Release are the statuses of responses that mean that the request took no effect,
	// so that a repetition runs: "429", or "5xx" for a class. All other responses are
	// kept. With MCP, the list may also have codes of JSON-RPC errors, such as "-32602", and
	// "isError" for results that say that the tool failed. An empty list that is not nil
	// means none.
	Release []string
	// MCP says that the bodies of requests are messages of the Model Context Protocol, as its
	// transport Streamable HTTP sends them. Only a call of a tool takes a key. All other
	// messages pass untouched, and so do calls without a key unless Required is set. A kept
	// response gets the id of the call that repeats it, and refusals are JSON-RPC errors. Of
	// a stream, the response is kept. Id and _meta of a call may differ when it is repeated.
	// KeyPointer defaults to /params/_meta/idempotencyKey then. Defaults to false.
	MCP bool
	// Tools are the tools whose calls get a key from their name and arguments if they come
	// without one. The caller is a part of every key. Two calls of a caller that are meant
	// to be two need keys, or different arguments. Needs MCP. Defaults to none.
	Tools []string
	// MismatchStatus is the status for a key that belongs to another request, and
	// InFlightStatus the one for a key whose first request still runs.
	MismatchStatus, InFlightStatus int
}

// ProfileNamed returns the profile with a name: ietf, stripe, adyen, paypal, square,
// oasis, acp or mcp.
func ProfileNamed(name string) (Profile, bool) {
	for _, p := range Profiles() {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}

// Profiles returns all profiles. They describe what the APIs of these names document for
// their clients. Errors are problem details in all of them. How long a key is remembered
// is the guard's window; a comment names the figure of each API.
func Profiles() []Profile {
	// A client that was not let in, or came too fast or too slowly, had no effect.
	refused := []string{"401", "403", "408", "425", "429"}
	ietf := Profile{
		// draft-ietf-httpapi-idempotency-key-header-07: header, methods (its examples), 422
		// and 409. It has no longest key, no marker and no policy for statuses. The
		// longest key and the marker are those of Stripe. Its first choice for a server
		// error is to keep it, as here.
		Name: "ietf", Headers: []string{"Idempotency-Key"}, MinKey: 1, MaxKey: 255,
		Methods: []string{http.MethodPost, http.MethodPatch}, Marker: Replayed, Release: refused,
		MismatchStatus: http.StatusUnprocessableEntity, InFlightStatus: http.StatusConflict,
	}

	// https://docs.stripe.com/api/idempotent_requests: 255 characters, POST, kept "regardless
	// of whether it succeeds or fails", also 500, for at least 24 hours; 409 with
	// idempotency_key_in_use. https://docs.stripe.com/error-low-level: 401 and 429 come
	// before the layer of keys. It documents the type idempotency_error for another
	// request, and no status: this is the one of the draft.
	stripe := ietf
	stripe.Name, stripe.Methods = "stripe", []string{http.MethodPost}

	// https://docs.adyen.com/development-resources/api-idempotency: 64 characters, POST,
	// kept for 7 days at least (31 in earlier forms of the page), except errors with the
	// header transient-error: true; 422 or 409 with that header while the first request
	// runs.
	adyen := stripe
	adyen.Name, adyen.MaxKey, adyen.Transient = "adyen", 64, "Transient-Error"

	// https://developer.paypal.com/api/rest/reference/idempotency: the header, POST, repeat
	// after a 5xx with the same id; 6 hours for orders, 45 days for payments. The pages
	// differ in the longest key: 38 characters, and 108 in the schema of payment tokens.
	paypal := stripe
	paypal.Name, paypal.Headers, paypal.MaxKey = "paypal", []string{"PayPal-Request-Id"}, 108
	paypal.Release = slices.Concat(refused, []string{"5xx"})

	// https://developer.squareup.com/docs/build-basics/common-api-patterns/idempotency: an
	// error for another request, which may differ between APIs. The reference of its
	// payments has the field of the body with 1 to 45 characters (POST, PUT), and 400 with
	// IDEMPOTENCY_KEY_REUSED.
	square := stripe
	square.Name, square.Headers, square.KeyPointer, square.MaxKey = "square", []string{}, "/idempotency_key", 45
	square.Methods, square.MismatchStatus = []string{http.MethodPost, http.MethodPut}, http.StatusBadRequest

	// Repeatable Requests Version 1.0, OASIS Committee Specification 01, 7 July 2020: the
	// headers, all unsafe methods. Its statuses and the repetition after a 5xx are from
	// https://learn.microsoft.com/rest/api/communication/repeatable-requests, whose window
	// is 5 minutes.
	oasis := paypal
	oasis.Name, oasis.Headers, oasis.MaxKey = "oasis", []string{"Repeatability-Request-Id"}, 255
	oasis.Methods = []string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete}
	oasis.FirstSent, oasis.Result = "Repeatability-First-Sent", "Repeatability-Result"
	oasis.MismatchStatus = http.StatusBadRequest

	// https://github.com/agentic-commerce-protocol/agentic-commerce-protocol/pull/121: a key
	// on every POST, of 255 characters at most; 400 without one, 409 with Retry-After while
	// the first request runs, 422 for another request, and Idempotent-Replayed. It says
	// nothing about the statuses that are kept. It scopes a key to an endpoint too: here a
	// key at another path is one of another request.
	acp := stripe
	acp.Name, acp.Required = "acp", true

	// https://modelcontextprotocol.io/specification: Streamable HTTP in the revisions
	// 2025-03-26 to 2026-07-28. It has no keys. These statuses are refusals before a tool runs:
	// no session, or a header that does not fit. Others may be those of a gateway that gave up.
	// These JSON-RPC errors are refusals, too. Some say that the message was malformed or that
	// the method does not exist (-327.., -326..). Others say that the client must send other
	// headers, capabilities or another revision (-32020 to -32022), or that the user must visit a
	// page first (-32042). -32602 is no refusal: SDKs also answer so if the result of a tool that
	// ran does not fit its schema.
	mcp := stripe
	mcp.Name, mcp.MCP, mcp.KeyPointer = "mcp", true, metaKey
	mcp.Release = []string{"400", "401", "403", "404", "405", "406", "413", "415", "429", "-32700", "-32600", "-32601", "-32020", "-32021", "-32022", "-32042"}

	all := []Profile{ietf, stripe, adyen, paypal, square, oasis, acp, mcp}
	for i := range all { // callers may change them
		p := &all[i]
		p.Headers, p.Methods, p.Release = slices.Clone(p.Headers), slices.Clone(p.Methods), slices.Clone(p.Release)
	}
	return all
}

// complete sets the fields that are not set, and adds what is wrong with the others. It
// returns what Release says: statuses, the first digit for a class, and codes of errors.
func (p *Profile) complete(wrong *invalid.List) (release []int) {
	base, _ := ProfileNamed("ietf")
	if p.Headers == nil {
		p.Headers = base.Headers
	}
	if p.Methods == nil {
		p.Methods = base.Methods
	}
	if p.Release == nil {
		p.Release = base.Release
	}
	if p.MCP {
		orElse(&p.KeyPointer, metaKey)
	}
	p.Tools = slices.Clone(p.Tools)
	orElse(&p.Marker, base.Marker)
	orElse(&p.MinKey, base.MinKey)
	orElse(&p.MaxKey, base.MaxKey)
	orElse(&p.MismatchStatus, base.MismatchStatus)
	orElse(&p.InFlightStatus, base.InFlightStatus)

	p.Headers = slices.Clone(p.Headers)
	names := []*string{&p.FirstSent, &p.Result, &p.Marker, &p.Transient}
	for i := range p.Headers {
		names = append(names, &p.Headers[i])
		if p.Headers[i] == "" {
			wrong.Add("Profile.Headers: the name of a header is empty")
		}
	}
	for _, name := range names {
		if strings.ContainsFunc(*name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("()<>@,;:\\\"/[]?={}", c) }) {
			wrong.Add("Profile: %q is no name of a header", *name)
		}
		*name = http.CanonicalHeaderKey(*name)
	}
	p.check(wrong)
	for _, text := range p.Release {
		n, err := strconv.Atoi(strings.TrimSuffix(text, "xx"))
		class := len(text) == 3 && strings.HasSuffix(text, "xx")
		if p.MCP && (text == toolErrors || err == nil && isCode(n)) {
			release = append(release, n)
			continue
		}
		if err != nil || class && (n < 2 || n > 5) || !class && (n < 200 || n > 599) {
			wrong.Add("Profile.Release: %q is no status such as 429, and no class such as 5xx", text)
		}
		release = append(release, n)
	}
	return release
}

// isCode reports whether a number of Profile.Release is the code of a JSON-RPC error, and no
// status.
func isCode(n int) bool { return n < 0 || n > 999 }

func (p *Profile) check(wrong *invalid.List) {
	if len(p.Headers) == 0 && p.KeyPointer == "" {
		wrong.Add("Profile: a key can be neither in a header nor in the body: set Headers or KeyPointer")
	}
	if p.KeyPointer != "" {
		if _, err := pointer(p.KeyPointer); err != nil {
			wrong.Add("Profile.KeyPointer: %w", err)
		}
	}
	if len(p.Tools) > 0 && !p.MCP {
		wrong.Add("Profile.Tools: only calls of tools have them: set MCP, or take the profile mcp")
	}
	if p.MinKey < 1 || p.MaxKey < p.MinKey {
		wrong.Add("Profile.MinKey, MaxKey: %d, %d: want at least 1, and at least MinKey", p.MinKey, p.MaxKey)
	}
	for _, status := range []int{p.MismatchStatus, p.InFlightStatus} {
		if status < 400 || status > 499 {
			wrong.Add("Profile.MismatchStatus, InFlightStatus: %d is no client error: want 400 to 499", status)
		}
	}
	p.Methods = slices.Clone(p.Methods)
	for i, method := range p.Methods {
		p.Methods[i] = strings.ToUpper(method)
		if slices.Contains([]string{"", "GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"}, p.Methods[i]) {
			wrong.Add("Profile.Methods: %q changes nothing, or cannot be replayed", method)
		}
	}
}

// carrier says where the key belongs.
func (p *Profile) carrier() string {
	if p.MCP {
		return "the member " + p.KeyPointer + " of the message"
	}
	if len(p.Headers) > 0 {
		return "the header " + p.Headers[0]
	}
	return "the member " + p.KeyPointer + " of the body"
}

func orElse[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
