package repartition

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/fields"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// Partitioner chooses the partitions of copies. All copies with one id are in one partition; with
// an aggregate, all copies with one group key. One goroutine uses it.
type Partitioner struct {
	PartitionerOptions
	ids       *fields.IDs
	id        []byte // memory
	groups    *fields.GroupKeys
	times     *fields.Reader
	message   semel.Message
	partition kgo.TopicPartitioner
	probe     kgo.Record // memory of Of
}

// PartitionerOptions are the options of NewPartitioner.
type PartitionerOptions struct {
	// Rule finds the id of a record in a scope. With Hash, a record without an id gets the
	// hash of its body.
	Rule  *key.Rule
	Scope string
	Hash  bool
	// Unwrap returns the message inside a message, or is nil.
	Unwrap pipeline.Unwrapper
	// By finds the group key in the body that the FilterMap returns; nil if records of an id
	// belong together.
	By        *key.Rule
	FilterMap pipeline.FilterMap
	// Time finds the time of a record, in a unit; nil if the record's own time counts.
	Time *key.Rule
	Unit stream.TimeUnit
	// Topic is the topic of the copies. Partitions is how many partitions it had at the
	// start, because new ones would separate copies with one key.
	Topic      string
	Partitions int32
	// Identities are those of the inputs, by name, if the rule needs a position.
	Identities map[string]string
}

// NewPartitioner returns a Partitioner.
func NewPartitioner(o PartitionerOptions) *Partitioner {
	p := &Partitioner{PartitionerOptions: o, ids: fields.NewIDs(o.Rule, o.Scope, o.Hash), partition: kgo.StickyKeyPartitioner(nil).ForTopic(o.Topic)}
	if o.By != nil {
		p.groups = fields.NewGroupKeys(o.By)
	}
	if o.Time != nil {
		p.times = fields.New(o.Time)
	}
	return p
}

// Choose returns the id by which a record will be decided, or nil, and the partition for its
// copy. The id is valid until the next call. when is the time of the record in milliseconds,
// or negative if it has none. An error is that of the FilterMap: the record counts in no
// window, unless the FilterMap was stopped.
func (p *Partitioner) Choose(ctx context.Context, r *kgo.Record) (id []byte, partition int32, when int64, err error) {
	record.Fill(&p.message, r)
	p.message.Origin.Identity = p.Identities[r.Topic]
	when = r.Timestamp.UnixMilli()
	redrives := header.Redrives(&p.message) // Unwrap may leave the header out
	if p.Unwrap != nil {
		inner, unreadable := p.Unwrap.Unwrap(p.message)
		if unreadable != nil { // it is parked
			return nil, p.without(r), -1, nil
		}
		if p.message = inner; !inner.Time.IsZero() {
			when = inner.Time.UnixMilli()
		}
	}
	if p.times != nil {
		var none error
		if when, none = p.times.Time(&p.message, p.Unit); none != nil {
			when = -1
		}
	}
	if found, none := p.ids.Append(p.id[:0], &p.message); none == nil {
		id, p.id = found, found
	}
	by, err := p.group(ctx, id, redrives)
	if by == nil {
		return id, p.without(r), when, err
	}
	return id, p.Of(by), when, err
}

// without returns the partition of a record without an id, in the order of its record key.
func (p *Partitioner) without(r *kgo.Record) int32 {
	if r.Key == nil {
		return r.Partition % p.Partitions
	}
	return p.Of(r.Key)
}

// Of returns the partition of an id or group key.
func (p *Partitioner) Of(key []byte) int32 {
	p.probe.Key = key
	return int32(p.partition.Partition(&p.probe, int(p.Partitions)))
}

// group returns the group key of the message with an id. Without an aggregate, or if the
// message counts in no window, it returns the id.
func (p *Partitioner) group(ctx context.Context, id []byte, redrives int) ([]byte, error) {
	if p.groups == nil {
		return id, nil
	}
	body, pass, err := p.FilterMap.Call(ctx, pipeline.Delivery{
		Message: p.message, Key: semel.Key{Scope: p.Scope, ID: string(id)}, Attempt: 1, Redrive: redrives,
	})
	if err != nil || !pass {
		return id, err
	}
	p.message.Body = body
	if group, err := p.groups.Of(&p.message); err == nil {
		return group, nil
	}
	return id, nil
}
