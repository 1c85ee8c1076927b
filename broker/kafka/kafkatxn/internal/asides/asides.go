// Package asides keeps events about parked and dropped records until their transaction is
// committed, because the records of an aborted transaction are read again.
package asides

import "github.com/semel-dev/semel/pipeline"

// List are the events of a transaction.
type List []pipeline.Event

// Most is how many records have an event of their own. The others are counted.
const Most = 100

// Add adds an event about a record.
func (l *List) Add(kind pipeline.EventKind, why pipeline.Reason, it *pipeline.Item) {
	reason := string(why)
	if len(*l) < Most {
		*l = append(*l, pipeline.Event{Kind: kind, Count: 1, Reason: reason, Err: it.Err, Item: it})
		return
	}
	for i := range (*l)[Most:] {
		if e := &(*l)[Most+i]; e.Kind == kind && e.Reason == reason {
			e.Count++
			return
		}
	}
	*l = append(*l, pipeline.Event{Kind: kind, Count: 1, Reason: reason})
}

// Report reports the events and removes them.
func (l *List) Report(observe func(pipeline.Event)) {
	for _, e := range *l {
		observe(e)
	}
	l.Reset()
}

// Reset removes the events.
func (l *List) Reset() {
	clear(*l) // they hold records
	*l = (*l)[:0]
}
