package dedup

import (
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
)

// lossy is a keySet that takes some new keys for known ones and forgets no key.
type lossy struct {
	filter *filter.Blocked
	expect int64
	note   func(string)
	over   bool
}

func newLossy(o *Options) (*lossy, error) {
	ids, err := filter.NewBlocked(&filter.Options{Capacity: int(o.Expect), ErrorRate: o.Lossy, WhenFull: filter.Report})
	if err != nil {
		return nil, &RefusedError{Problems: []string{fmt.Sprintf("--lossy %v --expect %d: %v", o.Lossy, o.Expect, err)}}
	}
	o.Note(fmt.Sprintf("lossy: up to %v of the new lines may be dropped as duplicates, as --lossy permits (a filter of %d KiB for %d keys)",
		o.Lossy, ids.Bytes()>>10, o.Expect))
	return &lossy{filter: ids, expect: o.Expect, note: o.Note}, nil
}

func (l *lossy) decide(of lines, out []semel.Decision) error {
	for i := range of.digests {
		seen, err := l.filter.Add(of.digests[i][:])
		if err != nil {
			return fmt.Errorf("dedup: filter: %w", err)
		}
		out[i] = semel.Fresh
		if seen {
			out[i] = semel.Duplicate
		}
	}
	if !l.over && l.filter.Over() {
		l.over = true
		l.note(fmt.Sprintf("lossy: there are more keys than the %d of --expect, so more new lines are dropped than --lossy permits", l.expect))
	}
	return nil
}

// close reports the rate that was reached.
func (l *lossy) close() error {
	if l.over {
		l.note(fmt.Sprintf("lossy: new lines were dropped at a rate of %.2g at the end", l.filter.ErrorRate()))
	}
	return nil
}
