//go:build linux

// Package browser shows the page to a real browser: each page empty, full, without its store,
// and with hostile texts. It does so in light and dark, on a narrow screen, at 400 %, without
// JavaScript and below the path of a proxy. `make browser` runs it. It needs Debian's
// chromium-headless-shell and npm.
package browser

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/semel-dev/semel/test/programtest"
)

func TestMain(m *testing.M) { programtest.Main(m) }

// patience is how long a page may take on a busy machine.
const patience = time.Minute

// mostBytes is how large a page may be, with its style sheet and script.
const mostBytes = 100 << 10

// browser starts a browser that ends with the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	program, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Fatalf("%v: install it with apt-get install chromium-headless-shell", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox)
	all, stop := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(all)
	t.Cleanup(end)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// view is how a browser shows pages.
type view struct {
	name          string
	width, height int64
	zoom          float64
	dark, noJS    bool
}

var views = []view{
	{name: "light", width: 1280, height: 800, zoom: 1},
	{name: "dark", width: 1280, height: 800, zoom: 1, dark: true},
	{name: "narrow", width: 320, height: 640, zoom: 1},
	{name: "400 percent", width: 320, height: 200, zoom: 4}, // a window of 1,280 by 800 pixels
	{name: "without JavaScript", width: 1280, height: 800, zoom: 1, noJS: true},
}

// site is a server that shows the page, and the password of its operator.
type site struct {
	base     string // with a slash at its end
	password string // none: no user is logged in
}

// tab is a page of a browser, and what went wrong on it.
type tab struct {
	context.Context
	t    *testing.T
	site site

	mu     sync.Mutex // guards the fields below
	faults []string
	bytes  map[network.RequestID]float64
}

// open returns a new tab of a browser.
func (s site) open(t *testing.T, browser context.Context, v view) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(browser)
	t.Cleanup(end)
	b := &tab{Context: ctx, t: t, site: s, bytes: map[network.RequestID]float64{}}
	if err := chromedp.Listen(ctx, b.event); err != nil {
		t.Fatal(err)
	}
	scheme := "light"
	if v.dark {
		scheme = "dark"
	}
	headers := network.Headers{}
	if s.password != "" {
		headers["Authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte("ops:"+s.password))
	}
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: headers})
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: v.width, Height: v.height, DeviceScaleFactor: v.zoom})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: v.noJS})
	return b
}

// event notes what no page may do.
func (b *tab) event(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if to := e.Request.URL; !strings.HasPrefix(to, b.site.base) && !strings.HasPrefix(to, "data:") && to != "about:blank" {
			b.faults = append(b.faults, "it requests "+to)
		}
	case *network.EventLoadingFinished:
		b.bytes[e.RequestID] = e.EncodedDataLength
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, "its script failed: "+e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.faults = append(b.faults, fmt.Sprintf("the console has %s %s", e.Type, e.Args[0].Value))
		}
	case *log.EventEntryAdded:
		// The status of a page is no fault of it: a page says that a store is down.
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			b.faults = append(b.faults, "the browser complains: "+e.Entry.Text)
		}
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, patience)
	defer cancel()
	for i, action := range actions {
		if err := chromedp.Do(ctx, action); err != nil {
			b.t.Fatalf("step %d: %v", i+1, err)
		}
	}
}

// get returns the value of an action.
func get[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return value
}

// call sends a command to the browser.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, patience)
	defer cancel()
	if _, err := chromedp.Call(ctx, command, params); err != nil {
		b.t.Fatal(err)
	}
}

// load shows a page, and checks all that holds for every page.
func (b *tab) load(path string, v view) {
	b.t.Helper()
	b.mu.Lock()
	b.faults, b.bytes = nil, map[network.RequestID]float64{}
	b.mu.Unlock()
	b.do(chromedp.Navigate(b.site.base+path), chromedp.WaitReady("footer"))
	wide := get(b, chromedp.Evaluate[int](`document.documentElement.scrollWidth - document.documentElement.clientWidth`))
	b.mu.Lock()
	size := 0.0
	for _, n := range b.bytes {
		size += n
	}
	faults := b.faults
	b.mu.Unlock()
	if wide > 0 {
		faults = append(faults, fmt.Sprintf("it is %d pixels wider than the screen", wide))
	}
	if size > mostBytes {
		faults = append(faults, fmt.Sprintf("it has %.0f bytes, want at most %d", size, mostBytes))
	}
	if !v.noJS {
		faults = append(faults, b.axe()...)
	}
	for _, fault := range faults {
		b.t.Errorf("/%s, %s: %s", path, v.name, fault)
	}
}

var axeFile, _ = filepath.Abs(filepath.Join("node_modules", "axe-core", "axe.min.js"))

// axeCore is the source of axe-core, which npm has installed.
var axeCore = sync.OnceValues(func() (string, error) {
	source, err := os.ReadFile(axeFile)
	if errors.Is(err, os.ErrNotExist) {
		return "", errors.New("axe-core is not installed: run npm ci")
	}
	return string(source), err
})

// axe returns what axe-core finds on the page.
func (b *tab) axe() (findings []string) {
	b.t.Helper()
	source, err := axeCore()
	if err != nil {
		b.t.Fatal(err)
	}
	type finding struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}
	get(b, chromedp.Evaluate[int](source+"; 0"))
	found := get(b, chromedp.Evaluate[[]finding](
		`axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations)`,
		func(p *runtime.EvaluateParams) { p.AwaitPromise = new(true) },
	))
	for _, f := range found {
		for _, n := range f.Nodes {
			findings = append(findings, fmt.Sprintf("axe finds %s (%s): %s: %s", f.ID, f.Help, n.HTML, n.FailureSummary))
		}
	}
	return findings
}

// text returns the text of the page.
func (b *tab) text() string {
	b.t.Helper()
	return get(b, chromedp.Text("body"))
}

// below serves a site below a path, as a proxy does.
func below(t *testing.T, address, listen, path string) site {
	t.Helper()
	target, err := url.Parse("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.StripPrefix(path, proxy)}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return site{base: "http://" + listen + path + "/", password: password}
}

// links returns where the links of the page go, relative to the site.
func (b *tab) links() (list []string) {
	b.t.Helper()
	for _, link := range get(b, chromedp.Evaluate[[]string](`[...document.querySelectorAll("a[href]")].map((a) => a.href)`)) {
		path, inside := strings.CutPrefix(link, b.site.base)
		path, _, _ = strings.Cut(path, "#")
		if !inside {
			b.t.Errorf("a link leaves the site: %s", link)
			continue
		}
		list = append(list, path)
	}
	return list
}

// images is the folder of the pictures in the documents.
var images, _ = filepath.Abs(filepath.Join("..", "..", "docs", "images"))

// picture writes a screenshot of the tab, if -update is set.
func (b *tab) picture(name string, v view) {
	b.t.Helper()
	if !*update || v != views[0] {
		return
	}
	if err := os.WriteFile(filepath.Join(images, name), get(b, chromedp.FullScreenshot(100)), 0o644); err != nil {
		b.t.Fatal(err)
	}
}
