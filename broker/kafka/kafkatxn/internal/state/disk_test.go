package state_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/test/faultfs"
)

var changelog = state.ID{1, 2, 3}

// copied is a log on a disk, with the records that were applied when it was opened.
type copied struct {
	*state.Disk
	t        *testing.T
	disk     *faultfs.FS
	expected int64    // the bytes that were announced before the first record
	applied  []string // as value@position
	places   map[string]state.Place
}

// open opens the copy of a changelog on a disk.
func open(t *testing.T, disk *faultfs.FS, id state.ID) (*copied, error) {
	c := &copied{Disk: state.NewDisk(disk, "state", ".state", id), t: t, disk: disk, places: map[string]state.Place{}}
	err := c.Open(func(bytes int64) { c.expected = bytes }, func(value []byte, position int64, place state.Place) error {
		c.applied = append(c.applied, fmt.Sprintf("%s@%d", value, position))
		c.places[string(value)] = place
		return nil
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
		c.places[value] = c.Add([]byte(value), at)
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
	if want := int64(state.HeaderSize + 3*state.FrameSize + 3); second.expected != want || second.From() != 0 {
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
	other, err := open(t, disk, state.ID{9})
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
	const start = state.HeaderSize + state.FrameSize + 1 // of the second record
	for offset := int64(start); offset < start+state.FrameSize+1; offset++ {
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

// TestACutFileKeepsTheRecordsBeforeTheCut cuts a file at each byte.
func TestACutFileKeepsTheRecordsBeforeTheCut(t *testing.T) {
	t.Parallel()
	all := []string{"a@1", "b@2", "c@3"}
	const frame = state.FrameSize + 1
	for size := int64(0); size < state.HeaderSize+3*frame; size++ {
		disk := faultfs.New()
		c := opened(t, disk)
		c.add(0, "a", "b", "c")
		c.close()
		file, err := disk.Open("state/00000001.state")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(file.Truncate(size), file.Close()); err != nil {
			t.Fatal(err)
		}
		c = opened(t, disk)
		c.wantApplied(all[:max(size-state.HeaderSize, 0)/frame]...)
		c.close()
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
	l := state.NewDisk(disk, "state", ".state", changelog)
	apply := func(value []byte, _ int64, _ state.Place) error {
		if string(value) == "b" {
			return state.ErrEnd
		}
		return nil
	}
	if err := l.Open(nil, apply); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	opened(t, disk).wantApplied("a@1")
	full := errors.New("the state is full")
	if err := state.NewDisk(disk, "state", ".state", changelog).Open(nil, func([]byte, int64, state.Place) error { return full }); !errors.Is(err, full) {
		t.Errorf("the error of the state is %v", err)
	}
}

// TestFilesEndWhenTheyAreLargeOrOld has files that end by their size and because they should,
// and that are removed by the position after their last record.
func TestFilesEndWhenTheyAreLargeOrOld(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	c := opened(t, disk)
	c.SetFileSize(state.HeaderSize + 1)
	tidy := func(cut int64, end bool, want int) {
		t.Helper()
		if err := c.Tidy(cut, end); err != nil {
			t.Fatal(err)
		}
		if got := len(disk.Files()); got != want {
			t.Errorf("%d files, want %d: %q", got, want, disk.Files())
		}
	}
	tidy(0, false, 1) // it has no record
	c.add(0, "a")
	tidy(0, false, 2)
	c.SetFileSize(1 << 20)
	c.add(1, "b")
	tidy(0, false, 2)
	c.add(2, "c", "d", "e")
	tidy(0, true, 3)
	tidy(0, true, 3) // the present file has no record
	c.add(5, "f")
	tidy(1, false, 2) // the first file has nothing behind 1
	c.close()
	c = opened(t, disk)
	c.wantApplied("b@2", "c@3", "d@4", "e@5", "f@6")
	if c.From() != 1 {
		t.Errorf("from %d, want 1", c.From())
	}
	tidy(100, false, 1)
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
		if err := c.Tidy(0, false); err != nil {
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

// TestACopyWithoutItsFirstFileIsGivenUp removes the first of the files that are left, as a loss of
// power may. The files behind it look whole.
func TestACopyWithoutItsFirstFileIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, cut := range []int64{0, 1} {
		disk := faultfs.New()
		c := opened(t, disk)
		c.SetFileSize(1)
		for i, value := range []string{"a", "b", "c"} {
			c.add(int64(i), value)
			if err := c.Tidy(0, false); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Tidy(cut, false); err != nil {
			t.Fatal(err)
		}
		c.close()
		c = opened(t, disk)
		c.wantApplied([]string{"a@1", "b@2", "c@3"}[cut:]...)
		c.close()
		if err := disk.Remove(fmt.Sprintf("state/%08d.state", 1+cut)); err != nil {
			t.Fatal(err)
		}
		c = opened(t, disk)
		c.wantApplied()
		if files := disk.Files(); c.From() != 0 || len(files) != 1 {
			t.Errorf("it begins at %d in %q, want an empty file", c.From(), files)
		}
		c.add(0, "again")
		c.close()
		opened(t, disk).wantApplied("again@1")
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
	if err := c.Tidy(0, false); err != nil {
		t.Fatal(err)
	}
	c.add(1, "head:second")
	for record, part := range map[string]string{"head:first": "first", "head:second": "second"} {
		ref := c.places[record].Part(5, []byte(part))
		if back := state.RefAt(ref.Append(nil)); back != ref || len(ref.Append(nil)) != state.RefSize || ref.Size() != len(part) {
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
	if err := (*state.Disk)(nil).Err(); err != nil {
		t.Errorf("no log has failed: %v", err)
	}
}

func TestClearedLocalCopyStartsEmpty(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	c := opened(t, disk)
	c.SetFileSize(1)
	c.add(0, "a")
	if err := c.Tidy(0, false); err != nil {
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
	c.Add([]byte("b"), 2)
	if err := c.Write(); !errors.Is(err, full) || c.Err() == nil || !strings.HasPrefix(err.Error(), "kafka: state: ") {
		t.Errorf("%v", err)
	}
	if place := c.Add([]byte("c"), 3); place != (state.Place{}) {
		t.Errorf("a failed log has a record at %v", place)
	}
	if err := c.Tidy(0, false); !errors.Is(err, full) {
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

// TestFilesThatWereGivenUpDoNotCountAgain has files that a loss of power brings back, after a copy was
// given up, or cleared, and other files were written.
func TestFilesThatWereGivenUpDoNotCountAgain(t *testing.T) {
	t.Parallel()
	for _, cleared := range []bool{false, true} {
		disk := faultfs.New()
		c := opened(t, disk)
		for n := range int64(4) {
			c.add(n, fmt.Sprint("old ", n))
			if err := c.Tidy(0, true); err != nil {
				t.Fatal(err)
			}
		}
		old := map[string][]byte{}
		for _, name := range disk.Files() {
			data, err := disk.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			old[name] = data
		}
		if cleared {
			if err := c.Clear(); err != nil {
				t.Fatal(err)
			}
		} else {
			c.close()
			if err := disk.Remove(c.disk.Files()[0]); err != nil {
				t.Fatal(err)
			}
			c = opened(t, disk)
			c.wantApplied()
		}
		c.add(0, "new 0")
		if err := c.Tidy(0, true); err != nil {
			t.Fatal(err)
		}
		c.add(1, "new 1")
		c.close()
		for i, name := range disk.Files() {
			if old[name] != nil {
				t.Errorf("cleared %v: %s, file %d, has the name of an old one", cleared, name, i)
			}
		}
		for name, data := range old {
			if strings.HasSuffix(name, "1.state") {
				continue
			}
			file, err := disk.Create(name)
			if err == nil {
				_, err = file.WriteAt(data, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			file.Close() // it is in memory
		}
		c = opened(t, disk)
		c.wantApplied("new 0@1", "new 1@2")
		c.close()
	}
}
