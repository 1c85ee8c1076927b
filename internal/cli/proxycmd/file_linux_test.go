package proxycmd_test

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestProxyReportsAllConfigurationErrorsTogether(t *testing.T) {
	t.Parallel()
	programtest.Run(t, "", "proxy").Check(t, term.ExitUsage, "--upstream URL is missing", "--scope is missing: say who the caller is")
	programtest.Run(t, "", "proxy", "--upstream", "ftp://x", "--scope", "heder:X", "--methods", "POST,GET", "--window", "0", "--on-lease-expired", "rety", "--profile", "strip", "--max-body", "0", "--header", "a b").Check(t, term.ExitUsage,
		`--upstream "ftp://x": not the URL of a service`, `--scope "heder:X": `, `--methods "POST,GET": GET changes nothing`, `--window "0": `, `--on-lease-expired "rety": did you mean retry?`, `--profile "strip": did you mean stripe?`, `--max-body "0": must be at least 1`, `--header "a b": not the name of a header`)
	programtest.Run(t, "", "proxy", "--upstream", "http://u:p@x", "--scope", "mtls", "--store-name", "x").Check(t, term.ExitUsage, "credentials do not belong into the URL", "--scope mtls needs settings that are no flags", "--store-config FILE is missing")
	programtest.Run(t, "", "proxy", "--upstream", "http://x", "--scope", "jwt:sub").Check(t, term.ExitUsage, "--scope jwt:CLAIM and --jwt-keys belong together")
	dir := t.TempDir()
	none := programtest.WriteFile(t, filepath.Join(dir, "none.yaml"), "stores: { keys: { memory: {} } }\n")
	programtest.Run(t, "", "proxy", none, "--scope", "global").Check(t, term.ExitUsage, "it has no section proxy", "--scope describes a proxy without a FILE")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { memory: {} } }
proxy:
  upstream: "http://127.0.0.1:1/?a"
  store: kes
  scope: jwt:sub
  api_keys: { alice: [abc] }
  h2c: true
  tls: { certificate: c, key: k }
  methods: [post]
  routes: { pay: { path: v1, profile: strip } }
`)
	programtest.Run(t, "", "lint", file).Check(t, term.ExitUsage, "proxy.upstream: ", "proxy.store: there is no store \"kes\": did you mean keys?", "scope jwt:sub needs jwt_keys or jwt_secret", "proxy.api_keys.alice[0]: ", "proxy.api_keys: it has no effect with scope jwt:sub",
		"proxy.h2c: with tls", "proxy.methods[0]: ", "proxy.routes.pay.path: it must start with /", "proxy.routes.pay.profile: ")
	programtest.Run(t, "", "proxy", "--upstream", "http://x", "--scope", "header:authorization").Check(t, term.ExitUsage, `--scope "header:authorization": authorization has credentials and not the name of a caller: write basic`)
	starts := programtest.WriteFile(t, filepath.Join(dir, "starts.yaml"), `
stores: { keys: { memory: {} } }
proxy:
  upstream: http://127.0.0.1:1
  store: keys
  scope: jwt:sub
  jwt_secret: short
  encryption_key: abcd
  max_buffered: 2MiB
  routes:
    status: { path: /status, release: [600] }
    code: { path: /code, release: [-32602] }
    tools: { path: /tools, tools: [pay] }
    calls: { path: /calls, profile: mcp, tools: [pay], release: [4xx, -32602, isError] }
    none: { path: /none, headers: [] }
    cookie: { path: /cookie, replay_headers: [set-cookie] }
    large: { path: /large, max_body: 4MiB }
    longest: { path: /longest, max_response: 33484800 }
    longer: { path: /longer, max_response: 33484801 }
    pointer: { path: /pointer, fingerprint: { include: [amount], exclude: [at] } }
    body: { path: /body, headers: [], profile: square }
    lease: { path: /lease, lease: 1us }
`)
	got := programtest.Run(t, "", "lint", starts)
	got.Check(t, term.ExitUsage, "proxy.jwt_secret: it has 5 bytes, want at least 32", "proxy.encryption_key: not 64 hexadecimal digits", `proxy.routes.status.release[0]: "600": not a status`, `proxy.routes.code: release: "-32602" is no status`, "proxy.routes.tools: tools: only calls of tools have them: write profile: mcp", "proxy.routes.none: headers: no header can have the key", "proxy.routes.cookie: replay_headers: set-cookie belongs to one connection",
		"proxy.routes.large: max_body, max_response, max_buffered: ", "proxy.routes.longer: max_response: 33484801 bytes, and the store keeps 33554432 with 69632 for the headers: at most 33484800", `proxy.routes.pointer: fingerprint.include: "amount" is no JSON pointer`, `proxy.routes.pointer: fingerprint.exclude: "at" is no JSON pointer`, "proxy.routes.lease: lease: 1µs is shorter than 1ms")
	if strings.Contains(got.Stderr, "routes.body") {
		t.Errorf("a profile with its key in the body needs no header: %s", got.Stderr)
	}
	if strings.Contains(got.Stderr, "routes.calls") {
		t.Errorf("the profile mcp has tools and codes: %s", got.Stderr)
	}
	if strings.Contains(got.Stderr, "routes.longest") {
		t.Errorf("a store keeps the longest answer: %s", got.Stderr)
	}
	taken := servicestest.FreeAddr(t)
	listener, err := net.Listen("tcp", taken)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	programtest.Run(t, "", "proxy", "--upstream", "http://x", "--scope", "global", "--listen", taken, "--admin", "off").Check(t, term.ExitFailed, "address already in use: write another address with --listen")
}

func TestExplainPrintsThePromiseOfAProxy(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores: { keys: { embedded: { path: keys } } }
proxy:
  upstream: http://127.0.0.1:9000
  store: keys
  scope: header:X-Api-Key
  routes:
    pay: { path: /pay, profile: stripe }
`)
	got := programtest.Run(t, "", "explain", file)
	got.Check(t, term.ExitDone)
	for _, want := range []string{"route pay: requests to 127.0.0.1:8080/pay → service http://127.0.0.1:9000\n", "\n\nroute default: ", "profile stripe", "semel keys resolve"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("%q is missing: %s", want, got.Stdout)
		}
	}
	got = programtest.Run(t, "", "explain", file, "pay", "--json")
	got.Check(t, term.ExitDone)
	if !strings.HasPrefix(got.Stdout, `{"route":"pay",`) || strings.Count(got.Stdout, "\n") != 1 || !strings.Contains(got.Stdout, `"client":"gets 502 /upstream-down; its repetition runs"`) {
		t.Errorf("%s", got.Stdout)
	}
	programtest.Run(t, "", "explain", file, "pya").Check(t, term.ExitUsage, "has no such pipeline or route: did you mean pay?")
}

func TestLintWarnsOfSettingsThatWeakenAProxy(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores: { keys: { memory: {} } }
proxy:
  listen: 0.0.0.0:8080
  upstream: http://api.example.com
  store: keys
  scope: global
  routes:
    pay: { path: /pay, fail_open: true, on_lease_expired: retry }
`)
	got := programtest.Run(t, "", "lint", file)
	got.Check(t, term.ExitFound, "1 file: 2 to note, 4 with a warning, 0 broken")
	for _, want := range []string{"warning: proxy.scope: global", "notice: proxy.listen: 0.0.0.0:8080", "warning: proxy.store: keys is memory", "warning: proxy.routes.pay.fail_open: true", "warning: proxy.routes.pay.on_lease_expired: retry", "notice: proxy.upstream: http, to api.example.com"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("%q is missing: %s", want, got.Stdout)
		}
	}
}

// proxyFile writes a configuration with an embedded store and these fields of the proxy.
func proxyFile(t *testing.T, dir, upstream, fields string) string {
	t.Helper()
	return programtest.WriteFile(t, filepath.Join(dir, "api.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: ./keys } } }
admin: { listen: "127.0.0.1:0" }
proxy:
  listen: "127.0.0.1:0"
  upstream: %s
  store: keys
  access_log: true
%s`, upstream, fields))
}

func TestProxyRoutesByPathMethodAndProfile(t *testing.T) {
	t.Parallel()
	one, two := newCountingService(t), newCountingService(t)
	dir := t.TempDir()
	digest := sha256.Sum256([]byte("secret-of-alice"))
	proxy := startProxy(t, proxyFile(t, dir, one.URL, `
  scope: api-key:X-Api-Key
  api_keys: { alice: [`+hex.EncodeToString(digest[:])+`] }
  encryption_key: `+hex.EncodeToString(digest[:])+`
  routes:
    charges: { path: /v1/charges, profile: paypal, required: true, upstream: "`+two.URL+`" }
    search: { path: /v1/charges/search, methods: [] }
    items: { path: /items, methods: [PUT], headers: [X-Request-Key], max_body: 8 }
    quotes: { path: /quotes, fingerprint: { exclude: [/sent_at] }, release: [201] }
    carts: { path: /carts, fingerprint: { exclude: [/sent_at] } }
    dialect: { path: /dialect, headers: [], key_pointer: /id }
`))
	key := []string{"X-Api-Key", "secret-of-alice"}
	post(t, proxy.url+"/v1/charges", "", "", key...).problem(t, http.StatusBadRequest, "key-missing")
	for range 2 {
		got, err := send(http.MethodPost, proxy.url+"/v1/charges", "", "x", append(key, "PayPal-Request-Id", "c-1")...)
		if err != nil || got.status != http.StatusCreated {
			t.Errorf("%+v %v", got, err)
		}
	}
	if two.count("") != 1 || one.count("") != 0 {
		t.Errorf("the route's service ran %d times, the other one %d times", two.count(""), one.count(""))
	}
	for range 2 {
		if got := post(t, proxy.url+"/v1/charges/search", "s-1", "x", key...); got.header.Get("Idempotency-Status") != "ignored" && got.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("a key that the route does not take: %+v", got)
		}
	}
	if got := post(t, proxy.url+"/v1/chargesX", "c-2", "x", key...); got.status != http.StatusCreated || one.count("c-2") != 1 {
		t.Errorf("a path that only begins with the letters of a route: %+v", got)
	}
	put, err := send(http.MethodPut, proxy.url+"/items/1", "", "too long a body", append(key, "X-Request-Key", "i-1")...)
	if err != nil {
		t.Fatal(err)
	}
	put.problem(t, http.StatusRequestEntityTooLarge, "body-too-large")
	for i, sent := range []string{`{"n":1,"sent_at":1}`, `{"sent_at":2, "n":1}`} {
		cart, quote := post(t, proxy.url+"/carts", "cart", sent, key...), post(t, proxy.url+"/quotes", "quote", sent, key...)
		if cart.status != http.StatusCreated || (cart.header.Get("Idempotent-Replayed") == "true") != (i > 0) {
			t.Errorf("request %d with another time: %+v", i, cart)
		}
		if quote.status != http.StatusCreated || quote.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("request %d, whose answer is not kept: %+v", i, quote)
		}
	}
	for i, again := range []string{"", "true"} {
		if got := post(t, proxy.url+"/dialect", "", `{"id":"four"}`, key...); got.status != http.StatusCreated || got.header.Get("Idempotent-Replayed") != again {
			t.Errorf("request %d with its key in the body: %+v", i, got)
		}
	}
	post(t, proxy.url+"/dialect", "", `{"id":"four","n":2}`, key...).problem(t, http.StatusUnprocessableEntity, "key-reused")
	post(t, proxy.url+"/dialect", "", `{"id":"`+strings.Repeat("x", 256)+`"}`, key...).problem(t, http.StatusBadRequest, "key-invalid")
	if got, err := send(http.MethodGet, proxy.url+"/.well-known/idempotency/cart", "", "", key...); err != nil || !strings.Contains(got.body, `"state":"done","status":201`) {
		t.Errorf("the state of a key: %+v %v", got, err)
	}
	post(t, proxy.url+"/orders", "o-1", "x", "X-Api-Key", "wrong").problem(t, http.StatusUnauthorized, "scope-missing")

	if text := adminPage(t, proxy, "/metrics"); !strings.Contains(text, `dedup_proxy_requests_total{route="charges",status="201"} 2`) || !strings.Contains(text, `dedup_proxy_replayed_total{route="charges"} 1`) || !strings.Contains(text, `dedup_decisions_total{decision="duplicate"`) {
		t.Errorf("metrics: %s", text)
	}
	if text := adminPage(t, proxy, "/readyz"); text != "proxy: ready\n" {
		t.Errorf("readyz: %s", text)
	}
	const ready = "SERVICE  STATE\nproxy    ready\n\nSTORE "
	if got := programtest.WaitForStatus(t, term.ExitDone, []string{ready}, "--admin", proxy.admin); !strings.HasPrefix(got, ready) {
		t.Errorf("status: %s", got)
	}
	request, err := http.NewRequest(http.MethodGet, "http://"+proxy.admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "evil.example.com"
	if response, err := http.DefaultClient.Do(request); err != nil || response.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("a foreign host: %v %v", response, err)
	}
	if log := proxy.logs(t, `"msg":"request","method":"POST","path":"/v1/charges","route":"charges","status":201`, `"replayed":true`); strings.Contains(log, "secret-of-alice") || strings.Contains(log, "c-1") {
		t.Errorf("log: %s", log)
	}
}

func adminPage(t *testing.T, proxy *process, path string) string {
	t.Helper()
	response, err := http.Get("http://" + proxy.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// token returns a token that is signed with a secret.
func token(secret, claims string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func TestProxyKeepsCallersApart(t *testing.T) {
	t.Parallel()
	service, dir := newCountingService(t), t.TempDir()
	const secret = "a-secret-that-has-32-bytes-or-more"
	claims := fmt.Sprintf(`{"sub":%%q,"iat":%d,"exp":%d}`, time.Now().Unix(), time.Now().Add(time.Hour).Unix())
	proxy := startProxy(t, proxyFile(t, dir, service.URL, "  scope: jwt:sub\n  jwt_secret: "+secret+"\n"))
	bearer := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	alice, bob := token(secret, fmt.Sprintf(claims, "alice")), token(secret, fmt.Sprintf(claims, "bob"))
	renewed := token(secret, fmt.Sprintf(strings.Replace(claims, `"iat"`, `"jti":"2","iat"`, 1), "alice"))
	first := post(t, proxy.url+"/orders", "k", "one", bearer(alice)...)
	if again := post(t, proxy.url+"/orders", "k", "one", bearer(renewed)...); first.status != http.StatusCreated || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%+v, and with a renewed token %+v", first, again)
	}
	if got := post(t, proxy.url+"/orders", "k", "two", bearer(bob)...); got.status != http.StatusCreated || service.count("k") != 2 {
		t.Errorf("another caller: %+v", got)
	}
	post(t, proxy.url+"/orders", "k", "one", bearer(token("another secret, just as long as the first", fmt.Sprintf(claims, "alice")))...).problem(t, http.StatusUnauthorized, "scope-missing")

	got := programtest.Run(t, "", "keys", "show", "k", "--caller", "alice", "--store", filepath.Join(dir, "keys"))
	if got.Status != term.ExitDone || !strings.Contains(got.Stdout, "done") {
		t.Errorf("%+v", got)
	}
	if got := programtest.Run(t, "", "keys", "show", "k", "--caller", "eve", "--store", filepath.Join(dir, "keys")); got.Status != term.ExitFailed || !strings.Contains(got.Stderr, "absent") {
		t.Errorf("%+v", got)
	}
	programtest.Run(t, "", "keys", "rm", "k", "--caller", "bob", "--config", filepath.Join(dir, "api.yaml"), "--reason", "test").Check(t, term.ExitDone, "forgot 3:bob:k")
	if got := post(t, proxy.url+"/orders", "k", "three", bearer(bob)...); got.status != http.StatusCreated || service.count("k") != 3 {
		t.Errorf("removed: %+v", got)
	}
}

func TestProxyAnswersItsRequestsBeforeItEnds(t *testing.T) {
	t.Parallel()
	service := newCountingService(t)
	proxy := startProxy(t, "--listen", "127.0.0.1:0", "--upstream", service.URL, "--scope", "global", "--admin", "127.0.0.1:0")
	if !strings.Contains(proxy.log(), "memory is memory") {
		t.Errorf("no warning of a store in memory: %s", proxy.log())
	}
	answers := make(chan answer, 1)
	go func() {
		got, err := send(http.MethodPost, proxy.url+"/wait", "k", "x")
		if err != nil {
			got.body = err.Error()
		}
		answers <- got
	}()
	<-service.reached
	if err := proxy.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for { // until it takes no new connection
		conn, err := net.Dial("tcp", strings.TrimPrefix(proxy.url, "http://"))
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	if text := adminPage(t, proxy, "/readyz"); !strings.Contains(text, "proxy: not ready: draining") {
		t.Errorf("readyz: %s", text)
	}
	close(service.release)
	if got := <-answers; got.status != http.StatusCreated {
		t.Errorf("%+v", got)
	}
	if status := proxy.stop(t, syscall.SIGCONT); status != term.ExitDone || !strings.Contains(proxy.log(), `"msg":"draining","in_progress":1`) {
		t.Errorf("exit status %d: %s", status, proxy.log())
	}
}

func TestProxySaysOfHowManyRequestsTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	service, dir := newCountingService(t), t.TempDir()
	defer close(service.release)
	file := proxyFile(t, dir, service.URL, "  scope: global\n  lease: 5s\nshutdown: 50ms\n")
	proxy := startProxy(t, file)
	go func() { _, _ = send(http.MethodPost, proxy.url+"/wait", "k", "x") }() // the proxy ends first
	<-service.reached
	if status := proxy.stop(t, syscall.SIGTERM); status != term.ExitFailed || !strings.Contains(proxy.log(), "1 requests with a key were in progress, or not yet recorded, when the drain ended after 50ms: their outcome is not known") {
		t.Errorf("exit status %d: %s", status, proxy.log())
	}
	proxy = startProxy(t, file)
	afterLease(t, func() answer { return post(t, proxy.url+"/wait", "k", "x") }).problem(t, http.StatusConflict, "outcome-unknown")
}

// A store that stalls does not delay the end of a drain, which says how many answers it has
// not recorded.
func TestProxyEndsWhileItsStoreStalls(t *testing.T) {
	t.Parallel()
	service, redis := newCountingService(t), servicestest.StartRedis(t, nil)
	proxy := startProxy(t, programtest.WriteFile(t, filepath.Join(t.TempDir(), "api.yaml"), fmt.Sprintf(`
stores: { keys: { redis: { url: "redis://%s" } } }
admin: { listen: "off" }
shutdown: 2s
proxy: { listen: "127.0.0.1:0", upstream: "%s", store: keys, scope: global, lease: 5m }
`, redis.Addr(), service.URL)))
	answers := make(chan answer, 2)
	for _, key := range []string{"one", "two"} {
		go func() {
			got, err := send(http.MethodPost, proxy.url+"/wait", key, "x")
			if err != nil {
				got.body = err.Error()
			}
			answers <- got
		}()
		<-service.reached
	}
	if err := redis.Pause(); err != nil {
		t.Fatal(err)
	}
	close(service.release)
	for range 2 { // a second later, while the store stalls
		if got := <-answers; got.status != http.StatusCreated {
			t.Errorf("%+v", got)
		}
	}
	began := time.Now()
	if status := proxy.stop(t, syscall.SIGTERM); status != term.ExitFailed || !strings.Contains(proxy.log(), "2 requests with a key were in progress, or not yet recorded, when the drain ended after 2s") {
		t.Errorf("exit status %d: %s", status, proxy.log())
	}
	if took := time.Since(began); took > time.Minute { // a lease is longer
		t.Errorf("the drain took %v", took)
	}
	if err := redis.Continue(); err != nil {
		t.Fatal(err)
	}
}

// TestProxyPassesStreamsOn sends server-sent events, an upgrade and a request with HTTP/2
// without TLS through one proxy.
func TestProxyPassesStreamsOn(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 2 {
				_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
				<-next
			}
		case "/socket":
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			line, _ := buffered.ReadString('\n')
			_, _ = io.WriteString(conn, "echo "+line)
		default:
			_, _ = io.WriteString(w, r.Proto)
		}
	}))
	t.Cleanup(service.Close)
	proxy := startProxy(t, proxyFile(t, t.TempDir(), service.URL, "  scope: global\n  h2c: true\n"))

	response, err := http.Get(proxy.url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	events := bufio.NewReader(response.Body)
	for i := range 2 { // the second one is only sent after the first has arrived
		if line, err := events.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Errorf("event %q %v", line, err)
		}
		_, _ = events.ReadString('\n')
		next <- struct{}{}
	}

	conn, err := net.Dial("tcp", strings.TrimPrefix(proxy.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nIdempotency-Key: k\r\n\r\n")
	socket := bufio.NewReader(conn)
	upgraded, err := http.ReadResponse(socket, nil)
	if err != nil || upgraded.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", upgraded, err)
	}
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := socket.ReadString('\n'); line != "echo hello\n" {
		t.Errorf("%q %v", line, err)
	}

	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	h2 := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	defer h2.CloseIdleConnections()
	for range 2 {
		request, err := http.NewRequest(http.MethodPost, proxy.url+"/x", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Idempotency-Key", `"k2"`)
		response, err = h2.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	if response.ProtoMajor != 2 || response.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("h2c: %+v", response)
	}
}

func TestProxyReadsNewCertificates(t *testing.T) {
	t.Parallel()
	service, dir := newCountingService(t), t.TempDir()
	dial := func(proxy *process, roots *x509.CertPool) (string, error) {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(proxy.url, "https://"), &tls.Config{RootCAs: roots, NextProtos: []string{"h2", "http/1.1"}})
		if err != nil {
			return "", err
		}
		defer conn.Close()
		return conn.ConnectionState().NegotiatedProtocol, nil
	}
	old := programtest.SelfSign(t, dir)
	proxy := startProxy(t, proxyFile(t, dir, service.URL, "  scope: global\n  tls: { certificate: cert.pem, key: key.pem }\n"))
	if protocol, err := dial(proxy, old); err != nil || protocol != "h2" {
		t.Fatalf("%q %v", protocol, err)
	}
	renewed := programtest.SelfSign(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		_, err := dial(proxy, renewed)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("%v: %s", err, proxy.log())
		}
	}
	// Files that do not fit leave the certificate as it is.
	programtest.WriteFile(t, filepath.Join(dir, "cert.pem"), "none")
	for !strings.Contains(proxy.log(), "the new certificate cannot be used") {
		if _, err := dial(proxy, renewed); err != nil || ctx.Err() != nil {
			t.Fatalf("%v, %v: %s", err, ctx.Err(), proxy.log())
		}
	}
}

func TestProxyRefusesRequestsWhileItsStoreIsDown(t *testing.T) {
	t.Parallel()
	redis := servicestest.StartRedis(t, nil)
	service := newCountingService(t)
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "api.yaml"), fmt.Sprintf(`
stores: { keys: { redis: { url: %q, timeout: 30s } } }
proxy:
  listen: "127.0.0.1:0"
  upstream: %s
  store: keys
  scope: global
  routes: { clicks: { path: /clicks, fail_open: true } }
admin: { listen: "127.0.0.1:0" }
`, redis.URL(), service.URL))
	proxy := startProxy(t, file)
	if got := post(t, proxy.url+"/orders", "k", "x"); got.status != http.StatusCreated {
		t.Fatalf("%+v", got)
	}
	if err := redis.Kill(); err != nil {
		t.Fatal(err)
	}
	post(t, proxy.url+"/orders", "k", "x").problem(t, http.StatusServiceUnavailable, "store-unavailable")
	if got := post(t, proxy.url+"/clicks", "c", "x"); got.status != http.StatusCreated || got.header.Get("Idempotency-Status") != "unprotected" {
		t.Errorf("%+v", got)
	}
	if text := adminPage(t, proxy, "/metrics"); !strings.Contains(text, `dedup_proxy_unprotected_total{route="clicks"} 1`) {
		t.Errorf("metrics: %s", text)
	}
	if got, err := send(http.MethodGet, proxy.url+"/orders", "", ""); err != nil || got.status != http.StatusCreated {
		t.Errorf("without a key: %+v %v", got, err)
	}
	if text := adminPage(t, proxy, "/readyz"); !strings.Contains(text, "proxy: not ready: ") {
		t.Errorf("readyz: %s", text)
	}
}
