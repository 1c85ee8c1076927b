package bearer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/retry"
)

// Endpoint gets tokens with the client credentials of RFC 6749, section 4.4.
type Endpoint struct {
	URL, ClientID, ClientSecret string
	// Scope and Audience are sent if they are not empty.
	Scope, Audience string

	inBody atomic.Bool // where it took the credentials last
}

// String implements Origin.
func (e *Endpoint) String() string {
	at, err := url.Parse(e.URL)
	if err != nil {
		return "the token endpoint"
	}
	return "the token endpoint " + at.Scheme + "://" + at.Host + at.Path // a query may have a secret
}

// mostAnswer limits an answer of an endpoint, a file and the output of a command.
const mostAnswer = 64 << 10

// Fetch implements Origin. The credentials are in the header, as the RFC recommends. If the
// endpoint does not take them there, they are in the body, from then on.
func (e *Endpoint) Fetch(ctx context.Context) (Token, error) {
	inBody := e.inBody.Load()
	answer, err := e.ask(ctx, !inBody)
	if err == nil && answer.stranger() {
		var second *reply
		if second, err = e.ask(ctx, inBody); err == nil && !second.stranger() {
			answer = second
			if second.status == http.StatusOK {
				e.inBody.Store(!inBody)
			}
		}
	}
	if err != nil {
		return Token{}, err
	}
	return e.token(answer)
}

// reply is the answer of an endpoint.
type reply struct {
	status  int
	Token   string      `json:"access_token"`
	Expires json.Number `json:"expires_in"`
	Code    string      `json:"error"`
	broken  bool        // it is no JSON object
}

// stranger reports whether the endpoint does not take the credentials. It takes them if it dislikes
// something else.
func (a *reply) stranger() bool {
	switch a.Code {
	case "invalid_scope", "invalid_target", "unauthorized_client", "unsupported_grant_type":
		return false
	}
	return a.status == http.StatusUnauthorized || a.status == http.StatusBadRequest
}

// ask sends one request. With inHeader the credentials are in the header Authorization.
func (e *Endpoint) ask(ctx context.Context, inHeader bool) (*reply, error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	for name, value := range map[string]string{"scope": e.Scope, "audience": e.Audience} {
		if value != "" {
			form.Set(name, value)
		}
	}
	if !inHeader {
		form.Set("client_id", e.ClientID)
		form.Set("client_secret", e.ClientSecret)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, &Error{Cause: e.String() + " has no valid address", Remedy: "correct token_endpoint", Lasting: true}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if inHeader {
		req.SetBasicAuth(url.QueryEscape(e.ClientID), url.QueryEscape(e.ClientSecret))
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }} // the secret is for one address
	resp, err := client.Do(req)
	if err != nil {
		return nil, e.unreached(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return nil, e.unreached(ctx, err)
	}
	a := &reply{}
	if json.Unmarshal(body, a) != nil {
		*a = reply{broken: true}
	}
	a.status = resp.StatusCode
	return a, nil
}

// unreached is the error of a request without an answer. That of package http quotes the URL.
func (e *Endpoint) unreached(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return silent(e)
	}
	if of, ok := errors.AsType[*url.Error](err); ok {
		err = of.Err
	}
	said := cmp.Or(diagnose.Certificate(err, "the environment variable SSL_CERT_FILE", "token_endpoint"), diagnose.Network(err))
	if said == nil {
		said = &diagnose.Error{Cause: err.Error(), Remedy: "is it up, and can this machine reach it?"}
	}
	return &Error{Cause: e.String() + ": " + diagnose.Line(said.Cause), Remedy: said.Remedy}
}

// token returns the token of an answer.
func (e *Endpoint) token(a *reply) (Token, error) {
	code := ""
	if a.Code != "" && strings.Trim(a.Code, "abcdefghijklmnopqrstuvwxyz_") == "" { // RFC 6749, section 5.2
		code = " " + a.Code
	}
	wrong := &Error{Cause: fmt.Sprintf("%s answers %d%s", e, a.status, code), Lasting: true}
	switch {
	case a.status == http.StatusOK && a.Token != "":
		lives := time.Duration(0)
		if seconds, err := a.Expires.Int64(); err == nil && seconds > 0 && seconds < 1<<32 {
			lives = time.Duration(seconds) * time.Second
		}
		return newToken(a.Token, lives, time.Now()), nil
	case a.status == http.StatusOK && a.broken:
		wrong.Cause, wrong.Remedy = e.String()+" answers something that is not JSON", "is token_endpoint the address of the token endpoint, and not of a page?"
	case a.status == http.StatusOK:
		wrong.Cause, wrong.Remedy = e.String()+" answers without an access_token", "is token_endpoint the address of the token endpoint?"
	case a.Code == "invalid_scope", a.Code == "invalid_target":
		wrong.Remedy = "correct scope or audience, or allow it for the client"
	case a.Code == "unauthorized_client", a.Code == "unsupported_grant_type":
		wrong.Remedy = "allow the grant client_credentials for the client"
	case a.status == http.StatusUnauthorized, a.Code == "invalid_client":
		wrong.Remedy = "correct client_id and client_secret, and look whether the secret has ended"
	case a.status == http.StatusTooManyRequests, a.status >= 500:
		wrong.Remedy, wrong.Lasting = "is it up, or does a proxy answer in its place? It is asked again", false
	case a.status >= 300 && a.status < 400:
		wrong.Remedy = "write the address to which it redirects as token_endpoint: no secret is sent to another address"
	case a.status == http.StatusNotFound, a.status == http.StatusMethodNotAllowed:
		wrong.Remedy = "is token_endpoint the address of the token endpoint?"
	default:
		wrong.Remedy = "correct client_id, client_secret, scope and audience: the issuer's log says more"
	}
	return Token{}, wrong
}

// File reads tokens from a file that another process renews.
type File string

// String implements Origin.
func (f File) String() string { return "the token file " + string(f) }

// Fetch implements Origin. A process that truncates the file and writes it again leaves it
// empty or incomplete for a moment.
func (f File) Fetch(ctx context.Context) (Token, error) {
	for tries := 0; ; tries++ {
		token, err := f.read()
		if err != nil {
			return Token{}, err
		}
		flawed, ok := errors.AsType[*Error](token.check(f, time.Now()))
		if !ok {
			return token, nil
		}
		if flawed.Lasting = false; tries == 5 || retry.Sleep(ctx, 100*time.Millisecond) != nil {
			return Token{}, flawed
		}
	}
}

// read reads the file once.
func (f File) read() (Token, error) {
	from, err := os.Open(string(f))
	var text []byte
	written := time.Now()
	if err == nil {
		if about, err := from.Stat(); err == nil {
			written = about.ModTime()
		}
		text, err = io.ReadAll(io.LimitReader(from, mostAnswer))
		err = errors.Join(err, from.Close())
	}
	if err != nil {
		cause := err
		if of, ok := errors.AsType[*os.PathError](err); ok {
			cause = of.Err
		}
		return Token{}, &Error{Cause: f.String() + ": " + cause.Error(), Remedy: "does the process that renews it run, and may this user read it?"}
	}
	token := parse(text, written)
	token.Renew = time.Time{} // the file costs nothing, and may have a newer one at any time
	if now := time.Now(); token.Text != "" && !token.accepted(now) {
		return Token{}, &Error{Cause: fmt.Sprintf("the token in %s ended at %s, and it is %s", string(f), stamp(token.Ends), stamp(now)), Remedy: "does the process that renews it run?"}
	}
	return token, nil
}

// parse reads a token, alone or as the access_token of a JSON object that was written at a time. The
// object may be older than that, so its expires_in counts only if the token does not say its end.
func parse(text []byte, at time.Time) Token {
	a := &reply{}
	if json.Unmarshal(text, a) != nil && bytes.HasPrefix(text, []byte("{")) {
		return Token{} // it is incomplete
	}
	if a.Token == "" {
		return newToken(strings.TrimSpace(string(text)), 0, time.Now())
	}
	token := newToken(a.Token, 0, time.Now())
	if seconds, _ := a.Expires.Int64(); token.Ends.IsZero() && seconds > 0 {
		return newToken(a.Token, time.Duration(min(seconds, 1<<32))*time.Second, at)
	}
	return token
}

// Command runs a program that writes a token. The first element is the program.
type Command []string

// String implements Origin. Arguments may be secret.
func (c Command) String() string { return "the token command " + c[0] }

// Fetch implements Origin. The output of the program is never shown, because it may have a
// token.
func (c Command) Fetch(ctx context.Context) (Token, error) {
	out := &limited{}
	run := exec.CommandContext(ctx, c[0], c[1:]...)
	run.Stdout, run.WaitDelay = out, 500*time.Millisecond // a child of the program may hold the output open
	together(run)
	err := run.Run()
	exit, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return Token{}, &Error{Cause: c.String() + " did not end in time, and was killed", Remedy: "run it by hand, as the same user: does it wait for something?"}
	case ended:
		return Token{}, &Error{Cause: c.String() + " failed: " + exit.Error(), Remedy: "run it by hand, as the same user, to see what it says"}
	case passes(err):
		return Token{}, &Error{Cause: c.String() + " cannot be run now: " + diagnose.Line(err.Error()), Remedy: "look at the memory and the number of processes of this machine"}
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return Token{}, &Error{Cause: c.String() + " cannot be run: " + diagnose.Line(err.Error()), Remedy: "correct the path of the program, and permit this user to run it", Lasting: true}
	}
	return parse(out.text, time.Now()), nil
}

// passes reports whether a program that cannot be started may be started later: the machine is busy,
// or the program is being replaced.
func passes(err error) bool {
	return slices.ContainsFunc([]error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ETXTBSY}, func(of error) bool { return errors.Is(err, of) })
}

// limited keeps the start of an output.
type limited struct{ text []byte }

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	l.text = append(l.text, p[:min(len(p), mostAnswer-len(l.text))]...)
	return len(p), nil
}
