package uicmd_test

import (
	"bytes"
	"context"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/programtest"
)

// serve runs semel ui and returns the login link that it prints.
func serve(t *testing.T, args ...string) (link string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log := &programtest.Log{Lines: make(chan string, 1000)}
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Main(ctx, kind.All(), append([]string{"ui"}, args...), strings.NewReader(""), &bytes.Buffer{}, log, programtest.NoEnv)
		close(log.Lines)
	}()
	t.Cleanup(func() {
		cancel()
		if status := <-ended; status != term.ExitDone {
			t.Errorf("exit status %d: %s", status, log.Text())
		}
	})
	for line := range log.Lines {
		if found := regexp.MustCompile(`http://\S+`).FindString(line); found != "" {
			return found
		}
	}
	t.Fatal(log.Text())
	return ""
}

// TestUIShowsAndSettlesTheKeysOfASharedStore opens the page of a database that no process of semel run
// uses, by its login link.
func TestUIShowsAndSettlesTheKeysOfASharedStore(t *testing.T) {
	t.Parallel()
	dir, database := t.TempDir(), programtest.NewDatabase(t, false)
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
admin: { listen: off }
stores: { db: { postgres: { dsn: "`+database+`", keep_ids: true } } }
pipelines:
  orders: { source: { file: { paths: [in] } }, key: { id: .id }, window: 7d, store: db, sink: { file: { path: out } }, parked: { path: `+dir+`/parked } }
  far: { source: { file: { paths: [in] } }, key: { id: .id, scope: far }, window: 7d, store: db, sink: { file: { path: out2 } }, parked: { path: `+dir+`/elsewhere } }
`)
	conf, err := kind.All().Read(file, programtest.NoEnv)
	if err != nil {
		t.Fatal(err)
	}
	programtest.Run(t, "", "migrate", "up", "--config", file, "-q").Check(t, term.ExitDone)
	store, opened, err := app.OpenStore(t.Context(), conf, "db", nil)
	if err != nil {
		t.Fatal(err)
	}
	key := semel.Key{Scope: "orders", ID: "order-<41>"}
	answers, errs := make([]semel.ClaimAnswer, 1), make([]error, 1)
	if err := store.Claim(t.Context(), []semel.ClaimRequest{{Key: key, Owner: semel.Owner{Name: "w", Nonce: 1}, Lease: time.Minute, Window: semel.Forever, Hold: true}}, answers); err != nil || answers[0].Err != nil {
		t.Fatal(err, answers[0].Err)
	}
	if err := store.Release(t.Context(), []semel.ReleaseRequest{{Key: key, Token: answers[0].Claim.Token, Unknown: true}}, errs); err != nil || errs[0] != nil {
		t.Fatal(err, errs[0])
	}
	letters, err := pipeline.OpenDeadLetterDir(filepath.Join(dir, "parked"))
	if err != nil {
		t.Fatal(err)
	}
	if err := letters.Park(t.Context(), []pipeline.Parked{{ID: "one", Pipeline: "orders", Key: key, Reason: pipeline.ReasonUnknown, At: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	link := serve(t, file, "--listen", "127.0.0.1:0")
	base, _, _ := strings.Cut(link, "/login")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	page := func(response *http.Response, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v: %s", response.Status, err, text)
		}
		return string(text)
	}
	has := func(text string, words ...string) {
		t.Helper()
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("the page lacks %q: %s", word, text)
			}
		}
	}
	if text := page(http.Get(base + "/")); strings.Contains(text, "order-") {
		t.Errorf("a person who is not logged in sees a key: %s", text)
	}
	_, token, _ := strings.Cut(link, "token=")
	has(page(browser.Get(link)), "Log in")
	overview := []string{"not seen", "store db has 1 unknown key", "no process that runs orders answered: the file has no admin server", "no process that runs far answered"}
	first := page(browser.PostForm(base+"/login", url.Values{"token": {token}}))
	// The page does not wait long for a count.
	for late := time.Now().Add(time.Minute); !programtest.ContainsAll(first, overview) && time.Now().Before(late); <-time.After(100 * time.Millisecond) {
		first = page(browser.Get(base + "/"))
	}
	has(first, overview...)
	has(page(browser.Get(base+"/parked")), "order-&lt;41&gt;", "the parked messages of far cannot be read: this machine has no directory "+dir+"/elsewhere")
	has(page(browser.Get(base+"/parked?pipeline=far")), "No message is parked that passes this filter, as far as this page could read")
	list := page(browser.Get(base + "/unknown"))
	has(list, "order-&lt;41&gt;", "scope orders")
	found := regexp.MustCompile(`name="pick" value="([^"]*)"`).FindStringSubmatch(list)
	if found == nil {
		t.Fatal(list)
	}
	form := url.Values{"pick": {html.UnescapeString(found[1])}, "do": {"done"}, "reason": {"it is in the list"}}
	has(page(browser.PostForm(base+"/resolve", form)), "1 resolved as done", "1 parked message of orders: the key is settled")
	records := make([]semel.Record, 1)
	looker, _ := semel.As[semel.Inspector](store)
	if err := looker.Look(t.Context(), []semel.Key{key}, records); err != nil || records[0].State != semel.Done {
		t.Errorf("%v: %+v", err, records[0])
	}
	has(page(browser.Get(base+"/audit")), "it is in the list", "unknown → done")
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestUIRefusesWhatItCannotServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	embedded := programtest.WriteFile(t, filepath.Join(dir, "a.yaml"), "stores: { s: { embedded: { path: "+dir+"/s } } }\npipelines:\n  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: s, sink: { file: { path: out } } }\n")
	programtest.Run(t, "", "ui", embedded).Check(t, term.ExitUsage, "it names no store that several processes can use: start its pipelines with semel run")
	shared := programtest.WriteFile(t, filepath.Join(dir, "b.yaml"), "stores: { s: { redis: { url: \"redis://127.0.0.1:1\" } } }\npipelines:\n  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: s, sink: { file: { path: out } } }\n")
	programtest.Run(t, "", "ui", shared, "--listen", "0.0.0.0:0").Check(t, term.ExitUsage, "can be reached from other machines, and admin.auth is missing")
	programtest.Run(t, "", "ui", shared, "--listen", "off").Check(t, term.ExitUsage, "--listen off: the page needs an address")
	programtest.Run(t, "", "ui").Check(t, term.ExitUsage, "FILE is missing")
}
