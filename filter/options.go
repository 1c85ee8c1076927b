package filter

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/semel-dev/semel"
)

// ErrFull is the error of an Add that would exceed the capacity of the filter.
// The filter is unchanged. See [WhenFull].
var ErrFull = errors.New("filter: at capacity")

// WhenFull says what Add does with an unseen id at capacity.
type WhenFull uint8

const (
	// Refuse makes Add return ErrFull, which keeps the error rate below the
	// rate in the options.
	Refuse WhenFull = iota
	// Report makes Add continue while the error rate grows. Over and ErrorRate
	// show by how much.
	Report
)

// String returns the policy's name in lower case.
func (w WhenFull) String() string {
	switch w {
	case Refuse:
		return "refuse"
	case Report:
		return "report"
	}
	return "invalid"
}

// Seed is the secret that keys the hash of a filter. Without the seed an
// attacker cannot find ids that collide and cannot aim at one part of the
// filter (Naor and Yogev, "Bloom Filters in Adversarial Environments", 2015).
type Seed [16]byte

// NewSeed returns a random seed.
func NewSeed() Seed {
	var s Seed
	rand.Read(s[:]) // never fails: crypto/rand ends the process instead
	return s
}

// Options are the options of [NewBloom] and [NewBlocked]. The zero value is
// valid.
type Options struct {
	// Capacity is the number of distinct ids that the filter holds. Must be
	// between 1 and 2^36. Defaults to 1,000,000.
	Capacity int
	// ErrorRate is the probability that a filter at capacity reports an absent
	// id as seen. Must be between 1e-9 (for Blocked, 1e-6) and 0.5. Defaults to
	// 0.001.
	ErrorRate float64
	// Seed keys the hash. The zero Seed asks for a new one. Defaults to a
	// random seed.
	Seed Seed
	// WhenFull says what Add does at capacity. Defaults to Refuse.
	WhenFull WhenFull
}

// RotatingOptions are the options of [NewRotating]. The zero value is valid.
type RotatingOptions struct {
	// Capacity is the number of ids in a window. For a window by count it is
	// the length of the window. For a window by time it is the highest number
	// of ids expected in the window, at an even rate. Must be between 1 and
	// 2^36. Defaults to 1,000,000.
	Capacity int
	// Window is the time for which the filter remembers an id after its last
	// Add; the id may stay a little longer. 0 remembers the last Capacity ids
	// instead, however old they are. Must be 0 or at least 1 millisecond.
	// Defaults to 0.
	Window time.Duration
	// Generations is the number of parts in which the filter forgets the
	// window. With more parts the filter remembers ids for less time beyond the
	// window, which is one part in Generations-1. More parts also share the
	// error rate among more generations. Must be 2, 4, 8 or 16. Defaults to 8.
	Generations int
	// ErrorRate is the probability that the filter reports an id as seen that
	// was not added within the window, over all generations together, when they
	// are full. Must be between 1e-5 and 0.5. Defaults to 0.001.
	ErrorRate float64
	// Seed keys the hash. The zero Seed asks for a new one. Defaults to a
	// random seed.
	Seed Seed
	// WhenFull says what Add does when the current generation of a window by
	// time is full. A window by count is never full. Defaults to Refuse.
	WhenFull WhenFull
}

const (
	maxCapacity  = 1 << 36
	minWindow    = time.Millisecond
	maxWindow    = 100 * 365 * 24 * time.Hour
	minError     = 1e-9
	minBlocked   = 1e-6
	minRotating  = 1e-5
	maxError     = 0.5
	defaultCount = 1_000_000
	defaultError = 0.001
)

func (o *Options) withDefaults(lowest float64) (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	fill(&c.Capacity, defaultCount)
	fill(&c.ErrorRate, defaultError)
	fill(&c.Seed, NewSeed())
	return c, invalid(
		checkCapacity("Options", c.Capacity),
		checkErrorRate("Options", c.ErrorRate, lowest),
		checkWhenFull("Options", c.WhenFull),
	)
}

func (o *RotatingOptions) withDefaults() (RotatingOptions, error) {
	var c RotatingOptions
	if o != nil {
		c = *o
	}
	fill(&c.Capacity, defaultCount)
	fill(&c.Generations, 8)
	fill(&c.ErrorRate, defaultError)
	fill(&c.Seed, NewSeed())
	var window, generations error
	if c.Window != 0 {
		window = checkWindow("RotatingOptions", c.Window)
	}
	switch c.Generations {
	case 2, 4, 8, 16:
	default:
		generations = fmt.Errorf("filter: RotatingOptions.Generations: %d is not 2, 4, 8 or 16", c.Generations)
	}
	return c, invalid(
		checkCapacity("RotatingOptions", c.Capacity),
		window,
		generations,
		checkErrorRate("RotatingOptions", c.ErrorRate, minRotating),
		checkWhenFull("RotatingOptions", c.WhenFull),
	)
}

// fill sets a field that has its zero value.
func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// invalid joins the errors of fields into one error.
func invalid(fields ...error) error {
	if err := errors.Join(fields...); err != nil {
		return fmt.Errorf("%w: %w", semel.ErrInvalidRequest, err)
	}
	return nil
}

func checkCapacity(of string, n int) error {
	if n < 1 || n > maxCapacity {
		return fmt.Errorf("filter: %s.Capacity: %d is not between 1 and 2^36", of, n)
	}
	return nil
}

func checkErrorRate(of string, p, lowest float64) error {
	if math.IsNaN(p) || p < lowest || p > maxError {
		return fmt.Errorf("filter: %s.ErrorRate: %g is not between %g and %g", of, p, lowest, maxError)
	}
	return nil
}

func checkWhenFull(of string, w WhenFull) error {
	if w > Report {
		return fmt.Errorf("filter: %s.WhenFull: %d is neither Refuse nor Report", of, w)
	}
	return nil
}

func checkWindow(of string, w time.Duration) error {
	if w < minWindow || w > maxWindow {
		return fmt.Errorf("filter: %s.Window: %v is not between %v and 100 years", of, w, minWindow)
	}
	return nil
}
