package faultfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/vfs"
)

// must fails the test immediately on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// create creates a file with unsynced content.
func create(t *testing.T, f *faultfs.FS, name, content string) vfs.File {
	t.Helper()
	file, err := f.Create(name)
	must(t, err)
	write(t, file, 0, content)
	return file
}

func write(t *testing.T, file vfs.File, offset int64, content string) {
	t.Helper()
	n, err := file.WriteAt([]byte(content), offset)
	must(t, err)
	if n != len(content) {
		t.Fatalf("wrote %d of %d bytes", n, len(content))
	}
}

// wantFile checks that a file exists and has this content.
func wantFile(t *testing.T, f *faultfs.FS, name, content string) {
	t.Helper()
	got, err := f.ReadFile(name)
	must(t, err)
	if string(got) != content {
		t.Errorf("%s has %d bytes %.80q, want %d bytes %.80q", name, len(got), got, len(content), content)
	}
}

// wantNone checks that no such file exists.
func wantNone(t *testing.T, f *faultfs.FS, name string) {
	t.Helper()
	if _, err := f.ReadFile(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read %s: %v, want that it does not exist", name, err)
	}
}

func TestFileBehavesLikeAFile(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	file := create(t, f, "a", "hello")
	write(t, file, 8190, "across pages")
	p := make([]byte, 20)
	n, err := file.ReadAt(p, 8185)
	if n != 17 || err != io.EOF || string(p[:n]) != "\x00\x00\x00\x00\x00across pages" {
		t.Errorf("read %d %v %q", n, err, p[:n])
	}
	if n, err := file.ReadAt(p, 1<<20); n != 0 || err != io.EOF {
		t.Errorf("read behind the end: %d %v", n, err)
	}
	must(t, file.Truncate(8192))
	must(t, file.Truncate(9000))
	got, err := f.ReadFile("a")
	must(t, err)
	if len(got) != 9000 || !bytes.Equal(got[8190:8194], []byte("ac\x00\x00")) {
		t.Errorf("after shrinking and growing: %d bytes, %q", len(got), got[8190:8194])
	}
	must(t, file.Allocate(100)) // never shrinks
	if size, err := file.Size(); size != 9000 || err != nil {
		t.Errorf("size %d, %v", size, err)
	}
	must(t, file.Close())
	if _, err := file.WriteAt(p, 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("write to a closed file: %v", err)
	}
	if err := file.Sync(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("sync of a closed file: %v", err)
	}
}

func TestFaultFSDirectoriesBehaveLikeAFileSystem(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	must(t, f.MkdirAll("d/e"))
	must(t, f.MkdirAll("d/e"))
	create(t, f, "d/b", "b")
	create(t, f, "d/a", "a")
	names, err := f.List("d")
	must(t, err)
	if want := []string{"a", "b", "e"}; !slices.Equal(names, want) {
		t.Errorf("list: %v, want %v", names, want)
	}
	for what, c := range map[string]struct {
		got, want error
	}{
		"create an existing file":  {second(f.Create("d/a")), fs.ErrExist},
		"create without directory": {second(f.Create("x/a")), fs.ErrNotExist},
		"open a missing file":      {second(f.Open("d/x")), fs.ErrNotExist},
		"open a directory":         {second(f.Open("d/e")), fs.ErrNotExist},
		"list a missing directory": {second(f.List("x")), fs.ErrNotExist},
		"rename a missing file":    {f.Rename("d/x", "d/y"), fs.ErrNotExist},
		"remove a missing file":    {f.Remove("d/x"), fs.ErrNotExist},
		"sync a missing directory": {f.SyncDir("x"), fs.ErrNotExist},
		"make a directory of file": {f.MkdirAll("d/a/b"), fs.ErrExist},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	must(t, f.Rename("d/a", "d/b"))
	wantNone(t, f, "d/a")
	wantFile(t, f, "d/b", "a")
	open, err := f.Open("d/b")
	must(t, err)
	must(t, f.Remove("d/b"))
	wantNone(t, f, "d/b")
	write(t, open, 0, "still open")
}

func second[T any](_ T, err error) error { return err }

func TestOnlySyncedContentSurvives(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	file := create(t, f, "a", "synced")
	must(t, f.SyncDir("."))
	must(t, file.Sync())
	write(t, file, 3, "LOST AND LONGER")
	wantFile(t, f, "a", "synLOST AND LONGER")
	for range 2 { // Survive does not change the file system
		wantFile(t, f.Survive(faultfs.OnlySynced, nil), "a", "synced")
		wantFile(t, f.Survive(faultfs.Everything, nil), "a", "synLOST AND LONGER")
	}
	must(t, file.Sync())
	left := f.Survive(faultfs.OnlySynced, nil)
	wantFile(t, left, "a", "synLOST AND LONGER")
	wantFile(t, left.Survive(faultfs.OnlySynced, nil), "a", "synLOST AND LONGER")
}

func TestOnlySyncedNamesSurvive(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	must(t, f.MkdirAll("d"))
	file := create(t, f, "d/a", "a")
	must(t, file.Sync())
	must(t, f.SyncDir("d"))
	wantNone(t, f.Survive(faultfs.OnlySynced, nil), "d/a") // d itself is missing
	must(t, f.SyncDir("."))
	wantFile(t, f.Survive(faultfs.OnlySynced, nil), "d/a", "a")

	must(t, f.Rename("d/a", "d/b"))
	must(t, create(t, f, "d/c", "c").Sync())
	left := f.Survive(faultfs.OnlySynced, nil)
	wantFile(t, left, "d/a", "a")
	wantNone(t, left, "d/b")
	wantNone(t, left, "d/c")
	left = f.Survive(faultfs.Everything, nil)
	wantNone(t, left, "d/a")
	wantFile(t, left, "d/b", "a")

	must(t, f.SyncDir("d"))
	must(t, f.Remove("d/b"))
	wantFile(t, f.Survive(faultfs.OnlySynced, nil), "d/b", "a")
	must(t, f.SyncDir("d"))
	wantNone(t, f.Survive(faultfs.OnlySynced, nil), "d/b")
}

// TestCrashTearsWritesAtSectorBoundaries checks that every kind of tear occurs, and that no
// sector is ever torn.
func TestCrashTearsWritesAtSectorBoundaries(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	file := create(t, f, "a", string(bytes.Repeat([]byte("o"), 4*512)))
	must(t, f.SyncDir("."))
	must(t, file.Sync())
	write(t, file, 100, string(bytes.Repeat([]byte("n"), 3*512)))
	seen := make(map[string]bool)
	for seed := range uint64(300) {
		left := f.Survive(faultfs.Torn, rand.New(rand.NewPCG(seed, 0)))
		got, err := left.ReadFile("a")
		must(t, err)
		pattern := ""
		for s := range 4 {
			sector := got[s*512 : (s+1)*512]
			was, is := make([]byte, 512), make([]byte, 512)
			for i := range was {
				was[i], is[i] = 'o', 'o'
				if at := s*512 + i; at >= 100 && at < 100+3*512 {
					is[i] = 'n'
				}
			}
			switch {
			case bytes.Equal(sector, was):
				pattern += "-"
			case bytes.Equal(sector, is):
				pattern += "+"
			default:
				t.Fatalf("seed %d: sector %d is neither old nor new: %q", seed, s, sector)
			}
		}
		seen[pattern] = true
	}
	for _, want := range []string{"----", "++++", "+---", "+++-", "---+", "-+++", "+-+-", "-+-+"} {
		if !seen[want] {
			t.Errorf("no seed tears like %s: %v", want, seen)
		}
	}
}

func TestCrashTearsRenamesAndSizes(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	file := create(t, f, "a", "a")
	must(t, file.Sync())
	must(t, f.SyncDir("."))
	must(t, f.Rename("a", "b"))
	must(t, file.Allocate(10000))
	create(t, f, "c", "")
	sizes, patterns := make(map[int]bool), make(map[string]bool)
	for seed := range uint64(300) {
		left := f.Survive(faultfs.Torn, rand.New(rand.NewPCG(seed, 0)))
		names, err := left.List(".")
		must(t, err)
		patterns[fmt.Sprint(names)] = true
		content, err := left.ReadFile(names[0])
		must(t, err)
		sizes[len(content)] = true
		if content[0] != 'a' || len(bytes.Trim(content[1:], "\x00")) > 0 {
			t.Fatalf("seed %d: the content is %q", seed, content)
		}
	}
	for _, want := range []string{"[a]", "[b]", "[a c]", "[b c]"} {
		if !patterns[want] {
			t.Errorf("no seed leaves %s: %v", want, patterns)
		}
	}
	if len(patterns) != 4 || !sizes[1] || !sizes[10000] || len(sizes) < 10 {
		t.Errorf("seeds leave names %v and sizes %v", patterns, sizes)
	}
}

func TestCrashStopsEverythingAtTheOperation(t *testing.T) {
	t.Parallel()
	run := func(f *faultfs.FS) error {
		file, err := f.Create("a")
		if err != nil {
			return err
		}
		if _, err := file.WriteAt([]byte("content"), 0); err != nil {
			return err
		}
		if _, err := file.ReadAt(make([]byte, 3), 0); err != nil { // reads are not counted
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		return f.SyncDir(".")
	}
	f := faultfs.New()
	must(t, run(f))
	if f.Ops() != 4 {
		t.Fatalf("%d operations were counted, want 4", f.Ops())
	}
	for n := 1; n <= 4; n++ {
		f := faultfs.New()
		f.CrashAt(n)
		if err := run(f); !errors.Is(err, faultfs.ErrCrashed) || !f.Crashed() {
			t.Errorf("crash at %d: %v", n, err)
		}
		if _, err := f.List("."); !errors.Is(err, faultfs.ErrCrashed) {
			t.Errorf("list after the crash at %d: %v", n, err)
		}
		wantNone(t, f.Survive(faultfs.OnlySynced, nil), "a")
		killed := f.Survive(faultfs.Everything, nil)
		if n == 1 {
			wantFile(t, killed, "a", "")
		} else {
			wantFile(t, killed, "a", "content") // the last write may have reached the disk
		}
	}
}

func TestAFailedSyncLosesUnwrittenData(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	file := create(t, f, "a", string(bytes.Repeat([]byte("1"), 1024)))
	must(t, f.SyncDir("."))
	must(t, file.Sync())
	write(t, file, 0, "lost")
	f.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Sync {
			return syscall.EIO
		}
		return nil
	})
	if err := file.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: %v, want EIO", err)
	}
	f.SetHook(nil)
	write(t, file, 512, "kept")
	must(t, file.Sync()) // succeeds, but the lost data stays lost
	left, err := f.Survive(faultfs.OnlySynced, nil).ReadFile("a")
	must(t, err)
	if string(left[:4]) != "1111" || string(left[512:516]) != "kept" {
		t.Errorf("after a failed and a good sync: %q and %q", left[:4], left[512:516])
	}
	if seen, _ := f.ReadFile("a"); string(seen[:4]) != "lost" {
		t.Errorf("the page cache shows %q", seen[:4])
	}
	write(t, file, 4, "!") // writes the whole sector again
	must(t, file.Sync())
	left, err = f.Survive(faultfs.OnlySynced, nil).ReadFile("a")
	must(t, err)
	if string(left[:5]) != "lost!" {
		t.Errorf("after writing the sector again: %q", left[:5])
	}
}

func TestSpaceRunsOutInTheMiddleOfAWrite(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	file := create(t, f, "a", "12345")
	reserved := create(t, f, "b", "")
	must(t, reserved.Allocate(100))
	f.SetFree(3)
	n, err := file.WriteAt([]byte("abcdefgh"), 5)
	if n != 3 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d, %v, want 3 and ENOSPC", n, err)
	}
	wantFile(t, f, "a", "12345abc")
	if n, err := file.WriteAt([]byte("x"), 8); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d, %v, want 0 and ENOSPC", n, err)
	}
	write(t, file, 0, "over")     // takes no space
	write(t, reserved, 50, "has") // uses reserved space
	if err := reserved.Allocate(101); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("allocate: %v, want ENOSPC", err)
	}
	if size, _ := reserved.Size(); size != 100 {
		t.Errorf("a refused allocation leaves %d bytes", size)
	}
	must(t, f.Remove("b"))
	write(t, file, 8, "space again")
	f.SetFree(-1)
	write(t, file, 0, string(make([]byte, 1<<20)))
}

func TestHookSeesAndRefusesOperations(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	var ops []string
	f.SetHook(func(op faultfs.Op) error {
		ops = append(ops, op.String())
		if op.Kind == faultfs.Write && op.Offset > 0 {
			return syscall.EIO
		}
		return nil
	})
	file := create(t, f, "a", "1")
	if _, err := file.WriteAt([]byte("2"), 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("write: %v, want EIO", err)
	}
	wantFile(t, f, "a", "1")
	want := []string{"1: create a [0+0]", "2: write a [0+1]", "3: write a [1+1]", "0: readfile a [0+0]"}
	if !slices.Equal(ops, want) {
		t.Errorf("the hook saw %q, want %q", ops, want)
	}
}

func TestFlippedBitIsSeenAndOnDisk(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	file := create(t, f, "a", "@@")
	must(t, file.Allocate(10000))
	must(t, file.Sync())
	must(t, f.SyncDir("."))
	must(t, f.FlipBit("a", 1, 0))
	must(t, f.FlipBit("a", 9000, 7))
	for _, view := range []*faultfs.FS{f, f.Survive(faultfs.OnlySynced, nil)} {
		got, err := view.ReadFile("a")
		must(t, err)
		if got[0] != '@' || got[1] != 'A' || got[9000] != 0x80 {
			t.Errorf("after flips: %q, %#x", got[:2], got[9000])
		}
	}
	for _, offset := range []int64{-1, 10000} {
		if err := f.FlipBit("a", offset, 0); err == nil {
			t.Errorf("a bit outside of the file, at %d, was flipped", offset)
		}
	}
	if err := f.FlipBit("b", 0, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("flip in a missing file: %v", err)
	}
}

func TestLockNamesItsHolderAndEndsWithACrash(t *testing.T) {
	t.Parallel()
	f := faultfs.New()
	held, err := f.Lock("lock", "process 1")
	must(t, err)
	wantFile(t, f, "lock", "process 1")
	var locked *vfs.LockedError
	if _, err := f.Lock("lock", "process 2"); !errors.As(err, &locked) || locked.Holder != "process 1" {
		t.Errorf("second lock: %v", err)
	}
	left := f.Survive(faultfs.Everything, nil)
	if _, err := left.Lock("lock", "process 3"); err != nil {
		t.Errorf("lock after a crash: %v", err)
	}
	must(t, held.Close())
	must(t, held.Close())
	again, err := f.Lock("lock", "process 4")
	must(t, err)
	must(t, held.Close()) // frees only the space that the file holds
	if _, err := f.Lock("lock", "process 5"); !errors.As(err, &locked) || locked.Holder != "process 4" {
		t.Errorf("third lock: %v", err)
	}
	must(t, again.Close())
}
