package page

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// Options are the options of New. All fields are required, except for File, Apart and Tell.
type Options struct {
	App *term.App
	// File is the name of the configuration in command lines, or "" if flags describe it.
	File    string
	Conf    *config.File
	Process *admin.Process
	// At is the address that the server listens at.
	At net.Addr
	// Apart: it is not the page at admin.public_url.
	Apart bool
	// Tell writes a login link to the terminal. It is nil without a terminal, or with credentials.
	Tell func(link string)
}

// Page serves the page.
type Page struct {
	Options
	handler   http.Handler
	templates *templates
	assets    map[string]asset // by their paths
	prefix    string           // of the paths, below which a proxy shows the page
	public    url.URL          // admin.public_url, or zero
	sessions  *sessions
	changing  chan struct{} // has an entry from the look at a record to its change
	searching chan struct{} // has an entry while sources and sinks are searched

	parkedLists  lists[*parkedList]  // by pipeline
	unknownLists lists[*unknownList] // by store
	operations   operations

	status    cached[*admin.Status]
	overviews rendered
}

// asset is a file for the browser.
type asset struct {
	content []byte
	kind    string
}

// visit is one request of a person.
type visit struct {
	*Page
	w   http.ResponseWriter
	r   *http.Request
	who admin.Identity
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

// show renders a page and answers with it.
func (v *visit) show(status int, name, title string, of any) error {
	page, err := v.render(name, title, of)
	if err == nil {
		v.answer(status, page)
	}
	return err
}

// answer answers with a page.
func (v *visit) answer(status int, page []byte) {
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(page) // a browser that disconnected needs no answer
}

// render renders a page.
func (v *visit) render(name, title string, of any) ([]byte, error) {
	data := view{Title: title, Here: name, Who: v.who, Locked: v.Conf.Admin.Auth == nil && v.who.Role == admin.Nobody, Of: of}
	data.Live = v.r.Method == http.MethodGet && (name == "overview" || name == "pipeline" || name == "store" || name == "outcome")
	if o, ok := of.(*outcomeData); ok {
		data.Live = data.Live && o.Waiting
	}
	var page bytes.Buffer
	err := v.templates.render(&page, name+".html", &data)
	return page.Bytes(), err
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

// now returns the status of the process: many people may look.
func (p *Page) now(ctx context.Context) *admin.Status {
	now, err := p.status.get(ctx, func(ctx context.Context) (*admin.Status, error) {
		ctx, cancel := context.WithTimeout(ctx, statusFor)
		defer cancel()
		return p.Process.Status(ctx), nil
	})
	if err != nil { // the browser went away
		return &admin.Status{Time: time.Now()}
	}
	return now
}

// statusFor limits the time for the status. The parts that have not answered by then are shown with
// their last answers.
const statusFor = 300 * time.Millisecond

// functions are those of the templates. Their arguments have the types that the templates give them.
func (p *Page) functions(names map[string]string) map[string]func(args []any) any {
	return map[string]func(args []any) any{
		"asset":  func(a []any) any { return names[a[0].(string)] },
		"count":  func(a []any) any { return term.FormatCount(int64(a[0].(int))) },
		"plural": func(a []any) any { return term.Plural(a[0].(int), a[1].(string)) },
		"at":     func(a []any) any { return term.DisplayTime(a[0].(time.Time)) },
		"iso":    func(a []any) any { return term.JSONTime(a[0].(time.Time)) },
		"set":    func(a []any) any { return !a[0].(time.Time).IsZero() },
		"text":   func(a []any) any { return term.DisplayText(p.App.Redact(fmt.Sprint(a[0]))) },
		"line":   func(a []any) any { return visible(p.App.Redact(fmt.Sprint(a[0]))) },
		"why":    func(a []any) any { m := a[0].(facts.Parked); return m.Why() },
		"since":  func(a []any) any { m := a[0].(facts.Parked); return m.Since() },
		"query":  func(a []any) any { return url.QueryEscape(fmt.Sprint(a[0])) },
		"same":   func(a []any) any { return a[0] == a[1] },
		"len":    func(a []any) any { return reflect.ValueOf(a[0]).Len() },
		"more":   func(a []any) any { return a[0].(int) > a[1].(int) },
		"not":    func(a []any) any { return !isTrue(a[0]) },
		"or":     func(a []any) any { return slices.ContainsFunc(a, isTrue) },
	}
}

// pipelines are those that the process runs.
func (v *visit) pipelines() (list []*config.Pipeline) {
	now := v.now(v.r.Context())
	for i := range now.Pipelines {
		if p, ok := v.Conf.Pipeline(now.Pipelines[i].Name); ok {
			list = append(list, p)
		}
	}
	return list
}

// stores are the names of the stores that the process has open.
func (v *visit) stores() (names []string) {
	now := v.now(v.r.Context())
	for i := range now.Stores {
		names = append(names, now.Stores[i].Name)
	}
	return names
}

// operates reports whether this person may change something.
func (v *visit) operates() bool { return v.who.Role >= admin.Operator }

// masked stands for what this person may not see.
const masked = "•••"

// failure returns the error of a message for this person. It may quote the answer of the target,
// and so a body, which a viewer does not see.
func (v *visit) failure(text string) string {
	if text != "" && !v.operates() {
		return masked
	}
	return v.App.Redact(term.PlainText(term.JoinLines(text)))
}

// alone waits until no other request is at work, and returns the function that ends the work.
func alone(ctx context.Context, at chan struct{}, what string) (end func(), err error) {
	select {
	case at <- struct{}{}:
		return func() { <-at }, nil
	case <-ctx.Done():
		return nil, refuse(http.StatusConflict, "another person's %s is under way: wait for its end. Nothing was changed", what)
	}
}

const (
	// mostChanged limits the messages or keys that one request changes.
	mostChanged = 500
	// mostReason limits the reason of a change.
	mostReason = 1000
)

// by returns who makes a change, and why.
func (v *visit) by() (keyrecord.By, error) {
	reason := strings.TrimSpace(v.r.PostForm.Get("reason"))
	switch {
	case reason == "":
		return keyrecord.By{}, refuse(http.StatusUnprocessableEntity, "the reason is missing: say why, for the audit log. Nothing was changed")
	case len(reason) > mostReason:
		return keyrecord.By{}, refuse(http.StatusUnprocessableEntity, "the reason is longer than %d bytes. Nothing was changed", mostReason)
	}
	return keyrecord.By{Actor: v.who.Name, Reason: reason}, nil
}

// silent returns why a store is not asked now, or nil.
func (v *visit) silent(store string) error {
	if err := facts.Silent(v.now(v.r.Context()), store); err != nil {
		return &statusError{http.StatusServiceUnavailable, err}
	}
	return nil
}

// onStore opens a store for changes by hand.
func (v *visit) onStore(name string, use func(*facts.Hands) error) error {
	if _, ok := v.Conf.Store(name); !ok {
		return refuse(http.StatusNotFound, "there is no store %q", name)
	}
	if err := v.silent(name); err != nil {
		return err
	}
	var wrong term.Problems
	f := &open.StoreFlags{App: v.App, File: v.File, Conf: v.Conf, Name: name, Process: v.Process}
	if f.Check(&wrong); len(wrong) > 0 {
		return refuse(http.StatusNotFound, "%s", strings.Join(wrong, "; "))
	}
	return f.WithStore(v.r.Context(), func(store semel.Store) error {
		by, err := facts.HandsOn(f, store)
		if err != nil {
			return err
		}
		return use(by)
	})
}

// pipelineOf returns the pipeline with a name.
func (v *visit) pipelineOf(name string) (*config.Pipeline, error) {
	p, ok := v.Conf.Pipeline(name)
	if !ok {
		return nil, refuse(http.StatusNotFound, "there is no pipeline %q: %s", name, schema.OneOf(name, v.Conf.PipelineNames()))
	}
	return p, nil
}

// visible escapes the characters of a text that do not show, or that change the direction of the text
// around them.
func visible(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return !term.Shows(r) }) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if term.Shows(r) {
			out.WriteRune(r)
		} else {
			out.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return out.String()
}
