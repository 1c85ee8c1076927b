package embedded_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/kind/embedded"
	"github.com/semel-dev/semel/internal/kind/kindtest"
)

func TestStorePassesTheKindSuite(t *testing.T) {
	kindtest.Store(t, embedded.NewStore, kindtest.Case{Least: `{ path: other }`})
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]embedded.Store{
		"{ embedded: { path: ./keys } }": {Path: filepath.Join("dir", "keys"), Fsync: "always", KeepOrigin: true},
		"{ embedded: { path: /keys, fsync: interval, keep_ids: true, keep_origin: false } }": {Path: "/keys", Fsync: "interval", KeepIDs: config.IDsKept},
	} {
		if got := kindtest.ReadStore[*embedded.Store](t, text); *got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	kindtest.Refused(t, [][2]string{
		{kindtest.WithStore("{ embedded: { fsync: sometimes } }"), "stores.s.embedded: path is missing\nstores.s.embedded.fsync: \"sometimes\": write one of always, interval, never"},
		{"stores: { one: { embedded: { path: x } }, two: { embedded: { path: ./x } } }", "stores.two: it has the same directory as one (line 1)"},
	})
}

func TestLintWarnsOfKeysLostInAPowerFailure(t *testing.T) {
	t.Parallel()
	with := func(fsync string) string {
		return "stores: { s: { embedded: { path: k, fsync: " + fsync + " } } }\npipelines: { p: { key: { id: .id }, store: s, source: { file: { paths: [in] } }, sink: { stdout: {} } } }"
	}
	kindtest.Warned(t, [][2]string{
		{with("always"), ""},
		{with("interval"), "warning repeat pipelines.p.store: s has fsync: interval"},
		{with("never"), "warning repeat pipelines.p.store: s has fsync: never"},
	})
}

// TestTheDoctorReadsADirectory has directories without a store, with a store, with a store that
// another process holds, and one that cannot be read.
func TestTheDoctorReadsADirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	f := kindtest.Parse(t, kindtest.WithStore("{ embedded: { path: '"+dir+"' } }"))
	examine := func(want ...string) {
		t.Helper()
		lines, err := kindtest.Examine(t, f, f.Stores[0].Spec)
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, " MiB left") })
		for i := range lines {
			lines[i], _, _ = strings.Cut(lines[i], " on ") // the machine, the time and the command
		}
		if err != nil || !slices.Equal(lines, want) {
			t.Errorf("%q, %v; want %q", lines, err, want)
		}
	}
	const fsync = "fine fsync: always"
	examine(fsync, "notice directory: "+dir+" holds no store yet")
	if there, err := f.Stores[0].Spec.About().Exists(); there || err != nil {
		t.Errorf("there is a store: %v, %v", there, err)
	}
	t.Run("held", func(t *testing.T) {
		store, err := kindtest.OpenStore(t, f, "s")
		if err != nil {
			t.Fatal(err)
		}
		kindtest.Remembers(t, store, "1")
		examine(fsync, fmt.Sprintf("notice directory: in use by process %d", os.Getpid()))
		_, err = kindtest.OpenStore(t, f, "s")
		if holder, ok := diagnose.Holder(err); !ok || !strings.HasPrefix(holder, fmt.Sprintf("process %d on ", os.Getpid())) {
			t.Errorf("the holder is %q, %v: %v", holder, ok, err)
		}
	})
	if there, err := f.Stores[0].Spec.About().Exists(); !there || err != nil {
		t.Errorf("there is a store: %v, %v", there, err)
	}
	examine(fsync, "fine directory: every record of "+dir+" was read")
	if err := os.WriteFile(filepath.Join(dir, "STORE"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if lines, err := kindtest.Examine(t, f, f.Stores[0].Spec); err == nil || len(lines) > 2 {
		t.Errorf("a broken store: %q, %v", lines, err)
	}
	if holder, ok := diagnose.Holder(os.ErrNotExist); ok {
		t.Errorf("%q holds a directory that does not exist", holder)
	}
}

func TestStoreNamedByItsDirectorySyncsAlways(t *testing.T) {
	t.Parallel()
	if got, want := *embedded.At("keys").(*embedded.Store), (embedded.Store{Path: "keys", Fsync: "always"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
