package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// transform writes what a function of the user makes of records.
var transform = Kind{
	On:   func(o *Options) bool { return o.Transform != nil },
	Slow: "the Transform needs more than that: make it quicker, or raise it",
	New:  func(p *Partition, _ Operator) Operator { return &transforming{p} },
}

type transforming struct{ *Partition }

// Process implements Operator. It calls the function until it succeeds, its attempts are used
// up, or the context ends. An error after that may come from the context.
func (t *transforming) Process(ctx context.Context, r *Record) (Outcome, error) {
	for attempt := 1; ctx.Err() == nil; attempt++ {
		outputs, err := t.call(ctx, r, attempt)
		var restart error
		if err == nil {
			err, restart = t.fit(ctx, outputs)
		}
		switch {
		case restart != nil: // it is unknown whether the record fails
			return NoRow, restart
		case err == nil:
			for _, out := range outputs {
				out.Topic = t.topicOf(out)
				t.write(out, r.Partition)
			}
			t.Counts.Delivered++
			return Done, nil
		case ctx.Err() != nil:
		case isPermanent(err) || attempt >= t.Failure.Attempts:
			return t.failed(ctx, r, attempt, err)
		default:
			_ = retry.Sleep(ctx, t.Failure.Pause(attempt)) // only the context ends it
		}
	}
	return NoRow, state.ErrAgain // the transaction is aborted, and the session drains
}

// isPermanent reports whether another attempt does not help.
func isPermanent(err error) bool {
	_, noRow := errors.AsType[*stream.RowError](err)
	return noRow || semel.Classify(err) == semel.ClassPermanent
}

// call calls the function of the user.
func (t *transforming) call(ctx context.Context, r *Record, attempt int) (outputs []*kgo.Record, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the transform panicked: %v", p)
		}
	}()
	redrives := t.redrives(r)
	k := t.KeyOf(r)
	t.note(r)
	outputs, err = t.Transform(ctx, pipeline.Delivery{Message: t.message, Key: k, Attempt: attempt, Redrive: redrives})
	if i := slices.Index(outputs, nil); i >= 0 && err == nil {
		return nil, fmt.Errorf("output %d of the Transform is nil: leave it out", i)
	}
	if t.KeyHeaders && r.Key == KeyKnown && err == nil {
		now := time.Now()
		for _, out := range outputs {
			out.Headers = record.AppendOrigin(record.AppendKeyHeaders(out.Headers, k, t.Name), &t.message, now)
		}
	}
	return outputs, err
}

// fit returns an error if an output is too large for its topic or its topic cannot be written.
// A restart error says that the session must restart before that is known.
func (t *transforming) fit(ctx context.Context, outputs []*kgo.Record) (err, restart error) {
	for _, out := range outputs {
		topic := t.topicOf(out)
		if err, restart = t.Unwritable.Check(ctx, t.Admin(), topic); restart != nil {
			return nil, fmt.Errorf("%w: %v", state.ErrAgain, restart) // not wrapped: a restart may help
		}
		if err == nil {
			err, restart = t.check(ctx, topic, out)
		}
		if err != nil || restart != nil {
			return err, restart
		}
	}
	return nil, nil
}

// topicOf returns the topic of an output.
func (t *transforming) topicOf(out *kgo.Record) string {
	if out.Topic == "" {
		return t.Output
	}
	return out.Topic
}

// pass writes records as they are.
var pass = Kind{
	On:  func(o *Options) bool { return o.Aggregate == nil && o.Transform == nil },
	New: func(p *Partition, _ Operator) Operator { return &passing{p} },
}

type passing struct{ *Partition }

func (p *passing) Process(ctx context.Context, r *Record) (Outcome, error) {
	headers := r.Headers
	if p.redrives(r) > 0 {
		r.Headers = record.AppendOwn(nil, r.Headers, pipeline.RedriveHeader)
	}
	if p.KeyHeaders && r.Key == KeyKnown {
		p.note(r)
		r.Headers = record.AppendOrigin(record.AppendKeyHeaders(r.Headers, p.KeyOf(r), p.Name), &p.message, time.Now())
	}
	err, restart := p.check(ctx, p.Output, r.Record)
	switch {
	case restart != nil:
		return NoRow, restart
	case err != nil:
		r.Headers = headers
		return p.Fail(ctx, r, 1, err)
	}
	p.Counts.Delivered++
	r.Topic, r.Given = p.Output, true
	p.write(r.Record, r.Partition)
	return Done, nil
}
