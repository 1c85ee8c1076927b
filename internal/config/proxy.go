package config

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/schema"
)

// Proxy is the section "proxy": an HTTP proxy with which requests that carry a key take
// effect once. A number, size or duration of 0 means the default of the code that uses it.
type Proxy struct {
	// At is the place of the section.
	At schema.Place
	// Listen is the address of the proxy.
	Listen string
	TLS    *ServerTLS
	// H2C accepts HTTP/2 without TLS.
	H2C bool
	// Scope is the scope of the keys in the store.
	Scope string
	// Store is the store of the keys.
	Store schema.Reference
	// Caller says who sends a request, and Identity how that is checked.
	Caller   Caller
	Identity Identity
	// Route holds for requests of no other route. Its path is "/".
	Route
	// Routes are in the order of the file. Fields that one does not set are those of
	// Route.
	Routes []*Route
	// MaxBuffered limits the memory for all requests of a route with a key in progress.
	MaxBuffered int64
	// MaxPerCaller limits the requests of one caller in progress, for each route.
	MaxPerCaller int
	// MaxKeysPerCaller limits the new keys of one caller in an hour, for each route.
	MaxKeysPerCaller int
	// MaxWaiters limits the requests of a route that wait for the first answer, and
	// MaxWaitersPerKey those of them with one key.
	MaxWaiters, MaxWaitersPerKey int
	// EncryptionKey encrypts kept answers: 64 hexadecimal digits for AES-256.
	EncryptionKey schema.Secret
	// HideState switches the state of keys off.
	HideState bool
	// BodyTimeout is how long the body of a request with a key may take.
	BodyTimeout time.Duration
	// AccessLog logs each request.
	AccessLog bool
}

// LongestWindow returns how long an answer is kept at most.
func (p *Proxy) LongestWindow() time.Duration {
	longest := cmp.Or(p.Window, semel.DefaultWindow)
	for _, r := range p.Routes {
		longest = max(longest, r.Window)
	}
	return longest
}

// Route says what the proxy does with requests whose path begins with Path.
type Route struct {
	Name string
	Path string
	// Upstream is the URL of the service.
	Upstream    string
	UpstreamTLS *TLS
	// UpstreamTimeout is how long a client with a key waits for an answer.
	UpstreamTimeout time.Duration
	// Profile is the name of a profile of package httpidem.
	Profile string
	// Methods take a key. Nil means the default, and an empty list none.
	Methods []string
	// Required refuses a request without a key.
	Required bool
	// Headers are the names of the header with the key, and KeyPointer is its place in a
	// JSON body.
	Headers    []string
	KeyPointer string
	Strict     bool
	// HideKey does not pass the headers with the key on.
	HideKey bool
	// Tools are the tools of an MCP service whose calls get a key from caller, tool and
	// arguments.
	Tools []string
	// Window is how long an answer is kept, and Lease how long a claim lasts unless it
	// is extended.
	Window, Lease time.Duration
	// OnLeaseExpired is hold or retry.
	OnLeaseExpired string
	// Wait is how long a repetition waits for the first answer.
	Wait                 time.Duration
	MaxBody, MaxResponse int64
	// ReplayHeaders are kept with an answer, in addition to those that describe it.
	ReplayHeaders []string
	// Release are the statuses of answers that are not kept. Nil means those of the
	// profile.
	Release []string
	// Fingerprint says what of a JSON body must be the same when a request is repeated.
	Fingerprint httpidem.FingerprintOptions
	// FailOpen passes requests on while the store does not answer.
	FailOpen bool
}

// DefaultRoute is the name of the route for requests of no other one.
const DefaultRoute = "default"

// ProfileOr returns the name of the profile, or the default.
func (r *Route) ProfileOr() string { return cmp.Or(r.Profile, "ietf") }

// LeaseOr returns the lease, or the default.
func (r *Route) LeaseOr() time.Duration { return cmp.Or(r.Lease, semel.DefaultLease) }

// WindowOr returns the window, or the default.
func (r *Route) WindowOr() time.Duration { return cmp.Or(r.Window, semel.DefaultWindow) }

// UpstreamTimeoutOr returns how long a client waits for an answer, or the default.
func (r *Route) UpstreamTimeoutOr() time.Duration { return cmp.Or(r.UpstreamTimeout, time.Minute) }

// Rules returns the profile with the fields that the route sets. The name of the profile was
// checked when it was read.
func (r *Route) Rules() httpidem.Profile {
	p, _ := httpidem.ProfileNamed(r.ProfileOr())
	if r.Methods != nil {
		p.Methods = r.Methods
	}
	if r.Headers != nil {
		p.Headers = r.Headers
	}
	if r.Release != nil {
		p.Release = r.Release
	}
	p.Required, p.Strict = p.Required || r.Required, p.Strict || r.Strict
	p.KeyPointer = cmp.Or(r.KeyPointer, p.KeyPointer)
	p.Tools = r.Tools
	return p
}

// DefaultProxyScope is the default of Proxy.Scope.
const DefaultProxyScope = "http"

// Caller says how the proxy knows who sends a request.
type Caller struct {
	// Kind is header, api-key, jwt, basic, mtls, forward or global.
	Kind string
	// Name is the name of the header or claim, for the kinds that have one.
	Name string
}

// callers are examples of all kinds of callers.
func callers() []Caller {
	return []Caller{{"header", "X-Api-Key"}, {"api-key", "X-Api-Key"}, {"jwt", "sub"}, {"basic", ""}, {"mtls", ""}, {"forward", "X-User"}, {"global", ""}}
}

// ParseCaller reads a scope such as header:X-Api-Key.
func ParseCaller(text string) (Caller, error) {
	kind, name, named := strings.Cut(text, ":")
	var all []string
	for _, example := range callers() {
		all = append(all, example.String())
		switch {
		case kind != example.Kind:
		case example.Name != "" && (name == "" || kind != "jwt" && !isToken(name)):
			return Caller{}, fmt.Errorf("write it like %s", example)
		case example.Name == "" && named:
			return Caller{}, fmt.Errorf("write %s without a name", kind)
		case kind == "header" && slices.Contains([]string{"Authorization", "Proxy-Authorization", "Cookie"}, http.CanonicalHeaderKey(name)):
			return Caller{}, fmt.Errorf("%s has credentials and not the name of a caller: write basic, jwt:sub or api-key:%s", name, name)
		default:
			return Caller{kind, name}, nil
		}
	}
	return Caller{}, errors.New(schema.OneOf(text, all))
}

// String returns the scope as people write it.
func (c Caller) String() string {
	if c.Name == "" {
		return c.Kind
	}
	return c.Kind + ":" + c.Name
}

// HashedCaller returns the name of a caller of the kind header, whose value may be a
// secret.
func HashedCaller(value string) string {
	sum := sha256.Sum256([]byte(value))
	return "sha256:" + hex.EncodeToString(sum[:16])
}

// UserCaller returns the name of a caller of the kind basic: the user, with a digest of user and
// password, because a wrong password is another caller.
func UserCaller(user, password string) string {
	sum := sha256.Sum256([]byte(user + "\x00" + password))
	return user + ":" + hex.EncodeToString(sum[:16])
}

// UserOf returns the user in the name of a caller of the kind basic. ok is false for another one.
func UserOf(caller string) (user string, ok bool) {
	at := len(caller) - len(":") - hex.EncodedLen(16)
	if at < 1 || caller[at] != ':' {
		return "", false
	}
	_, err := hex.DecodeString(caller[at+1:])
	return caller[:at], err == nil
}

// Identity is what the proxy needs to check who the caller is. What belongs to other
// kinds of callers is empty.
type Identity struct {
	// JWTKeys is a file or URL with the public keys of tokens, and JWTSecret a shared
	// secret.
	JWTKeys          string
	JWTSecret        schema.Secret
	Issuer, Audience string
	// APIKeys are names of callers by the SHA-256 digest of their key.
	APIKeys map[string]string
	// ForwardAuth is the URL of the service that names the caller.
	ForwardAuth string
}

// isToken reports whether text can be the name of a header or a method.
func isToken(text string) bool {
	for i := range len(text) {
		c := text[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return text != ""
}

// ParseUpstream checks the URL of a service.
func ParseUpstream(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", errors.New("not the URL of a service: write it like http://127.0.0.1:9000")
	case u.User != nil:
		return "", errors.New("credentials do not belong into the URL: the proxy passes those of the client on")
	case u.RawQuery != "", u.Fragment != "":
		return "", errors.New("a query or fragment has no effect: leave it out")
	}
	return text, nil
}

// hostOfURL returns the host of a URL that was checked.
func hostOfURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return u.Hostname()
}

// ParseMethod checks a method that may take a key.
func ParseMethod(text string) (string, error) {
	switch {
	case !isToken(text) || text != strings.ToUpper(text):
		return "", errors.New("not a method: write POST, PATCH, PUT or DELETE")
	case slices.Contains([]string{"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"}, text):
		return "", fmt.Errorf("%s changes nothing, or its answer cannot be kept", text)
	}
	return text, nil
}

// ParseHeader checks the name of a header.
func ParseHeader(text string) (string, error) {
	if !isToken(text) {
		return "", errors.New("not the name of a header")
	}
	return text, nil
}

// parsedField is a text that parse checks.
func parsedField(name string, target *string, parse func(string) (string, error), doc string) schema.Field {
	return schema.Field{Name: name, Doc: doc, Form: schema.Form{Scalar: schema.ScalarText}, Read: func(v schema.Value) { schema.Quantity(v, target, "a text", parse) }}
}

// parsedList is a list of texts that parse checks. An empty list is not nil.
func parsedList(name string, target *[]string, parse func(string) (string, error), doc string) schema.Field {
	f := schema.ListField(name, schema.Form{Scalar: schema.ScalarText}, func(v schema.Value) {
		*target = []string{}
		if list, ok := v.Node.(*ast.SequenceNode); ok && len(list.Values) == 0 {
			return
		}
		v.List(func(element schema.Value) {
			var text string
			if schema.Quantity(element, &text, "a text", parse); text != "" {
				*target = append(*target, text)
			}
		})
	}, doc)
	f.Form.MayBeEmpty = true
	return f
}

// readProxy reads the section "proxy".
func readProxy(v schema.Value) *Proxy {
	p := &Proxy{At: v.Place()}
	v.Mapping(proxyMapping(p))
	return p
}

func proxyMapping(p *Proxy) schema.Mapping {
	own := []schema.Field{
		{Name: "listen", Doc: "Address of the proxy.", Form: schema.Form{Scalar: schema.ScalarText}, Initial: "127.0.0.1:8080", Read: func(v schema.Value) {
			v.Text(&p.Listen)
			v.CheckListen(p.Listen)
		}},
		schema.StoreField("store", &p.Store, "Store of the keys and of the kept answers.").Need(),
		{Name: "scope", Doc: "Who the caller is: `header:NAME` (the value of a header), `api-key:HEADER` (one of `api_keys`), `jwt:CLAIM` (a claim of a bearer token), `basic` (user name and password), `mtls` (the client certificate), `forward:HEADER` (a header of the answer of `forward_auth`), or `global`: all callers are one and may get each other's answers.", Form: schema.Form{Scalar: schema.ScalarText}, Required: true, Read: func(v schema.Value) {
			schema.Quantity(v, &p.Caller, "a text", ParseCaller)
		}},
		parsedField("name", &p.Scope, parseName, "Name of the API: the scope of its keys in the store. Proxies with the same store and name share their keys.").Or(DefaultProxyScope),
	}
	fields := slices.Concat(own, identityFields(&p.Identity), routeFields(&p.Route, false))
	fields = append(fields,
		schema.SizeField("max_buffered", &p.MaxBuffered, "Memory for the requests with a key in progress on a route, and for kept answers on their way. Further ones get a 503.").Means("64 times max_body, and 64MiB at least"),
		schema.NumberField("max_per_caller", &p.MaxPerCaller, 1, 1_000_000, "Requests of one caller with a key in progress on a route. Further ones get a 503.").Means("no limit"),
		schema.NumberField("max_keys_per_caller", &p.MaxKeysPerCaller, 1, 1<<31-1, "New keys that one caller may use on a route in an hour, as this process counts them. Requests with further ones get a 503 and do not run.").Means("no limit"),
		schema.NumberField("max_waiters", &p.MaxWaiters, 1, 1_000_000, "With `wait`: requests that may wait for the first answer on a route. Further ones get 409 immediately.").Or("1024"),
		schema.NumberField("max_waiters_per_key", &p.MaxWaitersPerKey, 1, 1_000_000, "With `wait`: requests that may wait for the first answer of one key.").Or("64"),
		schema.SecretField("encryption_key", &p.EncryptionKey, "Encrypts kept answers in the store with AES-256-GCM: 64 hexadecimal digits, as `openssl rand -hex 32` prints them. All proxies with the store need the same key. After a change, repetitions of older requests get 409 /response-not-kept."),
		schema.TruthField("hide_state", &p.HideState, "Pass requests for `/.well-known/idempotency/KEY` on. Otherwise the proxy answers them with the state of the caller's key.").Or("false"),
		schema.DurationField("body_timeout", &p.BodyTimeout, "How long the body of a request with a key may take to arrive.").Or("30s"),
		schema.TruthField("access_log", &p.AccessLog, "Log each request: method, path without query, status, bytes and time. Keys, credentials and bodies are never logged.").Or("false"),
		schema.TruthField("h2c", &p.H2C, "Accept HTTP/2 without TLS. With `tls`, HTTP/2 is always accepted.").Or("false"),
		ServerTLSField(&p.TLS),
		schema.Field{Name: "routes", Doc: "Routes by name. The longest path that a request begins with decides, and among equal paths the route whose methods have its method. A route has the fields of the proxy that it does not set.",
			Form: schema.Form{Named: &schema.Form{Members: func() schema.Mapping { return routeMapping(&Route{}) }}},
			Read: func(schema.Value) {}, // by Check, when the fields of the proxy are known
		},
	)
	return schema.Mapping{Fields: fields, Check: func(v schema.Value, there schema.Members) { p.check(v, there) }}
}

// identityFields are the fields of the proxy for its kind of scope.
func identityFields(i *Identity) []schema.Field {
	return []schema.Field{
		{Name: "jwt_keys", Doc: "With `jwt`: URL or file of the JWK set with the public keys that sign tokens.", Form: schema.Form{Scalar: schema.ScalarPath}, Read: func(v schema.Value) {
			if v.Text(&i.JWTKeys); i.JWTKeys != "" && !schema.HasScheme(i.JWTKeys, "http", "https") {
				v.FilePath(&i.JWTKeys)
			}
		}},
		schema.SecretField("jwt_secret", &i.JWTSecret, "With `jwt`: secret that signs tokens (HS256), instead of `jwt_keys`; 32 bytes or more."),
		schema.TextField("jwt_issuer", &i.Issuer, "With `jwt`: issuer that tokens must have.").Means("any"),
		schema.TextField("jwt_audience", &i.Audience, "With `jwt`: audience that tokens must have.").Means("any"),
		{Name: "api_keys", Doc: "With `api-key`: names of callers, each with the SHA-256 digest of its key in 64 hexadecimal digits, as `sha256sum` prints it. A caller may have several.", Form: schema.Form{Named: &schema.Form{Element: &schema.Form{Scalar: schema.ScalarText}}}, Read: func(v schema.Value) {
			i.APIKeys = map[string]string{}
			readNamed(v, "caller", func(name string, _ schema.Place, member schema.Value) {
				member.List(func(element schema.Value) {
					var digest string
					if schema.Quantity(element, &digest, "a digest", parseDigest); digest != "" {
						i.APIKeys[digest] = name
					}
				})
			})
		}},
		parsedField("forward_auth", &i.ForwardAuth, ParseUpstream, "With `forward`: URL of the service that is asked for each request with a key. It gets the headers of the request, and answers with 2xx and the header that names the caller, or with 401 or 403. The service behind the proxy gets this header; the proxy removes it from requests of clients."),
	}
}

// parseDigest checks the SHA-256 digest of a key.
func parseDigest(text string) (string, error) {
	if digest, err := hex.DecodeString(text); err != nil || len(digest) != sha256.Size {
		return "", errors.New("not 64 hexadecimal digits: write what printf %s KEY | sha256sum prints")
	}
	return strings.ToLower(text), nil
}

// checkIdentity reports what the kind of scope lacks, and what belongs to another kind.
func (p *Proxy) checkIdentity(v schema.Value, there schema.Members) {
	needs := map[string][]string{"jwt": {"jwt_keys", "jwt_secret"}, "api-key": {"api_keys"}, "forward": {"forward_auth"}}
	has := func(name string) bool { _, ok := there[name]; return ok }
	if names := needs[p.Caller.Kind]; names != nil && !slices.ContainsFunc(names, has) {
		v.Wrong("scope %s needs %s: write it", p.Caller, strings.Join(names, " or "))
	}
	if has("jwt_keys") && has("jwt_secret") {
		there["jwt_secret"].Wrong("jwt_keys and jwt_secret exclude each other: keep one")
	}
	if secret := p.Identity.JWTSecret.Reveal(); secret != "" && len(secret) < 32 && !strings.Contains(secret, "${") { // a reference that is not resolved yet
		there["jwt_secret"].Wrong("it has %d bytes, want at least 32", len(secret))
	}
	for kind, names := range map[string][]string{"jwt": {"jwt_keys", "jwt_secret", "jwt_issuer", "jwt_audience"}, "api-key": {"api_keys"}, "forward": {"forward_auth"}} {
		for _, name := range names {
			if has(name) && kind != p.Caller.Kind && p.Caller.Kind != "" {
				there[name].Wrong("it has no effect with scope %s: leave it out, or write scope: %s:NAME", p.Caller, kind)
			}
		}
	}
	if p.Caller.Kind == "mtls" && (p.TLS == nil || p.TLS.ClientCA == "") {
		there["scope"].Wrong("mtls needs the authorities of the client certificates: write tls: { certificate, key, client_ca }")
	}
}

// ProfileNames returns the names of the profiles.
func ProfileNames() (names []string) {
	for _, p := range httpidem.Profiles() {
		names = append(names, p.Name)
	}
	return names
}

// parseReleased checks a status, a class of statuses, or the code of a JSON-RPC error.
func parseReleased(text string) (string, error) {
	if n, err := strconv.Atoi(text); err == nil && (n < 0 || n > 999) || text == "isError" {
		return text, nil // the profile must be mcp
	}
	if len(text) == 3 && '2' <= text[0] && text[0] <= '5' {
		if _, err := strconv.Atoi(text); err == nil || text[1:] == "xx" {
			return text, nil
		}
	}
	return "", errors.New("not a status: write it like 429 or 5xx, and with profile mcp also -32602 or isError")
}

// parseTool checks the name of a tool.
func parseTool(text string) (string, error) {
	if len(text) > 128 {
		return "", errors.New("a tool has a name of 128 bytes at most")
	}
	return text, nil
}

// ParseProfile reads the name of a profile.
func ParseProfile(text string) (string, error) { return schema.ParseChoice(text, ProfileNames()...) }

// parseName checks a name in the store.
func parseName(text string) (string, error) {
	if !schema.IsName(text) {
		return "", errors.New("write letters, digits, - and _, at most 64")
	}
	return text, nil
}

func routeMapping(r *Route) schema.Mapping {
	path := schema.Field{Name: "path", Doc: "Beginning of the paths of the route, up to a `/` or the end. Other spellings of the path (`/v1//pay`, `/x/../v1/pay`, `/v1/pay;x=1`, percent-encoded) belong to its route.", Form: schema.Form{Scalar: schema.ScalarText}, Required: true, Read: func(v schema.Value) {
		if v.Text(&r.Path); r.Path != "" && !strings.HasPrefix(r.Path, "/") {
			v.Wrong("it must start with /")
		}
	}}
	fields := routeFields(r, true)
	for i := range fields {
		fields[i] = fields[i].Means("that of the proxy")
		fields[i].Inherits = "proxy"
	}
	return schema.Mapping{Fields: append([]schema.Field{path}, fields...)}
}

// routeFields are the fields of a route. Those of a proxy are the defaults of its routes.
func routeFields(r *Route, inner bool) []schema.Field {
	upstream := parsedField("upstream", &r.Upstream, ParseUpstream, "URL of the service. The path of a request is put behind it.")
	upstream.Required = !inner
	upstreamTLS := TLSField(&r.UpstreamTLS)
	upstreamTLS.Name = "upstream_tls"
	return []schema.Field{
		upstream,
		upstreamTLS,
		schema.DurationField("upstream_timeout", &r.UpstreamTimeout, "How long a client with a key waits for the answer. Then it gets 504, and the outcome is unknown until the answer comes.").Means("60s"),
		schema.ChoiceField("profile", &r.Profile, "The API whose rules hold: where the key is, its length, methods, statuses, and which answers are kept.", ProfileNames()...).Means("ietf"),
		parsedList("methods", &r.Methods, ParseMethod, "Methods that take a key. With `[]` none does.").Means("those of the profile"),
		schema.TruthField("required", &r.Required, "Refuse a request without a key with 400.").Means("false"),
		parsedList("headers", &r.Headers, ParseHeader, "Names of the header that has the key. A request may use any of them.").Means("those of the profile"),
		schema.TruthField("strict", &r.Strict, "Accept only keys in double quotes, as RFC 9651 writes strings.").Means("false"),
		schema.TextField("key_pointer", &r.KeyPointer, "JSON pointer to the key in a JSON body, such as `/idempotency_key`. The body is then read before anything else.").Means("that of the profile"),
		parsedList("tools", &r.Tools, parseTool, "With `profile: mcp`: tools whose calls get a key from caller, tool and arguments if they come without one. A second call with the same arguments gets the first result.").Means("none"),
		schema.TruthField("hide_key", &r.HideKey, "Do not pass the headers with the key on. Otherwise the service gets them, and may use the key as well.").Means("false"),
		schema.WindowField("window", &r.Window, "How long an answer is kept, from its completion on.").Means("24h"),
		schema.DurationField("lease", &r.Lease, "How long a claim lasts. The proxy extends it while the service works.").Means("30s"),
		schema.ChoiceField("on_lease_expired", &r.OnLeaseExpired, "After a crash in the middle of a request: `hold` answers its repetition with 409 until an operator resolves the key, `retry` runs it again.", "hold", "retry").Means("hold"),
		schema.PauseField("wait", &r.Wait, "How long a repetition waits while the first request runs. Then it gets 409.").Means("0s"),
		schema.SizeField("max_body", &r.MaxBody, "The longest body of a request with a key. A longer one gets 413.").Means("1MiB"),
		schema.SizeField("max_response", &r.MaxResponse, "The longest body of an answer that is kept, at most about 31 MiB. A longer one reaches the client, and a repetition gets 409.").Means("1MiB"),
		parsedList("replay_headers", &r.ReplayHeaders, ParseHeader, "Headers that are kept with an answer, in addition to those that describe its content.").Means("[]"),
		parsedList("release", &r.Release, parseReleased, "Statuses of answers that mean that a request took no effect, such as `429` or `5xx`. They are not kept, and a repetition runs. With `profile: mcp` also codes of JSON-RPC errors, such as `-32602`, and `isError` for results of tools that failed.").Means("those of the profile"),
		schema.PartField("fingerprint", func() schema.Mapping {
			r.Fingerprint = httpidem.FingerprintOptions{}
			return schema.Mapping{Fields: []schema.Field{
				schema.TextsField("include", &r.Fingerprint.Include, "JSON pointers to the members that count, such as `/amount`.").Means("all"),
				schema.TextsField("exclude", &r.Fingerprint.Exclude, "JSON pointers to the members that do not count, such as `/sent_at`.").Means("none"),
				schema.TruthField("canonical_json", &r.Fingerprint.CanonicalJSON, "Order of members and white space do not count.").Or("false"),
			}}
		}, "What of a JSON body must be the same when a request is repeated. Method, host, path and query always count.").Means("each byte of the body"),
		schema.TruthField("fail_open", &r.FailOpen, "While the store does not answer, pass requests with a key on without protection, and say so in the header `Idempotency-Status: unprotected` of the answer.").Means("false"),
	}
}

// check reads the routes, and reports what does not fit together.
func (p *Proxy) check(v schema.Value, there schema.Members) {
	p.Path = "/"
	accepted := p.accepts(v, &p.Route)
	if routes, ok := there["routes"]; ok {
		readNamed(routes, "route", func(name string, _ schema.Place, member schema.Value) {
			r := p.Route
			r.Name = name
			member.Mapping(routeMapping(&r))
			p.Routes = append(p.Routes, &r)
			if accepted { // otherwise the route may have inherited the problem
				p.accepts(member, &r)
			}
		})
	}
	p.checkIdentity(v, there)
	if _, err := p.Encryption(); err != nil && !strings.Contains(p.EncryptionKey.Reveal(), "${") { // a reference that is not resolved yet
		there["encryption_key"].Wrong("%v", err)
	}
	if h2c, ok := there["h2c"]; ok && p.H2C && p.TLS != nil {
		h2c.Wrong("with tls, HTTP/2 is always accepted: leave h2c out")
	}
}

// Encryption returns the cipher for kept answers, or nil if they are not encrypted.
func (p *Proxy) Encryption() (cipher.AEAD, error) {
	text := p.EncryptionKey.Reveal()
	if text == "" {
		return nil, nil
	}
	secret, err := hex.DecodeString(text)
	if err != nil || len(secret) != 32 {
		return nil, errors.New("not 64 hexadecimal digits: write what openssl rand -hex 32 prints")
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Options returns the options of the handler of a route, without their Scope.
func (p *Proxy) Options(r *Route) *httpidem.Options {
	return &httpidem.Options{
		Route: cmp.Or(p.Scope, DefaultProxyScope), Profile: r.Rules(),
		Replay: r.ReplayHeaders, MaxBody: r.MaxBody, MaxResponse: r.MaxResponse, MaxBuffered: p.MaxBuffered, Wait: r.Wait, FailOpen: r.FailOpen, HideKey: r.HideKey,
		Fingerprint: r.Fingerprint, MaxPerCaller: p.MaxPerCaller, MaxKeysPerCaller: p.MaxKeysPerCaller, MaxWaiters: p.MaxWaiters, MaxWaitersPerKey: p.MaxWaitersPerKey,
	}
}

// accepts reports what the handler of a route would refuse, and whether that is nothing.
// A file that is accepted also starts.
func (p *Proxy) accepts(v schema.Value, r *Route) bool {
	if rules := r.Rules(); len(rules.Headers) == 0 && rules.KeyPointer == "" {
		v.Wrong("headers: no header can have the key, and the profile %s has none in the body: name a header", rules.Name)
		return false
	}
	opts := p.Options(r)
	opts.Scope = httpidem.AnyCaller
	guard, err := semel.NewGuard(noStore{}, &semel.GuardOptions{Lease: r.Lease, Window: r.Window})
	if err == nil {
		_, err = httpidem.New(guard, http.NotFoundHandler(), opts)
	}
	if err == nil {
		return true
	}
	fields := strings.NewReplacer("semel: GuardOptions.Lease", "lease", "httpidem: Options.", "", "Fingerprint.Include", "fingerprint.include", "Fingerprint.Exclude", "fingerprint.exclude",
		"Replay:", "replay_headers:", "Profile.KeyPointer", "key_pointer", "MaxBody", "max_body", "MaxResponse", "max_response", "MaxBuffered", "max_buffered", "Profile.Tools", "tools", "set MCP, or take the profile mcp", "write profile: mcp", "Profile.Release", "release", ": "+semel.ErrInvalidRequest.Error(), "")
	for problem := range strings.Lines(fields.Replace(err.Error())) {
		if !strings.Contains(problem, "${") { // a reference that is not resolved yet
			v.Wrong("%s", strings.TrimSuffix(problem, "\n"))
		}
	}
	return false
}

// noStore is a store for the check of options. Only its traits are asked for.
type noStore struct{ semel.Store }

// Traits implements semel.Store.
func (noStore) Traits() semel.Traits { return semel.Traits{Results: true, MaxResult: MaxResult} }

// MaxResult is the longest result in bytes that the stores of a configuration keep, which
// is the most that an embedded store can.
const MaxResult = 32 << 20

// checkProxy reports conflicts between the proxy and the rest of the file.
func checkProxy(d *schema.Document, f *File) {
	if f.Proxy == nil || f.Proxy.Store.Name == "" {
		return
	}
	c := &Checker{Document: d, File: f}
	const path = "proxy.store"
	s, ok := c.storeOf(f.Proxy.Store, path)
	if ok && s.Spec.About().Filter != nil {
		c.Report(f.Proxy.Store.At, path, "%s is a filter, which cannot keep answers: name a store of another kind", s.Name)
	}
}
