package http_test

import (
	nethttp "net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/http"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestSourcePassesTheKindSuite(t *testing.T) {
	kindtest.Source(t, http.NewSource, kindtest.Case{
		Least: `{ listen: "127.0.0.1:8080" }`,
		Secrets: []string{`{ listen: "127.0.0.1:8080", token: ` + kindtest.Secret + ` }`,
			`{ listen: "127.0.0.1:8080", handshake: { meta: { token: ` + kindtest.Secret + ` } } }`,
			`{ listen: "127.0.0.1:8080", verify: { twilio: { secrets: [` + kindtest.Secret + `] } } }`,
			`{ listen: "127.0.0.1:8080", verify: { hmac: { header: X-Signature, secrets: [` + kindtest.Secret + `] } } }`,
		},
	})
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	got := kindtest.ReadSource[*http.Source](t, "{ http: { listen: ':8080', path: /in, max_body: 2KiB, split: .events, token: abcd, wait: 3s, tls: { certificate: c, key: k } } }")
	if got.Listen != ":8080" || got.Path != "/in" || got.MaxBody != 2048 || got.Split.String() != ".events" || got.Token.Reveal() != "abcd" || got.Wait != 3*time.Second || got.TLS == nil {
		t.Errorf("%+v", got)
	}
	least := kindtest.ReadSource[*http.Source](t, "{ http: { listen: '127.0.0.1:80' } }")
	if least.Path != "/" || least.MaxBody != 1<<20 || least.Split != nil || least.Wait != 30*time.Second || !least.Token.IsZero() || least.TLS != nil {
		t.Errorf("%+v", least)
	}
}

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	kindtest.Refused(t, [][2]string{
		{kindtest.WithSource("{ http: { listen: here } }"), "pipelines.p.source.http.listen: not an address to listen on: write it like 127.0.0.1:8080"},
		{kindtest.WithSource("{ http: { listen: ':1', path: in } }"), "pipelines.p.source.http.path: it must start with /"},
		{kindtest.WithSource("{ http: { listen: ':1', tls: { key: k } } }"), "pipelines.p.source.http.tls: certificate is missing"},
		{kindtest.WithSource("{ http: { listen: ':1', split: events } }"), `pipelines.p.source.http.split: "events" is neither array nor lines nor a path: write .events`},
		{kindtest.WithSource("{ http: { listen: ':1', split: '.a[' } }"), `pipelines.p.source.http.split: ".a[" is neither array nor lines nor a path such as .events`},
	})
}

// The messages of a request have the same headers, and all but the first would be dropped as duplicates.
func TestAKeyOfHeadersIsRefusedForRequestsWithSeveralMessages(t *testing.T) {
	t.Parallel()
	for rule, refused := range map[string]bool{
		"header:webhook-id": true, "[.id, header:webhook-id]": true, "{ all: ['header:a', 'header:b'] }": true, "{ template: 'x-{header:a}' }": true, "'lower(header:a)'": true,
		".id": false, "line": false, "hash(.)": false, "[.id, .name]": false, "{ all: ['header:a', .id] }": false, "{ template: '{header:a}-{.id}' }": false, "'lower(.id)'": false,
	} {
		for _, split := range []string{"array", "lines", ".events"} {
			text := "stores: { k: { embedded: { path: k } } }\npipelines: { p: { key: { id: " + rule + " }, store: k, source: { http: { listen: '127.0.0.1:80', split: " + split + " } }, sink: { file: { path: o } } } }"
			_, err := kind.All().Parse("f.yaml", []byte(text), func(string) string { return "" })
			if got := err != nil && strings.Contains(err.Error(), "pipelines.p.key.id: with source.http.split, the messages of a request have the same headers"); got != refused || err != nil && !got {
				t.Errorf("%s with %s: %v", rule, split, err)
			}
		}
	}
}

func TestLintNamesListenersThatAnyoneCanUse(t *testing.T) {
	t.Parallel()
	kindtest.Warned(t, [][2]string{
		{kindtest.WithSource("{ http: { listen: ':80' } }"), "warning  pipelines.p.source.http.listen: :80, which other machines can reach, without token"},
		{kindtest.WithSource("{ http: { listen: '127.0.0.1:80' } }"), ""},
		{kindtest.WithSource("{ http: { listen: ':80', token: '${env:NONE:-abcd}' } }"), "warning  pipelines.p.source.http.token: a token without tls"},
		{kindtest.WithSource("{ http: { listen: ':80', tls: { certificate: c, key: k, client_ca: a } } }"), ""},
	})
	f := kindtest.Parse(t, "stores: { k: { embedded: { path: k } } }\npipelines: { p: { key: { id: .id }, store: k, source: { http: { listen: '127.0.0.1:80', wait: 1s } }, sink: { webhook: { url: 'https://example.org' } } } }")
	if notices := strings.Join(kindtest.Findings(f), "\n"); !strings.Contains(notices, "notice  pipelines.p.source.http.wait: 1s, but one request of the sink may take 10s") {
		t.Errorf("%s", notices)
	}
}

// TestARequestBecomesAMessage sends requests to the source, with and without its token.
func TestARequestBecomesAMessage(t *testing.T) {
	t.Parallel()
	address := servicestest.FreeAddr(t)
	f := kindtest.Parse(t, kindtest.WithSource("{ http: { listen: '"+address+"', path: /in, token: abcd, wait: 20s } }"))
	p := f.Pipelines[0]
	if lines, err := kindtest.Examine(t, f, p.Source); err != nil || !slices.Equal(lines, []string{"fine source.http.listen: " + address + " is free"}) {
		t.Errorf("%q, %v", lines, err)
	}
	source, err := p.Source.Open(t.Context(), &config.Env{File: f, Pipeline: p})
	if err != nil {
		t.Fatal(err)
	}
	if lines, err := kindtest.Examine(t, f, p.Source); err != nil || len(lines) != 1 || !strings.HasPrefix(lines[0], "notice source.http.listen: ") || !strings.Contains(lines[0], "address already in use") {
		t.Errorf("%q, %v", lines, err)
	}
	status := func(token string) int {
		request, err := nethttp.NewRequestWithContext(t.Context(), nethttp.MethodPost, "http://"+address+"/in", strings.NewReader(`{"id":1}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := nethttp.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	if got := status("wrong"); got != nethttp.StatusUnauthorized {
		t.Errorf("with a wrong token: %d", got)
	}
	answered := make(chan int, 1)
	go func() { answered <- status("abcd") }()
	items, err := source.Read(t.Context())
	if err != nil || len(items) != 1 || string(items[0].Message.Body) != `{"id":1}` {
		t.Fatalf("%v, %v", items, err)
	}
	if err := source.Ack(t.Context(), items); err != nil {
		t.Error(err)
	}
	if got := <-answered; got/100 != 2 {
		t.Errorf("after the acknowledgement: %d", got)
	}
	if err := source.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
