package watermarks

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/stream"
)

// Clock moves the watermark of a partition's state. A nil Clock is that of a partition without
// one. One goroutine uses it at a time.
type Clock struct {
	state   Marked
	sources *Sources // nil if the records of the partition are of one source
}

// Marked is a state with a watermark. All times are in milliseconds.
type Marked interface {
	// See notes the time of a record, and reports false if that is too far ahead of the clock.
	// Such a record does not move the watermark.
	See(when, clock int64) bool
	// Quiet moves the watermark of a partition without new records, of which all before a time
	// were read. It reports whether something is due then; if not, it changes nothing.
	Quiet(read int64) (due bool)
	// Watermark returns the watermark, or 0 before the first record.
	Watermark() int64
}

// NewClock returns the Clock of a state. sources is nil if the records are of one source.
func NewClock(state Marked, sources *Sources) *Clock { return &Clock{state, sources} }

// See notes the time of a record, and reports false if the time is too far ahead of now.
func (c *Clock) See(r *kgo.Record, when, now int64) bool {
	if c.sources == nil {
		return c.state.See(when, now)
	}
	if when > now+c.sources.MaxAhead {
		return false
	}
	c.sources.Times().See(cluster.Partition{Topic: r.Topic, Number: r.Partition}, when)
	c.advance()
	return true
}

// advance moves the watermark to that of the slowest source.
func (c *Clock) advance() {
	if low, ok := c.sources.Times().Low(); ok {
		c.state.See(low, low)
	}
}

// Reached returns the time up to which the partition has come when it reads a record of a time.
func (c *Clock) Reached(when int64) int64 {
	if c == nil || c.sources == nil {
		return when
	}
	low, ok := c.sources.Times().Low()
	if !ok {
		return 0
	}
	return min(low, when)
}

// NextProgress returns how many records come before the next progress record of a copier. A
// partition with records of one source has none.
func (c *Clock) NextProgress(records []*kgo.Record, is func(*kgo.Record) bool) int {
	if c != nil && c.sources != nil {
		if at := slices.IndexFunc(records, is); at >= 0 {
			return at
		}
	}
	return len(records)
}

// Progress reads the progress record of a copier.
func (c *Clock) Progress(r *kgo.Record) error {
	if err := c.sources.Times().Add(r.Value); err != nil {
		return cluster.Damaged("kafka: %s/%d at %d: %w: no other program may write to the topic between the stages; delete the record with kafka-delete-records.sh", r.Topic, r.Partition, r.Offset, err)
	}
	c.advance()
	return nil
}

// Quiet moves the watermark of a partition without new records, of which all before a time were
// read, if something is due then.
func (c *Clock) Quiet(read int64) { c.state.Quiet(read) }

// Without moves the watermark without waiting for idle sources, if something is due then.
func (c *Clock) Without(q *IdleSources, idle int64) {
	margin := stream.ClockMargin.Milliseconds()
	times := c.sources.Times().Clone()
	q.Move(times, idle, margin)
	if low, ok := times.Low(); ok && c.state.Quiet(low+margin) {
		c.sources.Set(times)
	}
}

// Grow waits for partitions that inputs have gained.
func (c *Clock) Grow(sizes map[string]int32) { c.sources.Grow(sizes) }

// MaxSize returns how many bytes of a record the times of sources take at most.
func (c *Clock) MaxSize() int {
	if c == nil || c.sources == nil {
		return 0
	}
	return c.sources.MaxSize()
}
