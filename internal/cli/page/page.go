// Package page is the page for people on the admin server of a process. The server renders it,
// and it works without JavaScript. It decides who may see what; see DESIGN.md.
package page

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

//go:embed assets
var embedded embed.FS

// route is a path of the page.
type route struct {
	method, path string
	least        admin.Role
	// open: it shows no key and no body, so that everybody may see it if the process has no
	// credentials.
	open   bool
	handle func(*visit) error
}

// New returns the page of a process.
func New(o *Options) *Page {
	p := &Page{Options: *o, assets: map[string]asset{}, sessions: newSessions(o.At), changing: make(chan struct{}, 1), searching: make(chan struct{}, 1)}
	if public, err := url.Parse(o.Conf.Admin.PublicURL); err == nil && public.Host != "" {
		p.prefix = strings.TrimSuffix(public.Path, "/")
		p.public = *public
	}
	names := map[string]string{}
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		content, err := fs.ReadFile(embedded, "assets/"+name)
		if err != nil {
			panic(err) // it is part of the program
		}
		sum := sha256.Sum256(content)
		stem, ending, _ := strings.Cut(name, ".")
		hashed := stem + "." + hex.EncodeToString(sum[:6]) + "." + ending
		names[name], p.assets["/"+hashed] = hashed, asset{content, kind}
	}
	var err error
	if p.templates, err = parseTemplates(embedded, "assets/*.html", p.functions(names)); err != nil {
		panic(err) // they are part of the program
	}
	p.handler = p.routed()
	return p
}

// routes are all paths of the page, except for those of files.
func (p *Page) routes() []route {
	return []route{
		{"GET", "/{$}", admin.Viewer, true, overviewPage},
		{"GET", "/key", admin.Viewer, false, keyPage},
		{"POST", "/key", admin.Viewer, false, findKey},
		{"POST", "/change", admin.Operator, false, changeKey},
		{"GET", "/unknown", admin.Viewer, false, unknownPage},
		{"POST", "/preview-keys", admin.Operator, false, previewKeys},
		{"POST", "/resolve", admin.Operator, false, resolveKeys},
		{"GET", "/parked", admin.Viewer, false, parkedPage},
		{"GET", "/message", admin.Viewer, false, messagePage},
		{"POST", "/message", admin.Operator, false, messageBody},
		{"POST", "/preview", admin.Operator, false, previewParked},
		{"POST", "/settle", admin.Operator, false, settleParked},
		{"GET", "/pipeline", admin.Viewer, true, pipelinePage},
		{"GET", "/store", admin.Viewer, true, storePage},
		{"POST", "/store", admin.Operator, false, doctorPage},
		{"GET", "/audit", admin.Viewer, false, auditPage},
		{"GET", "/outcome", admin.Viewer, false, outcomePage},
		{"GET", "/login", admin.Nobody, true, loginPage},
		{"POST", "/login", admin.Nobody, true, login},
		{"POST", "/logout", admin.Nobody, true, logout},
	}
}

// routed returns the handler of all paths.
func (p *Page) routed() http.Handler {
	mux := http.NewServeMux()
	for _, r := range p.routes() {
		mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, request *http.Request) { p.serve(&r, w, request) })
	}
	for path, a := range p.assets {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", a.kind)
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
			_, _ = w.Write(a.content) // a browser that disconnected needs no answer
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		who, _ := p.identify(r)
		v := &visit{Page: p, w: w, r: r, who: who}
		v.fail(http.StatusNotFound, errors.New("there is no such page"))
	})
	guard := http.NewCrossOriginProtection()
	if public, err := url.Parse(p.Conf.Admin.PublicURL); err == nil && public.Host != "" {
		if err := guard.AddTrustedOrigin(public.Scheme + "://" + public.Host); err != nil {
			panic(err) // the configuration was checked
		}
	}
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &visit{Page: p, w: w, r: r}
		v.fail(http.StatusForbidden, errors.New("this request comes from another web page: open the page itself, or set admin.public_url to the URL that you use"))
	}))
	return guard.Handler(mux)
}

// policy allows the page its own style sheet, script, images and forms, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP implements http.Handler. The caller has checked the Host.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	if rest, ok := strings.CutPrefix(r.URL.Path, p.prefix); ok && p.prefix != "" && (rest == "" || rest[0] == '/') {
		if rest == "" {
			header.Set("Location", p.prefix+"/") // links are relative
			w.WriteHeader(http.StatusMovedPermanently)
			return
		}
		http.StripPrefix(p.prefix, p.handler).ServeHTTP(w, r)
		return
	}
	p.handler.ServeHTTP(w, r)
}

const (
	// mostForm limits the body of a request, which may have a pasted message, or 500 keys of 2 KiB.
	mostForm = 2 << 20
	// visitFor limits the time for a page.
	visitFor = 20 * time.Second
)

// serve answers a request, if its sender may send it.
func (p *Page) serve(r *route, w http.ResponseWriter, request *http.Request) {
	ctx, cancel := context.WithTimeout(request.Context(), visitFor)
	defer cancel()
	request = request.WithContext(ctx)
	request.Body = http.MaxBytesReader(w, request.Body, mostForm)
	who, wait := p.identify(request)
	v := &visit{Page: p, w: w, r: request, who: who}
	allowed := v.who.Role >= r.least || r.open && v.who.Role == admin.Nobody && p.Conf.Admin.Auth == nil
	switch {
	case !allowed && wait > 0:
		w.Header().Set("Retry-After", admin.RetryAfter(wait))
		v.fail(http.StatusTooManyRequests, haveToWait(wait))
		return
	case !allowed && v.who.Role == admin.Nobody:
		demandLogin(v)
		return
	case !allowed:
		v.fail(http.StatusForbidden, fmt.Errorf("%s is a viewer, who changes nothing and sees no bodies: log in as an operator", v.who.Name))
		return
	}
	if err := request.ParseForm(); err != nil {
		v.fail(http.StatusBadRequest, fmt.Errorf("the form cannot be read: %w", err))
		return
	}
	if err := r.handle(v); err != nil {
		status := http.StatusInternalServerError
		if of, ok := errors.AsType[*statusError](err); ok {
			status = of.status
		}
		v.fail(status, err)
	}
}

// For returns a function that makes the page of a process; see app.RunOptions. Without
// admin.auth, a person at a terminal gets a login link, which is written to to. Elsewhere it
// would be in a log.
func For(a *term.App, file string, conf *config.File, to io.Writer) func(*admin.Process, net.Addr) http.Handler {
	return func(process *admin.Process, at net.Addr) http.Handler {
		o := &Options{App: a, File: file, Conf: conf, Process: process, At: at}
		if a.Terminal && !a.Quiet && conf.Admin.Auth == nil {
			o.Tell = func(link string) {
				_, _ = fmt.Fprintf(to, "page: %s (this login link is valid once, for 15 minutes)\n", link) // there is no other place to say that stderr is lost
			}
		}
		p := New(o)
		if o.Tell != nil {
			o.Tell(p.LoginLink())
		}
		return p
	}
}
