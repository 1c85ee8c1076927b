package page

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
)

const (
	sessionFor  = 12 * time.Hour
	sessionIdle = time.Hour
	// mostSessions limits the memory of sessions. The oldest one ends.
	mostSessions = 1000
	// freeFailures is how many logins of an address may fail before it has to wait.
	freeFailures = 5
	// mostAddresses limits the memory of failures.
	mostAddresses = 10_000
)

// sessions are the people who are logged in.
type sessions struct {
	cookie string // its name, without the prefix for TLS

	mu       sync.Mutex // guards the fields below
	open     map[[32]byte]*session
	link     string // the secret of the login link, or "" once it was used
	failures map[string]*failure
}

type session struct {
	who           admin.Identity
	started, used time.Time
}

// failure is what is known of the failed logins from an address.
type failure struct {
	count int
	until time.Time // no login before
}

// newSessions returns the sessions of a server. Browsers send the cookies of a host to all its
// ports, so the name of the cookie has a part for the address.
func newSessions(at net.Addr) *sessions {
	sum := sha256.Sum256([]byte(at.String()))
	return &sessions{cookie: "semel-" + hex.EncodeToString(sum[:4]), open: map[[32]byte]*session{}, failures: map[string]*failure{}}
}

// LoginLink returns a URL with which the person at the terminal logs in, once. That person runs
// the process, and may read and change its stores anyway.
func (p *Page) LoginLink() string {
	secret := rand.Text()
	p.sessions.mu.Lock()
	p.sessions.link = secret
	p.sessions.mu.Unlock()
	return p.URL() + "login?token=" + secret
}

// URL returns the address of the page for a browser.
func (p *Page) URL() string {
	if base := p.Conf.Admin.PublicURL; base != "" {
		return strings.TrimSuffix(base, "/") + "/"
	}
	host, port, _ := net.SplitHostPort(p.At.String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if p.secure {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/"
}

// useLink ends the login link, and reports whether its secret is this one.
func (s *sessions) useLink(secret string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == "" || sha256.Sum256([]byte(secret)) != sha256.Sum256([]byte(s.link)) {
		return false
	}
	s.link = ""
	return true
}

// identify returns who sent a request.
func (p *Page) identify(r *http.Request) admin.Identity {
	if who, _ := admin.Identify(p.Conf.Admin.Auth, r); who.Role != admin.Nobody {
		return who
	}
	cookie, err := r.Cookie(p.cookieName())
	if err != nil {
		return admin.Identity{}
	}
	return p.sessions.of(cookie.Value, time.Now())
}

func (p *Page) cookieName() string {
	if p.secure {
		return "__Host-" + p.sessions.cookie
	}
	return p.sessions.cookie
}

// of returns the identity of a session.
func (s *sessions) of(secret string, now time.Time) admin.Identity {
	id := sha256.Sum256([]byte(secret))
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.open[id]
	switch {
	case found == nil:
		return admin.Identity{}
	case now.Sub(found.started) > sessionFor || now.Sub(found.used) > sessionIdle:
		delete(s.open, id)
		return admin.Identity{}
	}
	found.used = now
	return found.who
}

// start starts a session and returns its secret.
func (s *sessions) start(who admin.Identity, now time.Time) string {
	secret := rand.Text() + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.open) >= mostSessions {
		var oldest [32]byte
		var since time.Time
		for id, of := range s.open {
			if since.IsZero() || of.used.Before(since) {
				oldest, since = id, of.used
			}
		}
		delete(s.open, oldest)
	}
	s.open[sha256.Sum256([]byte(secret))] = &session{who, now, now}
	return secret
}

// end ends a session.
func (s *sessions) end(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, sha256.Sum256([]byte(secret)))
}

// wait returns how long an address has to wait before its next login.
func (s *sessions) wait(address string, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.failures[address]; f != nil {
		return f.until.Sub(now)
	}
	return 0
}

// tried notes the outcome of a login.
func (s *sessions) tried(address string, failed bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !failed {
		delete(s.failures, address)
		return
	}
	if len(s.failures) >= mostAddresses {
		clear(s.failures)
	}
	f := s.failures[address]
	if f == nil {
		f = &failure{}
		s.failures[address] = f
	}
	if f.count++; f.count >= freeFailures {
		f.until = now.Add(min(time.Second<<min(f.count-freeFailures, 6), time.Minute))
	}
}

// loginData is what the page for the login shows.
type loginData struct {
	// Next is where the browser goes afterwards, relative to this page.
	Next string
	// Forms: the process has credentials. Otherwise there is only the link.
	Forms bool
	Wrong string
}

// demandLogin answers a request that needs a login.
func (v *visit) demandLogin() {
	d := loginData{Next: home, Forms: v.Conf.Admin.Auth != nil}
	if v.r.Method == http.MethodGet && v.r.URL.Path != "/login" {
		d.Next = local(strings.TrimPrefix(v.r.URL.RequestURI(), "/"))
	}
	if err := v.show(http.StatusUnauthorized, "login", "Log in", &d); err != nil {
		http.Error(v.w, "log in", http.StatusUnauthorized)
	}
}

// local returns a link relative to this page, or home for any other link.
func local(link string) string {
	if link == "" || strings.HasPrefix(link, "/") || strings.HasPrefix(link, ".") || strings.ContainsAny(strings.SplitN(link, "?", 2)[0], ":\\/") || strings.ContainsFunc(link, func(r rune) bool { return r < ' ' }) {
		return home
	}
	return link
}

// loginPage shows the form, or uses the login link.
func (v *visit) loginPage() error {
	if secret := v.r.Form.Get("token"); secret != "" {
		return v.loginByLink(secret)
	}
	return v.show(http.StatusOK, "login", "Log in", &loginData{Next: home, Forms: v.Conf.Admin.Auth != nil})
}

// loginByLink logs the person at the terminal in.
func (v *visit) loginByLink(secret string) error {
	if err := v.mayTry(); err != nil {
		return err
	}
	known := v.sessions.useLink(secret)
	v.sessions.tried(v.address(), !known, time.Now())
	if !known {
		return refuse(http.StatusForbidden, "this login link was used, or is that of another process: a link is valid once. Start the process again for a new link, or set admin.auth")
	}
	return v.enter(admin.Identity{Name: keyrecord.Actor(), Role: admin.Operator}, home)
}

// login checks the credentials of the form.
func (v *visit) login() error {
	if err := v.mayTry(); err != nil {
		return err
	}
	form := v.r.PostForm
	who := admin.Known(v.Conf.Admin.Auth, form.Get("user"), form.Get("password"))
	v.sessions.tried(v.address(), who.Role == admin.Nobody, time.Now())
	if who.Role == admin.Nobody {
		return v.show(http.StatusUnauthorized, "login", "Log in", &loginData{Next: local(form.Get("next")), Forms: v.Conf.Admin.Auth != nil, Wrong: "The user name, the password or the token is wrong."})
	}
	return v.enter(who, local(form.Get("next")))
}

// enter starts a session.
func (v *visit) enter(who admin.Identity, next string) error {
	http.SetCookie(v.w, &http.Cookie{
		Name: v.cookieName(), Value: v.sessions.start(who, time.Now()), Path: "/",
		MaxAge: int(sessionFor / time.Second), HttpOnly: true, Secure: v.secure, SameSite: http.SameSiteStrictMode,
	})
	return v.redirect(next)
}

// logout ends the session.
func (v *visit) logout() error {
	cookie, err := v.r.Cookie(v.cookieName())
	if errors.Is(err, http.ErrNoCookie) {
		return v.redirect(home)
	}
	v.sessions.end(cookie.Value)
	http.SetCookie(v.w, &http.Cookie{Name: v.cookieName(), Path: "/", MaxAge: -1, HttpOnly: true, Secure: v.secure, SameSite: http.SameSiteStrictMode})
	return v.redirect(home)
}

// address is that of the other end, without its port.
func (v *visit) address() string {
	host, _, err := net.SplitHostPort(v.r.RemoteAddr)
	if err != nil {
		return v.r.RemoteAddr
	}
	return host
}

// mayTry refuses a login after too many failures.
func (v *visit) mayTry() error {
	left := v.sessions.wait(v.address(), time.Now())
	if left <= 0 {
		return nil
	}
	v.w.Header().Set("Retry-After", retryAfter(left))
	return refuse(http.StatusTooManyRequests, "too many failed logins from this address: try again in %s s", retryAfter(left))
}
