package watermarks

import (
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/stream"
)

// Clock moves the watermark of a partition's state: a Single or a *Sources. All times are in
// milliseconds. One goroutine uses it at a time.
type Clock interface {
	state.Sources
	// See notes the time of a record, and reports false if the time is too far ahead of now.
	See(r *kgo.Record, when, now int64) bool
	// Reached returns the time up to which the partition has come when it reads a record of a time.
	Reached(when int64) int64
	// NextProgress returns how many records come before the next progress record of a copier,
	// which Progress reads.
	NextProgress(records []*kgo.Record, is func(*kgo.Record) bool) int
	Progress(r *kgo.Record) error
	// MaxSize returns how many bytes of a record of the state the times of sources take at most.
	MaxSize() int
}

// Marked is a state with a watermark.
type Marked interface {
	// See notes the time of a record, and reports false if that is too far ahead of the clock.
	// Such a record does not move the watermark.
	See(when, clock int64) bool
	// Quiet moves the watermark of a partition without new records, of which all before a time
	// were read. It reports whether something is due then; if not, it changes nothing.
	Quiet(read int64) (due bool)
	// Watermark returns the watermark, or 0 before the first record.
	Watermark() int64
	// StoredSources returns the sources as they are stored.
	StoredSources() string
}

// Single is the Clock of a partition whose records are of one source. Without a state, only the
// times of records count.
type Single struct {
	state.NoSources
	State Marked
}

var _ Clock = Single{}

func (c Single) See(_ *kgo.Record, when, now int64) bool { return c.State.See(when, now) }

func (Single) Reached(when int64) int64 { return when }

// NextProgress implements Clock. Such a partition has no progress records.
func (Single) NextProgress(records []*kgo.Record, _ func(*kgo.Record) bool) int { return len(records) }

func (Single) Progress(*kgo.Record) error { return nil }

func (Single) MaxSize() int { return 0 }

// Sources is the Clock of a partition with records of several sources, of which the slowest
// decides. Their times are stored with the state.
type Sources struct {
	state    Marked
	maxAhead int64 // how far a record may be ahead of the clock
	sizes    map[string]int32
	times    *Times // nil until they are read from the stored sources
	text     []byte
}

var _ Clock = (*Sources)(nil)

// NewSources returns the Sources of inputs. sizes has their numbers of partitions.
func NewSources(state Marked, sizes map[string]int32, maxAhead int64) *Sources {
	return &Sources{state: state, sizes: sizes, maxAhead: maxAhead}
}

func (s *Sources) See(r *kgo.Record, when, now int64) bool {
	if when > now+s.maxAhead {
		return false
	}
	s.open().See(cluster.Partition{Topic: r.Topic, Number: r.Partition}, when)
	s.advance()
	return true
}

// advance moves the watermark to that of the slowest source.
func (s *Sources) advance() {
	if low, ok := s.open().Low(); ok {
		s.state.See(low, low)
	}
}

func (s *Sources) Reached(when int64) int64 {
	low, ok := s.open().Low()
	if !ok {
		return 0
	}
	return min(low, when)
}

func (*Sources) NextProgress(records []*kgo.Record, is func(*kgo.Record) bool) int {
	if at := slices.IndexFunc(records, is); at >= 0 {
		return at
	}
	return len(records)
}

func (s *Sources) Progress(r *kgo.Record) error {
	if err := s.open().Add(r.Value); err != nil {
		return cluster.Damaged("kafka: %s/%d at %d: %w: no other program may write to the topic between the stages; delete the record with kafka-delete-records.sh", r.Topic, r.Partition, r.Offset, err)
	}
	s.advance()
	return nil
}

// Without moves the watermark without waiting for idle sources, if something is due then.
func (s *Sources) Without(q *IdleSources, idle int64) {
	margin := stream.ClockMargin.Milliseconds()
	times := s.open().Clone()
	q.Move(times, idle, margin)
	if low, ok := times.Low(); ok && s.state.Quiet(low+margin) {
		s.times = times
	}
}

// Grow waits for partitions that inputs have gained.
func (s *Sources) Grow(sizes map[string]int32) {
	for input, n := range s.sizes {
		if sizes[input] > n {
			s.sizes = maps.Clone(s.sizes) // that of others
			s.sizes[input] = sizes[input]
			s.open().grow(input, int(sizes[input]))
		}
	}
}

// open returns the times of the open transaction.
func (s *Sources) open() *Times {
	if s.times == nil {
		s.times = New(s.sizes)
		if text := s.state.StoredSources(); text != "" {
			s.times.Add([]byte(text)) // no error: Text made it
		}
	}
	return s.times
}

func (s *Sources) Text(stored string) string {
	if s.times == nil {
		return stored
	}
	if s.text = s.times.Append(s.text[:0]); string(s.text) == stored {
		return stored
	}
	return string(s.text)
}

func (s *Sources) Forget() { s.times = nil }

func (s *Sources) MaxSize() int { return s.open().MaxSize() }
