package operator

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/budget"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/fields"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/output"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/tables"
	"github.com/semel-dev/semel/internal/coarse"
	"github.com/semel-dev/semel/pipeline"
)

// Env is what the operators of a session have in common: where results go, what the open
// transaction has done, and memory. One goroutine uses it.
type Env struct {
	*Options
	// Limits are those of the session's client.
	Limits cluster.Limits
	// Produce gives a record to the client, as part of the open transaction.
	Produce func(*kgo.Record)
	// Raised returns the error of a check against Limits. If the limits may have changed since,
	// the session must restart instead, and restart is the error that says so.
	Raised func(ctx context.Context, tooLarge error) (err, restart error)
	// Admin asks brokers about topics.
	Admin func() *kadm.Client
	// ReadTables reads the tables of a partition to their ends; nil without brokers. Readings
	// is how many readings of them have begun.
	ReadTables func(ctx context.Context, number int32) error
	Readings   func() int
	// Contents finds duplicates with another content.
	Contents *coarse.Watch
	// Identities are those of the inputs, by name, if the key needs a position.
	Identities map[string]string
	// Elsewhere reports whether records with a group key are in another partition than this one.
	Elsewhere func(group []byte, partition int32) bool
	// Now returns the time in milliseconds.
	Now func() int64

	// Budget is that of the open transaction. Counts and Deferred are its results.
	Budget   budget.Transaction
	Counts   Counts
	Deferred output.Deferred
	// Resumed is how many waiting records the open transaction has decided.
	Resumed int
	// Emits says that the open transaction writes what became due.
	Emits bool
	// Unwritable are the topics to which a Transform cannot write.
	Unwritable output.Unwritable

	ids     *fields.IDs
	times   *fields.Reader // nil if records have times of their own
	message semel.Message
	// batch, and found with the ids of its records, are memory. texts are ids that users get.
	batch []Record
	found []byte
	texts state.ByteSlab
}

// Counts are the results of a transaction.
type Counts struct {
	Fresh, Duplicate, Late, Again, Superseded, Delivered, Filtered int
	Held                                                           int // it is not reported
	// Differing duplicates have another content than the record of their key. Example is one.
	Differing int
	Example   *pipeline.Item
}

// NewEnv returns the Env of a session. The caller sets its other fields.
func NewEnv(o *Options) *Env {
	e := &Env{Options: o, ids: fields.NewIDs(o.Rule, o.Scope, o.OnMissing == pipeline.MissingHash)}
	if o.Times.Rule != nil {
		e.times = fields.New(o.Times.Rule)
	}
	return e
}

// Reset begins a transaction.
func (e *Env) Reset() {
	e.Counts, e.Resumed = Counts{}, 0
	e.Deferred.Reset()
}

// Open returns a record that was read. With an Unwrap, the record becomes the message inside it;
// as it was read, it is parked and stored.
func (e *Env) Open(r *kgo.Record) Record {
	x := Record{Record: r, Body: r.Value, At: r.Offset}
	if e.Unwrap == nil {
		return x
	}
	e.note(&x)
	inner, err := e.Unwrap.Unwrap(e.message)
	if err != nil {
		x.Key, x.Err = KeyUnreadable, err
		return x
	}
	read := *r
	x.outer = &read
	r.Key, r.Value, x.Body = inner.RecordKey, inner.Body, inner.Body
	r.Headers = record.Of(&inner, "").Headers
	if !inner.Time.IsZero() {
		r.Timestamp = inner.Time
	}
	return x
}

// Fill makes the message of the Env that of a record, before operators change it. Its key is in
// that body, and a FilterMap may have changed it.
func (e *Env) Fill(r *Record) *semel.Message {
	e.note(r)
	e.message.Body = r.Body
	return &e.message
}

// note makes the message of the Env that of a record as it is.
func (e *Env) note(r *Record) {
	record.Fill(&e.message, r.Record)
	e.message.Origin.Identity = e.Identities[r.Topic]
}

// Identify finds the key of a record. keys has the digests of its partition. The error is that
// of a policy that stops.
func (e *Env) Identify(keys *keys.State, r *Record) error {
	if r.Key == KeyUnreadable {
		if e.OnMissing == pipeline.MissingStop {
			return ToldToStop(r.Record, pipeline.ReasonUnreadable, r.Err)
		}
		return nil
	}
	from := len(e.found)
	found, err := e.ids.Append(e.found, e.Fill(r))
	switch {
	case err == nil:
		e.found = found
		r.Key, r.ID = KeyKnown, found[from:len(found):len(found)]
		r.Digest = keys.Digest(r.ID)
		keys.Prefetch(&r.Digest)
	case e.OnMissing == pipeline.MissingPass:
		r.Key = KeyPass
	case e.OnMissing == pipeline.MissingStop:
		return ToldToStop(r.Record, pipeline.ReasonKeyMissing, err)
	default:
		r.Key, r.Err = KeyMissing, err
	}
	return nil
}

// KeyOf returns the key of a record. It is zero if the record has none.
func (e *Env) KeyOf(r *Record) (k semel.Key) {
	if r.Key == KeyKnown {
		k = semel.Key{Scope: e.Scope, ID: e.texts.Text(r.ID)}
	}
	return k
}

// hashOf returns bits of a digest, which are uniform.
func hashOf(d *semel.Digest) uint64 { return binary.LittleEndian.Uint64(d[8:]) }

// redrives returns how often a record was redriven. The record as it was read says it, because an
// Unwrap may leave its headers out.
func (e *Env) redrives(r *Record) int {
	read := cmp.Or(r.outer, r.Record)
	if len(read.Headers) == 0 {
		return 0
	}
	record.Fill(&e.message, read)
	return header.Redrives(&e.message)
}

// Fail applies the policy to a record that cannot be delivered.
func (e *Env) Fail(ctx context.Context, r *Record, attempts int, err error) (Outcome, error) {
	if errors.Is(err, tables.ErrElsewhere) {
		return Aside, err // all other records would fail too
	}
	reason := pipeline.ReasonAttempts
	if semel.Classify(err) == semel.ClassPermanent {
		reason = pipeline.ReasonPermanent
	}
	return e.Park(ctx, r, e.Failure.Then, reason, attempts, err)
}

// Park applies the policy to a record that is not delivered. A record is parked as it was read.
func (e *Env) Park(_ context.Context, r *Record, then pipeline.Then, reason pipeline.Reason, attempts int, cause error) (Outcome, error) {
	k, read, outcome := e.KeyOf(r), r.read(), Aside
	if reason == pipeline.ReasonLate {
		outcome = Late
	}
	switch then {
	case pipeline.Stop:
		return outcome, ToldToStop(read, reason, cause)
	case pipeline.Drop:
		e.Deferred.Add(pipeline.EventDropped, reason, ItemOf(read, k, attempts, cause))
	default:
		out, err := e.DeadLetter(read, e.Limits, reason, attempts, cause)
		if err != nil {
			return outcome, err
		}
		e.Deferred.Add(pipeline.EventParked, reason, ItemOf(read, k, attempts, cause))
		e.Produce(out)
	}
	return outcome, nil
}

// ToldToStop is the error of a Transactor that a policy stops at a record.
func ToldToStop(r *kgo.Record, reason pipeline.Reason, cause error) error {
	where := fmt.Sprintf("a message of %s/%d at %d", r.Topic, r.Partition, r.Offset)
	return fmt.Errorf("kafka: %w", &pipeline.StoppedError{Where: where, Reason: reason, Err: cause})
}

// ItemOf returns the item of a record for observers. They share their bytes.
func ItemOf(r *kgo.Record, k semel.Key, attempts int, cause error) *pipeline.Item {
	it := &pipeline.Item{Attempt: attempts, Err: cause}
	record.Fill(&it.Message, r)
	it.Call.Key, it.Redrive = k, header.Redrives(&it.Message)
	return it
}

// check returns an error if an output is too large for a topic, or its time is too far from the
// clock. A restart error says that the session must restart before that is known.
func (e *Env) check(ctx context.Context, topic string, out *kgo.Record) (err, restart error) {
	return e.Raised(ctx, cmp.Or(e.Limits.Check(topic, out), e.Limits.CheckTime(topic, out, e.Budget.Began())))
}

// write writes an output. It may be the record that was read from a partition, with its key,
// value, headers and time.
func (e *Env) write(out *kgo.Record, partition int32) {
	if e.SamePartition {
		out.Partition = partition
	}
	e.Produce(out)
}
