package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
)

// PipelineError means that an outbox belongs to another pipeline. Each of the two would get
// a part of its messages. It wraps semel.ErrInvalidRequest.
type PipelineError struct {
	// Pipeline is the pipeline that asked, and Bound the one that the outbox belongs to.
	Pipeline, Bound string
	// Table is the quoted name of the table that has Bound.
	Table string
}

// Error implements error.
func (e *PipelineError) Error() string { return "outbox: " + e.Cause() + ": " + e.Remedy() }

// Cause says what is wrong.
func (e *PipelineError) Cause() string {
	return fmt.Sprintf("the outbox belongs to the pipeline %s, and %s would take a part of its messages", e.Bound, e.Pipeline)
}

// Remedy says how to correct it.
func (e *PipelineError) Remedy() string {
	return fmt.Sprintf("give each pipeline an outbox of its own, by a store with another prefix; or, if %s replaces %s, stop that one and run: DELETE FROM %s", e.Pipeline, e.Bound, e.Table)
}

// Unwrap returns semel.ErrInvalidRequest.
func (*PipelineError) Unwrap() error { return semel.ErrInvalidRequest }

// TargetError means that other relays of the same pipeline deliver to another target. This
// relay can work when they have ended, so it wraps semel.ErrStoreUnavailable.
type TargetError struct{ Pipeline, Target, Other string }

// Error implements error.
func (e *TargetError) Error() string { return "outbox: " + e.Cause() + ": " + e.Remedy() }

// Cause says what is wrong.
func (e *TargetError) Cause() string {
	return fmt.Sprintf("another relay of the pipeline %s delivers to %s, and this one to %s: each would get a part of the messages", e.Pipeline, e.Other, e.Target)
}

// Remedy says how to correct it.
func (*TargetError) Remedy() string {
	return "stop the relays with the old target, and this one takes over; or give the second pipeline an outbox and a name of its own"
}

// Unwrap returns semel.ErrStoreUnavailable.
func (*TargetError) Unwrap() error { return semel.ErrStoreUnavailable }

// binding is the pipeline that an outbox must belong to. A relay without a pipeline does
// not ask.
type binding struct{ pipeline, target string }

// bind binds the outbox, unless it is bound. The error is a *PipelineError if another
// pipeline has it. If the pipeline has another target, alone says whether no relay lives
// that delivers there: then the target is changed, and otherwise the error is a *TargetError.
func (b binding) bind(ctx context.Context, pool *pgxpool.Pool, sql *statements, alone func() (bool, error)) error {
	if b.pipeline == "" {
		return nil
	}
	for range 3 { // others may bind it, or change it, between two statements
		var bound binding
		switch err := pool.QueryRow(ctx, sql.bound).Scan(&bound.pipeline, &bound.target); {
		case errors.Is(err, pgx.ErrNoRows):
			if _, err := pool.Exec(ctx, sql.bind, b.pipeline, b.target); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case bound == b:
			return nil
		case bound.pipeline != b.pipeline:
			return &PipelineError{Pipeline: b.pipeline, Bound: bound.pipeline, Table: sql.pipeline}
		}
		only, err := alone()
		if err == nil && !only {
			err = &TargetError{Pipeline: b.pipeline, Target: b.target, Other: bound.target}
		}
		if err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, sql.retarget, b.pipeline, bound.target, b.target); err != nil {
			return err
		}
	}
	return fmt.Errorf("outbox: other relays of %s change its target all the time: %w", b.pipeline, semel.ErrStoreUnavailable)
}
