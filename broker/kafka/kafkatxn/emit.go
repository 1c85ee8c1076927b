package kafkatxn

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
)

// mostResults is how many results one transaction writes at most, or fewer if it would
// take long. The rest follows in further transactions.
const mostResults = 50_000

// due reports whether results can be written now. They wait for an offset of the group to
// commit again, which may be known later than the state is.
func (s *session) due() bool {
	early := s.early()
	var committed map[string]map[int32]kgo.EpochOffset
	return s.anyPart(func(p *part) bool {
		if !p.Due(early) {
			return false
		}
		if committed == nil {
			committed = s.brokers.CommittedOffsets()
		}
		_, fenced := committedOffset(committed, p)
		return fenced
	})
}

// committedOffset returns the committed offset of a partition. It reports false if none exists,
// or it is not known yet.
func committedOffset(committed map[string]map[int32]kgo.EpochOffset, p *part) (kgo.EpochOffset, bool) {
	at, ok := committed[p.ID.Topic][p.ID.Number]
	return at, ok && at.Offset >= 0
}

// early reports whether it is time for early results.
func (s *session) early() bool {
	every := s.t.chain.Times.Early
	return every > 0 && time.Since(s.previewed) >= every
}

// anyPart reports whether a partition that is up to date has a property.
func (s *session) anyPart(has func(p *part) bool) bool {
	for _, p := range s.parts {
		if p.ready && has(p) {
			return true
		}
	}
	return false
}

// patience returns how long to wait for records.
func (s *session) patience() time.Duration {
	if s.due() {
		return 0
	}
	left := s.nextLook() - s.t.now()
	return time.Duration(min(max(left, 0), time.Second.Milliseconds())) * time.Millisecond
}

// emit writes results that are due, as many as one transaction takes. A partition
// without records in it commits its present offset again, so that the brokers check
// whether this member still has it. The same records read in the same transactions give
// the same outputs in the same order.
func (w *worker) emit(ctx context.Context) error {
	t := w.s.t
	w.env.Emits = true
	defer func() { w.env.Emits = false }()
	committed := w.s.brokers.CommittedOffsets()
	early := w.s.early()
	most := t.hooks.results
	if w.rest != nil {
		most = 0 // the transaction takes too long already
	}
	w.results.Begin(most, t.limits.Interval, t.chain.ReleasesSlowly())
	for _, p := range w.s.emitting() {
		if !p.touched && (w.results.Left() == 0 || !p.Due(early)) {
			continue
		}
		if at, fenced := committedOffset(committed, p); fenced {
			w.recommit(p, at)
		} else if !p.touched {
			continue
		}
		w.touch(p)
		err := w.results.Write(func(most int) (int, error) { return p.Emit(ctx, most) })
		if err == nil && early {
			err = w.results.Preview(func(most int) (int, error) { return p.Preview(ctx, most) })
		}
		if err != nil {
			return err
		}
	}
	if early && w.results.Left() > 0 {
		w.s.previewed = time.Now()
	}
	return nil
}

// emitting returns the partitions whose operators may write results, in order.
func (s *session) emitting() []*part {
	var list []*part
	for _, p := range s.parts {
		if p.ready && p.Emitter != nil {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *part) int {
		return cmp.Or(cmp.Compare(a.ID.Topic, b.ID.Topic), cmp.Compare(a.ID.Number, b.ID.Number))
	})
	return list
}

// lookEvery is how often a session asks for the ends of its partitions, once a partition whose
// state has values may be quiet.
const lookEvery = time.Second

// nextLook returns when the clock may move a watermark, in milliseconds: as soon as a
// partition has had no new records for long enough, and then every lookEvery.
func (s *session) nextLook() int64 {
	next := int64(math.MaxInt64)
	idle := s.t.chain.Times.Idle
	if idle >= semel.Forever {
		return next
	}
	for _, p := range s.parts {
		if !p.ready || p.Store.Open() == 0 {
			continue
		}
		at := s.t.source.quietAt(p, idle.Milliseconds())
		if at <= s.looked {
			at = s.looked + lookEvery.Milliseconds()
		}
		next = min(next, at)
	}
	return next
}

// look moves the watermarks of partitions without new records.
func (s *session) look(ctx context.Context) {
	asked := s.t.now() // before the request: a record that comes later is not older
	if asked < s.nextLook() {
		return
	}
	s.looked = asked
	ctx, cancel := context.WithTimeout(ctx, s.t.timeouts.Session/4)
	defer cancel()
	copied, err := s.t.source.copied(ctx, s)
	if err != nil {
		return // the next look may succeed
	}
	if ends, err := s.t.adm().ListEndOffsets(ctx, s.t.decided...); err == nil {
		s.t.source.settle(s, asked, copied, ends)
	}
}

func (direct) quietAt(p *part, idle int64) int64 { return p.quiet + idle }

func (direct) copied(context.Context, *session) (map[cluster.Partition]int64, error) { return nil, nil }

// settle implements source. A partition is quiet at a time if everything that was in it then has
// been read, up to the end that its leader reports. Records of open transactions are before that
// end.
func (t direct) settle(s *session, asked int64, _ map[cluster.Partition]int64, ends kadm.ListedOffsets) {
	idle, committed := t.chain.Times.Idle.Milliseconds(), s.brokers.CommittedOffsets()
	for _, p := range s.parts {
		end, ok := ends.Lookup(p.ID.Topic, p.ID.Number)
		at, has := committed[p.ID.Topic][p.ID.Number]
		switch {
		case !p.ready || !ok || end.Err != nil:
			// nothing is known of this moment
		case !has || at.Offset < end.Offset:
			p.quiet = 0
		case p.quiet == 0:
			p.quiet = asked
		case asked-p.quiet >= idle:
			p.Store.Quiet(asked - idle)
		}
	}
}

// A partition behind a Repartition has records of several sources: the partitions of the
// inputs, which have come to different times. So the watermark follows the slowest source.
// Copiers write progress records between the copies, because a source's records may all go
// to other partitions. A source that is copied to its end and idle does not hold the
// watermark back.

// sources returns the Clock of a partition with a state.
func (p *part) sources() *watermarks.Sources { return p.Clock.(*watermarks.Sources) }

func (*repartitioned) quietAt(*part, int64) int64 { return 0 }

func (t *repartitioned) copied(ctx context.Context, s *session) (map[cluster.Partition]int64, error) {
	copied, sizes, err := watermarks.Copied(ctx, t.adm(), t.inputs, t.group, t.reset == kafka.ResetEnd)
	if err != nil {
		return nil, err
	}
	for _, p := range s.parts {
		if p.ready {
			p.sources().Grow(sizes)
		}
	}
	return copied, nil
}

func (t *repartitioned) settle(s *session, asked int64, copied map[cluster.Partition]int64, ends kadm.ListedOffsets) {
	idle := t.chain.Times.Idle.Milliseconds()
	list, committed := s.idle.Idle(copied, idle, asked), s.brokers.CommittedOffsets()
	for _, p := range s.parts {
		end, ok := ends.Lookup(p.ID.Topic, p.ID.Number)
		if !p.ready || !ok || end.Err != nil {
			continue
		}
		if p.idleSources == nil {
			p.idleSources = &watermarks.IdleSources{At: asked, Idle: list, End: end.Offset}
		}
		if at, ok := committedOffset(committed, p); ok && at.Offset >= p.idleSources.End {
			p.sources().Without(p.idleSources, idle)
			p.idleSources = nil
		}
	}
}
