package facts

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Outcomes of settling a parked message.
const (
	Redriven       = "redriven"
	DoneBefore     = "done before"
	ParkedAgain    = "parked again"
	Queued         = "queued"
	SettledByOther = "settled by another"
	NotRedriven    = "not redriven"
	Skipped        = pipeline.HowSkipped
	MarkedDone     = pipeline.HowDone
)

// ParkedTopic has the parked messages of a pipeline in a topic; see kafka.DeadLetterTopic.
type ParkedTopic interface {
	// Redrive writes messages back to where they came from.
	Redrive(ctx context.Context, list []*pipeline.Parked, actor string) (places []semel.Origin, errs []error)
	// Redrivable returns why a message cannot be redriven.
	Redrivable(m *pipeline.Parked) error
	// Settled returns how a message was settled that is no longer parked.
	Settled(id string) (pipeline.Settlement, bool)
}

// Fate is what the audit log says about one message since a redrive began.
type Fate struct {
	Redriven  bool                // a pipeline processed it
	Delivered bool                // and its effect happened
	By        pipeline.Settlement // the last settlement by an operator, or zero
}

// And joins the fates from two parts of the audit log, of which next is from the later one.
func (f Fate) And(next Fate) Fate {
	if next.By.How == "" {
		next.By = f.By
	}
	next.Redriven, next.Delivered = next.Redriven || f.Redriven, next.Delivered || f.Delivered
	return next
}

// Fates reads how messages were settled after a position of the audit log.
func Fates(ctx context.Context, letters pipeline.DeadLetterStore, after int64) (map[string]Fate, error) {
	list := map[string]Fate{}
	err := letters.Settled(ctx, after, func(s pipeline.Settlement) bool {
		f := list[s.ID]
		if s.How == pipeline.HowRedriven {
			f.Redriven, f.Delivered = true, f.Delivered || s.Delivered
		} else {
			f.By = s
		}
		list[s.ID] = f
		return true
	})
	return list, err
}

// ByHand says how an operator settled a message, and names the operator.
func ByHand(s pipeline.Settlement) string { return s.How + " by " + s.Actor }

// gone returns the outcome of a message that is gone. Only a redrive entry
// with a delivery proves that the effect happened.
func (f Fate) gone() (outcome, reason string) {
	switch {
	case f.Delivered && f.By.How != "":
		return Redriven, ByHand(f.By) + " meanwhile"
	case f.Delivered:
		return Redriven, ""
	case f.By.How != "":
		return SettledByOther, ByHand(f.By)
	case f.Redriven:
		return DoneBefore, ""
	default:
		return SettledByOther, "the audit log does not name the operator"
	}
}

// Outcome returns what became of a message that was queued for a redrive. now is the message as
// it is parked now, or nil if it is gone. waits says why the pipeline does not take it, if that
// is known. settled reports whether the message is gone.
func Outcome(before, now *pipeline.Parked, f Fate, waits string) (outcome, reason, failure string, settled bool) {
	switch {
	case now == nil:
		outcome, reason = f.gone()
		return outcome, reason, "", true
	case now.Redrives > before.Redrives || now.At.After(before.At):
		return ParkedAgain, string(now.Reason), now.Error, false
	case now.Queued:
		return Queued, cmp.Or(waits, "the process that runs the pipeline redrives it"), "", false
	}
	return NotRedriven, "", "", false
}

// TooOld says how a message is older than the window of its keys, or returns "". A copy may have
// been processed since then and forgotten, so a redrive could silently cause a second effect. A
// message without a time is never too old.
func TooOld(m *pipeline.Parked, p *config.Pipeline, now time.Time) string {
	since, old := m.At, "parked longer ago"
	if own := m.Message.Time; p.Transaction.Time == "event" && !own.IsZero() && (m.At.IsZero() || own.Before(m.At)) {
		since, old = own, "older" // keys expire by message time
	}
	if p.Window == semel.Forever || since.IsZero() || now.Sub(since) <= p.Window {
		return ""
	}
	return old
}

// WhyTooOld says why a message that is too old is not redriven.
func WhyTooOld(how string, p *config.Pipeline) string {
	return how + " than its key is remembered: " + schema.Duration(p.Window)
}

// Markable returns why no keys of a pipeline can be marked done by hand, or nil.
func Markable(conf *config.File, p *config.Pipeline) error {
	switch conf.Mode(p) {
	case config.Direct:
		return fmt.Errorf("%s keeps no keys to mark: semel parked skip removes the messages", p.Name)
	case config.SourceIsSink:
		return fmt.Errorf("the keys of %s are in Kafka, where only an output makes a key done: semel parked skip removes the messages, and a later copy is processed", p.Name)
	}
	return nil
}
