package output

import "github.com/semel-dev/semel/pipeline"

// Deferred are events about parked and dropped records. They wait until their transaction is
// committed, because the records of an aborted transaction are read again.
type Deferred []pipeline.Event

// MostDeferred is how many records have an event of their own. The others are counted.
const MostDeferred = 100

// Add adds an event about a record.
func (l *Deferred) Add(kind pipeline.EventKind, why pipeline.Reason, it *pipeline.Item) {
	reason := string(why)
	if len(*l) < MostDeferred {
		*l = append(*l, pipeline.Event{Kind: kind, Count: 1, Reason: reason, Err: it.Err, Item: it})
		return
	}
	for i := range (*l)[MostDeferred:] {
		if e := &(*l)[MostDeferred+i]; e.Kind == kind && e.Reason == reason {
			e.Count++
			return
		}
	}
	*l = append(*l, pipeline.Event{Kind: kind, Count: 1, Reason: reason})
}

// Report reports the events and removes them.
func (l *Deferred) Report(observe func(pipeline.Event)) {
	for _, e := range *l {
		observe(e)
	}
	l.Reset()
}

// Reset removes the events.
func (l *Deferred) Reset() {
	clear(*l) // they hold records
	*l = (*l)[:0]
}
