package dedup

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/internal/table"
	"github.com/semel-dev/semel/vfs"
)

// spilled is a keySet that remembers all keys within a bounded memory. Its table has the
// newest keys. When it is full, they move to a run, which is a file sorted by digest. A
// filter in memory tells that a run does not have a new key, so that only a known key, and
// one new key in 250, costs a read.
type spilled[V table.CompactValue] struct {
	memory memory[V]
	place  run.Place
	files  *nameless
	runs   []*run.Run
	entry  int // the length of an entry

	tableBytes, indexBytes int64 // what the table and the indexes of the runs may take
	full                   int64 // keys of a full table, or 0 until it was full once
	note                   func(string)
	noted                  bool

	// Scratch space of a batch.
	asked []question
	block []byte
	known []bool
	rest  lines
	told  []semel.Decision
}

// question asks a run for a digest of the batch.
type question struct {
	run  int
	off  int64
	size int
	i    int // of the digest
	key  semel.Digest
}

const (
	// LeastMemory is the least Options.Memory.
	LeastMemory = 64 << 20
	// besideKeys is the memory of a run in addition to its keys: the program, and blocks
	// of lines.
	besideKeys = 40 << 20
	// garbage is how much more memory than its live part the collector permits, in
	// percent.
	garbage = 12
	// tablePercent is the table's share of the memory for keys. The others are the
	// runs' filters. So they have room for about 14 times the keys of the table.
	tablePercent = 60
)

// newSpilled returns a keySet that takes about this much memory together with the run.
func newSpilled(most int64, prints bool, note func(string)) keySet {
	if !prints {
		return spilledOf[struct{}](answers[struct{}]{}, most, 20, note) // 4 bytes are not used
	}
	return spilledOf(answers[[8]byte]{value: toBytes, print: fromBytes}, most, 24, note)
}

func spilledOf[V table.CompactValue](a answers[V], most int64, entry int, note func(string)) *spilled[V] {
	keys := (most - besideKeys) * 100 / (100 + garbage)
	files := &nameless{FS: vfs.OS{}}
	return &spilled[V]{
		memory: memory[V]{answers: a}, entry: entry, files: files, note: note,
		tableBytes: keys * tablePercent / 100, indexBytes: keys * (100 - tablePercent) / 100,
		place: run.Place{FS: files, Dir: os.TempDir(), Size: func(uint32) int { return entry }},
	}
}

func (s *spilled[V]) prints() bool { return s.memory.answers.print != nil }

func (s *spilled[V]) decide(l lines, out []semel.Decision) error {
	if err := s.look(l, out); err != nil {
		return err
	}
	t := &s.memory.table
	if keys := t.Len(); s.full > 0 && keys >= s.full || s.full == 0 && t.Bytes() >= s.tableBytes {
		s.full = keys
		return s.spill()
	}
	return nil
}

// look decides a batch.
func (s *spilled[V]) look(l lines, out []semel.Decision) error {
	if len(s.runs) == 0 {
		return s.memory.decide(l, out)
	}
	if err := s.ask(l, out); err != nil {
		return err
	}
	s.rest.digests, s.rest.prints = s.rest.digests[:0], s.rest.prints[:0]
	for i, known := range s.known {
		if known {
			continue
		}
		s.rest.digests = append(s.rest.digests, l.digests[i])
		if s.prints() {
			s.rest.prints = append(s.rest.prints, l.prints[i])
		}
	}
	s.told = resized(s.told, len(s.rest.digests))
	if err := s.memory.decide(s.rest, s.told); err != nil {
		return err
	}
	told := s.told
	for i, known := range s.known {
		if !known {
			out[i], told = told[0], told[1:]
		}
	}
	return nil
}

// ask finds the digests that a run has, and decides them. Known says which.
func (s *spilled[V]) ask(l lines, out []semel.Decision) error {
	s.known = resized(s.known, len(l.digests))
	clear(s.known)
	s.asked = s.asked[:0]
	for i := range l.digests {
		key := sorted(l.digests[i])
		for number, r := range s.runs {
			if r.MayHave(&key) {
				off, size := r.Block(&key)
				s.asked = append(s.asked, question{number, off, size, i, key})
			}
		}
	}
	slices.SortFunc(s.asked, func(a, b question) int {
		if a.run != b.run {
			return a.run - b.run
		}
		return int(a.off - b.off)
	})
	last := question{run: -1}
	for _, q := range s.asked {
		r := s.runs[q.run]
		if q.run != last.run || q.off != last.off {
			s.block = resized(s.block, q.size)
			if err := r.ReadAt(s.block, q.off); err != nil {
				return s.failed(err)
			}
			last = q
		}
		entry, err := r.Find(s.block, q.off, &q.key)
		if err != nil {
			return s.failed(err)
		}
		if entry == nil {
			continue
		}
		s.known[q.i], out[q.i] = true, semel.Duplicate
		if s.prints() && differ(binary.LittleEndian.Uint64(entry[16:]), l.prints[q.i]) {
			out[q.i] = semel.Mismatch
		}
	}
	return nil
}

// spill moves the keys of the table to a run.
func (s *spilled[V]) spill() error {
	t := &s.memory.table
	w, err := run.Create(&s.place, "semel-dedup-"+rand.Text()+run.Suffix, t.Len())
	if err != nil {
		return s.failed(err)
	}
	entry := make([]byte, s.entry)
	for d, v := range t.All() {
		key := sorted(d)
		copy(entry, key[:])
		if s.prints() {
			binary.LittleEndian.PutUint64(entry[16:], s.memory.answers.print(v))
		}
		if err := w.Add(entry); err != nil {
			return s.failed(errors.Join(err, w.Abort()))
		}
	}
	r, err := w.Finish(nil)
	if err != nil {
		return s.failed(err)
	}
	s.runs = append(s.runs, r)
	t.Clear()
	var index int64
	for _, r := range s.runs {
		index += r.MemoryBytes()
	}
	if index > s.indexBytes && !s.noted {
		s.noted = true
		s.note("--memory: there are so many keys that finding them on disk takes more memory than that, about 1.2 bytes for each")
	}
	return nil
}

// failed says where keys on disk are.
func (s *spilled[V]) failed(err error) error {
	return fmt.Errorf("dedup: keys beyond --memory are in %s, which TMPDIR chooses: %w", s.place.Dir, err)
}

// close gives up the files.
func (s *spilled[V]) close() error {
	var errs []error
	for _, r := range s.runs {
		errs = append(errs, r.Close())
	}
	s.runs = nil
	return errors.Join(append(errs, s.files.close())...)
}

// sorted returns the bytes of a digest in an order in which the keys of a table are sorted
// as those of a run. The last byte, which a table does not keep, is 0.
func sorted(d semel.Digest) (key semel.Digest) {
	high := max(binary.LittleEndian.Uint64(d[1:9]), 1) // as in a table
	binary.LittleEndian.PutUint64(key[:], uint64(d[0])<<56|high>>8)
	key[8] = byte(high)
	copy(key[9:15], d[9:15])
	return key
}

// nameless is a file system whose files have no names, so that the system removes them
// when the process ends, however it ends.
type nameless struct {
	vfs.FS
	left []string // that could not be removed while they are open
}

// Create removes the name immediately.
func (n *nameless) Create(name string) (vfs.File, error) {
	file, err := n.FS.Create(name)
	if err != nil {
		return nil, err
	}
	if n.FS.Remove(name) != nil {
		n.left = append(n.left, name)
	}
	return unsynced{file}, nil
}

func (n *nameless) Rename(string, string) error { return nil }
func (n *nameless) Remove(string) error         { return nil }
func (n *nameless) SyncDir(string) error        { return nil }

func (n *nameless) close() error {
	var errs []error
	for _, name := range n.left {
		errs = append(errs, n.FS.Remove(name))
	}
	return errors.Join(errs...)
}

// unsynced is a file that no other process will read.
type unsynced struct{ vfs.File }

func (unsynced) Sync() error { return nil }
