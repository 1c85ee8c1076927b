package page

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/schema"
)

// LoginLink returns a URL with which the person at the terminal logs in, once and soon, or "" if the
// last one is still valid. That person runs the process, and may read and change its stores anyway.
func (p *Page) LoginLink() string {
	secret := p.sessions.newLink(time.Now())
	if secret == "" {
		return ""
	}
	return p.URL() + "login?token=" + secret
}

// URL returns the address of the page for a browser.
func (p *Page) URL() string {
	if base := p.Conf.Admin.PublicURL; base != "" && !p.Apart {
		return strings.TrimSuffix(base, "/") + "/"
	}
	host, port, _ := net.SplitHostPort(p.At.String())
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if p.Conf.Admin.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/"
}

// identify returns who sent a request, or how long that user has to wait.
//
// A session comes before the header, which may have the credentials of a proxy.
func (p *Page) identify(r *http.Request) (who admin.Identity, wait time.Duration) {
	if cookie, err := r.Cookie(p.cookieName(r)); err == nil {
		if who := p.sessions.of(cookie.Value, time.Now(), r.Header.Get("Semel-Refresh") == ""); who.Role != admin.Nobody {
			return who, 0
		}
	}
	return p.Process.Tries.Identify(p.Conf.Admin.Auth, r)
}

// secure reports whether the browser sent a request through TLS, to this server or to a proxy at
// admin.public_url.
func (p *Page) secure(r *http.Request) bool {
	return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" || p.public.Scheme == "https" && p.public.Host == r.Host
}

func (p *Page) cookieName(r *http.Request) string {
	if p.secure(r) {
		return "__Host-" + p.sessions.cookie
	}
	return p.sessions.cookie
}

// loginData is what the page for the login shows.
type loginData struct {
	// Next is where the browser goes afterwards, relative to this page.
	Next string
	// Forms: the process has credentials. Otherwise there is only the link.
	Forms bool
	// Token is that of the login link, which a button uses up: a program that only looks at a link
	// does not.
	Token string
	// Asks: the terminal can get a new link. Told says what it got.
	Asks        bool
	Told, Wrong string
}

// demandLogin answers a request that needs a login.
func demandLogin(v *visit) {
	d := loginData{Next: home, Forms: v.Conf.Admin.Auth != nil, Asks: v.Tell != nil}
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

// loginPage shows the form, or the button of the login link.
func loginPage(v *visit) error {
	return v.show(http.StatusOK, "login", "Log in", &loginData{Next: home, Forms: v.Conf.Admin.Auth != nil, Token: v.r.Form.Get("token"), Asks: v.Tell != nil})
}

// askForLink writes a new login link to the terminal.
func askForLink(v *visit) error {
	if v.Tell == nil {
		return refuse(http.StatusForbidden, "this process has no terminal for a login link: set admin.auth")
	}
	link := v.LoginLink()
	if link == "" {
		return refuse(http.StatusTooManyRequests, "the last login link on the terminal is still valid: open it")
	}
	v.Tell(link)
	return v.show(http.StatusOK, "login", "Log in", &loginData{Told: "The terminal of the process has a new login link."})
}

// loginByLink logs the person at the terminal in.
func loginByLink(v *visit, secret string) error {
	if !v.sessions.useLink(secret, time.Now()) { // it is too long to be guessed, so no failure is counted
		return refuse(http.StatusForbidden, "this login link was used, or is that of another process: a link is valid once, for %s. Ask for a new one on the page for the login, or set admin.auth", schema.Duration(linkFor))
	}
	return enter(v, admin.Identity{Name: keyrecord.Actor(), Role: admin.Operator}, home)
}

// login checks the credentials of the form, or uses the login link.
func login(v *visit) error {
	switch form := v.r.PostForm; {
	case form.Get("token") != "":
		return loginByLink(v, form.Get("token"))
	case form.Get("ask") != "":
		return askForLink(v)
	}
	form := v.r.PostForm
	who, wait := v.Process.Tries.Known(v.Conf.Admin.Auth, form.Get("user"), form.Get("password"), admin.Address(v.r))
	if wait > 0 {
		v.w.Header().Set("Retry-After", admin.RetryAfter(wait))
		return haveToWait(wait)
	}
	if who.Role == admin.Nobody {
		return v.show(http.StatusUnauthorized, "login", "Log in", &loginData{Next: local(form.Get("next")), Forms: v.Conf.Admin.Auth != nil, Wrong: "The user name, the password or the token is wrong."})
	}
	return enter(v, who, local(form.Get("next")))
}

// enter starts a session.
func enter(v *visit, who admin.Identity, next string) error {
	http.SetCookie(v.w, &http.Cookie{
		Name: v.cookieName(v.r), Value: v.sessions.start(who, time.Now()), Path: "/",
		MaxAge: int(sessionFor / time.Second), HttpOnly: true, Secure: v.secure(v.r), SameSite: http.SameSiteStrictMode,
	})
	return v.redirect(next)
}

// logout ends the session.
func logout(v *visit) error {
	cookie, err := v.r.Cookie(v.cookieName(v.r))
	if errors.Is(err, http.ErrNoCookie) {
		return v.redirect(home)
	}
	v.sessions.end(cookie.Value)
	http.SetCookie(v.w, &http.Cookie{Name: v.cookieName(v.r), Path: "/", MaxAge: -1, HttpOnly: true, Secure: v.secure(v.r), SameSite: http.SameSiteStrictMode})
	return v.redirect(home)
}

// haveToWait refuses a login after too many failures.
func haveToWait(left time.Duration) error {
	return refuse(http.StatusTooManyRequests, "too many failed logins of this user from this address: try again in %s s", admin.RetryAfter(left))
}
