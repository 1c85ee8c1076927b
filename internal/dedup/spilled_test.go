package dedup

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// TestKeysOnDiskAreDecidedAsKeysInMemory compares with a map. The table holds a few hundred
// keys, so that most known keys are in runs.
func TestKeysOnDiskAreDecidedAsKeysInMemory(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, prints := range []bool{false, true} {
		r := rand.New(rand.NewPCG(seed, 0))
		set := newSpilled(LeastMemory, prints, func(string) {})
		var spills func() int
		switch s := set.(type) {
		case *spilled[struct{}]:
			s.tableBytes, spills = 1<<20, func() int { return len(s.runs) }
		case *spilled[[8]byte]:
			s.tableBytes, spills = 1<<20, func() int { return len(s.runs) }
		}
		known := map[semel.Digest]uint64{}
		var list []semel.Digest
		for range 150 {
			var l lines
			var want []semel.Decision
			for range 1 + r.IntN(3000) {
				d := semel.Digest{}
				if len(list) > 0 && r.IntN(3) == 0 {
					d = list[r.IntN(len(list))]
				} else {
					for i := range 15 { // keys have 120 bits
						d[i] = byte(r.Uint32())
					}
					if r.IntN(100) == 0 {
						clear(d[1:9]) // as an empty slot
					}
				}
				print := uint64(r.IntN(3))
				l.digests = append(l.digests, d)
				if prints {
					l.prints = append(l.prints, print)
				}
				first, ok := known[d]
				switch {
				case !ok:
					known[d] = print
					list = append(list, d)
					want = append(want, semel.Fresh)
				case prints && differ(first, print):
					want = append(want, semel.Mismatch)
				default:
					want = append(want, semel.Duplicate)
				}
			}
			got := make([]semel.Decision, len(want))
			if err := set.decide(l, got); err != nil {
				t.Fatal(err)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("after %d keys and %d spills, line %d is %v, want %v", len(known), spills(), i, got[i], want[i])
				}
			}
		}
		if spills() < 2 {
			t.Errorf("%d keys made %d runs", len(known), spills())
		}
		if err := set.(interface{ close() error }).close(); err != nil {
			t.Error(err)
		}
	}
}

// fullDisk lets no file be written.
type fullDisk struct{ vfs.FS }

func (f fullDisk) Create(name string) (vfs.File, error) {
	file, err := f.FS.Create(name)
	return fullFile{file}, err
}

type fullFile struct{ vfs.File }

func (fullFile) WriteAt([]byte, int64) (int, error) { return 0, syscall.ENOSPC }

// TestFullDiskForKeysIsAnErrorThatNamesIt: a run that continues without its keys would write
// lines twice.
func TestFullDiskForKeysIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	set := newSpilled(LeastMemory, false, func(string) {}).(*spilled[struct{}])
	set.tableBytes, set.place.Dir, set.files.FS = 1, dir, fullDisk{vfs.OS{}}
	err := set.decide(lines{digests: []semel.Digest{{1}}}, make([]semel.Decision, 1))
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("the error is %v", err)
	}
	if err := set.close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestMemoryBoundIsRefusedWhereItHasNoEffect(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string]Options{
		"--memory: write at least 64MiB":              {Memory: 1},
		"--memory and --store exclude each other":     {Memory: LeastMemory, Store: "store"},
		"--memory and --lossy exclude each other":     {Memory: LeastMemory, Lossy: 0.1, Expect: 1},
		"--memory and --window exclude each other":    {Memory: LeastMemory, Window: 1},
		"--memory and --keep last exclude each other": {Memory: LeastMemory, Keep: KeepLast, Inputs: []string{"in"}},
		"--memory and --why exclude each other":       {Memory: LeastMemory, Why: true, Duplicates: "dups"},
	} {
		_, err := Prepare(t.Context(), &opts)
		var refused *RefusedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
