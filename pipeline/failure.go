package pipeline

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/semel-dev/semel"
)

// ErrNotParked: there is no such message in the lot.
var ErrNotParked = errors.New("not parked")

// ErrUnreadable: what is kept there cannot be read, or is no message. All others
// of the lot can be.
var ErrUnreadable = errors.New("what is parked there cannot be read")

// ErrStopped is wrapped by the error of a pipeline that stopped at a message
// because it was told to.
var ErrStopped = errors.New("stopped at a message")

// Then says what becomes of a message that is not tried again.
type Then uint8

const (
	// Park puts it aside.
	Park Then = iota
	// Drop gives it up. It is lost.
	Drop
	// Stop ends the pipeline. The message is not acknowledged.
	Stop
)

// String returns the policy's name as it is written in configurations.
func (t Then) String() string {
	names := [...]string{"park", "drop", "stop"}
	if int(t) < len(names) {
		return names[t]
	}
	return "invalid"
}

// Failure is what a pipeline does about messages that fail. The zero value is
// valid.
type Failure struct {
	// Attempts is how often a message is delivered before it is given up. A
	// permanent error gives it up at once; a sink that is unavailable costs no
	// attempt, unless it goes on to take others. Defaults to 8.
	Attempts int
	// From and To bound the pause before the next attempt, which doubles.
	// Default to 200 ms and 30 s.
	From, To time.Duration
	// Then follows the last attempt. Defaults to Park.
	Then Then
}

func (f *Failure) defaults() {
	if f.Attempts == 0 {
		f.Attempts = 8
	}
	if f.From == 0 {
		f.From = 200 * time.Millisecond
	}
	if f.To == 0 {
		f.To = max(30*time.Second, f.From)
	}
}

func (f *Failure) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("pipeline: Failure."+format+": %w", append(args, semel.ErrInvalidRequest)...))
	}
	if f.Attempts < 1 {
		bad("Attempts: %d is below 1", f.Attempts)
	}
	if f.From <= 0 || f.To < f.From {
		bad("From, To: %v and %v are not above 0 and in order", f.From, f.To)
	}
	if f.Then > Stop {
		bad("Then: %d is none of Park, Drop and Stop", f.Then)
	}
	return errors.Join(errs...)
}

// Pause returns how long to wait after a number of tries, from 1: From doubled
// for each try after the first, To at most, and of that a random share between
// a half and all, which keeps those who failed together apart.
func (f *Failure) Pause(tries int) time.Duration {
	pause := f.From
	for i := 1; i < tries && pause < f.To; i++ {
		pause *= 2
	}
	pause = min(pause, f.To)
	return pause/2 + rand.N(pause/2+1)
}
