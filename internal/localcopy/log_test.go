package localcopy_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/localcopy"
	"github.com/semel-dev/semel/test/faultfs"
)

var changelog = localcopy.ID{1, 2, 3}

// copied is a log on a disk, with the records that were applied when it was opened.
type copied struct {
	*localcopy.Log
	t        *testing.T
	disk     *faultfs.FS
	expected int64    // the bytes that were told before the first record
	applied  []string // as value@position
	places   map[string]localcopy.Place
}

// open opens the log of a changelog on a disk. A record is its own mark: its length.
func open(t *testing.T, disk *faultfs.FS, id localcopy.ID) (*copied, error) {
	c := &copied{Log: localcopy.New(disk, "state", ".state", id), t: t, disk: disk, places: map[string]localcopy.Place{}}
	err := c.Open(func(bytes int64) { c.expected = bytes }, func(value []byte, position int64, place localcopy.Place) (int64, error) {
		c.applied = append(c.applied, fmt.Sprintf("%s@%d", value, position))
		c.places[string(value)] = place
		return position, nil
	})
	return c, err
}

func opened(t *testing.T, disk *faultfs.FS) *copied {
	t.Helper()
	c, err := open(t, disk, changelog)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// add writes records behind each other, the first from a position on. Each has one position.
func (c *copied) add(from int64, values ...string) {
	c.t.Helper()
	for i, value := range values {
		at := from + int64(i) + 1
		c.places[value] = c.Add([]byte(value), at, at)
	}
	if err := c.Write(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *copied) wantApplied(want ...string) {
	c.t.Helper()
	if !slices.Equal(c.applied, want) {
		c.t.Errorf("applied %q, want %q", c.applied, want)
	}
}

func (c *copied) close() {
	c.t.Helper()
	if err := c.Close(); err != nil {
		c.t.Error(err)
	}
}

func TestRecordsAreAppliedAgainInOrder(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	first := opened(t, disk)
	first.wantApplied()
	first.add(0, "a", "bb", "")
	first.close()
	second := opened(t, disk)
	second.wantApplied("a@1", "bb@2", "@3")
	if want := int64(localcopy.HeaderSize + 3*localcopy.FrameSize + 3); second.expected != want || second.From() != 0 {
		t.Errorf("expects %d bytes from %d on, want %d from 0 on", second.expected, second.From(), want)
	}
	second.add(3, "c")
	second.close()
	opened(t, disk).wantApplied("a@1", "bb@2", "@3", "c@4")
}

func TestFilesOfAnotherChangelogAreRemoved(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	first := opened(t, disk)
	first.add(0, "a")
	first.close()
	other, err := open(t, disk, localcopy.ID{9})
	if err != nil {
		t.Fatal(err)
	}
	other.wantApplied()
	other.close()
	opened(t, disk).wantApplied() // and the records of the first are lost for it too
}

func TestLocalCopyKeepsForeignFilesOfItsDirectory(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	if err := disk.MkdirAll("state"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README", "x.state", "00000001.other"} {
		file, err := disk.Create(filepath.Join("state", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c := opened(t, disk)
	c.add(0, "a")
	c.close()
	files := disk.Files()
	for _, name := range []string{"README", "x.state", "00000001.other", "00000001.state"} {
		if !slices.Contains(files, filepath.Join("state", name)) {
			t.Errorf("%s is not among %q", name, files)
		}
	}
}

// TestLocalCopyIsReadUpToTheFirstDamagedRecord flips each bit of the second of three records.
func TestLocalCopyIsReadUpToTheFirstDamagedRecord(t *testing.T) {
	t.Parallel()
	const start = localcopy.HeaderSize + localcopy.FrameSize + 1 // of the second record
	for offset := int64(start); offset < start+localcopy.FrameSize+1; offset++ {
		disk := faultfs.New()
		c := opened(t, disk)
		c.add(0, "a", "b", "c")
		c.close()
		if err := disk.FlipBit("state/00000001.state", offset, 3); err != nil {
			t.Fatal(err)
		}
		c = opened(t, disk)
		c.wantApplied("a@1")
		c.add(1, "d") // from the changelog
		c.close()
		opened(t, disk).wantApplied("a@1", "d@2")
	}
}

func TestADamagedHeaderRemovesTheFile(t *testing.T) {
	t.Parallel()
	for offset := int64(0); offset < 28; offset++ { // four bytes are free
		disk := faultfs.New()
		c := opened(t, disk)
		c.add(0, "a")
		c.close()
		if err := disk.FlipBit("state/00000001.state", offset, 0); err != nil {
			t.Fatal(err)
		}
		c = opened(t, disk)
		c.wantApplied()
		c.close()
	}
}

func TestLocalCopyIsReadUpToTheFirstRecordThatCannotBeApplied(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	c := opened(t, disk)
	c.add(0, "a", "b", "c")
	c.close()
	l := localcopy.New(disk, "state", ".state", changelog)
	apply := func(value []byte, _ int64, _ localcopy.Place) (int64, error) {
		if string(value) == "b" {
			return 0, localcopy.ErrEnd
		}
		return 0, nil
	}
	if err := l.Open(nil, apply); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	opened(t, disk).wantApplied("a@1")
	full := errors.New("the state is full")
	if err := localcopy.New(disk, "state", ".state", changelog).Open(nil, func([]byte, int64, localcopy.Place) (int64, error) { return 0, full }); !errors.Is(err, full) {
		t.Errorf("the error of the state is %v", err)
	}
}

// TestFilesEndWhenTheyAreLargeOrOld has files that are begun by size and by the span of
// their marks, and removed by their newest mark.
func TestFilesEndWhenTheyAreLargeOrOld(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	c := opened(t, disk)
	c.SetFileSize(localcopy.HeaderSize + 1)
	tidy := func(horizon, span int64, want int) {
		t.Helper()
		if err := c.Tidy(horizon, span); err != nil {
			t.Fatal(err)
		}
		if got := len(disk.Files()); got != want {
			t.Errorf("%d files, want %d: %q", got, want, disk.Files())
		}
	}
	tidy(0, 0, 1) // it has no record
	c.add(0, "a")
	tidy(0, 0, 2)
	c.SetFileSize(1 << 20)
	c.add(1, "b")
	tidy(0, 0, 2)
	c.add(2, "c", "d", "e")
	tidy(0, 8*3, 2)
	tidy(0, 8*2, 3) // their marks span three
	c.add(5, "f")
	tidy(1, 0, 2) // the first file has nothing above 1
	c.close()
	c = opened(t, disk)
	c.wantApplied("b@2", "c@3", "d@4", "e@5", "f@6")
	if c.From() != 1 {
		t.Errorf("from %d, want 1", c.From())
	}
	tidy(100, 0, 1)
	c.close()
	opened(t, disk).wantApplied("f@6") // the present file stays
}

// TestLocalCopyRemovesFilesAfterAMissingOne removes the second of three files.
func TestLocalCopyRemovesFilesAfterAMissingOne(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	c := opened(t, disk)
	c.SetFileSize(1)
	for i, value := range []string{"a", "b", "c"} {
		c.add(int64(i), value)
		if err := c.Tidy(0, 0); err != nil {
			t.Fatal(err)
		}
	}
	c.close()
	if err := disk.Remove("state/00000002.state"); err != nil {
		t.Fatal(err)
	}
	c = opened(t, disk)
	c.wantApplied("a@1")
	c.close()
	if files := disk.Files(); !slices.Equal(files, []string{"state/00000001.state"}) {
		t.Errorf("files %q", files)
	}
}

// TestPartsOfRecordsAreReadBack reads parts of records in a sealed file and in the
// present one, and one whose bytes changed.
func TestPartsOfRecordsAreReadBack(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	c := opened(t, disk)
	c.SetFileSize(1)
	c.add(0, "head:first")
	if err := c.Tidy(0, 0); err != nil {
		t.Fatal(err)
	}
	c.add(1, "head:second")
	for record, part := range map[string]string{"head:first": "first", "head:second": "second"} {
		ref := c.places[record].Part(5, []byte(part))
		if back := localcopy.RefAt(ref.Append(nil)); back != ref || len(ref.Append(nil)) != localcopy.RefSize || ref.Size() != len(part) {
			t.Errorf("%v is %v after it was bytes, and has size %d", ref, back, ref.Size())
		}
		if got, err := c.Read([]byte("before "), ref); err != nil || string(got) != "before "+part {
			t.Errorf("%s: %q, %v", record, got, err)
		}
	}
	first := c.places["head:first"].Part(5, []byte("first"))
	if got, err := c.Read(nil, first.Again(c.places["head:second"], 5)); err == nil || !strings.Contains(err.Error(), "the checksum of a value is wrong") || c.Err() == nil {
		t.Errorf("the part of another record: %q, %v", got, err)
	}
	if _, err := c.Read(nil, first); err == nil {
		t.Error("a log that has failed is of use to a state")
	}
	if err := c.Clear(); err != nil || c.Err() != nil {
		t.Errorf("%v, %v", err, c.Err())
	}
	if got, err := c.Read(nil, first); err == nil || !strings.Contains(err.Error(), "kafka: state: read 5 bytes at") {
		t.Errorf("a part of a file that was removed: %q, %v", got, err)
	}
	if err := (*localcopy.Log)(nil).Err(); err != nil {
		t.Errorf("no log has failed: %v", err)
	}
}

func TestClearedLocalCopyStartsEmpty(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	c := opened(t, disk)
	c.SetFileSize(1)
	c.add(0, "a")
	if err := c.Tidy(0, 0); err != nil {
		t.Fatal(err)
	}
	c.add(1, "b")
	if err := c.Clear(); err != nil {
		t.Fatal(err)
	}
	c.add(0, "z")
	c.close()
	opened(t, disk).wantApplied("z@1")
}

// TestAFullDiskFailsTheLogAndNotTheState writes until the disk is full.
func TestAFullDiskFailsTheLogAndNotTheState(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	c := opened(t, disk)
	c.add(0, "a")
	full := errors.New("no space left")
	disk.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Write {
			return full
		}
		return nil
	})
	c.Add([]byte("b"), 2, 2)
	if err := c.Write(); !errors.Is(err, full) || c.Err() == nil || !strings.HasPrefix(err.Error(), "kafka: state: ") {
		t.Errorf("%v", err)
	}
	if place := c.Add([]byte("c"), 3, 3); place != (localcopy.Place{}) {
		t.Errorf("a failed log has a record at %v", place)
	}
	if err := c.Tidy(0, 0); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
	disk.SetHook(nil)
	if err := c.Clear(); err != nil {
		t.Fatal(err)
	}
	c.add(0, "d")
	c.close()
	opened(t, disk).wantApplied("d@1")
}

// TestErrorsOfTheDiskAreReturned fails each operation by which a log is opened.
func TestErrorsOfTheDiskAreReturned(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	c := opened(t, disk)
	c.add(0, "a")
	c.close()
	broken := errors.New("broken")
	failed := map[faultfs.OpKind]bool{}
	for n := 0; ; n++ {
		count, hit := 0, false
		disk.SetHook(func(op faultfs.Op) error {
			if count++; count == n+1 {
				hit, failed[op.Kind] = true, true
				return broken
			}
			return nil
		})
		c, err := open(t, disk, changelog)
		disk.SetHook(nil)
		if !hit {
			if err != nil {
				t.Error(err)
			}
			c.close()
			break
		}
		if err != nil && !errors.Is(err, broken) {
			t.Errorf("operation %d: %v", n, err)
		}
		if err == nil {
			c.wantApplied("a@1") // only the size of the file was not known
			c.close()
		}
	}
	if len(failed) < 2 {
		t.Errorf("only %v failed", failed)
	}
}
