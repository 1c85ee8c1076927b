package logstore

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/faultfs"
)

// TestLostEndOfAClosedStoreIsRefused truncates the log of a store that was
// closed properly. Everything in the log was acknowledged.
func TestLostEndOfAClosedStoreIsRefused(t *testing.T) {
	t.Parallel()
	const keys = 4000
	s := open(t, t.TempDir(), small())
	wantAll(t, claimDone(t, s, 0, keys, semel.Forever), semel.Fresh)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(s.dir.path, "*.seg"))
	if err != nil || len(segments) < 2 {
		t.Fatalf("segments: %q, %v", segments, err)
	}
	last := segments[len(segments)-1]
	whole, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string) {
		t.Helper()
		for range 2 { // a refusal changes nothing
			var corrupt *CorruptError
			if _, err := Open(s.dir.path, small()); !errors.As(err, &corrupt) || corrupt.File != last {
				t.Errorf("%s: Open: %v, want a CorruptError that names %s", what, err, last)
			} else if !strings.Contains(err.Error(), "restore it from a backup") {
				t.Errorf("%s: the error does not say what to do: %v", what, err)
			}
		}
	}
	for _, n := range []int{len(whole) - 1, len(whole) - emptyRecord, len(whole) / 2, len(whole) / 3 &^ 3, headerSize} {
		write(t, last, whole[:n])
		refused("cut short")
		write(t, last, append(bytes.Clone(whole[:n]), make([]byte, len(whole)-n)...))
		refused("end overwritten with zeros")
		write(t, last, append(bytes.Clone(whole[:n]), make([]byte, 1<<20)...))
		refused("end replaced by zeros")
	}
	if err := os.Remove(last); err != nil {
		t.Fatal(err)
	}
	refused("last segment missing")
	write(t, last, whole)
	s = open(t, s.dir.path, small())
	wantAll(t, claimDone(t, s, 0, keys, semel.Forever), semel.Duplicate)
}

func write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestLostEndOfAKilledStoreIsRefusedUpToItsLastOpen kills a store and truncates
// its log. Everything that the last open found must be there, and so must the
// segment after a full one.
func TestLostEndOfAKilledStoreIsRefusedUpToItsLastOpen(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	s, err := openFault(t, disk)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, claimDone(t, s, 0, 1000, semel.Forever), semel.Fresh)
	first := disk.Survive(faultfs.Everything, nil) // killed for the first time
	if s, err = openFault(t, first); err != nil {
		t.Fatal(err)
	}
	reached := s.log.active.next
	wantAll(t, claimDone(t, s, 1000, 1500, semel.Forever), semel.Fresh)
	killed := first.Survive(faultfs.Everything, nil)
	name := filepath.Join("/d/store", segmentName(s.log.active.num))
	for _, c := range []struct {
		what    string
		end     int
		corrupt bool
	}{
		{"all that came after the last open", reached, false},
		{"the last record before it", reached - 4, true},
		{"half", reached / 2 &^ 3, true},
		{"all records", headerSize, true},
	} {
		left := killed.Survive(faultfs.Everything, nil)
		truncate(t, left, name, c.end)
		s, err := openFault(t, left)
		if errors.Is(err, semel.ErrCorrupt) != c.corrupt || err != nil && !c.corrupt {
			t.Errorf("without %s: Open: %v, refused: want %t", c.what, err, c.corrupt)
		}
		if err == nil {
			wantAll(t, claimDone(t, s, 0, 1000, semel.Forever), semel.Duplicate)
		}
	}
	left := killed.Survive(faultfs.Everything, nil)
	if err := left.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := openFault(t, left); !errors.Is(err, semel.ErrCorrupt) {
		t.Errorf("without the last segment: Open: %v, want ErrCorrupt", err)
	}
}

// TestMissingSegmentBehindAFullOneIsCorruption kills a store that was never
// closed and was not reopened since it started the segment.
func TestMissingSegmentBehindAFullOneIsCorruption(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	s, err := openFault(t, disk)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; s.log.active.num < 3; n += 100 {
		wantAll(t, claimDone(t, s, n, n+100, semel.Forever), semel.Fresh)
	}
	wantAll(t, claimDone(t, s, -1, 0, semel.Forever), semel.Fresh)
	killed := disk.Survive(faultfs.Everything, nil)
	name := filepath.Join("/d/store", segmentName(3))
	for _, other := range killed.Files() {
		// Remove a segment that was created ahead as well.
		if strings.HasSuffix(other, ".seg") && other >= name {
			if err := killed.Remove(other); err != nil {
				t.Fatal(err)
			}
		}
	}
	var corrupt *CorruptError
	if _, err := openFault(t, killed); !errors.As(err, &corrupt) || corrupt.File != name {
		t.Errorf("Open: %v, want a CorruptError that names %s", err, name)
	}
}

// TestSegmentWithoutADurableNameIsRecreatedAfterACrash creates a store whose first
// segment has a name that is only in the cache, because a sync failed. The next
// open loses power at each of its operations.
func TestSegmentWithoutADurableNameIsRecreatedAfterACrash(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 3))
	first := filepath.Join("/d/store", segmentName(1))
	for at, opened := 1, false; !opened; at++ {
		disk := faultfs.New()
		disk.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.SyncDir && slices.Contains(disk.Files(), first) {
				return syscall.EIO
			}
			return nil
		})
		if _, err := openFault(t, disk); !errors.Is(err, syscall.EIO) {
			t.Fatalf("the first Open: %v, want EIO", err)
		}
		disk.SetHook(nil)
		disk.CrashAt(disk.Ops() + at)
		_, err := openFault(t, disk)
		opened = err == nil
		for range 20 {
			if _, err := openFault(t, disk.Survive(faultfs.Torn, random)); err != nil {
				t.Fatalf("after a crash at operation %d of the second Open: %v", at, err)
			}
		}
	}
}

// TestCloseOnAFullDiskNamesTheMissingSpace closes a store that has no space to
// note where the log ends.
func TestCloseOnAFullDiskNamesTheMissingSpace(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	s, err := openFault(t, disk)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, claimDone(t, s, 0, 100, semel.Forever), semel.Fresh)
	disk.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Create {
			return syscall.ENOSPC
		}
		return nil
	})
	if err := s.Close(); !errors.Is(err, semel.ErrStoreFull) || !strings.Contains(err.Error(), "all answers are durable") {
		t.Errorf("Close: %v, want ErrStoreFull and that nothing is lost", err)
	}
	s, err = openFault(t, disk.Survive(faultfs.OnlySynced, nil))
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, claimDone(t, s, 0, 100, semel.Forever), semel.Duplicate)
}

// truncate durably truncates a file.
func truncate(t *testing.T, disk *faultfs.FS, name string, end int) {
	t.Helper()
	f, err := disk.Open(name)
	if err == nil {
		err = errors.Join(f.Truncate(int64(end)), f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestStoreOfVersion1IsOpened opens a store of format version 1, which does not
// note the end of the log. The open must note it.
func TestStoreOfVersion1IsOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(goldenDir1)); err != nil {
		t.Fatal(err)
	}
	opts := small()
	opts.Clock = newHandClock().now
	s := open(t, dir, opts)
	if got := claimDone(t, s, 0, 3, semel.Forever); slices.Contains(got, semel.Fresh) {
		t.Errorf("keys of the old store are %v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	last := filepath.Join(dir, segmentName(2))
	whole, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	write(t, last, whole[:len(whole)/2])
	if _, err := Open(dir, opts); !errors.Is(err, semel.ErrCorrupt) {
		t.Errorf("Open with half of the last segment: %v, want ErrCorrupt", err)
	}
}

func TestStoreOfALaterVersionIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := open(t, dir, small()).Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, identityName)
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	content[8] = identityVersion3 + 1
	putSum(content)
	write(t, name, content)
	if _, err := Open(dir, small()); err == nil || !strings.Contains(err.Error(), "use the program that wrote the store") {
		t.Errorf("Open: %v", err)
	}
}
