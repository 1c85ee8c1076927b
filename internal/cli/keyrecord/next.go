package keyrecord

import (
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// NextDelivery says what the next delivery of a key gets. This also explains why
// an earlier one was dropped or passed.
func NextDelivery(r *semel.Record, p *config.Pipeline, now time.Time) string {
	switch r.State {
	case semel.Done:
		text := "it is a duplicate: it is acknowledged without effect"
		switch r.Result.Kind {
		case semel.Value:
			text += ", and gets the stored result"
		case semel.Failed:
			text = "it is a duplicate of a message that failed permanently: it is acknowledged without effect, and gets the stored error"
		}
		if !r.Expires.IsZero() {
			text += ", until " + term.DisplayTime(r.Expires)
		}
		return text
	case semel.Claimed:
		if !r.LeaseEnd.IsZero() && !r.LeaseEnd.After(now) {
			return fmt.Sprintf("it is processed, as attempt %d: the lease of the last one ended without a completion, so its effect may have happened", r.Attempt+1)
		}
		text := "it waits: " + term.DisplayText(r.Holder) + " holds the key until " + term.DisplayTime(r.LeaseEnd)
		if r.Orphaned {
			text += "; its process has ended or closed the store, but its effect may still run"
		} else {
			text += " and may extend that"
		}
		if p != nil {
			text += "; after " + schema.Duration(config.HeldWait) + " it goes back to a source that can take it"
		}
		return text
	case semel.Unknown:
		return unknownNext(p) + ": its effect may have happened; settle the key with semel keys resolve"
	}
	text := "it is processed"
	if p != nil && p.OnLate != "" && p.OnLate != "run" {
		text += fmt.Sprintf(", unless it is late, which means that its own time is older than the window of %s (on_late: %s)", schema.Duration(p.Window), p.OnLate)
	}
	text += ": the store has no record of the key. It was never claimed under this scope, its claim was released after a failure or by hand, a person settled it as absent, or it was forgotten"
	if p != nil {
		text += " after its window of " + schema.Duration(p.Window)
	}
	return text
}

// unknownNext says what happens to the next delivery of an unknown key.
func unknownNext(p *config.Pipeline) string {
	switch {
	case p == nil: // of a proxy or a program, or of a pipeline whose key is named by its digest
		return "it is not processed (a pipeline parks it, a request gets 409)"
	case p.OnFailure.Then == pipeline.Stop:
		return "the pipeline stops at it"
	}
	return "it is parked"
}

// LateAgain says what the next delivery of a key gets whose last one was late.
func LateAgain(p *config.Pipeline) string {
	does := map[string]string{"drop": "dropped", "park": "parked"}[p.OnLate]
	window := schema.Duration(p.Window)
	return fmt.Sprintf("it is %s again as late (on_late: %s), because its own time is older than the window of %s. To process it, set on_late: run, or a window that is longer than the age of the message", does, p.OnLate, window)
}
