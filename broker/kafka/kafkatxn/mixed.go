package kafkatxn

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
	"github.com/semel-dev/semel/stream"
)

// A Repartition mixes records of several origins: the partitions of the inputs, which have
// come to different times. So the watermark of a partition follows the slowest origin.
// Copiers write progress records between the copies, because an origin's records may all go
// to other partitions. An origin that is copied to its end and idle does not hold the
// watermark back.

// mixes reports whether the times of origins decide.
func (o *TransactorOptions) mixes() bool {
	return o.Repartition != nil && (o.Aggregate != nil || o.Keep != nil && o.Keep.Holds())
}

// maxAhead returns how far a record may be ahead of the clock.
func (o *TransactorOptions) maxAhead() time.Duration {
	if o.Aggregate != nil {
		return o.Aggregate.MaxAhead
	}
	return o.Keep.MaxAhead
}

// noteTime notes the time of a record, and reports false if the time is too far ahead of the clock.
// Such a record does not move the watermark.
func (ws *windowState) noteTime(r *kgo.Record, when, now int64) bool {
	if ws.mix == nil {
		return ws.See(when, now)
	}
	if when > now+ws.mix.MaxAhead {
		return false
	}
	ws.mix.Times().See(cluster.Partition{Topic: r.Topic, Number: r.Partition}, when)
	ws.advance()
	return true
}

// advance moves the watermark to that of the slowest origin.
func (ws *windowState) advance() {
	if low, ok := ws.mix.Times().Low(); ok {
		ws.See(low, low)
	}
}

// reached returns the time up to which a partition has come when it reads a record of a time.
func (ws *windowState) reached(when int64) int64 {
	if ws == nil || ws.mix == nil {
		return when
	}
	low, ok := ws.mix.Times().Low()
	if !ok {
		return 0
	}
	return min(low, when)
}

// applyProgress reads the progress record of a copier.
func (ws *windowState) applyProgress(r *kgo.Record) error {
	if err := ws.mix.Times().Add(r.Value); err != nil {
		return cluster.Damaged("kafka: %s/%d at %d: %w: no other program may write to the topic between the stages; delete the record with kafka-delete-records.sh", r.Topic, r.Partition, r.Offset, err)
	}
	ws.advance()
	return nil
}

// lookAtOrigins does the work of look if there is a Repartition.
func (s *session) lookAtOrigins(ctx context.Context, asked int64) {
	adm, o := s.t.adm(), &s.t.opts
	copied, sizes, err := watermarks.Copied(ctx, adm, o.Inputs, o.copyGroup(), o.Reset == kafka.ResetEnd)
	if err != nil {
		return // the next look may succeed
	}
	for _, p := range s.parts {
		if p.ready {
			p.slot.windows.mix.Grow(sizes)
		}
	}
	if ends, err := adm.ListEndOffsets(ctx, o.Repartition.Topic); err == nil {
		s.settleOrigins(asked, copied, ends)
	}
}

// settleOrigins moves the watermarks of partitions whose slowest origins are idle. copied has
// the ends of the origins that were copied to their ends when the brokers were asked. ends
// has the ends of the session's partitions, which brokers gave afterwards.
func (s *session) settleOrigins(asked int64, copied map[cluster.Partition]int64, ends kadm.ListedOffsets) {
	idle := s.t.opts.idle().Milliseconds()
	list, committed := s.idle.Idle(copied, idle, asked), s.brokers.CommittedOffsets()
	for _, p := range s.parts {
		end, ok := ends.Lookup(p.id.Topic, p.id.Number)
		if !p.ready || !ok || end.Err != nil {
			continue
		}
		if p.origins == nil {
			p.origins = &watermarks.IdleOrigins{At: asked, Idle: list, End: end.Offset}
		}
		if at, ok := committedOffset(committed, p); ok && at.Offset >= p.origins.End {
			p.slot.windows.without(p.origins, idle)
			p.origins = nil
		}
	}
}

// without moves the watermark without waiting for idle origins, if something is due then.
func (ws *windowState) without(q *watermarks.IdleOrigins, idle int64) {
	margin := stream.ClockMargin.Milliseconds()
	times := ws.mix.Times().Clone()
	q.Move(times, idle, margin)
	if low, ok := times.Low(); ok && ws.advanceIdle(low+margin) {
		ws.mix.Set(times)
	}
}
