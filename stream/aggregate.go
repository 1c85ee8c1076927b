package stream

import (
	"cmp"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Aggregate groups messages by a key and by windows over their times, and computes one
// final result for each group and window. By, Over and Func are required.
//
// A partition's watermark is the greatest time of its messages, minus Grace. If messages of
// several partitions are mixed, it is that of the slowest of them. When it reaches the end
// of a window, the window is closed: its result is written, once.
type Aggregate struct {
	// By finds the group key of a message.
	By *key.Rule
	// Over defines the windows.
	Over Window
	// Func computes the results.
	Func Aggregator
	// Time finds the time of a message, in the message as it was read. Func gets it as the
	// time of the message. Defaults to nil: the message's own time counts.
	Time *key.Rule
	// Unit says how that field has a time. Defaults to AnyUnit.
	Unit TimeUnit
	// Grace is how much older than the newest message a message may be and still count.
	// Defaults to 0.
	Grace time.Duration
	// Idle closes windows of a partition without new messages. If all messages of a
	// partition have been read and no new one comes for Idle, every window is closed
	// whose end is at least Idle + Grace + 5 s ago. The 5 s allow for clocks that differ.
	// With semel.Forever, only newer messages close windows. Defaults to 1 minute.
	Idle time.Duration
	// MaxAhead is how far the time of a message may be ahead of the clock. A message
	// further ahead is parked, and closes no window. Defaults to 5 minutes.
	MaxAhead time.Duration
	// MaxBehind is how far the time of a message may be behind the clock. A message
	// further behind is parked, and so is one without a time or before 1970. With
	// semel.Forever there is no bound. Defaults to 0: times since 1973. Before that,
	// milliseconds could be seconds that were read in the wrong unit.
	MaxBehind time.Duration
	// Correct is how long a closed window still takes late messages. Each transaction
	// that adds some writes the result of the window again. Sessions cannot be corrected,
	// because a late message may join sessions whose results are written. Defaults to 0:
	// a result is written once.
	Correct time.Duration
	// Early is the time between early results of open windows that have changed. A
	// process that takes over a partition may write an early result again. Defaults to 0:
	// only final results are written.
	Early time.Duration
	// Late is the policy for messages whose windows are closed and take no correction. Defaults to
	// pipeline.Park.
	Late pipeline.Then
}

// ClockMargin is how much clocks may differ when an idle partition's windows are closed.
const ClockMargin = 5 * time.Second

// WithDefaults returns a copy whose zero fields have their defaults.
func (a *Aggregate) WithDefaults() *Aggregate {
	c := *a
	timeDefaults(&c.Idle, &c.MaxAhead)
	return &c
}

// timeDefaults sets the defaults of an Aggregate and a Keep.
func timeDefaults(idle, maxAhead *time.Duration) {
	*idle = cmp.Or(*idle, time.Minute)
	*maxAhead = cmp.Or(*maxAhead, 5*time.Minute)
}

// Validate returns an error that names all invalid fields and wraps
// semel.ErrInvalidRequest, or nil.
func (a *Aggregate) Validate() error {
	wrong := invalid.In("stream: Aggregate.")
	if a.By == nil {
		wrong.Add("By is missing")
	}
	if a.Func == nil {
		wrong.Add("Func is missing")
	}
	wrong.Join(a.Over.Validate())
	for name, d := range map[string]time.Duration{"Grace": a.Grace, "Idle": a.Idle, "MaxAhead": a.MaxAhead, "MaxBehind": a.MaxBehind, "Correct": a.Correct, "Early": a.Early} {
		if d < 0 {
			wrong.Add("%s: %v is negative", name, d)
		}
	}
	a.Unit.validate(wrong, a.Time != nil)
	if a.Correct > 0 && a.Over.Gap() > 0 {
		wrong.Add("Correct: %v: sessions cannot be corrected, because a late message may join sessions whose results are written", a.Correct)
	}
	if a.Late > pipeline.Stop {
		wrong.Add("Late: %d is not Park, Drop or Stop", a.Late)
	}
	return wrong.Err()
}

// String describes the aggregate. Stored windows with another description are refused.
func (a *Aggregate) String() string {
	over := a.Over.String()
	if a.Time != nil {
		over += " at " + a.Time.String()
	}
	return fmt.Sprintf("by %s over %s: %s", a.By, over, a.Func)
}

// MaxAccumulator is the size of the largest accumulator in bytes. It fits into one record
// of Kafka.
const MaxAccumulator = 256 << 10

// Aggregator computes the result of a window. Its methods are called concurrently for
// different partitions.
type Aggregator interface {
	// Add adds a message to an accumulator and returns the new accumulator. An empty
	// accumulator is that of a new window. Add may change and return the bytes that it
	// was given. It must not keep parts of the message.
	//
	// After an error the message is not part of the window. An accumulator has at least
	// one byte and at most MaxAccumulator.
	Add(acc []byte, m *semel.Message) ([]byte, error)
	// Merge returns the accumulator of two disjoint sets of messages. The times of the
	// first set are not after those of the second, except in sessions that are at their
	// greatest length. Merge must change neither accumulator. Tumbling windows do not
	// need it. After an error, the message that joins two sessions is refused; in a
	// hopping window, the program stops.
	Merge(a, b []byte) ([]byte, error)
	// Result returns the body of a closed window's output, or nil for no output. It must
	// succeed for each accumulator that Add returned: an error stops the program.
	Result(w *Closed) ([]byte, error)
	// String describes the computation. It must change if accumulators change their
	// meaning.
	String() string
}

// Closed is a window of one group that no message can change any longer. The times of
// its messages are at or after Start. They are before End, but the last message of a
// session is at its End.
type Closed struct {
	// Key is the id that the rule By found. key.AppendText and key.AppendJSON return it
	// as text.
	Key        string
	Start, End time.Time
	Acc        []byte
	// Revision is greater in each further result of the same window; see
	// Aggregate.Correct.
	Revision uint64
}
