package logstore

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
)

// merger merges runs in the background, so that a lookup asks few of them. It merges
// neighbours, so that a newer entry of a key stays behind an older one.
type merger struct {
	log    *log
	finder *finder
	fanIn  int           // at least so many runs become one
	wake   chan struct{} // there is a new run
	// merging is held while runs are merged or dropped. Lock it before log.mu.
	merging sync.Mutex
	failed  []*sortedRun // all runs when a merge failed; log.mu guards it
}

func (m *merger) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run merges runs until the store is closed. A merge that failed, perhaps because it filled
// the disk, is tried again when there is another run. Until then, lookups ask more runs.
func (m *merger) run(ctx context.Context) {
	for {
		select {
		case <-m.wake:
			for {
				if more, err := m.merge(ctx); !more || err != nil {
					break
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// pick returns neighbours that are worth a merge by size.
func (m *merger) pick(list []*sortedRun) (from, to int) {
	return run.Pick(list, m.fanIn, func(group []*sortedRun) bool {
		oldest := group[0]
		if oldest.summary.entries == 0 {
			return true
		}
		last := len(group) - 1
		for group[last].summary.entries == 0 {
			last--
		}
		return m.together(oldest, group[last])
	})
}

// pickDead returns two neighbours of whose entries more than half are needed no more. A run
// is deleted as a whole only when it is the oldest, so behind keys that live longer, others
// would stay. Each such merge leaves a run less, so there is an end.
func pickDead(list []*sortedRun, now int64) (from, to int) {
	for from < len(list) && list[from].expired(now) {
		from++ // will be deleted unread
	}
	for ; from+1 < len(list); from++ {
		a, b := list[from], list[from+1]
		if 2*(a.needless(now)+b.needless(now)) > a.Entries()+b.Entries() {
			return from, from + 2
		}
	}
	return 0, 0
}

// together reports whether runs may become one: it is deleted when the last of its keys has
// expired, so it must not cover much more time than a part of their windows.
func (m *merger) together(oldest, newest *sortedRun) bool {
	if oldest.summary.forever+newest.summary.forever > 0 {
		return true
	}
	window := tickTime(newest.summary.maxTick) - newest.summary.last
	return newest.summary.last-oldest.summary.first <= window/8
}

// next returns all runs, and those of them that must be merged next, if there are any.
func (m *merger) next() (list []*sortedRun, from, to int) {
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	list = m.finder.runs.list
	if m.log.usable() != nil || slices.Equal(list, m.failed) {
		return nil, 0, 0
	}
	m.failed = nil
	if from, to = m.pick(list); from == to {
		from, to = pickDead(list, m.log.clock.Nanos())
	}
	return list, from, to
}

// merge merges some runs. It returns false if none are worth it.
func (m *merger) merge(ctx context.Context) (bool, error) {
	if _, from, to := m.next(); from == to {
		return false, nil // and the caller has not waited for the lock
	}
	m.merging.Lock()
	defer m.merging.Unlock()
	list, from, to := m.next()
	if from == to {
		return false, nil
	}
	older, group := list[:from], list[from:to]
	m.log.mu.Lock()
	for _, s := range group {
		s.pins++
	}
	m.log.mu.Unlock()
	merged, err := m.write(ctx, older, group)
	if err == nil {
		m.log.mu.Lock()
		at := slices.Index(m.finder.runs.list, group[0])
		m.finder.runs.replace(at, at+len(group), merged)
		m.log.mu.Unlock()
	}
	m.finder.unpinRuns(group)
	if err != nil {
		m.log.mu.Lock()
		defer m.log.mu.Unlock()
		m.failed = list
		return false, m.log.stopIfUnsynced(err)
	}
	return true, m.log.deleteRuns(group...)
}

// write writes the entries of runs to one.
func (m *merger) write(ctx context.Context, older, group []*sortedRun) (*sortedRun, error) {
	last := group[len(group)-1]
	n := int64(0)
	for _, s := range group {
		n += s.Entries()
	}
	w, err := newRunWriter(m.log, group[0].from, last.to, group[0].base, n)
	if err != nil {
		return nil, err
	}
	for _, s := range group {
		w.cover(&s.summary)
	}
	if err := m.copy(ctx, w, older, group); err != nil {
		return nil, w.abort(err)
	}
	return w.finish()
}

// source is a run that is being merged, at one of its entries.
type source struct {
	scan  *run.Scanner
	base  int64
	order uint64 // of the entry
}

// next moves to the next entry. It returns false at the end.
func (s *source) next() (bool, error) {
	if !s.scan.Next() {
		return false, damaged(s.scan.Err())
	}
	s.order = run.Order((*semel.Digest)(s.scan.Entry()))
	return true, nil
}

// copy copies the entries that are needed: of a key, the one of the newest run, unless it
// has expired or is a removal, and no older run may have the key.
func (m *merger) copy(ctx context.Context, w *runWriter, older, group []*sortedRun) error {
	const checkEvery = 1 << 16
	sources := make([]source, 0, len(group))
	now := m.log.clock.Nanos()
	for _, s := range group {
		from := source{scan: s.Scan(), base: s.base}
		switch ok, err := from.next(); {
		case err != nil:
			return err
		case ok:
			sources = append(sources, from)
		}
	}
	for n := 0; len(sources) > 0; n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return interrupted(ctx)
		}
		newest := 0
		for i := 1; i < len(sources); i++ {
			a, b := &sources[i], &sources[newest]
			if a.order < b.order || a.order == b.order && bytes.Compare(a.scan.Entry()[:16], b.scan.Entry()[:16]) <= 0 {
				newest = i
			}
		}
		order, key := sources[newest].order, semel.Digest(sources[newest].scan.Entry())
		if err := m.copyEntry(w, older, sources[newest].scan.Entry(), sources[newest].base, now); err != nil {
			return err
		}
		for i := 0; i < len(sources); {
			s := &sources[i]
			if s.order != order || semel.Digest(s.scan.Entry()) != key {
				i++
				continue
			}
			more, err := s.next()
			switch {
			case err != nil:
				return err
			case more:
				i++
			default:
				sources = slices.Delete(sources, i, i+1)
			}
		}
	}
	return nil
}

// copyEntry copies an entry if it is needed.
func (m *merger) copyEntry(w *runWriter, older []*sortedRun, raw []byte, base, now int64) error {
	e, ok := decodeEntry(raw, base)
	switch {
	case !ok:
		return errUndecoded
	case e.kind == kindDone && now < e.expires:
		return w.add(&e, raw, base)
	}
	if !slices.ContainsFunc(older, func(s *sortedRun) bool { return s.MayHave(&e.digest) }) {
		return nil
	}
	if e.kind == kindRemoval {
		return w.addRemoval(&e.digest)
	}
	return w.add(&e, raw, base)
}
