package stream

import (
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Keep says which message of a key takes effect, instead of the first one that is read.
// One of First, Last and Newest is required. A message that does not take effect because
// of another one is superseded.
//
// With First and Last a message is held until no other can replace it, by the watermark
// of its partition: the greatest time of a message, minus Grace.
type Keep struct {
	// First finds the time of a message, and keeps the earliest message of a key. The
	// watermark counts these times. The key is then remembered as usual, by these times
	// too. A message that is later by the window, within which keys are remembered, is
	// another one.
	First *key.Rule
	// Last keeps the last message of each window, by the times of messages. Messages of
	// the same time count in the order in which they were read. With Session, a message is
	// kept after a time without others of its key. Hopping is not possible.
	Last Window
	// Time finds the time of a message for Last, in the message as it was read. Defaults to
	// nil: the message's own time counts.
	Time *key.Rule
	// Unit says how the field of First or Time has a time. Defaults to AnyUnit.
	Unit TimeUnit
	// Newest finds the version of a message, and keeps each one that is newer than all
	// before, immediately. The newest version is remembered as a key is. A version is a
	// whole number, a time as in RFC 3339, or another text of at most 32 bytes, whose
	// order is that of its bytes.
	Newest *key.Rule

	// Grace is how much older than the newest message a message may be. Defaults to 0.
	// Idle makes held messages of a partition without new ones take effect. If all
	// messages of the partition have been read and no new one comes for Idle, the
	// watermark is Idle + Grace + 5 s behind the clock. With semel.Forever it does not
	// move. Defaults to 1 minute. MaxAhead is how far the time of a message may be ahead
	// of the clock; one further ahead is parked. Defaults to 5 minutes.
	Grace, Idle, MaxAhead time.Duration
	// MaxBehind is how far the time of a message may be behind the clock. A message
	// further behind is parked, and so is one without a time or before 1970. With
	// semel.Forever there is no bound. Defaults to 0: times since 1973. Before that,
	// milliseconds could be seconds that were read in the wrong unit.
	MaxBehind time.Duration
	// Late is the policy for messages that are older than the watermark allows. Defaults
	// to pipeline.Park.
	Late pipeline.Then
}

// Holds reports whether messages are held.
func (k *Keep) Holds() bool { return k.Newest == nil }

// TimeRule returns the rule that finds the times of messages, or nil if their own times count.
func (k *Keep) TimeRule() *key.Rule {
	if k.First != nil {
		return k.First
	}
	return k.Time
}

// WithDefaults returns a copy whose zero fields have their defaults.
func (k *Keep) WithDefaults() *Keep {
	c := *k
	timeDefaults(&c.Idle, &c.MaxAhead)
	return &c
}

// Validate returns an error that names all invalid fields and wraps
// semel.ErrInvalidRequest, or nil.
func (k *Keep) Validate() error {
	wrong := invalid.In("stream: Keep.")
	n := 0
	for _, set := range []bool{k.First != nil, k.Last != Window{}, k.Newest != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		wrong.Add("First, Last, Newest: exactly one of them is required")
	}
	if k.Last != (Window{}) {
		wrong.Join(k.Last.Validate())
		if k.Last.Gap() == 0 && k.Last.Every() != k.Last.Size() {
			wrong.Add("Last: windows that overlap would keep a message several times: use Tumbling or Session")
		}
	}
	for name, d := range map[string]time.Duration{"Grace": k.Grace, "Idle": k.Idle, "MaxAhead": k.MaxAhead, "MaxBehind": k.MaxBehind} {
		if d < 0 || d >= semel.Forever && name != "Idle" && name != "MaxBehind" {
			wrong.Add("%s: %v is no such time", name, d)
		}
	}
	if k.Time != nil && k.Last == (Window{}) {
		wrong.Add("Time: it is only for Last: First has a rule of its own, and Newest needs no time")
	}
	k.Unit.validate(wrong, k.TimeRule() != nil)
	if k.Late > pipeline.Stop {
		wrong.Add("Late: %d is not Park, Drop or Stop", k.Late)
	}
	return wrong.Err()
}

// String describes what is kept. Stored messages with another description are refused.
func (k *Keep) String() string {
	switch {
	case k.First != nil:
		return fmt.Sprintf("keep first by %s", k.First)
	case k.Newest != nil:
		return fmt.Sprintf("keep newest %s", k.Newest)
	}
	text := fmt.Sprintf("keep last, %s", k.Last)
	if k.Time != nil {
		text += " at " + k.Time.String()
	}
	return text
}
