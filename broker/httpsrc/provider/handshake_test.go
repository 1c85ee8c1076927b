package provider

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHandshakesAreAnsweredAsTheirSendersWant has the requests in the documentation of the
// senders.
func TestHandshakesAreAnsweredAsTheirSendersWant(t *testing.T) {
	t.Parallel()
	named := func(name string) Handshake { return Handshakes()[name] }
	meta := named("meta")
	meta.Token = "meatyhamhock"
	cloudevents := named("cloudevents")
	strict := cloudevents
	strict.Allowed = []string{"eventemitter.example.com"}
	for _, c := range []struct {
		name         string
		of           Handshake
		method, path string
		header       map[string]string
		body         string
		status       int // 0 if it is no handshake
		want         string
		header2      string // name: value of the answer
	}{
		{name: "meta", of: meta, path: "/?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=meatyhamhock", status: 200, want: "1158201444", header2: "Content-Type: text/plain; charset=utf-8"},
		{name: "meta, another token", of: meta, path: "/?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=other", status: 403},
		{name: "meta without its token", of: named("meta"), path: "/?hub.mode=subscribe&hub.challenge=1&hub.verify_token=", status: 403},
		{name: "meta, no token", of: meta, path: "/?hub.mode=subscribe&hub.challenge=1158201444", status: 403},
		{name: "meta, token twice", of: meta, path: "/?hub.mode=subscribe&hub.challenge=1&hub.verify_token=meatyhamhock&hub.verify_token=x", status: 403},
		{name: "meta, another mode", of: meta, path: "/?hub.mode=unsubscribe&hub.challenge=1158201444&hub.verify_token=meatyhamhock"},
		{name: "meta, a POST", of: meta, method: "POST", path: "/?hub.mode=subscribe&hub.challenge=1&hub.verify_token=meatyhamhock"},
		{name: "okta", of: named("okta"), path: "/", header: map[string]string{"x-okta-verification-challenge": `a"b`}, status: 200, want: `{"verification":"a\"b"}`, header2: "Content-Type: application/json"},
		{name: "okta, without", of: named("okta"), path: "/"},
		{name: "dropbox", of: named("dropbox"), path: "/?challenge=%3Cscript%3E", status: 200, want: "<script>", header2: "X-Content-Type-Options: nosniff"},
		{name: "dropbox, too long", of: named("dropbox"), path: "/?challenge=" + strings.Repeat("x", mostChallenge+1)},
		{name: "cloudevents", of: cloudevents, method: "OPTIONS", path: "/", header: map[string]string{"WebHook-Request-Origin": "eventemitter.example.com"}, status: 200, header2: "WebHook-Allowed-Origin: eventemitter.example.com"},
		{name: "cloudevents, the rate", of: cloudevents, method: "OPTIONS", path: "/", header: map[string]string{"WebHook-Request-Origin": "eventemitter.example.com"}, status: 200, header2: "WebHook-Allowed-Rate: *"},
		{name: "cloudevents, an allowed origin", of: strict, method: "OPTIONS", path: "/", header: map[string]string{"WebHook-Request-Origin": "eventemitter.example.com"}, status: 200},
		{name: "cloudevents, another origin", of: strict, method: "OPTIONS", path: "/", header: map[string]string{"WebHook-Request-Origin": "example.org"}, status: 403},
		{name: "cloudevents, without", of: cloudevents, method: "OPTIONS", path: "/"},
		{name: "slack", of: *preset(t, "slack").Handshake, method: "POST", path: "/", body: `{"token":"Jhj5dZrVaK7ZwHHjRyZWjbDl","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","type":"url_verification"}`, status: 200, want: "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"},
		{name: "slack, an event", of: *preset(t, "slack").Handshake, method: "POST", path: "/", body: `{"type":"event_callback","challenge":"x","event_id":"Ev1"}`},
		{name: "slack, no JSON", of: *preset(t, "slack").Handshake, method: "POST", path: "/", body: `type=url_verification&challenge=x`},
		{name: "woocommerce", of: *preset(t, "woocommerce").Handshake, method: "POST", path: "/", header: map[string]string{"Content-Type": form}, body: "webhook_id=12", status: 200},
		{name: "woocommerce, more than a ping", of: *preset(t, "woocommerce").Handshake, method: "POST", path: "/", header: map[string]string{"Content-Type": form}, body: "webhook_id=12&a=b"},
		{name: "woocommerce, signed", of: *preset(t, "woocommerce").Handshake, method: "POST", path: "/", header: map[string]string{"Content-Type": form, "X-WC-Webhook-Signature": "x"}, body: "webhook_id=12"},
	} {
		method := c.method
		if method == "" {
			method = http.MethodGet
		}
		r := httptest.NewRequest(method, c.path, nil)
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		reply, err := c.of.Answer(r, []byte(c.body))
		if err != nil || (reply == nil) != (c.status == 0) {
			t.Errorf("%s: %+v, %v", c.name, reply, err)
			continue
		}
		if reply == nil {
			continue
		}
		name, value, _ := strings.Cut(c.header2, ": ")
		if reply.Status != c.status || c.status == 200 && string(reply.Body) != c.want || name != "" && reply.Header[name] != value {
			t.Errorf("%s: %d %q %v", c.name, reply.Status, reply.Body, reply.Header)
		}
	}
}

// TestPresetsAreCompleteAndShort keeps a preset a few lines of published data.
func TestPresetsAreCompleteAndShort(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	for _, p := range Presets() {
		if p.Name == "" || p.Title == "" || len(p.Key) == 0 || named[p.Name] {
			t.Errorf("%+v is not complete", p)
		}
		named[p.Name] = true
		if err := p.Check(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		tested := false
		for i := range vectors {
			tested = tested || vectors[i].preset == p.Name
		}
		if !tested {
			t.Errorf("%s has no vector", p.Name)
		}
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "presets.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		list, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if kind, ok := list.Type.(*ast.ArrayType); !ok || fmt.Sprint(kind.Elt) != "Preset" {
			return false
		}
		for _, preset := range list.Elts {
			if lines := files.Position(preset.End()).Line - files.Position(preset.Pos()).Line + 1; lines > 25 {
				t.Errorf("the preset at %s has %d lines", files.Position(preset.Pos()), lines)
			}
			found++
		}
		return false
	})
	if found != len(named) {
		t.Errorf("%d presets were measured, of %d", found, len(named))
	}
}
