package keys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/internal/table"
)

// keyRun is a run with the keys of some files of the copy.
type keyRun struct {
	*run.Run
	of state.Spilled
	// begun is the greatest time before its first record, and ended that up to its last one.
	begun, ended int64
	// keep is how long its keys count. Their expiries are ticks, whose length depends on it.
	keep time.Duration
}

const (
	// An entry of a run has a digest without its last byte (16), the tick of its expiry (8), and
	// the mark of its record (8).
	entrySize = 32
	// The meta of a run has seven numbers (8 each), and a record without entries. The numbers are
	// the positions before and behind the records of the run, its times, the checksum of its last
	// record, the number of the oldest file, and how long keys count.
	metaNumbers = 7
	metaSize    = 8*metaNumbers + headerSize
)

// ordered returns a digest whose order in a run is that of the digest in a table.
func ordered(d *semel.Digest) (key semel.Digest) {
	binary.LittleEndian.PutUint64(key[:8], binary.BigEndian.Uint64(d[:8]))
	copy(key[8:15], d[8:15])
	return key
}

// name returns the name of a run, which has the numbers of the files.
func name(of *state.Extent) string {
	return fmt.Sprintf("%08d-%08d%s", of.First, of.Last, run.Suffix)
}

// filesOf reads the name of a run.
func filesOf(text string) (of state.Extent, ok bool) {
	n, err := fmt.Sscanf(text, "%d-%d"+run.Suffix, &of.First, &of.Last)
	return of, n == 2 && err == nil && 0 < of.First && of.First <= of.Last && name(&of) == text
}

// meta returns the content of the header of the run.
func (r *keyRun) meta() []byte {
	b := make([]byte, 0, metaSize)
	for _, n := range []int64{r.of.From, r.of.Next, r.begun, r.ended, int64(r.of.Sum), int64(r.of.Oldest), int64(r.keep)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return append(b, r.of.Record...)
}

// readMeta reads what meta returned, and reports whether the header has that.
func (r *keyRun) readMeta() bool {
	meta := r.Meta()
	if len(meta) != metaSize {
		return false
	}
	number := func(i int) int64 { return int64(binary.LittleEndian.Uint64(meta[8*i:])) }
	r.of.From, r.of.Next, r.begun, r.ended = number(0), number(1), number(2), number(3)
	r.of.Sum, r.of.Oldest, r.keep, r.of.Record = uint32(number(4)), int(number(5)), time.Duration(number(6)), meta[8*metaNumbers:]
	return true
}

// read reads the entry of a key into a block, which may grow. The entry is nil if the run does not
// have the key.
func (r *keyRun) read(key *semel.Digest, block *[]byte) ([]byte, error) {
	off, size := r.Block(key)
	*block = slices.Grow((*block)[:0], size)[:size]
	if err := r.ReadAt(*block, off); err != nil {
		return nil, err
	}
	return r.Find(*block, off, key)
}

// appendEntry appends the entry of a key.
func appendEntry(dst []byte, key *semel.Digest, mark uint64, expiry table.Tick) []byte {
	dst = binary.LittleEndian.AppendUint64(append(dst, key[:]...), uint64(expiry))
	return binary.LittleEndian.AppendUint64(dst, mark)
}

func markOf(entry []byte) uint64       { return binary.LittleEndian.Uint64(entry[24:]) }
func expiryOf(entry []byte) table.Tick { return table.Tick(binary.LittleEndian.Uint64(entry[16:])) }

// write writes the run with what fill adds, about a number of keys, and makes it durable.
func (r *keyRun) write(place *run.Place, keys int64, fill func(*run.Writer) error) (*keyRun, error) {
	w, err := run.Create(place, name(&r.of.Extent), keys)
	if err != nil {
		return nil, err
	}
	if err := fill(w); err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	if r.Run, err = w.Finish(r.meta()); err != nil {
		return nil, err
	}
	if err := place.FS.SyncDir(place.Dir); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// merge makes one of runs, without keys that have expired.
func merge(place *run.Place, runs []*keyRun, now table.Tick, stop *atomic.Bool) (*keyRun, error) {
	first, last := runs[0], runs[len(runs)-1]
	merged := &keyRun{of: last.of, begun: first.begun, ended: last.ended, keep: last.keep}
	merged.of.First, merged.of.From = first.of.First, first.of.From
	keys := int64(0)
	var scans []*run.Scanner
	for _, r := range runs {
		keys += r.Entries()
		scans = append(scans, r.Scan())
	}
	return merged.write(place, keys, func(w *run.Writer) error {
		at := make([]semel.Digest, len(scans)) // of the scanners
		next := func(i int) (more bool) {
			if more = scans[i].Next(); more {
				at[i] = semel.Digest(scans[i].Entry())
			}
			return more
		}
		var live []int
		for i := range scans {
			if next(i) {
				live = append(live, i)
			}
		}
		for len(live) > 0 && !stop.Load() {
			newest := live[0]
			for _, i := range live[1:] {
				if run.Compare(&at[i], &at[newest]) <= 0 {
					newest = i
				}
			}
			key, entry := at[newest], scans[newest].Entry()
			if expiryOf(entry) > now {
				if err := w.Add(entry); err != nil {
					return err
				}
			}
			live = slices.DeleteFunc(live, func(i int) bool { return at[i] == key && !next(i) })
		}
		var errs []error
		for _, scan := range scans {
			errs = append(errs, scan.Err())
		}
		if stop.Load() {
			errs = append(errs, errStopped)
		}
		return errors.Join(errs...)
	})
}
