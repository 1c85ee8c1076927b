package provider

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// vector is a request that a provider, or its library, publishes with its signature.
type vector struct {
	name, preset string
	secret       string
	// at is the time of the request; 0 means that it has none.
	at      int64
	url     string
	headers map[string]string
	body    string
}

const form = "application/x-www-form-urlencoded"

// vectors are the public examples of the providers; that of SNS is in its test. Stripe, Shopify and WooCommerce publish no
// signature together with its secret. Theirs were computed with openssl dgst -hmac, apart from
// this code.
var vectors = []vector{
	{
		name: "computed with openssl", preset: "stripe", secret: "whsec_test_secret", at: 1492774577,
		headers: map[string]string{"Stripe-Signature": "t=1492774577,v1=654b43d3508ecadb3f8cefc4bc7d3d2bdc5ba9e03bf2c89b2d0657a8e24e4543,v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"},
		body:    `{"id":"evt_1","object":"event"}`,
	},
	{
		name: "docs.github.com, Validating webhook deliveries", preset: "github", secret: "It's a Secret to Everybody",
		headers: map[string]string{"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
		body:    "Hello, World!",
	},
	{
		name: "computed with openssl", preset: "shopify", secret: "hush",
		headers: map[string]string{"X-Shopify-Hmac-Sha256": "D0UMXmhjwBRi4y66TmhJrDlhQABD7zI2fm3p6/QLMo8="},
		body:    `{"id":820982911946154508,"email":"jon@example.com"}`,
	},
	{
		name: "computed with openssl", preset: "woocommerce", secret: "hush",
		headers: map[string]string{"X-WC-Webhook-Signature": "D0UMXmhjwBRi4y66TmhJrDlhQABD7zI2fm3p6/QLMo8="},
		body:    `{"id":820982911946154508,"email":"jon@example.com"}`,
	},
	{
		name: "docs.slack.dev, Verifying requests from Slack", preset: "slack", secret: "8f742231b10e8888abcd99yyyzzz85a5", at: 1531420618,
		headers: map[string]string{
			"X-Slack-Request-Timestamp": "1531420618", "Content-Type": form,
			"X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
		},
		body: "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
	},
	{
		name: "the libraries of Standard Webhooks", preset: "standard-webhooks", secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", at: 1614265330,
		headers: map[string]string{
			"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330",
			"webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
		},
		body: `{"test": 2432232314}`,
	},
	{
		name: "docs.svix.com, Verifying webhooks manually", preset: "standard-webhooks", secret: "whsec_plJ3nmyCDGBKInavdOK15jsl", at: 1731705121,
		headers: map[string]string{
			"webhook-id": "msg_loFOjxBNrRLzqYUf", "webhook-timestamp": "1731705121",
			"webhook-signature": "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
		},
		body: `{"event_type":"ping","data":{"success":true}}`,
	},
	{
		name: "twilio.com/docs, Webhooks security", preset: "twilio", secret: "12345", url: "https://mycompany.com/myapp.php?foo=1&bar=2",
		headers: map[string]string{"Content-Type": form, "X-Twilio-Signature": "0/KCTR6DLpKmkAf8muzZqo1nDgQ="},
		body:    "Digits=1234&CallSid=CA1234567890ABCDE&Caller=%2B12349013030&From=%2B12349013030&To=%2B18005551212",
	},
	{
		name: "twilio-python, test_request_validator: several values", preset: "twilio", secret: "12345", url: "https://mycompany.com/myapp.php?foo=1&bar=2",
		headers: map[string]string{"Content-Type": form, "X-Twilio-Signature": "IK+Dwps556ElfBT0I3Rgjkr1wJU="},
		body:    "Sid=CA123&SidAccount=AC123&Digits=5678&Digits=1234&Digits=1234",
	},
	{
		name: "twilio-python, test_request_validator: JSON", preset: "twilio", secret: "12345",
		url:     "https://mycompany.com/myapp.php?foo=1&bar=2&bodySHA256=0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620",
		headers: map[string]string{"Content-Type": "application/json", "X-Twilio-Signature": "a9nBmqA0ju/hNViExpshrM61xv4="},
		body:    `{"property": "value", "boolean": true}`,
	},
}

// preset returns a preset by its name.
func preset(t testing.TB, name string) Preset {
	t.Helper()
	for _, p := range Presets() {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("there is no preset %s", name)
	return Preset{}
}

// verifier returns the verifier of a vector.
func (v *vector) verifier(t testing.TB) *Verifier {
	t.Helper()
	p := preset(t, v.preset)
	return verifierOf(t, p.Scheme, v.secret)
}

// request returns the request of a vector.
func (v *vector) request() *http.Request {
	url := v.url
	if url == "" {
		url = "http://127.0.0.1:8081/webhooks"
	}
	r := httptest.NewRequest(http.MethodPost, url, nil)
	for name, value := range v.headers {
		r.Header.Set(name, value)
	}
	return r
}

// at runs fn in a bubble in which it is the time of a vector. The clock of a bubble begins in
// the year 2000.
func at(t *testing.T, unix int64, fn func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		if unix > 0 {
			time.Sleep(time.Until(time.Unix(unix, 0)))
		}
		fn(t)
	})
}

// TestPublicExamplesAreAccepted checks every vector as it is published, and with another secret,
// without its signature, and late and early.
func TestPublicExamplesAreAccepted(t *testing.T) {
	t.Parallel()
	for _, v := range vectors {
		t.Run(v.preset+"/"+v.name, func(t *testing.T) {
			t.Parallel()
			at(t, v.at, func(t *testing.T) {
				verifier := v.verifier(t)
				if err := verifier.Verify(v.request(), []byte(v.body)); err != nil {
					t.Error(err)
				}
				if err := verifier.Verify(v.request(), []byte(v.body+" ")); err == nil {
					t.Error("another body is accepted")
				}
				unsigned := v.request()
				unsigned.Header.Del(verifier.scheme.Header)
				if err := verifier.Verify(unsigned, []byte(v.body)); err == nil || !strings.Contains(err.Error(), "no header "+verifier.scheme.Header) {
					t.Errorf("without a signature: %v", err)
				}
				other := v
				other.secret += "MfKQ"
				if err := other.verifier(t).Verify(v.request(), []byte(v.body)); err == nil {
					t.Error("another secret is accepted")
				}
				if v.at == 0 {
					return
				}
				time.Sleep(DefaultTolerance)
				if err := verifier.Verify(v.request(), []byte(v.body)); err != nil {
					t.Errorf("at the end of the tolerance: %v", err)
				}
				time.Sleep(time.Second)
				if err := verifier.Verify(v.request(), []byte(v.body)); err == nil || !strings.Contains(err.Error(), "beyond the tolerance of 5m0s from now") {
					t.Errorf("after the tolerance: %v", err)
				}
			})
			if v.at > 0 {
				at(t, v.at-int64(DefaultTolerance/time.Second)-1, func(t *testing.T) {
					if err := v.verifier(t).Verify(v.request(), []byte(v.body)); err == nil {
						t.Error("a request from the future is accepted")
					}
				})
			}
		})
	}
}
