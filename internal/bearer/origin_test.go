package bearer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

const secret = "s3cret/+&%"

// asked returns an endpoint that answers by a function.
func asked(t *testing.T, answer http.HandlerFunc) *Endpoint {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return &Endpoint{URL: server.URL + "/token?tenant=secret-too", ClientID: "me&you", ClientSecret: secret, Scope: "kafka", Audience: "broker"}
}

// credentials returns those of a request, and whether they are in the header.
func credentials(r *http.Request) (id, password string, inHeader bool) {
	if id, password, inHeader = r.BasicAuth(); inHeader {
		return id, password, true
	}
	return r.FormValue("client_id"), r.FormValue("client_secret"), false
}

func TestTheEndpointIsAskedWithClientCredentials(t *testing.T) {
	t.Parallel()
	for _, takesHeader := range []bool{true, false} {
		e := asked(t, func(w http.ResponseWriter, r *http.Request) {
			id, password, inHeader := credentials(r)
			if r.Method != http.MethodPost || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "kafka" || r.FormValue("audience") != "broker" {
				t.Errorf("%s %v", r.Method, r.Form)
			}
			if inHeader && (id != "me%26you" || password != "s3cret%2F%2B%26%25") || !inHeader && (id != "me&you" || password != secret) {
				t.Errorf("in the header %v: %q, %q", inHeader, id, password)
			}
			if inHeader != takesHeader {
				w.WriteHeader(http.StatusUnauthorized)
				fmt.Fprint(w, `{"error":"invalid_client"}`)
				return
			}
			fmt.Fprint(w, `{"access_token":"abc","token_type":"Bearer","expires_in":"3600"}`) // Microsoft writes a text
		})
		token, err := e.Fetch(t.Context())
		if left := time.Until(token.Ends); err != nil || token.Text != "abc" || left < 59*time.Minute || left > time.Hour {
			t.Errorf("header %v: %+v, %v", takesHeader, token, err)
		}
	}
}

// TestAnEndpointThatTakesCredentialsOnlyInTheBody reports what it says about them there.
func TestAnEndpointThatTakesCredentialsOnlyInTheBody(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status  int
		body    string
		want    string
		lasting bool
	}{
		{400, `{"error":"invalid_scope"}`, "answers 400 invalid_scope: correct scope or audience", true},
		{400, `{"error":"unauthorized_client"}`, "answers 400 unauthorized_client: allow the grant", true},
		{503, "", "answers 503: is it up", false},
		{429, "", "answers 429: is it up", false},
		{401, `{"error":"invalid_client"}`, "answers 401 invalid_client: correct client_id and client_secret", true},
	} {
		fails, inHeaders := true, 0
		e := asked(t, func(w http.ResponseWriter, r *http.Request) {
			_, _, inHeader := credentials(r)
			switch {
			case inHeader:
				inHeaders++
				w.WriteHeader(http.StatusUnauthorized)
				fmt.Fprint(w, `{"error":"invalid_client"}`)
			case fails:
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			default:
				fmt.Fprint(w, `{"access_token":"abc"}`)
			}
		})
		if _, err := e.Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, semel.ErrInvalidRequest) != c.lasting {
			t.Errorf("%v, want %s, lasting %v", err, c.want, c.lasting)
		}
		fails = false
		for range 3 {
			if token, err := e.Fetch(t.Context()); err != nil || token.Text != "abc" {
				t.Errorf("%q, %v", token.Text, err)
			}
		}
		if inHeaders != 2 {
			t.Errorf("the credentials were in the header %d times, want it to be remembered where they are taken", inHeaders)
		}
	}
}

func TestAnEndpointThatGivesNoTokenIsExplained(t *testing.T) {
	t.Parallel()
	says := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, password, _ := credentials(r)
			w.WriteHeader(status)
			fmt.Fprint(w, strings.ReplaceAll(body, "SECRET", password))
		}
	}
	for _, c := range []struct {
		answer  http.HandlerFunc
		want    string
		lasting bool
	}{
		{says(401, `{"error":"invalid_client","error_description":"SECRET is wrong"}`), "answers 401 invalid_client: correct client_id and client_secret", true},
		{says(401, "SECRET"), "answers 401: correct client_id and client_secret", true},
		{says(400, `{"error":"invalid_scope"}`), "answers 400 invalid_scope: correct scope or audience", true},
		{says(400, `{"error":"unauthorized_client"}`), "answers 400 unauthorized_client: allow the grant client_credentials", true},
		{says(400, `{"error":"SECRET"}`), "answers 400: correct client_id, client_secret, scope and audience", true},
		{says(403, ""), "answers 403: correct client_id", true},
		{says(404, "no such page"), "answers 404: is token_endpoint the address of the token endpoint?", true},
		{says(429, ""), "answers 429: is it up", false},
		{says(500, "<html>SECRET</html>"), "answers 500: is it up, or does a proxy answer in its place?", false},
		{says(503, `{"error":"temporarily_unavailable"}`), "answers 503 temporarily_unavailable: is it up", false},
		{says(200, "<html>Log in</html>"), "answers something that is not JSON", true},
		{says(200, `{"token":"abc"}`), "answers without an access_token", true},
		{says(200, `["abc"]`), "answers something that is not JSON", true},
		{http.RedirectHandler("http://127.0.0.1:1/other", http.StatusTemporaryRedirect).ServeHTTP, "answers 307: write the address to which it redirects", true},
		{func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, "{")
		}, "unexpected EOF", false},
	} {
		e := asked(t, c.answer)
		_, err := e.Fetch(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), "the token endpoint http://127.0.0.1:") || !strings.Contains(err.Error(), "/token") || !strings.Contains(err.Error(), c.want) ||
			errors.Is(err, semel.ErrInvalidRequest) != c.lasting || errors.Is(err, semel.ErrStoreUnavailable) == c.lasting {
			t.Errorf("%v, want %s, lasting %v", err, c.want, c.lasting)
			continue
		}
		for _, hidden := range []string{"s3cret", "secret-too", "html"} {
			if strings.Contains(err.Error(), hidden) {
				t.Errorf("%v shows %s", err, hidden)
			}
		}
	}
}

func TestAnEndpointThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	e := asked(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	})
	defer close(ended)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := e.Fetch(ctx)
	if err == nil || !strings.HasPrefix(err.Error(), "no answer from the token endpoint http://127.0.0.1:") || strings.Contains(err.Error(), "secret") || !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("%v", err)
	}
	for address, want := range map[string]string{"http://127.0.0.1:1/token": "connection refused", "http://nowhere.invalid/token": "nowhere.invalid", "http://h:x/": "no valid address"} {
		e.URL = address
		if _, err := e.Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestAnIssuerWithAPrivateAuthorityIsExplained(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	_, err := (&Endpoint{URL: server.URL}).Fetch(t.Context())
	said, ok := errors.AsType[*Error](err)
	if !ok || !strings.Contains(said.Cause, "is signed by an unknown authority") || !strings.Contains(said.Remedy, "SSL_CERT_FILE") || !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestAFileIsReadForEachLogin(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := NewCache(File(path))
	if _, err := c.Token(t.Context()); err == nil || err.Error() != "the token file "+path+": no such file or directory: does the process that renews it run, and may this user read it?" || !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("%v", err)
	}
	for _, text := range []string{"first\n", jwt(map[string]any{"exp": time.Now().Add(time.Hour).Unix()}), `{"access_token":"third","expires_in":60}`} {
		write(text)
		c = NewCache(File(path))
		for _, next := range []string{strings.TrimSpace(text), "newer"} {
			want := next
			if strings.HasPrefix(next, "{") {
				want = "third"
			}
			if token, err := c.Token(t.Context()); err != nil || token.Text != want {
				t.Errorf("%q: %q, %v", text, token.Text, err)
			}
			write("newer")
		}
	}
	write(`{"access_token":"abc","expires_in":3600}`)
	for age, want := range map[time.Duration]string{time.Hour / 2: "", 2 * time.Hour: " ended at "} {
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		token, err := File(path).Fetch(t.Context())
		if left := time.Until(token.Ends); want == "" && (err != nil || left > time.Hour/2 || left < time.Hour/2-time.Minute) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("written %v ago: %v left, %v", age, left, err)
		}
	}
	write(jwt(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}))
	if _, err := NewCache(File(path)).Token(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "the token in "+path+" ended at ") || strings.Contains(err.Error(), "eyJ") {
		t.Errorf("%v", err)
	}
}

func TestAFileThatIsBeingWrittenIsReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	for _, part := range []string{"", `{"access_token":"ab`} {
		if err := os.WriteFile(path, []byte(part), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := File(path).Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "gives an empty token") || !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Errorf("%q: %v", part, err)
		}
		late := true
		for try := 1; late; try++ { // a machine that stands still writes the file too late
			if err := os.WriteFile(path, []byte(part), 0o600); err != nil {
				t.Fatal(err)
			}
			whole := make(chan error, 1)
			time.AfterFunc(50*time.Millisecond, func() { whole <- os.WriteFile(path, []byte(`{"access_token":"abc"}`), 0o600) })
			token, err := File(path).Fetch(t.Context())
			if late = err != nil && len(whole) == 0 && try < 20; !late && (err != nil || token.Text != "abc") {
				t.Errorf("%q: %q, %v", part, token.Text, err)
			}
			if err := <-whole; err != nil {
				t.Fatal(err)
			}
		}
	}
}

// script returns a program.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "get-token")
	syscall.ForkLock.RLock() // a child that starts now would have the file open, and no process could execute it
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestACommandWritesATokenToItsOutput(t *testing.T) {
	t.Parallel()
	token, err := Command{script(t, `echo "$1-$2"`), "abc", "d e"}.Fetch(t.Context())
	if err != nil || token.Text != "abc-d e" {
		t.Errorf("%q, %v", token.Text, err)
	}
	for text, c := range map[string]struct {
		most time.Duration
		want string
	}{
		"echo s3cret; echo s3cret >&2; exit 3": {time.Minute, " failed: exit status 3: run it by hand"},
		"sleep 100 & sleep 100":                {time.Second, " did not end in time, and was killed: run it by hand"},
	} {
		program := script(t, text)
		ctx, cancel := context.WithTimeout(t.Context(), c.most)
		begun := time.Now()
		_, err := Command{program, "s3cret"}.Fetch(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") || !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Errorf("%s: %v, want %s", text, err, c.want)
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("%s took %v", text, took)
		}
	}
	if _, err := (Command{"/nowhere/get-token"}).Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot be run: ") || !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("%v", err)
	}
	if token, err := (Command{script(t, "sleep 2 & echo abc")}).Fetch(t.Context()); err != nil || token.Text != "abc" { // a child has the output open
		t.Errorf("%q, %v", token.Text, err)
	}
}
