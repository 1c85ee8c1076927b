package provider

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// sum returns the HMAC of a text, apart from the code under test.
func sum(of func() hash.Hash, secret, text string) []byte {
	mac := hmac.New(of, []byte(secret))
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// TestSchemesOfOtherSenders has senders that no preset knows, as their documentation describes
// them.
func TestSchemesOfOtherSenders(t *testing.T) {
	t.Parallel()
	now := time.Now()
	const body = `{"id":7}`
	seconds, milliseconds := fmt.Sprint(now.Unix()), fmt.Sprint(now.UnixMilli())
	for _, c := range []struct {
		name    string
		scheme  Scheme
		secret  string
		url     string
		headers map[string]string
	}{
		{"time and signature in one header, as Paddle has them", Scheme{Header: "Paddle-Signature", Separator: ";", Prefix: "h1=", TimePrefix: "ts=", TimeUnit: "s", Algorithm: "sha256", Encoding: "hex", Signed: "{time}:{body}"}, "pdl_ntfset", "",
			map[string]string{"Paddle-Signature": "ts=" + seconds + ";h1=" + hex.EncodeToString(sum(sha256.New, "pdl_ntfset", seconds+":"+body))}},
		{"method, address, body and milliseconds, as HubSpot has them", Scheme{Header: "X-HubSpot-Signature-v3", TimeHeader: "X-HubSpot-Request-Timestamp", TimeUnit: "ms", Algorithm: "sha256", Encoding: "base64", Signed: "{method}{url}{body}{time}"}, "app", "https://example.com/hooks?a=1",
			map[string]string{"X-HubSpot-Signature-v3": base64.StdEncoding.EncodeToString(sum(sha256.New, "app", "POSThttps://example.com/hooks?a=1"+body+milliseconds)), "X-HubSpot-Request-Timestamp": milliseconds}},
		{"a secret in hex, as Adyen has it", Scheme{Header: "HmacSignature", Algorithm: "sha256", Encoding: "base64", Signed: "{body}", SecretEncoding: "hex"}, "616263", "",
			map[string]string{"HmacSignature": base64.StdEncoding.EncodeToString(sum(sha256.New, "abc", body))}},
		{"SHA-512 without a time", Scheme{Header: "X-Paystack-Signature", Algorithm: "sha512", Encoding: "hex", Signed: "{body}"}, "sk", "",
			map[string]string{"X-Paystack-Signature": hex.EncodeToString(sum(sha512.New, "sk", body))}},
		{"SHA-1 and a time in RFC 3339", Scheme{Header: "S", TimeHeader: "T", TimeUnit: "rfc3339", Algorithm: "sha1", Encoding: "hex", Signed: "{time}\n{body}"}, "k", "",
			map[string]string{"S": hex.EncodeToString(sum(sha1.New, "k", now.Format(time.RFC3339)+"\n"+body)), "T": now.Format(time.RFC3339)}},
		{"the address with its port", Scheme{Header: "S", Algorithm: "sha1", Encoding: "hex", Signed: "{url}{body}"}, "k", "https://example.com/hooks?a=1",
			map[string]string{"S": hex.EncodeToString(sum(sha1.New, "k", "https://example.com:443/hooks?a=1"+body))}},
		{"the address of the request, without its port", Scheme{Header: "S", Algorithm: "sha1", Encoding: "hex", Signed: "{url} {body}"}, "k", "",
			map[string]string{"S": hex.EncodeToString(sum(sha1.New, "k", "http://receiver/in?a=1 "+body))}},
	} {
		secret, err := c.scheme.Secret(c.secret)
		if err != nil {
			t.Fatal(err)
		}
		v, err := NewVerifier(c.scheme, &VerifierOptions{Secrets: [][]byte{[]byte("the old secret"), secret}, URL: c.url})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		r := httptest.NewRequest(http.MethodPost, "http://receiver:8081/in?a=1", nil)
		for name, value := range c.headers {
			r.Header.Set(name, value)
		}
		if err := v.Verify(r, []byte(body)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := v.Verify(r, []byte(body+" ")); err == nil {
			t.Errorf("%s: another body is accepted", c.name)
		}
	}
}

// TestAValueMustNotContainTheTextThatEndsIt: otherwise two requests have one signed content.
func TestAValueMustNotContainTheTextThatEndsIt(t *testing.T) {
	t.Parallel()
	p := preset(t, "standard-webhooks")
	v, err := NewVerifier(p.Scheme, &VerifierOptions{Secrets: [][]byte{[]byte("secret")}})
	if err != nil {
		t.Fatal(err)
	}
	now := fmt.Sprint(time.Now().Unix())
	signature := "v1," + base64.StdEncoding.EncodeToString(sum(sha256.New, "secret", "msg_1."+now+"."+now+".5"))
	verify := func(id, body string) error {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("webhook-id", id)
		r.Header.Set("webhook-timestamp", now)
		r.Header.Set("webhook-signature", signature)
		return v.Verify(r, []byte(body))
	}
	if err := verify("msg_1", now+".5"); err != nil {
		t.Errorf("as it was signed: %v", err)
	}
	if err := verify("msg_1."+now, "5"); err == nil || !strings.Contains(err.Error(), `webhook-id contains "."`) {
		t.Errorf("with a part of the body in the id: %v", err)
	}
}

func TestInvalidOptionsAreAllNamed(t *testing.T) {
	t.Parallel()
	_, err := NewVerifier(Scheme{Signed: "x", Algorithm: "md5", Encoding: "octal", TimePrefix: "t="}, &VerifierOptions{Secrets: [][]byte{{}}, Tolerance: -1})
	for _, want := range []string{"Signed: ", "Algorithm: ", "Encoding: ", "Header is missing", "TimePrefix: ", "Secrets: ", "Tolerance: "} {
		if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
	_, err = NewSNS(&SNSOptions{Hosts: []string{"https://a/b", "", "a/b"}, Tolerance: -1})
	for _, want := range []string{`"https://a/b": leave https:// out`, `""`, `"a/b": not a host`, "Tolerance: "} {
		if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
	if _, err := NewSNS(nil); err != nil {
		t.Errorf("the zero options: %v", err)
	}
}

// The end of a body must not become the begin of the time behind it.
func TestATimeHasNoZerosBeforeIt(t *testing.T) {
	t.Parallel()
	v, err := NewVerifier(Scheme{Header: "S", TimeHeader: "T", TimeUnit: "s", Algorithm: "sha256", Encoding: "hex", Signed: "{body}{time}"}, &VerifierOptions{Secrets: [][]byte{[]byte("k")}})
	if err != nil {
		t.Fatal(err)
	}
	now := fmt.Sprint(time.Now().Unix())
	for body, written := range map[string]string{"10": now, "1": "0" + now} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("T", written)
		r.Header.Set("S", hex.EncodeToString(sum(sha256.New, "k", "10"+now)))
		if err := v.Verify(r, []byte(body)); (err == nil) != (body == "10") {
			t.Errorf("%s at %s: %v", body, written, err)
		}
	}
}

// The signature of a callback by GET covers the address alone. It must not be one of a POST.
func TestASignatureOfAnAddressIsNoneOfABody(t *testing.T) {
	t.Parallel()
	v, err := NewVerifier(preset(t, "twilio").Scheme, &VerifierOptions{Secrets: [][]byte{[]byte("secret")}})
	if err != nil {
		t.Fatal(err)
	}
	const form, address = "application/x-www-form-urlencoded", "http://receiver/in"
	digest := sha256.Sum256([]byte("a=1"))
	withDigest := "?bodySHA256=" + hex.EncodeToString(digest[:])
	for _, c := range []struct {
		name, kind, query, signed, body string
		valid                           bool
	}{
		{"a form", form, "", "a1", "a=1", true},
		{"two values", form, "", "a1a2", "a=2&a=1", true},
		{"no fields", form, "", "", "", false},
		{"an empty field", form, "", "", "=", false},
		{"a field without a name", form, "", "a1", "a=1&=", false},
		{"a digest", "application/json", withDigest, "", "a=1", true},
		{"a digest of a form", form, withDigest, "", "a=1", true},
		{"another body", form, withDigest, "", "a=2", false},
		{"another body than the digest has", form, withDigest, "a2", "a=2", false},
		{"no digest", "application/json", "", "", "a=1", false},
	} {
		r := httptest.NewRequest(http.MethodPost, address+c.query, nil)
		r.Header.Set("Content-Type", c.kind)
		r.Header.Set("X-Twilio-Signature", base64.StdEncoding.EncodeToString(sum(sha1.New, "secret", address+c.query+c.signed)))
		if err := v.Verify(r, []byte(c.body)); (err == nil) != c.valid {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Two requests must not have one signed content.
func TestAValueWithoutAnEndIsRefused(t *testing.T) {
	t.Parallel()
	for signed, want := range map[string]string{
		"{body}{header:X}.": "no line break is between {body} and {header:X}", "{form}.{header:X}.": "no line break is between {form} and {header:X}",
		"{header:X}{body}": "no text ends {header:X}", "{header:X}": "no text ends {header:X}", "{body}\n{time}{header:X}": "no text ends",
		"{body}\n{time}.{header:X}.": "", "{header:X}.{body}": "", "{body}{time}": "",
	} {
		s := Scheme{Header: "S", TimeHeader: "T", Signed: signed}
		if !strings.Contains(signed, "{time}") {
			s.TimeHeader = ""
		}
		if err := s.Check(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", signed, err)
		}
	}
	for _, c := range []struct {
		signed, url, query string
		valid              bool
	}{
		{"{url}{body}", "", "", true}, {"{url}{body}", "", "a=1", false}, {"{body}{url}", "", "a=1", false}, {"{url}.{body}", "", "a=1", false},
		{"{url}{body}", "http://receiver/in?a=1", "a=1", true}, {"{url}{body}", "http://receiver/in?a=1", "a=2", false}, {"{url}{body}", "http://receiver/in?a=1", "", false},
		{"{url}\n{body}", "", "a=1", true}, {"{body} {url}", "", "a=1", true}, {"{url}{header:X} {body}", "", "a=1", false},
	} {
		v, err := NewVerifier(Scheme{Header: "S", Algorithm: "sha256", Encoding: "hex", Signed: c.signed}, &VerifierOptions{Secrets: [][]byte{[]byte("k")}, URL: c.url})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "http://receiver/in", nil)
		r.URL.RawQuery = c.query
		address := "http://receiver/in?" + c.query
		content := strings.NewReplacer("{url}", strings.TrimSuffix(address, "?"), "{body}", "b", "{header:X}", "x").Replace(c.signed)
		r.Header.Set("X", "x")
		r.Header.Set("S", hex.EncodeToString(sum(sha256.New, "k", content)))
		if err := v.Verify(r, []byte("b")); (err == nil) != c.valid {
			t.Errorf("%+v: %v", c, err)
		}
	}
	v, err := NewVerifier(Scheme{Header: "S", Algorithm: "sha256", Encoding: "hex", Signed: "{header:X}..{body}"}, &VerifierOptions{Secrets: [][]byte{[]byte("k")}})
	if err != nil {
		t.Fatal(err)
	}
	for id, body := range map[string]string{"a.": "b", "a": ".b"} { // both are a...b
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("X", id)
		r.Header.Set("S", hex.EncodeToString(sum(sha256.New, "k", "a...b")))
		if err := v.Verify(r, []byte(body)); (err == nil) != (id == "a") {
			t.Errorf("%s with %s: %v", id, body, err)
		}
	}
}

// TestARefusalNamesTheLikelyMistake has the mistakes of people who configure a sender.
func TestARefusalNamesTheLikelyMistake(t *testing.T) {
	t.Parallel()
	now := time.Now()
	hexed := func(of func() hash.Hash, text string) string { return hex.EncodeToString(sum(of, "k", text)) }
	body := Scheme{Header: "X-Signature", Algorithm: "sha256", Encoding: "hex", Signed: "{body}"}
	with := func(change func(s *Scheme)) Scheme {
		s := body
		change(&s)
		return s
	}
	prefixed := with(func(s *Scheme) { s.Prefix = "sha256=" })
	timed := with(func(s *Scheme) { s.TimeHeader, s.TimeUnit, s.Signed = "T", "s", "{time}.{body}" })
	address := with(func(s *Scheme) { s.Signed = "{url}{body}" })
	milliseconds := fmt.Sprint(now.UnixMilli())
	for _, c := range []struct {
		scheme  Scheme
		headers map[string]string
		want    string
	}{
		{body, map[string]string{"X-Signature": "sha256=" + hexed(sha256.New, "b")}, "it begins with sha256=, so set prefix to that"},
		{body, map[string]string{"X-Signature": hexed(sha1.New, "b")}, "it has 40 characters, and one by sha256 in hex has 64: correct algorithm, encoding or prefix"},
		{body, map[string]string{"X-Signature": hexed(sha256.New, "c")}, "check the secret, and that nothing changes the body on its way"},
		{body, map[string]string{"X-Hub-Signature": "sha1=" + hexed(sha1.New, "b")}, "the request has no header X-Signature, but X-Hub-Signature: correct verify, or the address at the sender"},
		{body, nil, "the request has no header X-Signature"},
		{prefixed, map[string]string{"X-Signature": hexed(sha256.New, "b")}, `X-Signature has a part that does not begin with sha256=, or with another name and "=": correct prefix, or the sender`},
		{timed, map[string]string{"X-Signature": hexed(sha256.New, milliseconds+".b"), "T": milliseconds}, "the time of the request is not in s, but in ms: correct time_unit"},
		{timed, map[string]string{"X-Signature": hexed(sha256.New, "1700000000.b"), "T": "1700000000"}, "the time of the request, 2023-11-14T22:13:20Z, is beyond the tolerance of 5m0s from now"},
		{timed, map[string]string{"X-Signature": hexed(sha256.New, "9223372036854775807.b"), "T": "9223372036854775807"}, "is beyond the tolerance of 5m0s from now"},
		{address, map[string]string{"X-Signature": hexed(sha256.New, "https://proxy/inb")}, "that the sender sends to http://receiver/in"},
	} {
		v, err := NewVerifier(c.scheme, &VerifierOptions{Secrets: [][]byte{[]byte("k")}})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "http://receiver/in", nil)
		for name, value := range c.headers {
			r.Header.Set(name, value)
		}
		if err := v.Verify(r, []byte("b")); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
