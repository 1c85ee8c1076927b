package keys

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/internal/table"
	"github.com/semel-dev/semel/vfs"
)

// spilled are the keys that have left the table of a State: runs, each of which has the keys of
// some consecutive files of the copy on disk. The newest entry of a key decides.
//
// The table with the newest keys is written to a run as a whole, while another one takes the
// keys that come. Runs are merged, so that a decision asks few of them. A goroutine does the one,
// and another one the other, and the owner of the State takes over what they have made.
type spilled struct {
	place *run.Place // nil without a copy on disk
	keep  time.Duration
	runs  []*keyRun // oldest first, without gaps
	dead  []*keyRun // whose files are no longer needed
	// damaged are names of runs that are removed again when they are closed: Windows removes no open file.
	damaged []string

	leaving *table.Table[uint64] // the table that is being written, or could not be
	writing *task
	merges  []*keyRun // that are being merged
	merging *task

	block []byte
	err   error // of a read: the state must be built again
}

// task is what a goroutine does with runs.
type task struct {
	stop atomic.Bool
	done chan struct{}
	made *keyRun // once it is done
	err  error
}

const (
	// spillKeys is the least number of keys that leave memory together, and mostBehind how many
	// times as many there may be while others leave it.
	spillKeys  = 1 << 20
	mostBehind = 4
	// mergeRuns is how many runs become one, at least. That covers at most a part of the time for
	// which keys count, because it is deleted as a whole.
	mergeRuns   = 8
	mergedParts = 8
)

var errStopped = errors.New("the runs are closed")

// start starts a goroutine.
func start(do func(stop *atomic.Bool) (*keyRun, error)) *task {
	t := &task{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.made, t.err = do(&t.stop)
	}()
	return t
}

// isDone reports whether there is a task, and it is done.
func (t *task) isDone() bool {
	if t == nil {
		return false
	}
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// end ends a task, if there is one, and returns the run that it made.
func (t *task) end() *keyRun {
	if t == nil {
		return nil
	}
	t.stop.Store(true)
	<-t.done
	return t.made
}

// load opens the runs in the directory of the copy of a changelog. It removes one that is damaged,
// is of another window, or does not continue the ones before, and all behind it: their keys come
// from the changelog.
func (s *spilled) load(files vfs.FS, dir string, changelog state.ID) error {
	s.place = &run.Place{FS: files, Dir: dir, Store: changelog,
		Size:     func(uint32) int { return entrySize },
		Unsynced: func(err error) error { return err }}
	if err := files.MkdirAll(dir); err != nil {
		return fmt.Errorf("kafka: state directory: %w", err)
	}
	names, err := files.List(dir)
	if err != nil {
		return fmt.Errorf("kafka: state directory: %w", err)
	}
	var found []state.Extent
	for _, text := range names {
		if of, ok := filesOf(text); ok {
			found = append(found, of)
		}
	}
	slices.SortFunc(found, func(a, b state.Extent) int { return cmp.Or(a.First-b.First, b.Last-a.Last) })
	needless := run.Unfinished(names)
	damaged := false
	for _, of := range found {
		if !damaged && of.Last > s.extent().Last { // otherwise it was merged
			if damaged, err = s.open(of); err != nil {
				return err
			}
			if !damaged {
				continue
			}
		}
		needless = append(needless, run.Files(name(&of))...)
	}
	for _, text := range slices.Backward(needless) {
		if err := s.remove(text); err != nil {
			return err
		}
	}
	return nil
}

// open adds the run of some files, unless it is damaged, of another window, or does not continue
// the one before.
func (s *spilled) open(of state.Extent) (damaged bool, err error) {
	opened, err := run.Open(s.place, name(&of))
	if _, damaged = errors.AsType[*run.Damage](err); damaged {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("kafka: state: %w", err)
	}
	r := &keyRun{Run: opened, of: state.Spilled{Extent: of}}
	before := s.extent()
	if r.readMeta() && r.keep == s.keep && (before.Last == 0 || before.Last+1 == of.First && before.Next == r.of.From) {
		s.runs = append(s.runs, r)
		return false, nil
	}
	r.Close() // it was only read
	return true, nil
}

// extent returns the extent that the runs replace.
func (s *spilled) extent() state.Extent {
	if len(s.runs) == 0 {
		return state.Extent{}
	}
	first, last := &s.runs[0].of, &s.runs[len(s.runs)-1].of
	return state.Extent{First: first.First, Last: last.Last, From: first.From, Next: last.Next}
}

func (s *spilled) remove(text string) error {
	if err := s.place.FS.Remove(filepath.Join(s.place.Dir, text)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kafka: state: %w", err)
	}
	return nil
}

// find returns the mark and the expiry of a key that has left the table and has not expired.
func (s *spilled) find(d *semel.Digest, now table.Tick) (mark uint64, expiry table.Tick, ok bool) {
	if s.leaving != nil {
		if mark, expiry, ok = s.leaving.Find(d, now); ok {
			return mark, expiry, ok
		}
	}
	if len(s.runs) == 0 {
		return 0, 0, false
	}
	key := ordered(d)
	for _, r := range slices.Backward(s.runs) {
		if !r.MayHave(&key) {
			continue
		}
		entry, err := r.read(&key, &s.block)
		if err != nil {
			s.fail(err)
			return 0, 0, false
		}
		if entry != nil {
			return markOf(entry), expiryOf(entry), now < expiryOf(entry)
		}
	}
	return 0, 0, false
}

// fail keeps the first error of a read. A damaged run is removed, so that the state is built
// again without it.
func (s *spilled) fail(err error) {
	if damage, ok := errors.AsType[*run.Damage](err); ok {
		s.damaged = append(s.damaged, filepath.Base(damage.File))
		err = errors.Join(err, s.remove(s.damaged[len(s.damaged)-1]))
	}
	if s.err == nil {
		s.err = fmt.Errorf("%w: kafka: state: %w", state.ErrAgain, err)
	}
}

// leave begins to write a table to a run.
func (s *spilled) leave(from *table.Table[uint64], keys int64, now table.Tick, r *keyRun) {
	s.leaving, r.keep = from, s.keep
	s.writing = start(func(stop *atomic.Bool) (*keyRun, error) {
		return r.write(s.place, keys, func(w *run.Writer) (err error) {
			var entry []byte
			from.Each(now, func(d *semel.Digest, mark uint64, expiry table.Tick) bool {
				key := ordered(d)
				entry = appendEntry(entry[:0], &key, mark, expiry)
				if err = w.Add(entry); stop.Load() {
					err = errStopped
				}
				return err == nil
			})
			return err
		})
	})
}

// collect takes over what the tasks have made. Keys count for a time, or for ever if that is 0.
func (s *spilled) collect(now table.Tick, counts int64) error {
	if t := s.writing; t.isDone() {
		s.writing = nil
		if t.err != nil {
			return fmt.Errorf("kafka: state: %w", t.err)
		}
		s.leaving, s.runs = nil, append(s.runs, t.made)
	}
	if t := s.merging; t.isDone() {
		s.merging = nil
		if _, damaged := errors.AsType[*run.Damage](t.err); damaged {
			s.fail(t.err)
			return s.err
		}
		if t.err == nil { // otherwise the runs stay, and are merged with the next one
			at := slices.Index(s.runs, s.merges[0])
			s.runs = slices.Replace(s.runs, at, at+len(s.merges), t.made)
			s.dead = append(s.dead, s.merges...)
			s.merges = nil
		}
	}
	if from, to := s.pick(counts / mergedParts); s.merging == nil && from < to && !slices.Equal(s.merges, s.runs[from:to]) {
		s.merges = slices.Clone(s.runs[from:to])
		group := s.merges
		s.merging = start(func(stop *atomic.Bool) (*keyRun, error) { return merge(s.place, group, now, stop) })
	}
	return nil
}

// pick returns neighbours that are worth a merge by size. They cover at most a span of stream
// time, unless that is 0.
func (s *spilled) pick(span int64) (from, to int) {
	return run.Pick(s.runs, mergeRuns, func(group []*keyRun) bool {
		return span <= 0 || group[len(group)-1].ended-group[0].begun <= span
	})
}

// expire gives up the runs whose records are all before a position of the changelog.
func (s *spilled) expire(before int64) {
	for s.merging == nil && len(s.runs) > 0 && s.runs[0].of.Next <= before {
		s.dead, s.runs = append(s.dead, s.runs[0]), s.runs[1:]
	}
}

// tidy removes the files of runs that are no longer needed.
func (s *spilled) tidy() error {
	for len(s.dead) > 0 {
		r := s.dead[0]
		r.Close() // it was only read; Windows removes no open file
		for _, text := range run.Files(r.Name()) {
			if err := s.remove(text); err != nil {
				return err
			}
		}
		s.dead = s.dead[1:]
	}
	return nil
}

// close ends the tasks and closes the runs. A table that was leaving memory stays.
func (s *spilled) close() {
	for _, t := range []*task{s.writing, s.merging} {
		if made := t.end(); made != nil {
			made.Close() // it was never read
		}
	}
	for _, r := range slices.Concat(s.runs, s.dead) {
		r.Close() // it was only read
	}
	for _, text := range s.damaged {
		_ = s.remove(text) // if it fails again, the next state fails in the same way
	}
	s.writing, s.merging, s.runs, s.dead, s.damaged = nil, nil, nil, nil, nil
}

// discard removes the files of all runs, the newest first: what is left if that is interrupted
// is the beginning of the changelog.
func (s *spilled) discard() error {
	s.close()
	names, err := s.place.FS.List(s.place.Dir)
	if err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	for _, text := range slices.Backward(names) {
		if _, ok := filesOf(text); ok {
			for _, text := range run.Files(text) {
				err = errors.Join(err, s.remove(text))
			}
		}
	}
	return err
}
