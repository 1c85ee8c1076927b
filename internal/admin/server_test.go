package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// letters are parked messages in memory.
type letters struct {
	pipeline.DeadLetters
	list []*pipeline.Parked
}

func (l letters) List(_ context.Context, _ string, fn func(*pipeline.Parked) bool) error {
	for _, m := range l.list {
		if !fn(m) {
			return nil
		}
	}
	return nil
}

func (l letters) Get(_ context.Context, id string) (*pipeline.Parked, error) {
	for _, m := range l.list {
		if m.ID == id {
			return m, nil
		}
	}
	return nil, pipeline.ErrNotParked
}

func (l letters) Close() error { return nil }

// process is a process with a store and two parked messages of pipeline p.
func process(t *testing.T) (*Process, *logstore.Store) {
	t.Helper()
	store, err := logstore.Open(t.TempDir(), &logstore.Options{KeepIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Process{
		Ready:   func(context.Context) []Readiness { return []Readiness{{Name: "store s"}} },
		Status:  func(context.Context) *Status { return &Status{} },
		Metrics: http.NotFoundHandler(),
		Store: func(name string) (semel.Store, error) {
			if name != "s" {
				return nil, fmt.Errorf("there is no store %s: %w", name, semel.ErrInvalidRequest)
			}
			return store, nil
		},
		Parked: func(_ context.Context, name string) (pipeline.DeadLetters, bool, error) {
			return letters{list: []*pipeline.Parked{{ID: "1", Error: "secret1 refused"}, {ID: "2"}}}, name == "p", nil
		},
		Journal: NewJournal(),
		Redact:  func(text string) string { return strings.ReplaceAll(text, "secret1", "[hidden]") },
	}, store
}

// started starts the admin server of a process, and returns its URL.
func started(t *testing.T, p *Process, conf *config.Admin) (url string) {
	t.Helper()
	listener, err := Listen("127.0.0.1:0", conf, false)
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(p, listener.Addr().String(), conf)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

func client(t *testing.T, url string, authorize func(*http.Request)) *Client {
	c := NewClient(url, &http.Transport{}, authorize)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAddressesOfTheAdminServerAreChecked(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for _, c := range []struct {
		address  string
		conf     config.Admin
		insecure bool
		want     string // "" if it listens
	}{
		{Off, config.Admin{}, false, ""},
		{"127.0.0.1:0", config.Admin{}, false, ""},
		{"localhost:0", config.Admin{}, false, ""},
		{"0.0.0.0:0", config.Admin{Auth: &config.Auth{Token: schema.NewSecret("t")}}, false, ""},
		{"0.0.0.0:0", config.Admin{}, true, ""},
		{"4195", config.Admin{}, false, "admin address 4195: write 127.0.0.1:4195, or off"},
		{"here", config.Admin{}, false, "admin address here: write it like 127.0.0.1:4195, or off"},
		{"0.0.0.0:0", config.Admin{}, false, "admin address 0.0.0.0:0 can be reached from other machines, and admin.auth is missing: write admin.auth, listen on 127.0.0.1, or pass --insecure-no-auth"},
		{"[::]:0", config.Admin{}, false, "admin address [::]:0 can be reached from other machines"},
		{taken.Addr().String(), config.Admin{}, false, "is it that of another semel run? write another one with --admin ADDRESS"},
		{"127.0.0.1:0", config.Admin{TLS: &config.ServerTLS{Certificate: "none.pem"}}, false, "admin: tls: open none.pem: no such file or directory"},
	} {
		listener, err := Listen(c.address, &c.conf, c.insecure)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.address, err, c.want)
		}
		if (listener == nil) != (c.want != "" || c.address == Off) {
			t.Errorf("%s: listens %v", c.address, listener != nil)
		}
		if listener != nil {
			_ = listener.Close()
		}
	}
}

// TestEveryClientGetsProbesAndOnlyKnownOnesGetKeys has clients with a password, with a token,
// and without credentials, at servers with and without admin.auth.
func TestEveryClientGetsProbesAndOnlyKnownOnesGetKeys(t *testing.T) {
	t.Parallel()
	p, _ := process(t)
	auth := &config.Auth{Username: "u", Password: schema.NewSecret("secret1"), Token: schema.NewSecret("secret2")}
	basic := func(r *http.Request) { r.SetBasicAuth("u", "secret1") }
	bearer := func(r *http.Request) { r.Header.Set("Authorization", "Bearer secret2") }
	wrong := func(r *http.Request) { r.SetBasicAuth("u", "secret2") }
	for _, c := range []struct {
		name      string
		auth      *config.Auth
		authorize func(*http.Request)
		keys      string // why it gets no keys, or ""
		status    string // why it gets no status, or ""
	}{
		{"a password", auth, basic, "", ""},
		{"a token", auth, bearer, "", ""},
		{"a wrong password", auth, wrong, "refuses the credentials", "refuses the credentials"},
		{"no credentials", auth, nil, "refuses the credentials", "refuses the credentials"},
		{"no admin.auth", nil, nil, "refuses: this request needs credentials: set admin.auth", ""},
	} {
		url := started(t, p, &config.Admin{Auth: c.auth})
		of := client(t, url, c.authorize)
		if of.Name() != url {
			t.Errorf("its name is %s", of.Name())
		}
		counts, err := of.Store("s").Count(t.Context())
		if (err == nil) != (c.keys == "") || err != nil && !strings.Contains(err.Error(), c.keys) {
			t.Errorf("%s: %+v, %v; want %q", c.name, counts, err, c.keys)
		}
		var status Status
		if err := of.Get(t.Context(), StatusPath, &status); (err == nil) != (c.status == "") || err != nil && !strings.Contains(err.Error(), c.status) {
			t.Errorf("%s: %v; want %q", c.name, err, c.status)
		}
		var journal KeyJournal
		if err := of.Get(t.Context(), JournalPath+"?id=1", &journal); c.auth == nil && (err == nil || !strings.Contains(err.Error(), "refuses: the process shows keys only to clients with credentials, and admin.auth is not set in its configuration")) {
			t.Errorf("%s: %v", c.name, err)
		}
		alive, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/livez", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(alive)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: /livez answers %d", c.name, answer.StatusCode)
		}
	}
}

func TestReadinessNamesThePartsThatCannotWork(t *testing.T) {
	t.Parallel()
	p, _ := process(t)
	p.Ready = func(context.Context) []Readiness {
		return []Readiness{{Name: "store s"}, {Name: "pipeline p", Why: "no broker answers"}}
	}
	err := client(t, started(t, p, &config.Admin{}), nil).Get(t.Context(), "/readyz", nil)
	if err == nil || !strings.Contains(err.Error(), "/readyz answers 503 Service Unavailable") {
		t.Errorf("%v", err)
	}
}

func TestAdminClientReportsAForeignServer(t *testing.T) {
	t.Parallel()
	p, _ := process(t)
	p.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answerText(w, http.StatusOK, "metrics") })
	url := started(t, p, &config.Admin{})
	of := client(t, url, nil)
	var status Status
	if err := of.Get(t.Context(), "/metrics", &status); err == nil || !strings.Contains(err.Error(), "/metrics gives no status: ") || !strings.HasSuffix(err.Error(), "is this the admin server of semel run, of this version?") {
		t.Errorf("%v", err)
	}
	other := client(t, url, func(r *http.Request) { r.Host = "evil.example" })
	if err := other.Get(t.Context(), StatusPath, &status); err == nil || !strings.Contains(err.Error(), "refuses this host: name the server's address, or set admin.public_url") {
		t.Errorf("%v", err)
	}
	address := "http://" + servicestest.FreeAddr(t)
	none := new(NoAnswerError)
	err := client(t, address, nil).Get(t.Context(), StatusPath, &status)
	if !errors.As(err, &none) || !strings.HasPrefix(err.Error(), address+StatusPath+" does not answer: ") || errors.Unwrap(none) == nil {
		t.Errorf("%v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := of.Get(ended, StatusPath, &status); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ended: %v", err)
	}
}

// authorizedClient returns a client with credentials for the admin server of a process.
func authorizedClient(t *testing.T, p *Process) *Client {
	t.Helper()
	url := started(t, p, &config.Admin{Auth: &config.Auth{Token: schema.NewSecret("t")}})
	return client(t, url, func(r *http.Request) { r.Header.Set("Authorization", "Bearer t") })
}

func TestParkedMessagesAreReadWithoutSecrets(t *testing.T) {
	t.Parallel()
	p, _ := process(t)
	of := authorizedClient(t, p)
	parked := of.Parked("p")
	var ids []string
	if err := parked.List(t.Context(), "p", func(m *pipeline.Parked) bool {
		ids = append(ids, m.ID+" "+m.Error)
		return true
	}); err != nil || !slices.Equal(ids, []string{"1 [hidden] refused", "2 "}) {
		t.Errorf("%q, %v", ids, err)
	}
	if m, err := parked.Get(t.Context(), "1"); err != nil || m.ID != "1" || m.Error != "[hidden] refused" {
		t.Errorf("%+v, %v", m, err)
	}
	for _, id := range []string{"9", ""} {
		if m, err := parked.Get(t.Context(), id); !errors.Is(err, pipeline.ErrNotParked) {
			t.Errorf("%q: %+v, %v", id, m, err)
		}
	}
	none := of.Parked("q")
	if _, err := none.Get(t.Context(), "1"); !errors.Is(err, pipeline.ErrNotParked) {
		t.Errorf("a pipeline without parked messages: %v", err)
	}
	if err := none.List(t.Context(), "q", func(*pipeline.Parked) bool { t.Error("a message"); return true }); err != nil {
		t.Error(err)
	}
	if err := parked.Settle(t.Context(), nil, pipeline.Settlement{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("settle: %v", err)
	}
}

func TestScopesAndTheirRulesAreRead(t *testing.T) {
	t.Parallel()
	p, store := process(t)
	if _, err := store.BindScope(t.Context(), "orders", ".id"); err != nil {
		t.Fatal(err)
	}
	of := authorizedClient(t, p).Store("s")
	for scope, want := range map[string]string{"orders": ".id", "none": ""} {
		if bound, err := of.BindScope(t.Context(), scope, ""); err != nil || bound != want {
			t.Errorf("%s is bound to %q, %v; want %q", scope, bound, err, want)
		}
	}
	if scopes, err := of.BoundScopes(t.Context()); err != nil || !slices.Equal(scopes, []string{"orders"}) {
		t.Errorf("%q, %v", scopes, err)
	}
	if _, err := of.BindScope(t.Context(), "orders", ".other"); err == nil {
		t.Error("a scope was bound through the admin server")
	}
	if of.Traits() != (semel.Traits{}) {
		t.Errorf("%+v", of.Traits())
	}
	for name, err := range map[string]error{
		"complete": of.Complete(t.Context(), nil, nil), "release": of.Release(t.Context(), nil, nil), "extend": of.Extend(t.Context(), nil, nil),
	} {
		if err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
	if _, err := authorizedClient(t, p).Store("none").Count(t.Context()); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "there is no store none") {
		t.Errorf("%v", err)
	}
}

func TestTheJournalOfKeysIsRead(t *testing.T) {
	t.Parallel()
	p, _ := process(t)
	it := delivery("7", 1)
	it.Call.Key.ID = string(key.AppendString(nil, "7")) // as a JSON text has it
	p.Journal.Observer("p").ObservePipeline(decidedEvent(semel.Duplicate, it))
	of := authorizedClient(t, p)
	all, err := of.Store("s").Journal(t.Context(), []semel.Key{it.Call.Key, {Scope: "none", ID: "x"}})
	if err != nil || len(all.Entries) != 1 || all.Entries[0].Pipeline != "p" || time.Since(all.Since) > time.Minute {
		t.Errorf("%+v, %v", all, err)
	}
	var one KeyJournal
	if err := of.Get(t.Context(), JournalPath+"?scope=s", &one); err == nil || !strings.Contains(err.Error(), "400 Bad Request") {
		t.Errorf("without an id: %v", err)
	}
	if err := of.Get(t.Context(), JournalPath+"?scope=s&id=7", &one); err != nil || len(one.Entries) != 1 {
		t.Errorf("%+v, %v", one, err)
	}
}

// TestAViewerReadsAndAsksNothing has the credentials of a viewer.
func TestAViewerReadsAndAsksNothing(t *testing.T) {
	t.Parallel()
	p, _ := process(t)
	p.Metrics, p.Ready, p.Status = http.NotFoundHandler(), func(context.Context) []Readiness { return nil }, func(context.Context) *Status { return &Status{} }
	conf := &config.Admin{Auth: &config.Auth{Token: schema.NewSecret("t-1"), Viewer: &config.Auth{Username: "eve", Password: schema.NewSecret("p-1")}}}
	handler := NewServer(p, DefaultAddress, conf).Handler
	for _, c := range []struct {
		method, path, user, password string
		want                         int
	}{
		{"GET", StatusPath, "eve", "p-1", http.StatusOK},
		{"GET", StatusPath, "eve", "t-1", http.StatusUnauthorized},
		{"GET", StatusPath, "", "p-1", http.StatusUnauthorized},
		{"GET", "/livez", "", "", http.StatusOK},
		{"POST", QuestionPath, "eve", "p-1", http.StatusForbidden},
		{"GET", "/nowhere", "eve", "p-1", http.StatusNotFound},
	} {
		r := httptest.NewRequest(c.method, "http://127.0.0.1:4195"+c.path, strings.NewReader("{}"))
		r.SetBasicAuth(c.user, c.password)
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%s %s as %s: %d, want %d: %s", c.method, c.path, c.user, w.Code, c.want, w.Body)
		}
	}
}
