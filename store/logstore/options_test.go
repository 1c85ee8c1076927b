package logstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestFsyncIsParsedByName(t *testing.T) {
	t.Parallel()
	for f := Always; f <= Never; f++ {
		if got, err := ParseFsync(f.String()); got != f || err != nil {
			t.Errorf("ParseFsync(%q) = %v, %v", f.String(), got, err)
		}
	}
	if _, err := ParseFsync("sometimes"); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("ParseFsync(sometimes): %v", err)
	}
}

func TestAllBadOptionsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	_, err := Open(dir, &Options{
		Fsync: Never + 1, FsyncInterval: time.Microsecond, SegmentSize: 1, CacheBytes: 1, MaxIndexBytes: 1, MaxResult: 1 << 40,
	})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("Open: %v", err)
	}
	for _, field := range []string{"Fsync:", "FsyncInterval", "SegmentSize", "CacheBytes", "MaxIndexBytes", "MaxResult"} {
		if !strings.Contains(err.Error(), "Options."+field) {
			t.Errorf("%s is not among the errors: %v", field, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was touched: %v", err)
	}
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	t.Parallel()
	o, err := (*Options)(nil).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if o.Fsync != Always || o.FsyncInterval != 100*time.Millisecond || o.SegmentSize != 32<<20 || o.CacheBytes != 8<<20 || o.MaxResult != 1<<20 || o.KeepIDs {
		t.Errorf("defaults are %+v", o)
	}
	if total := totalMemory(); total > 0 && o.MaxIndexBytes != total/4 {
		t.Errorf("MaxIndexBytes is %d of %d", o.MaxIndexBytes, total)
	}
}

func TestForeignDirectoryIsNotMadeAStore(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"notes.txt": semel.ErrInvalidRequest, segmentName(1): semel.ErrCorrupt} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, nil); !errors.Is(err, want) {
			t.Errorf("Open next to %s: %v, want %v", name, err, want)
		}
	}
}

func TestMissingSegmentIsCorruption(t *testing.T) {
	t.Parallel()
	for which := range 2 {
		s := open(t, t.TempDir(), small())
		wantAll(t, claimDone(t, s, 0, 20_000, semel.Forever), semel.Fresh)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		segments, err := filepath.Glob(filepath.Join(s.dir.path, "*.seg"))
		if err != nil || len(segments) < 3 {
			t.Fatalf("segments: %q, %v", segments, err)
		}
		if err := os.Remove(segments[which]); err != nil {
			t.Fatal(err)
		}
		var corrupt *CorruptError
		if _, err := Open(s.dir.path, small()); !errors.As(err, &corrupt) || corrupt.File != segments[which] {
			t.Errorf("Open without %s: %v", segments[which], err)
		}
	}
}

func TestAuditLinesAreWrittenWhole(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), nil)
	name := filepath.Join(s.Dir(), AuditName)
	if err := s.Audit(t.Context(), []byte(`{"id":"a"}`)); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, append(content, `{"time":"20`...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Audit(t.Context(), []byte(`{"id":"b"}`)); err != nil {
		t.Fatal(err)
	}
	if content, err = os.ReadFile(name); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], `"id":"a"`) || !strings.Contains(lines[2], `"id":"b"`) {
		t.Errorf("the audit log is %q", lines)
	}
}
