package keyrecord

import (
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
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
		return "it is parked: its effect may have happened; settle the key with semel keys resolve"
	}
	text := "it is processed: the store has no record of the key. It was never claimed under this scope, its claim was released after a failure, or it was forgotten"
	if p != nil {
		text += " after its window of " + schema.Duration(p.Window)
	}
	return text
}
