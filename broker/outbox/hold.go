package outbox

import (
	"maps"
	"slices"

	"github.com/semel-dev/semel/pipeline"
)

// holds are the aggregates of which no row is offered, because one of their rows waits for its
// next try. The mutex of the source guards them. Only the goroutine of Read adds and removes
// aggregates.
type holds[T any] struct {
	of      map[string]*holding[T] // by aggregate
	resumed map[uint64]struct{}    // groups that Resume was called with
}

// holding is a held aggregate.
type holding[T any] struct {
	group uint64
	about T
}

// add holds the aggregate of an item, unless it is already held, and returns the data about it.
func (h *holds[T]) add(it *pipeline.Item) *T {
	held := h.at(it)
	if held == nil {
		if h.of == nil {
			h.of = map[string]*holding[T]{}
		}
		h.of[string(it.Message.RecordKey)] = &holding[T]{group: it.Group}
		held = h.at(it)
	}
	return held
}

// at returns nil if the aggregate of an item is not held.
func (h *holds[T]) at(it *pipeline.Item) *T {
	if it.Message.RecordKey == nil {
		return nil
	}
	if held := h.of[string(it.Message.RecordKey)]; held != nil {
		return &held.about
	}
	return nil
}

// resume notes that a group is no longer held.
func (h *holds[T]) resume(group uint64) {
	if h.resumed == nil {
		h.resumed = map[uint64]struct{}{}
	}
	h.resumed[group] = struct{}{}
}

// release removes the aggregates of the groups that are no longer held, and calls a function
// with each.
func (h *holds[T]) release(each func(string, *T)) {
	if len(h.resumed) == 0 {
		return
	}
	for aggregate, held := range h.of {
		if _, ok := h.resumed[held.group]; ok {
			delete(h.of, aggregate)
			each(aggregate, &held.about)
		}
	}
	clear(h.resumed)
}

// aggregates returns the held aggregates.
func (h *holds[T]) aggregates() []string { return slices.AppendSeq([]string{}, maps.Keys(h.of)) }
