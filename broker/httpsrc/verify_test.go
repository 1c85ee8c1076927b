package httpsrc

import (
	"bytes"
	"compress/gzip"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/semel-dev/semel/broker/httpsrc/provider"
)

// github returns a source whose requests GitHub signs.
func github(t *testing.T, opts Options) *Source {
	t.Helper()
	for _, p := range provider.Presets() {
		if p.Name == "github" {
			v, err := provider.NewVerifier(p.Scheme, &provider.VerifierOptions{Secrets: [][]byte{[]byte("secret")}})
			if err != nil {
				t.Fatal(err)
			}
			opts.Verify = v.Verify
		}
	}
	return open(t, opts)
}

// signature returns the header with the signature of a body.
func signature(secret string, body []byte) http.Header {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return http.Header{"X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}}
}

// TestSignaturesAreCheckedOverTheBodyAsItArrived sends bodies plain, compressed and as forms,
// signed before and after that.
func TestSignaturesAreCheckedOverTheBodyAsItArrived(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	pack := gzip.NewWriter(&packed)
	if _, err := io.WriteString(pack, `{"id":1}`); err != nil || pack.Close() != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		header       http.Header
		sent, signed []byte
		want         string // "" if it is refused
	}{
		{"plain", nil, []byte(`{"id":1}`), []byte(`{"id":1}`), `{"id":1}`},
		{"compressed", http.Header{"Content-Encoding": {"gzip"}}, packed.Bytes(), packed.Bytes(), `{"id":1}`},
		{"signed before it was compressed", http.Header{"Content-Encoding": {"gzip"}}, packed.Bytes(), []byte(`{"id":1}`), ""},
		{"form", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, []byte("id=1"), []byte("id=1"), `{"id":"1"}`},
		{"form, signed as JSON", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, []byte("id=1"), []byte(`{"id":"1"}`), ""},
		{"unsigned", http.Header{"X-Hub-Signature-256": nil}, []byte(`{"id":1}`), nil, ""},
		{"no gzip", http.Header{"Content-Encoding": {"gzip"}}, []byte("{}"), []byte("{}x"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, chunked := range []bool{false, true} {
				s := github(t, Options{})
				header := signature("secret", c.signed)
				for name, values := range c.header {
					header[name] = values
				}
				resp, message := send(t, s, header, c.sent, chunked)
				switch {
				case c.want == "" && (resp.StatusCode != http.StatusUnauthorized || message != nil || resp.Header.Get("WWW-Authenticate") == ""):
					t.Errorf("%s, %v", resp.Status, message)
				case c.want != "" && (message == nil || string(message.Body) != c.want):
					t.Errorf("%s, %v", resp.Status, message)
				}
				if got := s.held.Load(); got != 0 {
					t.Errorf("%d bytes are held in the end", got)
				}
			}
		})
	}
}

// TestABodyThatIsTooLargeIsNotVerified bounds what a stranger can make the source read.
func TestABodyThatIsTooLargeIsNotVerified(t *testing.T) {
	t.Parallel()
	s := open(t, Options{MaxBody: 4, Verify: func(*http.Request, []byte) error { t.Error("verified"); return nil }})
	for _, chunked := range []bool{false, true} {
		if resp, message := send(t, s, http.Header{}, []byte("12345"), chunked); resp.StatusCode != http.StatusRequestEntityTooLarge || message != nil {
			t.Errorf("%s, %v", resp.Status, message)
		}
	}
}

// TestASenderIsAskedToRepeatIfItsSignatureCannotBeChecked: a 401 would be final.
func TestASenderIsAskedToRepeatIfItsSignatureCannotBeChecked(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Verify: func(*http.Request, []byte) error { return errors.New("the certificate was not fetched") }})
	if resp, message := send(t, s, http.Header{}, []byte("{}"), false); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || message != nil {
		t.Errorf("%s, %v", resp.Status, message)
	}
}

// TestHandshakesAreAnsweredWithoutAMessage sends challenges, at a source with a token and a
// signature.
func TestHandshakesAreAnsweredWithoutAMessage(t *testing.T) {
	t.Parallel()
	dropbox := provider.Handshakes()["dropbox"]
	cloudevents := provider.Handshakes()["cloudevents"]
	signed := &provider.Handshake{Method: "POST", When: map[string]string{".type": "url_verification"}, Challenge: ".challenge"}
	unsigned := &provider.Handshake{Method: "POST", Unsigned: true, Absent: "X-Hub-Signature-256", When: map[string]string{".ping": ""}}
	s := github(t, Options{Path: "/in", Handshakes: []*provider.Handshake{&dropbox, &cloudevents, signed, unsigned}})
	do := func(method, path string, header http.Header, body string) (*http.Response, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addr().String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = header
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(text)
	}
	const challenge = `{"type":"url_verification","challenge":"abc"}`
	for _, c := range []struct {
		name, method, path string
		header             http.Header
		body               string
		status             int
		want               string
	}{
		{"a challenge", "GET", "/in?challenge=abc", nil, "", 200, "abc"},
		{"at another path", "GET", "/?challenge=abc", nil, "", 404, ""},
		{"no challenge", "GET", "/in", nil, "", 405, ""},
		{"options", "OPTIONS", "/in", http.Header{"Webhook-Request-Origin": {"a.example"}}, "", 200, ""},
		{"a signed challenge", "POST", "/in", signature("secret", []byte(challenge)), challenge, 200, "abc"},
		{"a challenge of a stranger", "POST", "/in", signature("other", []byte(challenge)), challenge, 401, ""},
		{"a ping", "POST", "/in", http.Header{}, `{"ping":"1"}`, 200, ""},
	} {
		resp, text := do(c.method, c.path, c.header, c.body)
		if resp.StatusCode != c.status || c.status == 200 && text != c.want {
			t.Errorf("%s: %s %q", c.name, resp.Status, text)
		}
		if c.name == "options" && resp.Header.Get("WebHook-Allowed-Origin") != "a.example" {
			t.Errorf("%v", resp.Header)
		}
	}
	if n, held := len(s.queue), s.held.Load(); n != 0 || held != 0 {
		t.Errorf("%d messages, %d bytes", n, held)
	}
}

// The type of a body is not signed, so the source may not choose between two.
func TestASignedRequestHasOneContentType(t *testing.T) {
	t.Parallel()
	s := github(t, Options{})
	body := []byte("id=1")
	header := signature("secret", body)
	header["Content-Type"] = []string{"text/plain", "application/x-www-form-urlencoded"}
	if resp, message := send(t, s, header, body, false); resp.StatusCode != http.StatusBadRequest || message != nil {
		t.Errorf("%s, %v", resp.Status, message)
	}
}
