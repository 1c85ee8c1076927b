package file_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/faultfs"
)

func openSession(t *testing.T, store *logstore.Store, path string, opts *file.SessionOptions) *file.Session {
	t.Helper()
	s, err := file.OpenSession(t.Context(), store, path, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func process(t *testing.T, s *file.Session, items []*pipeline.Item) {
	t.Helper()
	s.Process(t.Context(), items)
}

func closeSession(t *testing.T, s *file.Session) {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func contentOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestSessionDecidesEachKeyOnce(t *testing.T) {
	t.Parallel()
	store, path := openStore(t), filepath.Join(t.TempDir(), "out")
	s := openSession(t, store, path, nil)
	items := itemsOf("one", "two", "one", "not\nJSON")
	items[0].Call.Fingerprint = semel.Fingerprint{1}
	items[2].Call.Fingerprint = semel.Fingerprint{2}
	process(t, s, items)
	var permanent *semel.PermanentError
	if items[0].Err != nil || items[1].Err != nil || !errors.Is(items[2].Err, semel.ErrMismatch) || !errors.As(items[3].Err, &permanent) {
		t.Errorf("errors %v, %v, %v, %v", items[0].Err, items[1].Err, items[2].Err, items[3].Err)
	}
	again := itemsOf("two", "three")
	process(t, s, again)
	if again[0].Decision != semel.Duplicate || again[1].Decision != semel.Fresh || again[1].Attempt != 1 {
		t.Errorf("decisions %v, %v", again[0].Decision, again[1].Decision)
	}
	late := itemsOf("three", "four")
	for _, it := range late {
		it.Call.Time, it.Call.Window = time.Now().Add(-2*time.Hour), time.Hour
	}
	process(t, s, late)
	if late[0].Decision != semel.Duplicate || late[0].Err != nil || late[1].Decision != semel.Late || !errors.Is(late[1].Err, semel.ErrLate) {
		t.Errorf("late: %v %v, %v %v", late[0].Decision, late[0].Err, late[1].Decision, late[1].Err)
	}
	closeSession(t, s)
	if got := contentOf(t, path); got != "one\ntwo\nthree\n" {
		t.Errorf("got %q", got)
	}
	s = openSession(t, store, path, &file.SessionOptions{OnLate: semel.LateRun})
	process(t, s, late)
	if late[0].Decision != semel.Duplicate || late[1].Decision != semel.Fresh || late[1].Err != nil {
		t.Errorf("late, and to be run: %v, %v %v", late[0].Decision, late[1].Decision, late[1].Err)
	}
	closeSession(t, s)
}

func TestSessionWaitsForAKeyThatIsInFlightElsewhere(t *testing.T) {
	t.Parallel()
	store, path := openStore(t), filepath.Join(t.TempDir(), "out")
	s := openSession(t, store, path, nil)
	reqs := []semel.ClaimRequest{{Key: semel.Key{ID: "held"}, Owner: semel.Owner{Name: "other", Nonce: 1}, Lease: time.Minute, Window: time.Hour}}
	answers := make([]semel.ClaimAnswer, 1)
	if err := store.Claim(t.Context(), reqs, answers); err != nil || answers[0].Decision != semel.Fresh {
		t.Fatal(answers[0], err)
	}
	items := itemsOf("before", "held", "behind")
	process(t, s, items)
	var flight *semel.InFlightError
	if !errors.As(items[1].Err, &flight) || !errors.Is(items[2].Err, pipeline.ErrBehind) {
		t.Errorf("errors %v, %v, %v", items[0].Err, items[1].Err, items[2].Err)
	}
	process(t, s, items[:1])
	if items[0].Err != nil || items[0].Decision != semel.Fresh {
		t.Errorf("before: %v, %v", items[0].Decision, items[0].Err)
	}
	closeSession(t, s)
	if got := contentOf(t, path); got != "before\n" {
		t.Errorf("got %q", got)
	}
}

func TestSessionKeepsLinesAppendedWhileItWasClosed(t *testing.T) {
	t.Parallel()
	store, path := openStore(t), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, []byte("foreign"), 0o600); err != nil {
		t.Fatal(err)
	}
	var unknown *file.UnknownOutputError
	if _, err := file.OpenSession(t.Context(), store, path, nil); !errors.As(err, &unknown) || !errors.Is(err, semel.ErrInvalidRequest) || unknown.Size != 7 {
		t.Fatalf("an output that the store does not know: %v", err)
	}
	s := openSession(t, store, path, &file.SessionOptions{Append: true})
	process(t, s, itemsOf("one"))
	closeSession(t, s)
	if err := appendTo(path, []byte("between two sessions\nwithout a line end")); err != nil {
		t.Fatal(err)
	}
	s = openSession(t, store, path, nil)
	process(t, s, itemsOf("one", "two"))
	closeSession(t, s)
	if got := contentOf(t, path); got != "foreign\none\nbetween two sessions\nwithout a line end\ntwo\n" {
		t.Errorf("got %q", got)
	}
}

func TestSessionRefusesAnOutputThatWasChanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(path string) error{
		"shorter": func(path string) error { return os.Truncate(path, 5) },
		"another": func(path string) error { return os.WriteFile(path, []byte("ONE\nTWO\nTHREE\n"), 0o600) },
	} {
		store, path := openStore(t), filepath.Join(t.TempDir(), "out")
		s := openSession(t, store, path, nil)
		process(t, s, itemsOf("one", "two"))
		closeSession(t, s)
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		if _, err := file.OpenSession(t.Context(), store, path, nil); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "was changed since it was written") {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Rename(path, path+".old"); err != nil {
			t.Fatal(err)
		}
		s = openSession(t, store, path, nil)
		process(t, s, itemsOf("two", "three"))
		closeSession(t, s)
		if got := contentOf(t, path); got != "three\n" {
			t.Errorf("%s: a new output has %q", name, got)
		}
	}
}

func TestSessionSaysThatAFailedSyncIsNotKnown(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	store, err := logstore.Open("/keys", &logstore.Options{FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	s := openSession(t, store, "/out", &file.SessionOptions{FS: disk})
	disk.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Sync && op.Name == "/out" {
			return syscall.EIO
		}
		return nil
	})
	for range 2 {
		items := itemsOf("one")
		process(t, s, items)
		var failed *pipeline.StoreError
		if !errors.As(items[0].Err, &failed) {
			t.Errorf("error %v", items[0].Err)
		}
	}
	if s.Ready(t.Context()) == nil {
		t.Error("the session is ready")
	}
	disk.SetHook(nil)
	if err := s.Close(t.Context()); err == nil {
		t.Error("Close says nothing")
	}
	_ = store.Close() // it has failed
	after := disk.Survive(faultfs.OnlySynced, nil)
	store, err = logstore.Open("/keys", &logstore.Options{FS: after})
	if err != nil {
		t.Fatal(err)
	}
	s = openSession(t, store, "/out", &file.SessionOptions{FS: after})
	process(t, s, itemsOf("one"))
	closeSession(t, s)
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if got, _ := after.ReadFile("/out"); string(got) != "one\n" {
		t.Errorf("got %q", got)
	}
}

// TestSessionRemembersThePositionsOfItsSource reads nothing twice after a clean
// end, and everything that was not settled.
func TestSessionRemembersThePositionsOfItsSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, in, out := openStore(t), filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte("one\ntwo\nthree\nfour\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() (*file.Source, *file.Session) {
		source, err := file.OpenSource([]string{in}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return source, openSession(t, store, out, &file.SessionOptions{Source: source})
	}
	read := func(source *file.Source) []*pipeline.Item {
		items, err := source.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			it.Call.Key.ID = string(it.Message.Body)
		}
		return items
	}
	source, session := open()
	items := read(source)
	process(t, session, items[:1])
	if err := source.Ack(t.Context(), items[1:2]); err != nil { // it was parked
		t.Fatal(err)
	}
	if err := source.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	closeSession(t, session)

	source, session = open()
	process(t, session, itemsOf("back from the dead-letter store")) // of another source
	items = read(source)
	if got := bodies(items); strings.Join(got, " ") != "three four" {
		t.Errorf("got %q", got)
	}
	process(t, session, items)
	if err := source.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	closeSession(t, session)
	if got := contentOf(t, out); got != "one\nback from the dead-letter store\nthree\nfour\n" {
		t.Errorf("got %q", got)
	}
	source, err := file.OpenSource([]string{in}, &file.SourceOptions{State: filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.OpenSession(t.Context(), store, out, &file.SessionOptions{Source: source, Window: -1}); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "Window") || !strings.Contains(err.Error(), "State") {
		t.Errorf("error %v", err)
	}
	if err := source.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestSessionRemembersThatAFileWasRewritten rewrites a file in place between two sessions. Its
// first line stays, and so does the place of the second. Both are messages of their own.
func TestSessionRemembersThatAFileWasRewritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, in, out := openStore(t), filepath.Join(dir, "in"), filepath.Join(dir, "out")
	run := func(settled int) {
		t.Helper()
		source, err := file.OpenSource([]string{in}, nil)
		if err != nil {
			t.Fatal(err)
		}
		session := openSession(t, store, out, &file.SessionOptions{Source: source})
		items, err := source.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			position, err := key.AppendPosition(nil, &it.Message)
			if err != nil {
				t.Fatal(err)
			}
			it.Call.Key.ID = string(position)
		}
		process(t, session, items[len(items)-settled:])
		if err := source.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		closeSession(t, session)
	}
	write := func(text string) {
		if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\nsame\none\n")
	run(3)
	write("first\nsame\ntwo\n")
	run(2) // without the first line, so that the position of the file stays at 0
	run(3)
	write("first\nsame\nthree\n")
	run(3)
	if got := contentOf(t, out); got != "first\nsame\none\nsame\ntwo\nfirst\nfirst\nsame\nthree\n" {
		t.Errorf("got %q", got)
	}
}

// TestSessionKeepsIDsWhereTheStoreDoes has ids that do not fit into one record
// together.
func TestSessionKeepsIDsWhereTheStoreDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := logstore.Open(filepath.Join(dir, "keys"), &logstore.Options{KeepIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := openSession(t, store, filepath.Join(dir, "out"), nil)
	const items = 100
	var lines []string
	for n := range items {
		lines = append(lines, fmt.Sprint("line ", n))
	}
	list := itemsOf(lines...)
	want := map[semel.Key]bool{}
	for n, it := range list {
		it.Call.Key = semel.Key{Scope: "s", ID: strings.Repeat("x", semel.MaxKeyBytes-3) + fmt.Sprintf("%03d", n)}
		want[it.Call.Key] = true
	}
	process(t, s, list)
	for _, it := range list {
		if it.Err != nil || it.Decision != semel.Fresh {
			t.Fatalf("%s: %s, %v", it.Call.Key, it.Decision, it.Err)
		}
	}
	closeSession(t, s)
	for r, err := range store.List(t.Context(), semel.ListOptions{State: semel.Done}) {
		if err != nil || !want[r.Key] {
			t.Fatalf("listed: %s, %v", r.Key, err)
		}
		delete(want, r.Key)
	}
	if len(want) > 0 {
		t.Errorf("%d of %d keys are not listed", len(want), items)
	}
}
