package trialcmd

import (
	"context"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/pipeline"
)

// try decides a case as a Kafka transaction does.
func (b *caseBench) try(ctx context.Context, c *testCase, line *caseLine) (err error) {
	timed := b.isTimed()
	if b.trial == nil {
		if timed && !c.Time.IsZero() {
			b.now = c.Time.Time
		}
		if b.trial, err = b.spec.Source.(config.TransactionalSource).Try(b.conf, b.spec, b.now, b.partitions); err != nil {
			return err
		}
	}
	if err := b.pass(ctx, line); err != nil {
		return err
	}
	if timed && len(c.Body) == 0 && c.RecordKey == "" && len(c.Headers) == 0 {
		return nil // time passes
	}
	m := b.messageOf(c)
	o, err := b.trial.Send(ctx, b.now, m)
	if err != nil {
		return err
	}
	if id, ok := jsonid.Format(o.Key.ID); ok && o.Key.ID != "" {
		line.Key = id
	}
	line.Decision = decisionOf(&o)
	switch line.Decision {
	case dryFresh:
		if b.spec.FilterMap != nil || len(c.Output) > 0 {
			line.Output = jsonOf(o.Body)
		}
	case dryFailed, caseNoRow:
		line.Error = term.PlainText(o.Err.Error())
	case dryMissing:
		if c.Decision != dryMissing {
			line.Wrong = append(line.Wrong, "it has no key: "+term.PlainText(o.Err.Error()))
		}
	}
	return b.pass(ctx, line)
}

// isTimed reports whether messages count by their times, and the clock with them.
func (b *caseBench) isTimed() bool { return b.spec.Aggregate != nil || b.spec.Key.Keep != nil }

// pass lets time pass, and adds what takes effect to the results.
func (b *caseBench) pass(ctx context.Context, line *caseLine) error {
	released, err := b.trial.Pass(ctx, b.now)
	for _, value := range released {
		line.Results = append(line.Results, jsonOf(value))
	}
	return err
}

// decisionOf returns what became of a message in one word.
func decisionOf(o *config.TrialOutcome) string {
	switch {
	case o.Reason == pipeline.ReasonKeyMissing || o.Reason == pipeline.ReasonKeyInvalid || o.Reason == pipeline.ReasonUnreadable:
		return dryMissing
	case o.Reason == pipeline.ReasonRowMissing:
		return caseNoRow
	case o.Decision == semel.Late || o.Reason == pipeline.ReasonLate:
		return dryLate
	case o.Reason != "":
		return dryFailed
	case o.Held:
		return caseHeld
	case o.Filtered:
		return dryFiltered
	case o.Decision == semel.Duplicate:
		return dryDuplicate
	case o.Decision == semel.Superseded:
		return caseSuperseded
	}
	return dryFresh
}
