package webhook_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	broker "github.com/semel-dev/semel/broker/webhook"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/webhook"
	"github.com/semel-dev/semel/pipeline"
)

func TestSinkPassesTheKindSuite(t *testing.T) {
	kindtest.Sink(t, webhook.NewSink, kindtest.Case{
		Least:   `{ url: "https://example.org/" }`,
		Secrets: []string{`{ url: "https://u:` + kindtest.Secret + `@example.org/", headers: { X-Key: ` + kindtest.Secret + ` } }`},
	})
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	w := kindtest.Parse(t, kindtest.WithSink(`{ webhook: {
  url: "https://user:pass1@example.com/charge", method: PUT, headers: { Authorization: Bearer x, X-B: "${env:NONE:-y}" }, timeout: 3s,
  allow_private: [10.0.0.0/8, "::1", "::ffff:192.168.0.0/112"], success: [304], retry: [420-421, 404], forward: [traceparent] } }`)).Pipelines[0].Sink.(*webhook.Sink)
	if w.URL.String() != "https://user:[hidden]@example.com/charge" || w.Method != "PUT" || w.Timeout != 3*time.Second ||
		len(w.Headers) != 2 || w.Headers[1].Name != "X-B" || w.Headers[1].Value.Reveal() != "y" {
		t.Errorf("%+v", w)
	}
	networks := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("192.168.0.0/16")}
	if !reflect.DeepEqual(w.AllowPrivate, networks) || !reflect.DeepEqual(w.Success, []int{304}) || !reflect.DeepEqual(w.Forward, []string{"traceparent"}) {
		t.Errorf("%+v", w)
	}
	if !reflect.DeepEqual(w.Retry, []int{420, 421, 404}) {
		t.Errorf("retry: %v", w.Retry)
	}
}

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	kindtest.Refused(t, [][2]string{
		{kindtest.WithSink("{ webhook: { url: 'ftp://h' } }"), "pipelines.p.sink.webhook.url: not an address of a target: write https://host/path"},
		{kindtest.WithSink("{ webhook: { url: 'https://h', method: GET } }"), `pipelines.p.sink.webhook.method: "GET": write one of POST, PUT, PATCH`},
		{kindtest.WithSink("{ webhook: { url: 'https://h', headers: { 'a b': x } } }"), "pipelines.p.sink.webhook.headers: this is not a header name"},
		{kindtest.WithSink("{ webhook: { url: 'https://h', headers: { a: \"x\\ny\" } } }"), "pipelines.p.sink.webhook.headers.a: a header value must be one line"},
		{kindtest.WithSink("{ webhook: { url: 'https://h', allow_private: [office] } }"), `pipelines.p.sink.webhook.allow_private[0]: "office": not a network: write it like 10.0.0.0/8`},
		{kindtest.WithSink("{ webhook: { url: 'https://h', success: [1xx] } }"), `pipelines.p.sink.webhook.success[0]: "1xx": not a status: write 404, 400-409 or 4xx`},
		{kindtest.WithSink("{ webhook: { url: 'https://h', retry: [409, 200-204] } }"), "pipelines.p.sink.webhook.retry: 200 means success: leave it out"},
		{kindtest.WithSink("{ webhook: { url: 'https://h', success: [409], retry: [4xx] } }"), "pipelines.p.sink.webhook.retry: 409 means success: leave it out"},
		{kindtest.WithSink("{ webhook: { url: 'https://h', headers: { content-length: '3' } } }"), "pipelines.p.sink.webhook.headers: content-length belongs to the connection: leave it out"},
		{kindtest.WithSink("{ webhook: { url: 'https://h', headers: { idempotency-key: x } } }"), "pipelines.p.sink.webhook.headers: idempotency-key is written by the sink itself: leave it out"},
		{kindtest.WithSink("{ webhook: { url: 'https://h', forward: [Semel-Token] } }"), "pipelines.p.sink.webhook.forward[0]: Semel-Token is written by the sink itself: leave it out"},
		{kindtest.WithSink("{ webhook: { url: 'https://h', forward: [a b] } }"), "pipelines.p.sink.webhook.forward[0]: this is not a header name"},
	})
}

func TestLintNamesTargetsThatAreNotReachedOrNotSafe(t *testing.T) {
	t.Parallel()
	kindtest.Warned(t, [][2]string{
		{kindtest.WithSink("{ webhook: { url: 'http://example.com/x' } }"), "warning  pipelines.p.sink.webhook.url: http://"},
		{kindtest.WithSink("{ webhook: { url: 'https://10.1.2.3/x' } }"), "broken  pipelines.p.sink.webhook.url: 10.1.2.3 is a private address"},
		{kindtest.WithSink("{ webhook: { url: 'https://10.1.2.3/x', allow_private: [10.0.0.0/8] } }"), ""},
		{kindtest.WithSink("{ webhook: { url: 'http://localhost:8080/x' } }"), "broken  pipelines.p.sink.webhook.url: localhost is a private address"},
		{kindtest.WithSink("{ webhook: { url: 'https://[::ffff:169.254.169.254]/' } }"), "broken  pipelines.p.sink.webhook.url: ::ffff:169.254.169.254 is a private address"},
		{kindtest.WithSink("{ webhook: { url: 'https://[::ffff:10.1.2.3]/', allow_private: ['::ffff:10.0.0.0/104'] } }"), ""},
		{kindtest.WithSink("{ webhook: { url: 'https://[::ffff:10.1.2.3]/', allow_private: ['10.1.2.3'] } }"), ""},
		{kindtest.WithSink("{ webhook: { url: 'http://127.0.0.1:9/x', allow_private: true } }"), ""},
		{kindtest.WithSink("{ webhook: { url: 'https://a.example', timeout: 30s } }"), "warning repeat pipelines.p.sink.webhook.timeout: 30s, but shutdown is 25s"},
		{kindtest.WithSink("{ webhook: { url: 'https://a.example', timeout: 31s } }", ", lease: 10s") + "shutdown: 1m", "warning repeat pipelines.p.lease: 10s, but one request may take 31s"},
	})
}

// TestLintSaysWhatALostLeaseCosts follows the pipeline's policy for such a key.
func TestLintSaysWhatALostLeaseCosts(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]string{"retry": "another process sends it again", "hold": "the key is unknown until a person resolves it"} {
		text := kindtest.WithSink("{ webhook: { url: 'https://a.example', timeout: 31s } }", ", lease: 10s, on_lease_expired: "+policy) + "shutdown: 1m"
		f, err := kind.All().Parse("c.yaml", []byte(text), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		costs := ""
		for _, x := range f.Lint() {
			costs += x.Cost + "\n"
		}
		if !strings.Contains(costs, "loses the key during its request, and "+want+"\n") {
			t.Errorf("%s: %s", policy, costs)
		}
	}
}

func TestLintProposesTheNetworkOfAPrivateTarget(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"[::ffff:127.0.0.1]": "[127.0.0.1/32]", "localhost": "[127.0.0.1/32]", "10.1.2.3": "[10.1.2.3/32]", "[fd00::1]": "[fd00::1/128]",
	} {
		text := "stores: { a: { embedded: { path: k } } }\npipelines: { p: { key: { id: .a }, store: a, source: { file: { paths: [a] } }, sink: { webhook: { url: 'https://" + host + "/' } } } }"
		f, err := kind.All().Parse("c.yaml", []byte(text), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		remedies := ""
		for _, x := range f.Lint() {
			if strings.Contains(x.Found, "private address") {
				remedies += x.Remedy
			}
		}
		if remedies != "write allow_private: "+want {
			t.Errorf("%s: %s, want %s", host, remedies, want)
		}
	}
}

// TestRequestsOfTwoPipelinesToOneHostNeedKeysOfTheirOwn has two pipelines that send requests.
func TestRequestsOfTwoPipelinesToOneHostNeedKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	const sender = "  %s: { source: { file: { paths: [a] } }, key: { id: .id, scope: %s }, store: keys, sink: { webhook: { url: '%s' } } }\n"
	one := fmt.Sprintf(sender, "one", "orders", "https://example.com/a")
	for two, want := range map[string]bool{
		"": false,
		fmt.Sprintf(sender, "two", "orders", "https://example.com/a"):     false,
		fmt.Sprintf(sender, "two", "refunds", "https://example.com/a"):    true,
		fmt.Sprintf(sender, "two", "orders", "https://EXAMPLE.com/b"):     true,
		fmt.Sprintf(sender, "two", "orders", "https://example.com:444/b"): false,
		fmt.Sprintf(sender, "two", "refunds", "https://example.org/a"):    false,
	} {
		f := kindtest.Parse(t, "stores: { keys: { embedded: { path: keys } } }\npipelines:\n"+one+two)
		found := strings.Join(kindtest.Findings(f), "\n")
		if told := strings.Contains(found, "warning loss pipelines.one.sink.webhook.url: ") && strings.Contains(strings.ToLower(found), "example.com, to which two sends too"); told != want {
			t.Errorf("%s\ntold %v, want %v:\n%s", two, told, want, found)
		}
	}
}

// TestPartsOfAWebhooksSecretsAreHidden: a target may quote a token without its
// scheme, or the password of a URL as it is sent, and a URL may have secrets behind
// its host.
func TestPartsOfAWebhooksSecretsAreHidden(t *testing.T) {
	t.Parallel()
	basic := base64.StdEncoding.EncodeToString([]byte("bob:" + kindtest.Secret))
	env := func(name string) string {
		return map[string]string{"SECRET": kindtest.Secret, "BASIC": basic, "URL": "https://example.org/services/" + kindtest.Secret, "HOST": "example.org"}[name]
	}
	for _, c := range []struct{ written, shown string }{
		{`{ url: "https://example.org/", headers: { Authorization: "Bearer ${env:SECRET}" } }`, "https://example.org/"},
		{`{ url: "https://example.org/", headers: { Authorization: "bearer ` + kindtest.Secret + `" } }`, "https://example.org/"},
		{`{ url: "https://example.org/", headers: { Authorization: "Basic ${env:BASIC}" } }`, "https://example.org/"},
		{`{ url: "https://example.org/", headers: { X-Key: "v1=${env:SECRET};" } }`, "https://example.org/"},
		{`{ url: "https://bob:${env:SECRET}@${env:HOST}/x" }`, "https://[hidden]@example.org/x"},
		{`{ url: "https://bob:` + kindtest.Secret + `@example.org/x" }`, "https://bob:[hidden]@example.org/x"},
		{`{ url: "https://${env:SECRET}@example.org/x" }`, "https://[hidden]@example.org/x"},
		{`{ url: "https://${env:HOST}/services/${env:SECRET}/${env:SECRET}/x" }`, "https://example.org/services/[hidden]/[hidden]/x"},
		{`{ url: "${env:URL}" }`, "https://example.org/[hidden]"},
		{`{ url: "https://example.org/x?api_key=${env:SECRET}&a=b" }`, "https://example.org/x?[hidden]"},
		{`{ url: "https://example.org?api_key=` + kindtest.Secret + `" }`, "https://example.org?[hidden]"},
	} {
		f, err := kind.All().Parse("c.yaml", []byte("pipelines: { p: { source: { file: { paths: [in] } }, key: { id: .id }, store: s, sink: { webhook: "+c.written+" } } }\nstores: { s: { memory: {} } }"), env)
		if err != nil {
			t.Fatalf("%s: %v", c.written, err)
		}
		said := []string{"token " + kindtest.Secret + " expired", "api_key=" + kindtest.Secret, "services/" + kindtest.Secret, "got " + basic, "Basic " + basic}
		if strings.Contains(c.written, "?api_key="+kindtest.Secret) {
			said = said[1:2]
		}
		if strings.Contains(c.written, "URL") {
			said = said[2:3]
		}
		if !strings.Contains(c.written, "bob") && !strings.Contains(c.written, "BASIC") {
			said = said[:min(3, len(said))]
		}
		for _, text := range append(said, explain.Explain(f, f.Pipelines[0]).Text()) {
			if got := f.Redact(text); strings.Contains(got, kindtest.Secret) || strings.Contains(got, basic) {
				t.Errorf("%s: the secret is in %s", c.written, got)
			}
		}
		if got := f.Pipelines[0].Sink.About().Name; got != "webhook POST "+c.shown {
			t.Errorf("%s is shown as %s, want %s", c.written, got, c.shown)
		}
		if got := f.Redact("example.org/ a=b"); got != "example.org/ a=b" {
			t.Errorf("%s: %s", c.written, got)
		}
	}
}

// TestEachMessageIsARequest sends messages to a real server, and asks the doctor about it
// and about one that is down.
func TestEachMessageIsARequest(t *testing.T) {
	t.Parallel()
	got := make(chan string, 2)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		got <- fmt.Sprintf("%s %s %s %s %s %v", r.Method, r.URL.Path, r.Header.Get("X-Key"), r.Header.Get("Idempotency-Key"), body, err)
	}))
	t.Cleanup(server.Close)
	f := kindtest.Parse(t, kindtest.WithSink("{ webhook: { url: '"+server.URL+"/in', method: PUT, allow_private: true, headers: { X-Key: secret1 } } }"))
	kindtest.Deliver(t, f, "1")
	if request := <-got; request != "PUT /in secret1 1 1 <nil>" {
		t.Errorf("the request is %q", request)
	}
	if lines, err := kindtest.Examine(t, f, f.Pipelines[0].Sink); err != nil || !slices.Equal(lines, []string{"fine sink.webhook.url: the target accepts connections"}) {
		t.Errorf("%q, %v", lines, err)
	}
	secured := kindtest.Parse(t, kindtest.WithSink("{ webhook: { url: '"+strings.Replace(server.URL, "http:", "https:", 1)+"/in', allow_private: true } }"))
	if lines, err := kindtest.Examine(t, secured, secured.Pipelines[0].Sink); err == nil || len(lines) > 0 {
		t.Errorf("a server without TLS: %q, %v", lines, err)
	}
	server.Close()
	if lines, err := kindtest.Examine(t, f, f.Pipelines[0].Sink); !errors.Is(err, semel.ErrStoreUnavailable) || len(lines) > 0 {
		t.Errorf("a server that is down: %q, %v", lines, err)
	}
}

func TestErrorsHaveACauseAndARemedy(t *testing.T) {
	t.Parallel()
	sink := webhook.NewSink().(*webhook.Sink)
	for _, c := range []struct {
		err  error
		want string // cause: remedy
	}{
		{&broker.PrivateAddressError{Address: netip.MustParseAddr("10.0.0.1")}, "10.0.0.1 is not a public address: correct p.sink.url, or set p.sink.allow_private"},
		{&net.DNSError{Name: "none.example", IsNotFound: true}, "no such host: none.example: check the name in p.sink.url"},
		{&net.DNSError{Name: "none.example", IsTimeout: true}, ""},
		{&broker.StatusError{Code: 401}, "webhook  answered 401 Unauthorized: correct the credentials in p.sink.headers"},
		{pipeline.Unavailable(&broker.StatusError{Code: 503}, 0), "webhook  answered 503 Service Unavailable: is the service up?"},
		{&broker.StatusError{Code: 429}, "webhook  answered 429 Too Many Requests: the service takes fewer requests: lower parallel"},
		{&broker.StatusError{Code: 500}, "webhook  answered 500 Internal Server Error: look into the log of the service"},
	} {
		got := ""
		if said := sink.Advise(nil, nil, "p.sink", c.err); said != nil {
			got = said.Cause + ": " + said.Remedy
		}
		if got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}
