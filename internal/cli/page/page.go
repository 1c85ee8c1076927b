// Package page is the page for people on the admin server of a process. The server renders it,
// and it works without JavaScript. It decides who may see what; see DESIGN.md.
package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

//go:embed assets
var embedded embed.FS

// Options are the options of New. All fields are required, except for File.
type Options struct {
	App *term.App
	// File is the name of the configuration in command lines, or "" if flags describe it.
	File    string
	Conf    *config.File
	Process *admin.Process
	// At is the address that the server listens at.
	At net.Addr
}

// Page serves the page.
type Page struct {
	Options
	handler   http.Handler
	templates *template.Template
	assets    map[string]asset // by their paths
	prefix    string           // of the paths, below which a proxy shows the page
	secure    bool             // browsers reach it through TLS
	sessions  *sessions
	changing  sync.Mutex // held from the look at a record to its change

	parkedLists  lists[*parkedList]  // by pipeline
	unknownLists lists[*unknownList] // by store
	operations   operations

	statusMu sync.Mutex // guards status, and is held while it is asked for
	status   *admin.Status
	asked    time.Time
}

// asset is a file for the browser.
type asset struct {
	content []byte
	kind    string
}

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
	p := &Page{Options: *o, assets: map[string]asset{}, secure: o.Conf.Admin.TLS != nil, sessions: newSessions(o.At)}
	if public, err := url.Parse(o.Conf.Admin.PublicURL); err == nil && public.Host != "" {
		p.prefix = strings.TrimSuffix(public.Path, "/")
		p.secure = p.secure || public.Scheme == "https"
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
	p.templates = template.Must(template.New("").Funcs(p.functions(names)).ParseFS(embedded, "assets/*.html"))
	p.handler = p.routed()
	return p
}

// routes are all paths of the page, except for those of files.
func (p *Page) routes() []route {
	return []route{
		{"GET", "/{$}", admin.Viewer, true, (*visit).overview},
		{"GET", "/key", admin.Viewer, false, (*visit).keyPage},
		{"POST", "/key", admin.Viewer, false, (*visit).findKey},
		{"POST", "/change", admin.Operator, false, (*visit).changeKey},
		{"GET", "/unknown", admin.Viewer, false, (*visit).unknown},
		{"POST", "/preview-keys", admin.Operator, false, (*visit).previewKeys},
		{"POST", "/resolve", admin.Operator, false, (*visit).resolveKeys},
		{"GET", "/parked", admin.Viewer, false, (*visit).parked},
		{"GET", "/message", admin.Viewer, false, (*visit).messagePage},
		{"POST", "/message", admin.Operator, false, (*visit).messageBody},
		{"POST", "/preview", admin.Operator, false, (*visit).previewParked},
		{"POST", "/settle", admin.Operator, false, (*visit).settleParked},
		{"GET", "/pipeline", admin.Viewer, true, (*visit).pipelinePage},
		{"GET", "/store", admin.Viewer, true, (*visit).storePage},
		{"POST", "/store", admin.Operator, false, (*visit).doctor},
		{"GET", "/audit", admin.Viewer, false, (*visit).audit},
		{"GET", "/outcome", admin.Viewer, false, (*visit).outcomePage},
		{"GET", "/login", admin.Nobody, true, (*visit).loginPage},
		{"POST", "/login", admin.Nobody, true, (*visit).login},
		{"POST", "/logout", admin.Nobody, true, (*visit).logout},
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
		v := &visit{Page: p, w: w, r: r, who: p.identify(r)}
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

// visit is one request of a person.
type visit struct {
	*Page
	w   http.ResponseWriter
	r   *http.Request
	who admin.Identity
}

const (
	// mostForm limits the body of a request, which may have a pasted message.
	mostForm = 1 << 20
	// visitFor limits the time for a page.
	visitFor = 20 * time.Second
)

// serve answers a request, if its sender may send it.
func (p *Page) serve(r *route, w http.ResponseWriter, request *http.Request) {
	ctx, cancel := context.WithTimeout(request.Context(), visitFor)
	defer cancel()
	request = request.WithContext(ctx)
	request.Body = http.MaxBytesReader(w, request.Body, mostForm)
	v := &visit{Page: p, w: w, r: request, who: p.identify(request)}
	allowed := v.who.Role >= r.least || r.open && v.who.Role == admin.Nobody && p.Conf.Admin.Auth == nil
	switch {
	case !allowed && v.who.Role == admin.Nobody:
		v.demandLogin()
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

// statusError is an error with a status of HTTP.
type statusError struct {
	status int
	error
}

// Unwrap returns the error.
func (e *statusError) Unwrap() error { return e.error }

// refuse returns an error for a request that cannot be done as it is.
func refuse(status int, format string, args ...any) error {
	return &statusError{status, fmt.Errorf(format, args...)}
}

// view is what every page shows.
type view struct {
	Title string
	// Here is the path of the page in the menu.
	Here string
	Who  admin.Identity
	// Locked: the process has no credentials, and this person has not used its login link.
	Locked bool
	// Live: the script refreshes the page.
	Live bool
	// Of is the page itself.
	Of any
}

// show renders a page.
func (v *visit) show(status int, name, title string, of any) error {
	data := view{Title: title, Here: name, Who: v.who, Locked: v.Conf.Admin.Auth == nil && v.who.Role == admin.Nobody, Of: of}
	data.Live = v.r.Method == http.MethodGet && (name == "overview" || name == "pipeline" || name == "store" || name == "outcome")
	var page bytes.Buffer
	if err := v.templates.ExecuteTemplate(&page, name+".html", &data); err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(page.Bytes()) // a browser that disconnected needs no answer
	return nil
}

// fail shows an error.
func (v *visit) fail(status int, err error) {
	text := v.App.Redact(term.PlainText(term.JoinLines(err.Error())))
	if err := v.show(status, "error", http.StatusText(status), text); err != nil {
		http.Error(v.w, text, status)
	}
}

// redirect sends the browser to another page of this server, which is named relative to this one.
func (v *visit) redirect(to string) error {
	v.w.Header().Set("Location", to) // http.Redirect would make it absolute, without the prefix of a proxy
	v.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// home is the link from any page to the overview.
const home = "./"

// now returns the status of the process, which is at most statusAge old: many people may look.
func (p *Page) now(ctx context.Context) *admin.Status {
	p.statusMu.Lock()
	defer p.statusMu.Unlock()
	if p.status == nil || time.Since(p.asked) > statusAge {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusFor)
		defer cancel()
		p.status, p.asked = p.Process.Status(ctx), time.Now()
	}
	return p.status
}

const (
	statusAge = time.Second
	statusFor = 5 * time.Second
)

// functions are those of the templates.
func (p *Page) functions(names map[string]string) template.FuncMap {
	return template.FuncMap{
		"asset":   func(name string) string { return cmp.Or(names[name], name) },
		"count":   term.FormatCount,
		"count64": func(n int) string { return term.FormatCount(int64(n)) },
		"plural":  term.Plural,
		"text":    func(text string) string { return term.DisplayText(p.App.Redact(text)) },
		"line":    func(text string) string { return term.OneLine(p.App.Redact(text)) },
		"at":      term.DisplayTime,
		"iso":     term.JSONTime,
		"here":    func(page, here string) bool { return page == here },
	}
}

// For returns a function that makes the page of a process; see app.RunOptions. Without
// admin.auth, a person at a terminal gets a login link, which is written to to. Elsewhere it
// would be in a log.
func For(a *term.App, file string, conf *config.File, to io.Writer) func(*admin.Process, net.Addr) http.Handler {
	return func(process *admin.Process, at net.Addr) http.Handler {
		p := New(&Options{App: a, File: file, Conf: conf, Process: process, At: at})
		if a.Terminal && !a.Quiet && conf.Admin.Auth == nil {
			_, _ = fmt.Fprintf(to, "page: %s (this login link is valid once)\n", p.LoginLink()) // to stderr
		}
		return p
	}
}
