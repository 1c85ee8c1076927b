package state

import "iter"

// liveSet knows where the values of a state are in its changelog: in the order in which they
// were written, with values that have been written again since. So the first value that
// still counts shows how much of the changelog can be deleted.
//
// If some values stay for long, they keep everything behind them. Full then says that the
// oldest values must be written again. The changelog stays in proportion to the state. If
// each transaction writes as many bytes again as it writes anyway, the changelog has at
// most Slack and about four times the bytes of the state.
type liveSet[T comparable] struct {
	// Slack is how long a changelog may be without being rewritten.
	Slack int64
	// Live reports whether a value that was written at an offset is the present one.
	Live func(item T, at int64) bool

	items   []T   // in the order in which their values were written
	runs    []run // of items
	records []record
	size    int64 // of records
	cut     int64
}

// run says how many values in a row were written at an offset. A transaction writes
// thousands at one.
type run struct {
	at int64
	n  int
}

type record struct{ at, size int64 }

// defaultSlack is the default of Slack. Its records may have some 200,000 values.
const defaultSlack = 8 << 20

// Put notes that a value was written at an offset.
func (l *liveSet[T]) Put(item T, at int64) {
	if n := len(l.runs); n == 0 || l.runs[n-1].at != at {
		l.runs = append(l.runs, run{at: at})
	} else if l.items[len(l.items)-1] == item {
		return
	}
	l.items = append(l.items, item)
	l.runs[len(l.runs)-1].n++
}

// Stored notes that the record at an offset has a size in bytes.
func (l *liveSet[T]) Stored(at int64, size int) {
	l.records = append(l.records, record{at, int64(size)})
	l.size += int64(size)
}

// Full reports whether the oldest values must be written again. The state has a number of
// bytes.
func (l *liveSet[T]) Full(state int64) bool { return l.size > l.Slack+2*state }

// Oldest yields the values that count, and where they were written, the oldest first.
func (l *liveSet[T]) Oldest() iter.Seq2[T, int64] {
	return func(yield func(T, int64) bool) {
		items := l.items
		for _, r := range l.runs {
			for _, item := range items[:r.n] {
				if l.Live(item, r.at) && !yield(item, r.at) {
					return
				}
			}
			items = items[r.n:]
		}
	}
}

// Cut returns the offset before which no record counts, and whether that has changed. The
// last record always counts, because it has the progress of its partition.
func (l *liveSet[T]) Cut() (at int64, ok bool) {
	for len(l.runs) > 0 {
		first, gone := &l.runs[0], 0
		for gone < first.n && !l.Live(l.items[gone], first.at) {
			gone++
		}
		clear(l.items[:gone])
		l.items = l.items[gone:]
		if first.n -= gone; first.n > 0 {
			break
		}
		l.runs = l.runs[1:]
	}
	for len(l.records) > 1 && (len(l.runs) == 0 || l.records[1].at <= l.runs[0].at) {
		l.size -= l.records[0].size
		l.records = l.records[1:]
	}
	if len(l.records) == 0 || l.records[0].at <= l.cut {
		return 0, false
	}
	l.cut = l.records[0].at
	return l.cut, true
}
