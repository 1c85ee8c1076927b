//go:build linux

package browser

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// update makes the pictures of the documents again.
var update = flag.Bool("update", false, "write the pictures in docs/images")

const password = "of-the-test"

// hostile are ids that a careless page would run, or that would leave their place in it.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `javascript:alert(1)`,
	"\x1b[2J\u202egnp.<i>", strings.Repeat("very-long-", 40), "a\tb\nc<s>",
}

// settings is the configuration of a pipeline from a file to a file, with a store below dir.
const settings = `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  orders: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id, scope: orders }, store: keys, sink: { file: { path: out.jsonl } }, parked: { path: parked } }
admin: { listen: "127.0.0.1:0", PUBLIC auth: { username: ops, password: "` + password + `" } }
`

// setUp writes a configuration, its store with unknown keys, and its parked messages.
func setUp(t *testing.T, public, input string, unknown, parked []string, more func(store *logstore.Store)) (file string) {
	t.Helper()
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), input)
	store, err := logstore.Open(filepath.Join(dir, "keys"), &logstore.Options{Fsync: logstore.Never, KeepIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range unknown {
		claim(t, store, semel.Key{Scope: "orders", ID: id}, true)
	}
	if more != nil {
		more(store)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	letters, err := pipeline.OpenDeadLetterDir(filepath.Join(dir, "parked"))
	if err != nil {
		t.Fatal(err)
	}
	var list []pipeline.Parked
	for i, id := range parked {
		list = append(list, pipeline.Parked{
			ID: fmt.Sprintf("%024x", i+1), Pipeline: "orders", Key: semel.Key{Scope: "orders", ID: id}, Reason: "permanent",
			Error: "the target refused it: " + id, Attempts: 1, At: time.Now().Add(-time.Hour),
			Message: semel.Message{Body: fmt.Appendf(nil, `{"id":%q}`, id), Headers: []semel.Header{{Name: "Trace", Value: []byte(id)}}},
		})
	}
	if len(list) > 0 {
		if err := letters.Park(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	return programtest.WriteFile(t, filepath.Join(dir, "semel.yaml"), strings.Replace(settings, "PUBLIC", public, 1))
}

// claim claims a key, and leaves its outcome unknown.
func claim(t *testing.T, store *logstore.Store, key semel.Key, unknown bool) {
	t.Helper()
	owner := semel.Owner{Name: "worker-7", Nonce: uint64(time.Now().UnixNano())}
	answers := make([]semel.ClaimAnswer, 1)
	request := []semel.ClaimRequest{{Key: key, Owner: owner, Lease: time.Hour, Window: semel.Forever, Hold: true, Done: !unknown}}
	if err := store.Claim(t.Context(), request, answers); err != nil || answers[0].Decision != semel.Fresh {
		t.Fatalf("claim %s: %v, %+v", key, err, answers[0])
	}
	if !unknown {
		return
	}
	failed := make([]error, 1)
	release := []semel.ReleaseRequest{{Key: key, Token: answers[0].Claim.Token, Unknown: true}}
	if err := store.Release(t.Context(), release, failed); err != nil || failed[0] != nil {
		t.Fatal(err, failed[0])
	}
}

func numbered(name string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("%s-%d", name, i+1))
	}
	return list
}

// serve runs a configuration and returns its site.
func serve(t *testing.T, file string) site {
	t.Helper()
	r := programtest.StartRun(t, file)
	r.Line("msg=running")
	return site{base: "http://" + r.Address + "/", password: password}
}

// crawl loads the site's first page, and one page of each kind that the links name, in all views.
func crawl(t *testing.T, s site) {
	t.Helper()
	chrome := browser(t)
	b := s.open(t, chrome, views[0])
	seen := map[string]bool{}
	var paths []string
	for next := []string{"", "login"}; len(next) > 0; next = next[1:] {
		if kind := kindOf(next[0]); !seen[kind] {
			seen[kind] = true
			paths = append(paths, next[0])
			b.load(next[0], views[0])
			next = append(next, b.links()...)
		}
	}
	if len(paths) < 8 {
		t.Errorf("the links of the page lead to %q alone", paths)
	}
	for _, v := range views[1:] {
		b := s.open(t, chrome, v)
		for _, path := range paths {
			b.load(path, v)
		}
	}
}

// kindOf returns the page of a path, and the names of its parameters.
func kindOf(path string) string {
	page, query, _ := strings.Cut(path, "?")
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		page += " " + name
	}
	return strings.TrimSuffix(page, " ")
}

// TestEveryPageIsFitToRead shows all pages of sites in different states.
func TestEveryPageIsFitToRead(t *testing.T) {
	t.Run("empty", func(t *testing.T) {
		crawl(t, serve(t, setUp(t, "", "", nil, nil, nil)))
	})
	t.Run("full", func(t *testing.T) {
		var input strings.Builder
		for _, id := range numbered("order", 300) {
			fmt.Fprintf(&input, `{"id":%q}`+"\n", id)
		}
		crawl(t, serve(t, setUp(t, "", input.String(), numbered("order", 8), numbered("refused", 120), nil)))
	})
	t.Run("hostile", func(t *testing.T) {
		crawl(t, serve(t, setUp(t, "", "", hostile, hostile, nil)))
	})
	t.Run("nobody is logged in", func(t *testing.T) {
		s := serve(t, setUp(t, "", "", numbered("order", 8), numbered("refused", 12), nil))
		s.password = ""
		b := s.open(t, browser(t), views[0])
		for _, path := range []string{"", "login", "key", "unknown", "parked", "audit"} {
			b.load(path, views[0])
			if text := b.text(); strings.Contains(text, "order-1") || strings.Contains(text, "refused-1") {
				t.Errorf("/%s shows keys without a login:\n%s", path, text)
			}
		}
	})
	t.Run("below a path", func(t *testing.T) {
		listen := servicestest.FreeAddr(t)
		file := setUp(t, `public_url: "http://`+listen+`/ops/semel",`, "", numbered("order", 8), numbered("refused", 12), nil)
		r := programtest.StartRun(t, file)
		r.Line("msg=running")
		crawl(t, below(t, r.Address, listen, "/ops/semel"))
	})
	t.Run("the store is down", func(t *testing.T) {
		redis := servicestest.StartRedis(t, &services.RedisOptions{})
		dir := t.TempDir()
		programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "")
		text := strings.Replace(strings.Replace(settings, "embedded: { path: keys }", `redis: { url: "redis://`+redis.Addr()+`" }`, 1), "PUBLIC", "", 1)
		s := serve(t, programtest.WriteFile(t, filepath.Join(dir, "semel.yaml"), text))
		if err := redis.Kill(); err != nil {
			t.Fatal(err)
		}
		crawl(t, s)
	})
	t.Run("a million keys", func(t *testing.T) {
		s := serve(t, setUp(t, "", "", numbered("order", 200), numbered("refused", 10_000), fill))
		crawl(t, s)
	})
}

// fill completes a million keys.
func fill(store *logstore.Store) {
	owner := semel.Owner{Name: "worker-7", Nonce: 1}
	answers := make([]semel.ClaimAnswer, 10_000)
	requests := make([]semel.ClaimRequest, len(answers))
	for first := 0; first < 1_000_000; first += len(requests) {
		for i := range requests {
			requests[i] = semel.ClaimRequest{
				Key: semel.Key{Scope: "orders", ID: fmt.Sprintf("old-%d", first+i)}, Owner: owner, Lease: time.Hour, Window: semel.Forever, Done: true,
			}
		}
		if err := store.Claim(context.Background(), requests, answers); err != nil {
			panic(err)
		}
	}
}

// TestAPersonSettlesUnknownKeysAndParkedMessages clicks as a person does, with JavaScript and
// without.
func TestAPersonSettlesUnknownKeysAndParkedMessages(t *testing.T) {
	for _, v := range []view{views[0], views[4]} {
		t.Run(v.name, func(t *testing.T) {
			var input strings.Builder
			for _, id := range numbered("paid", 300) {
				fmt.Fprintf(&input, `{"id":%q}`+"\n", id)
			}
			file := setUp(t, "", input.String(), numbered("order", 8), numbered("refused", 12), nil)
			t.Chdir(filepath.Dir(file)) // the page shows the name as the process got it
			b := serve(t, filepath.Base(file)).open(t, browser(t), v)
			b.load("", v)
			b.picture("overview.png", v)
			b.load("unknown", v)
			b.do(chromedp.Click(`main li a`), chromedp.WaitReady("footer"))
			b.picture("key.png", v)
			b.load("unknown", v)
			b.settle(`input[name=do][value=absent]`)
			b.load("parked", v)
			b.settle(`input[name=do][value=retry]`)
			b.load("", v)
			if text := b.text(); strings.Contains(text, "8 unknown") {
				t.Errorf("the page still says 8 unknown:\n%s", text)
			}
			for until := time.Now().Add(3 * time.Minute); strings.Contains(b.text(), "12 parked"); b.load("", v) { // they are being tried again
				if time.Now().After(until) {
					t.Fatalf("the page still says 12 parked:\n%s", b.text())
				}
			}
			audit, err := os.ReadFile(filepath.Join(filepath.Dir(file), "keys", logstore.AuditName))
			if n := strings.Count(string(audit), "by a test"); err != nil || n < 8 {
				t.Errorf("the audit log has the reason %d times, want 8 or more: %v", n, err)
			}
		})
	}
}

// settle settles all that a list shows: a choice, the preview with a count, and a reason.
func (b *tab) settle(choice string) {
	b.t.Helper()
	b.do(
		chromedp.Click(choice), chromedp.Click(`input[name=all]`), chromedp.Click(`main form[action^=preview] p button`),
		chromedp.WaitVisible(`input[name=reason]`), chromedp.SendKeys(`input[name=reason]`, "seen by a test"),
		chromedp.Click(`main form.stack button`), chromedp.WaitNotPresent(`input[name=reason]`), chromedp.WaitReady("footer"),
	)
}
