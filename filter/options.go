package filter

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/semel-dev/semel"
)

// ErrFull is the error of an Add that would take a filter beyond its capacity
// and therefore changed nothing. See [WhenFull].
var ErrFull = errors.New("filter: at capacity")

// WhenFull says what an Add of an unseen id does once the capacity is used.
type WhenFull uint8

const (
	// Refuse makes Add return ErrFull, so that the error rate stays what was
	// asked for.
	Refuse WhenFull = iota
	// Report lets Add go on while the error rate grows; Over and ErrorRate
	// tell.
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

// Seed is the secret that keys the hash of a filter. Who does not know it can
// neither find ids that collide nor aim at one part of the filter (Naor and
// Yogev, "Bloom Filters in Adversarial Environments", 2015).
type Seed [16]byte

// NewSeed returns a random seed.
func NewSeed() Seed {
	var s Seed
	rand.Read(s[:]) // never fails: crypto/rand ends the process instead
	return s
}

// Options of [NewBloom] and [NewBlocked]. The zero value is valid.
type Options struct {
	// Capacity is how many distinct ids the filter is to hold. Must be between
	// 1 and 2^36. Defaults to 1,000,000.
	Capacity int
	// ErrorRate is the probability with which an id that was never added is
	// called seen when the filter is at capacity. Must be between 1e-9 (for
	// Blocked, 1e-6) and 0.5. Defaults to 0.001.
	ErrorRate float64
	// Seed keys the hash; the zero Seed asks for a new one. Defaults to a
	// random seed.
	Seed Seed
	// WhenFull says what Add does at capacity. Defaults to Refuse.
	WhenFull WhenFull
}

// RotatingOptions of [NewRotating]. The zero value is valid.
type RotatingOptions struct {
	// Capacity is how many ids a window holds: of a window by count its
	// length, of a window by time the most that are expected at an even pace.
	// Must be between 1 and 2^36. Defaults to 1,000,000.
	Capacity int
	// Window is how long an id is remembered, at least, since it was last
	// added. 0 remembers the last Capacity ids instead, for any time. Must be
	// 0 or at least 1 millisecond. Defaults to 0.
	Window time.Duration
	// Generations is in how many parts the window is forgotten. More parts
	// overshoot the window less, by one part in Generations-1, and share the
	// error among more. Must be 2, 4, 8 or 16. Defaults to 8.
	Generations int
	// ErrorRate is the probability with which an id that was not added within
	// the window is called seen, over all generations together, when they are
	// full. Must be between 1e-5 and 0.5. Defaults to 0.001.
	ErrorRate float64
	// Seed keys the hash; the zero Seed asks for a new one. Defaults to a
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

// invalid joins what is wrong with the fields into one error.
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
