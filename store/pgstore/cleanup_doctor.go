package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// form examines what there is of a form of clean-up beyond the table of keys.
func (e *examination) form(ctx context.Context) error {
	if e.hasher.times == nil {
		return nil
	}
	return e.floor(ctx)
}

func (e *examination) floor(ctx context.Context) error {
	var behind pgtype.Interval
	var raised bool
	err := e.ask(ctx, "SELECT clock_timestamp() - age * interval '1 microsecond' - floor, floor > 'epoch' FROM "+e.opts.quoted("times"), nil, &behind, &raised)
	if err != nil {
		return err
	}
	if raised {
		e.judgeFloor(duration(behind))
	} else { // the finding about clean-up says for how long
		e.judge(false, semel.Fine, "oldest message", "of any age: no clean-up has run yet", "", "")
	}
	return nil
}

func (e *examination) judgeFloor(behind time.Duration) {
	m := e.hasher.times
	e.judge(behind > m.width()+lag, semel.Notice, "oldest message", fmt.Sprintf("up to %v old, %v more than need be", (m.age+max(behind, 0)).Round(time.Second), max(behind, 0).Round(time.Second)),
		"the promise holds; keys that are forgotten take disk", "let one process run the maintenance of the store")
}
