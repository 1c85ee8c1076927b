package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// joinRows treats records for which a table has no row. The functions of the user ask for the
// rows.
var joinRows = Kind{
	On:  (*Options).callsUser,
	New: func(p *Partition, next Operator) Operator { return &join{p, next} },
}

type join struct {
	*Partition
	next Operator
}

// waitForRow is how long a record waits for its row if nothing can continue in the meantime, until
// the session restarts.
const waitForRow = pending.Patience

// Process implements Operator. Records stay behind those of the same id or record key that wait.
func (j *join) Process(ctx context.Context, r *Record) (Outcome, error) {
	if j.RowsRead || !j.Waits.Holds(j.waiting(r)) {
		outcome, err := j.next.Process(ctx, r)
		if outcome != NoRow || err != nil {
			return outcome, err
		}
		if row, ok := errors.AsType[*stream.RowError](r.Err); !ok || j.RowsRead || !j.waits(row) {
			return j.without(ctx, r)
		}
		r.Value = r.Body
	}
	if j.MayWait && !j.Waits.Full() {
		j.wait(r)
		return Waits, nil
	}
	if err := j.catchUp(ctx); err != nil {
		return NoRow, err
	}
	if outcome, err := j.Resume(ctx, ctx, j.Waits.Len()); outcome == Full || err != nil {
		return outcome, err
	}
	outcome, err := j.next.Process(ctx, r)
	if outcome == NoRow && err == nil {
		return j.without(ctx, r)
	}
	return outcome, err
}

// waits reports whether a record waits for a row. A session without brokers reads no tables.
func (j *join) waits(row *stream.RowError) bool {
	return row.Table.Missing == stream.MissingWait && row.Key != "" && row.Cause == nil && j.ReadTables != nil
}

// waiting returns a record as one that waits.
func (j *join) waiting(r *Record) pending.Record {
	return pending.Record{Record: cmp.Or(r.outer, r.Record), HasID: len(r.ID) > 0, ID: r.Digest, Since: j.Readings()}
}

// wait adds a record to those that wait.
func (j *join) wait(r *Record) {
	c := *r.read()
	c.Headers, c.Context = slices.Clip(c.Headers), nil // the client uses the memory of the record that was read again
	x := j.waiting(r)
	x.Record = &c
	j.Waits.Add(x)
}

// catchUp reads the tables to their ends, while the session waits.
func (j *join) catchUp(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, waitForRow)
	defer cancel()
	if err := j.ReadTables(patient, j.ID.Number); err != nil {
		return fmt.Errorf("%w: %v", state.ErrAgain, err) // a table that cannot be read parks nothing
	}
	j.RowsRead = true
	return nil
}

// Resume decides the first records that wait. The outcome is Full if the transaction should end
// before it has decided all of them, or ctx has ended. calls is the context of Process.
func (p *Partition) Resume(ctx, calls context.Context, n int) (Outcome, error) {
	for ; n > 0; n-- {
		if p.Budget.Full(ctx) {
			return Full, nil
		}
		x := p.Waits.Take()
		p.Resumed++
		p.Budget.Done()
		of := *x.Record
		r := p.Open(&of)
		if err := p.Identify(p.Keys, &r); err != nil {
			return NoRow, err
		}
		r.Now, r.Resumed = p.Now(), true
		if outcome, err := p.first.Process(calls, &r); outcome == Full || err != nil {
			return outcome, err
		}
	}
	return Done, nil
}

// IdentifyWaiting finds the keys of records that wait since another member read them.
func (p *Partition) IdentifyWaiting() error {
	return p.Waits.Each(func(x *pending.Record) error {
		of := *x.Record
		r := p.Open(&of)
		if err := p.Identify(p.Keys, &r); err != nil {
			return err
		}
		x.HasID, x.ID = len(r.ID) > 0, r.Digest
		return nil
	})
}

// without applies the policy of a table to a record that has no row there.
func (j *join) without(ctx context.Context, r *Record) (Outcome, error) {
	row, ok := errors.AsType[*stream.RowError](r.Err)
	switch {
	case !ok:
		return j.Fail(ctx, r, r.Attempts, r.Err)
	case errors.Is(row, semel.ErrLate):
		return j.Park(ctx, r, pipeline.Park, pipeline.ReasonLate, r.Attempts, row)
	case row.Table.Missing == stream.MissingDrop:
		return j.Park(ctx, r, pipeline.Drop, pipeline.ReasonRowMissing, r.Attempts, row)
	}
	return j.Park(ctx, r, pipeline.Park, pipeline.ReasonRowMissing, r.Attempts, row)
}
