package run_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/vfs"
)

// place is a directory for runs whose entries have their length in bytes 16 to 20.
func place(t testing.TB) *run.Place {
	return &run.Place{FS: vfs.OS{}, Dir: t.TempDir(), Store: [16]byte{1, 2, 3}, Size: func(meta uint32) int { return int(meta) }}
}

// entries returns n sorted entries of some lengths.
func entries(random *rand.Rand, n int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		size := 20 + 4*random.IntN(4)
		if random.IntN(1000) == 0 {
			size = 20 + 4*random.IntN(5000) // more than a block
		}
		b := make([]byte, size)
		binary.LittleEndian.PutUint64(b, random.Uint64())
		binary.LittleEndian.PutUint64(b[8:], random.Uint64())
		binary.LittleEndian.PutUint32(b[16:], uint32(size))
		list[i] = b
	}
	slices.SortFunc(list, func(a, b []byte) int { return run.Compare((*semel.Digest)(a), (*semel.Digest)(b)) })
	return list
}

func write(t testing.TB, p *run.Place, name string, list [][]byte) *run.Run {
	t.Helper()
	w, err := run.Create(p, name, int64(len(list)))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	r, err := w.Finish([]byte("meta"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func find(t testing.TB, r *run.Run, d *semel.Digest) []byte {
	t.Helper()
	off, size := r.Block(d)
	b := make([]byte, size)
	if err := r.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	e, err := r.Find(b, off, d)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestRunHasItsEntriesAndNoOthers(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 3, 1000, 300_000} {
		p := place(t)
		list := entries(random, n)
		write(t, p, "a"+run.Suffix, list)
		r, err := run.Open(p, "a"+run.Suffix)
		if err != nil {
			t.Fatal(err)
		}
		if r.Entries() != int64(n) || string(r.Meta()) != "meta" {
			t.Errorf("%d entries of %d, %q", r.Entries(), n, r.Meta())
		}
		scan, i := r.Scan(), 0
		for ; scan.Next(); i++ {
			if !slices.Equal(scan.Entry(), list[i]) {
				t.Fatalf("entry %d of %d differs", i, n)
			}
		}
		if i != n || scan.Err() != nil {
			t.Fatalf("%d entries of %d: %v", i, n, scan.Err())
		}
		for _, e := range list {
			d := semel.Digest(e)
			if !r.MayHave(&d) {
				t.Fatal("the filter does not have an entry")
			}
			if random.IntN(10) == 0 && !slices.Equal(find(t, r, &d), e) {
				t.Fatal("an entry is not found")
			}
		}
		maybe := 0
		const others = 100_000
		for range others {
			var d semel.Digest
			binary.LittleEndian.PutUint64(d[:], random.Uint64())
			if r.MayHave(&d) {
				maybe++
				if find(t, r, &d) != nil {
					t.Fatal("found what is not there")
				}
			}
		}
		if maybe > others/150 {
			t.Errorf("the filter of %d entries has %d of %d others", n, maybe, others)
		}
		if n > 100_000 {
			if bits := 8 * r.MemoryBytes() / int64(n); bits > 10 {
				t.Errorf("%d bits of memory for an entry", bits)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestEntriesOfOneOrderStayInOneBlock: 64 bits of digests may be equal.
func TestEntriesOfOneOrderStayInOneBlock(t *testing.T) {
	t.Parallel()
	var list [][]byte
	for order := range uint64(3) {
		for rest := range byte(250) {
			b := make([]byte, 20)
			binary.LittleEndian.PutUint64(b, order<<62)
			b[8], b[16] = rest, 20
			list = append(list, b)
		}
	}
	r := write(t, place(t), "a"+run.Suffix, list)
	for _, e := range list {
		d := semel.Digest(e)
		if !r.MayHave(&d) || find(t, r, &d) == nil {
			t.Fatalf("%x is not found", d)
		}
	}
}

// TestDamageIsFound flips bits of a run and of the file next to it.
func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	p := place(t)
	list := entries(random, 5000)
	write(t, p, "a"+run.Suffix, list)
	for _, suffix := range []string{run.Suffix, run.IndexSuffix} {
		name := filepath.Join(p.Dir, "a"+suffix)
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			b := slices.Clone(whole)
			at := random.IntN(len(b))
			if at >= 64 && at < 4096 && suffix == run.Suffix {
				continue // the rest of the header is not used
			}
			b[at] ^= 1 << random.IntN(8)
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := run.Open(p, "a"+run.Suffix)
			if err == nil {
				scan := r.Scan()
				for scan.Next() {
				}
				err = errors.Join(scan.Err(), r.Close())
			}
			var damage *run.Damage
			if found := errors.As(err, &damage); found != (suffix == run.Suffix) {
				t.Fatalf("%s, byte %d: %v", suffix, at, err)
			}
		}
		if err := os.WriteFile(name, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestARunOfAnotherPlaceIsRefused takes a file of another name or store.
func TestARunOfAnotherPlaceIsRefused(t *testing.T) {
	t.Parallel()
	p := place(t)
	list := entries(rand.New(rand.NewPCG(5, 6)), 1000)
	write(t, p, "a"+run.Suffix, list)
	if err := os.Rename(filepath.Join(p.Dir, "a"+run.Suffix), filepath.Join(p.Dir, "b"+run.Suffix)); err != nil {
		t.Fatal(err)
	}
	var damage *run.Damage
	if _, err := run.Open(p, "b"+run.Suffix); !errors.As(err, &damage) {
		t.Errorf("another name: %v", err)
	}
	other := *p
	other.Store[0]++
	if _, err := run.Open(&other, "b"+run.Suffix); !errors.As(err, &damage) {
		t.Errorf("another store: %v", err)
	}
}

func BenchmarkWrite(b *testing.B) {
	list := entries(rand.New(rand.NewPCG(1, 2)), 1_000_000)
	for b.Loop() {
		write(b, place(b), "a"+run.Suffix, list)
	}
	b.ReportMetric(float64(len(list)*b.N)/b.Elapsed().Seconds(), "entries/s")
}
