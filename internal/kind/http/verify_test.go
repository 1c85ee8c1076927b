package http_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	nethttp "net/http"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// verified is a configuration whose source has verify, and whose pipeline has no key of its own.
func verified(verify, more string) string {
	return "stores: { k: { embedded: { path: k } } }\npipelines: { p: { store: k, source: { http: { listen: '127.0.0.1:8080', verify: " + verify + " } }, sink: { stdout: {} }" + more + " } }"
}

func TestAPresetBringsTheKeyRule(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ verify, more, want string }{
		{"{ stripe: { secrets: [whsec_abcd] } }", "", ".id"},
		{"{ github: { secrets: [abcd] } }", "", "header:X-GitHub-Delivery"},
		{"{ shopify: { secrets: [abcd] } }", "", "first of all of header:X-Shopify-Event-Id, header:X-Shopify-Topic, header:X-Shopify-Event-Id"},
		{"{ slack: { secrets: [abcd] } }", "", ".event_id"},
		{"{ standard-webhooks: { secrets: [whsec_YWJjZA==] } }", "", "header:webhook-id"},
		{"{ twilio: { secrets: [abcd] } }", "", "header:I-Twilio-Idempotency-Token"},
		{"{ woocommerce: { secrets: [abcd] } }", "", "all of header:X-WC-Webhook-Delivery-ID, hash(.)"},
		{"{ sns: {} }", "", ".MessageId"},
		{"{ stripe: { secrets: [whsec_abcd] } }", ", key: { id: .data.object.id, on_missing: hash }", ".data.object.id"},
		{"{ hmac: { header: X-Signature, secrets: [abcd] } }", ", key: { id: .id }", ".id"},
	} {
		f := kindtest.Parse(t, verified(c.verify, c.more))
		k := f.Pipelines[0].Key
		if k.Rule.String() != c.want || k.Scope != "p" || k.OnMissing != map[bool]string{true: "park", false: "hash"}[c.more == "" || !strings.Contains(c.more, "hash")] {
			t.Errorf("%s%s: %s, %+v", c.verify, c.more, k.Rule, k)
		}
		for _, finding := range kindtest.Findings(f) {
			if strings.HasPrefix(finding, "broken") {
				t.Errorf("%s: %s", c.verify, finding)
			}
		}
	}
}

func TestConfigurationErrorsOfVerifySayWhatToWrite(t *testing.T) {
	t.Parallel()
	const path = "pipelines.p.source.http.verify"
	kindtest.Refused(t, [][2]string{
		{verified("{ hmac: { header: X-Signature, secrets: [abcd] } }", ""), "pipelines.p: key is missing"},
		{verified("{ stripe: {} }", ""), path + ".stripe: secrets is missing"},
		{verified("{ stripe: { secrets: [] } }", ""), path + ".stripe.secrets: the list is empty"},
		{verified("{ stripe: { secrets: [abcd] }, github: { secrets: [abcd] } }", ""), "exclude each other"},
		{verified("{ stripes: { secrets: [abcd] } }", ""), "pipelines.p: key is missing\nunknown field " + path + ".stripes: did you mean stripe?"},
		{verified("stripe", ", key: { id: .id }"), path + ": expected fields, got a text: write { stripe: {} }"},
		{verified("{ standard-webhooks: { secrets: [abcd] } }", ""), path + ".standard-webhooks.secrets[0]: it does not begin with whsec_"},
		{verified("{ standard-webhooks: { secrets: [whsec_YWJjZA==, 'whsec_?'] } }", ""), path + ".standard-webhooks.secrets[1]: it is not base64"},
		{verified("{ hmac: { header: h, secrets: [xyz], secret_encoding: hex } }", ", key: { id: .id }"), path + ".hmac.secrets[0]: it is not hex"},
		{verified("{ hmac: { header: h, secrets: [abcd], signed: '{id}' } }", ", key: { id: .id }"), path + ".hmac.signed: after { comes body}"},
		{verified("{ hmac: { header: h, secrets: [abcd], signed: 'v0' } }", ", key: { id: .id }"), path + ".hmac.signed: it has no {body}"},
		{verified("{ hmac: { header: h, secrets: [abcd], time_header: t } }", ", key: { id: .id }"), path + ".hmac: it has no {time}"},
		{verified("{ hmac: { header: h, secrets: [abcd], signed: '{time}.{body}' } }", ", key: { id: .id }"), path + ".hmac.signed: {time} needs time_header or time_prefix"},
		{verified("{ hmac: { header: h, secrets: [abcd], signed: '{header:x}{body}' } }", ", key: { id: .id }"), path + ".hmac.signed: no text ends {header:x}"},
		{verified("{ hmac: { header: h, secrets: [abcd], signed: '{time}.{body}', time_prefix: t= } }", ", key: { id: .id }"), path + ".hmac.time_prefix: it needs a separator"},
		{verified("{ twilio: { secrets: [abcd], url: 'https://user@example.com/' } }", ""), path + ".twilio.url: not the address of a receiver"},
		{verified("{ hmac: { header: h, secrets: [abcd], signed: '{body}{header:x}.' } }", ", key: { id: .id }"), path + ".hmac.signed: no line break is between {body} and {header:x}"},
		{verified("{ sns: { hosts: ['a/b'] } }", ""), path + ".sns.hosts[0]: not a host"},
		{verified("{ sns: { hosts: ['https://a'] } }", ""), path + ".sns.hosts[0]: leave https:// out"},
		{verified("{ sns: { topics: [orders] } }", ""), path + ".sns.topics[0]: not the ARN of a topic: write it like arn:aws:sns:"},
		{kindtest.WithSource("{ http: { listen: ':1', handshake: { meta: {} } } }"), "pipelines.p.source.http.handshake.meta: token is missing"},
		{kindtest.WithSource("{ http: { listen: ':1', handshake: okta } }"), "write { okta: {} }"},
	})
}

func TestLintAndExplainSpeakOfSignatures(t *testing.T) {
	t.Parallel()
	kindtest.Warned(t, [][2]string{
		{kindtest.WithSource("{ http: { listen: ':80', verify: { stripe: { secrets: ['${env:NONE:-whsec_abcd}'] } } } }"), ""},
		{kindtest.WithSource("{ http: { listen: ':80', verify: { stripe: { secrets: [whsec_abcd] } } } }"), "warning  pipelines.p.source.http.verify.stripe.secrets[0]: a secret as plain text"},
		{kindtest.WithSource("{ http: { listen: ':80', verify: { sns: {} } } }"), "warning  pipelines.p.source.http.verify.sns: no topics"},
		{kindtest.WithSource("{ http: { listen: ':80', verify: { sns: { topics: ['arn:aws:sns:r:1:a'], hosts: ['http://h:1'] } } } }"), "warning  pipelines.p.source.http.verify.sns.hosts: http://h:1"},
		{kindtest.WithSource("{ http: { listen: ':80', verify: { sns: { topics: ['arn:aws:sns:r:1:a'], hosts: ['http://127.0.0.1:1'] } } } }"), ""},
		{verified("{ stripe: { secrets: ['${env:NONE:-whsec_abcd}'] } }", ", on_mismatch: park"), "warning  pipelines.p.on_mismatch: park"},
		{verified("{ slack: { secrets: ['${env:NONE:-abcd}'] } }", ", on_mismatch: park"), ""},
		{verified("{ stripe: { secrets: ['${env:NONE:-whsec_abcd}'], tolerance: 1h } }", ", window: 1h"), "warning repeat pipelines.p.window: 1h, but a request is accepted for 2h (tolerance before and after now)"},
	})
	f := kindtest.Parse(t, verified("{ github: { secrets: [abcd], tolerance: 1m } }", ""))
	if notices := strings.Join(kindtest.Findings(f), "\n"); !strings.Contains(notices, "notice  pipelines.p.source.http.verify.github.tolerance: 1m") {
		t.Errorf("%s", notices)
	}
	text := strings.Join(strings.Fields(explain.Explain(f, f.Pipelines[0]).Text()), " ")
	for _, want := range []string{
		"header:X-GitHub-Delivery, scope p",
		"a request without a valid signature of GitHub gets a 401, and nothing is claimed",
		"the header X-GitHub-Delivery, which has the key, is not signed",
		"Content-Type and Content-Encoding are not signed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("explain lacks %q:\n%s", want, text)
		}
	}
}

func TestDoctorLooksAtSecretsAndAtTheHostsOfSNS(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, c := range []struct{ verify, want string }{
		{"{ stripe: { secrets: [whsec_abcd, whsec_efgh] } }", "fine source.http.verify.stripe: a request needs a signature by one of 2 secrets"},
		{"{ stripe: { secrets: [whsec_abcd, sk_live_efgh] } }", "warning source.http.verify.stripe.secrets[1]: the secret does not begin with whsec_, as those of Stripe do"},
		{"{ github: { secrets: [abcd] } }", "fine source.http.verify.github: a request needs a signature by the secret"},
		{"{ sns: { topics: ['arn:aws:sns:r:1:a'], hosts: ['" + listener.Addr().String() + "', 'sns.*.example.com'] } }", "fine source.http.verify.sns: " + listener.Addr().String() + " accepts connections"},
		{"{ sns: { topics: ['arn:aws:sns:r:1:a'], hosts: ['http://" + servicestest.FreeAddr(t) + "'] } }", " cannot be reached: "},
	} {
		f := kindtest.Parse(t, strings.Replace(verified(c.verify, ""), "127.0.0.1:8080", servicestest.FreeAddr(t), 1))
		lines, err := kindtest.Examine(t, f, f.Pipelines[0].Source)
		if text := strings.Join(lines, "\n"); err != nil || len(lines) != 2 || !strings.Contains(text, c.want) || strings.Contains(text, "efgh") {
			t.Errorf("%s: %q, %v", c.verify, lines, err)
		}
	}
}

func TestLintNoticesAKeyOfAKnownSenderWithoutVerify(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]bool{
		"key: { id: 'header:x-github-delivery' }, source: { http: { listen: '127.0.0.1:8080' } }":                                          true,
		"key: { id: ['header:X-GitHub-Delivery', .id] }, source: { http: { listen: '127.0.0.1:8080' } }":                                   true,
		"key: { id: 'header:X-GitHub-Delivery' }, source: { http: { listen: '127.0.0.1:8080', token: abcd } }":                             false,
		"key: { id: 'header:X-GitHub-Delivery' }, source: { http: { listen: '127.0.0.1:8080', verify: { github: { secrets: [abcd] } } } }": false,
		"key: { id: 'header:Message-Id' }, source: { http: { listen: '127.0.0.1:8080' } }":                                                 false,
	} {
		f := kindtest.Parse(t, "stores: { k: { embedded: { path: k } } }\npipelines: { p: { store: k, sink: { stdout: {} }, "+written+" } }")
		if got := strings.Contains(strings.Join(kindtest.Findings(f), "\n"), "no verify, but the key has header:X-GitHub-Delivery, which GitHub sends"); got != want {
			t.Errorf("%s: %q", written, kindtest.Findings(f))
		}
	}
}

// TestHandshakesAreConfigured opens a source for each of them.
func TestHandshakesAreConfigured(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		handshake, method, query string
		header                   nethttp.Header
		status                   int
	}{
		{"{ meta: { token: abcd } }", "GET", "?hub.mode=subscribe&hub.challenge=7&hub.verify_token=abcd", nil, 200},
		{"{ meta: { token: abcd } }", "GET", "?hub.mode=subscribe&hub.challenge=7&hub.verify_token=other", nil, 403},
		{"{ okta: {} }", "GET", "", nethttp.Header{"X-Okta-Verification-Challenge": {"x"}}, 200},
		{"{ dropbox: {} }", "GET", "?challenge=x", nil, 200},
		{"{ cloudevents: { origins: [a.example] } }", "OPTIONS", "", nethttp.Header{"Webhook-Request-Origin": {"a.example"}}, 200},
		{"{ cloudevents: { origins: [a.example] } }", "OPTIONS", "", nethttp.Header{"Webhook-Request-Origin": {"b.example"}}, 403},
	} {
		address := servicestest.FreeAddr(t)
		f := kindtest.Parse(t, kindtest.WithSource("{ http: { listen: '"+address+"', token: abcd, handshake: "+c.handshake+" } }"))
		p := f.Pipelines[0]
		source, err := p.Source.Open(t.Context(), &config.Env{File: f, Pipeline: p})
		if err != nil {
			t.Fatal(err)
		}
		request, err := nethttp.NewRequestWithContext(t.Context(), c.method, "http://"+address+"/"+c.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header = c.header
		answer, err := nethttp.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != c.status {
			t.Errorf("%s: %s", c.handshake, answer.Status)
		}
		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestOnlyAValidSignatureBecomesAMessage sends requests to a source with two secrets.
func TestOnlyAValidSignatureBecomesAMessage(t *testing.T) {
	t.Parallel()
	address := servicestest.FreeAddr(t)
	f := kindtest.Parse(t, strings.Replace(verified("{ stripe: { secrets: [old1, new1] } }", ""), "127.0.0.1:8080", address, 1))
	p := f.Pipelines[0]
	source, err := p.Source.Open(t.Context(), &config.Env{File: f, Pipeline: p})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	send := func(secret string) int {
		now := time.Now().Unix()
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, `%d.{"id":1}`, now)
		request, err := nethttp.NewRequestWithContext(t.Context(), nethttp.MethodPost, "http://"+address+"/", strings.NewReader(`{"id":1}`))
		if err != nil {
			t.Error(err)
			return 0
		}
		request.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", now, hex.EncodeToString(mac.Sum(nil))))
		answer, err := nethttp.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	if got := send("other"); got != nethttp.StatusUnauthorized {
		t.Errorf("with another secret: %d", got)
	}
	for _, secret := range []string{"old1", "new1"} {
		answered := make(chan int, 1)
		go func() { answered <- send(secret) }()
		items, err := source.Read(t.Context())
		if err != nil || len(items) != 1 || string(items[0].Message.Body) != `{"id":1}` {
			t.Fatalf("%v, %v", items, err)
		}
		if err := source.Ack(t.Context(), items); err != nil {
			t.Error(err)
		}
		if got := <-answered; got != nethttp.StatusOK {
			t.Errorf("with the secret %s: %d", secret, got)
		}
	}
}

// TestAttemptsAreTheSameMessage has headers in which two attempts of a sender may differ.
func TestAttemptsAreTheSameMessage(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, strings.Replace(verified("{ slack: { secrets: [abcd] } }", ""), "127.0.0.1:8080", servicestest.FreeAddr(t), 1))
	source, err := f.Pipelines[0].Source.Open(t.Context(), &config.Env{File: f, Pipeline: f.Pipelines[0]})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for name, want := range map[string]bool{
		"x-slack-signature": true, "x-slack-request-timestamp": true, "x-slack-retry-num": true, "traceparent": true, "cf-ray": true, "x-forwarded-for": true,
		"webhook-id": false, "content-type": false, "x-event-id": false, "x-request-id": false, "": false,
	} {
		if got := source.Traits().OfAttempt(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A key that anyone can change lets a recorded request take effect again.
func TestLintNamesAKeyThatTheSignatureDoesNotCover(t *testing.T) {
	t.Parallel()
	const hmac = "{ hmac: { header: X-Signature, secrets: [abcd], signed: '{header:X-Id}.{body}' } }"
	for _, c := range []struct{ verify, key, want string }{
		{"{ stripe: { secrets: [abcd] } }", "'header:X-Id'", "X-Id"},
		{"{ stripe: { secrets: [abcd] } }", "{ all: [.id, 'header:X-Id'] }", "X-Id"},
		{"{ stripe: { secrets: [abcd] } }", ".id", ""},
		{"{ github: { secrets: [abcd] } }", "'header:X-GitHub-Delivery'", ""}, // explain says it
		{"{ github: { secrets: [abcd] } }", "'header:X-GitHub-Event'", "X-GitHub-Event"},
		{"{ standard-webhooks: { secrets: [whsec_YWJj] } }", "'header:Webhook-Id'", ""},
		{"{ slack: { secrets: [abcd] } }", "{ all: [.event_id, 'header:X-Slack-Request-Timestamp'] }", ""},
		{"{ sns: {} }", "'header:x-amz-sns-message-id'", "x-amz-sns-message-id"},
		{hmac, "'header:x-id'", ""},
		{hmac, "'header:X-Other'", "X-Other"},
	} {
		f := kindtest.Parse(t, verified(c.verify, ", key: { id: "+c.key+" }"))
		got := strings.Join(kindtest.Findings(f), "\n")
		if want := "warning repeat pipelines.p.key.id: header:" + c.want + ", which the signature does not cover"; strings.Contains(got, "does not cover") != (c.want != "") || c.want != "" && !strings.Contains(got, want) {
			t.Errorf("%s %s: %s", c.verify, c.key, got)
		}
	}
	f := kindtest.Parse(t, verified("{ twilio: { secrets: [abcd] } }", ""))
	if text := strings.Join(strings.Fields(explain.Explain(f, f.Pipelines[0]).Text()), " "); !strings.Contains(text, "names and values of a form are signed in one row") {
		t.Errorf("explain:\n%s", text)
	}
}

// The usual repetition of Stripe differs in pending_webhooks. It is no sign of a coarse key.
func TestADifferingRepetitionOfStripeIsUsual(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verify, more string
		varies       bool
	}{
		{"{ stripe: { secrets: [abcd] } }", "", true}, {"{ stripe: { secrets: [abcd] } }", ", key: { id: .id }", true},
		{"{ stripe: { secrets: [abcd] } }", ", key: { id: .data.object.id }", false}, {"{ github: { secrets: [abcd] } }", "", false}, {"{ sns: {} }", "", false},
		{"{ hmac: { header: h, secrets: [abcd] } }", ", key: { id: .id }", false},
	} {
		f := kindtest.Parse(t, verified(c.verify, c.more))
		if got := f.Options(f.Pipelines[0], nil).Varies; got != c.varies {
			t.Errorf("%s%s: %v", c.verify, c.more, got)
		}
	}
}
