package filter

import (
	"cmp"
	"crypto/rand"
	"errors"
	"time"

	"github.com/semel-dev/semel/internal/invalid"
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

// seed is the secret that keys the hash of a filter. Each filter draws its own.
// Without the seed an attacker cannot find ids that collide and cannot aim at one
// part of the filter (Naor and Yogev, "Bloom Filters in Adversarial
// Environments", 2015).
type seed [16]byte

// Options are the options of [NewBlocked]. The zero value is
// valid.
type Options struct {
	// Capacity is the number of distinct ids that the filter holds. Must be
	// between 1 and 2^36. Defaults to 1,000,000.
	Capacity int
	// ErrorRate is the probability that a filter at capacity reports an absent
	// id as seen. Must be between 1e-9 and 0.5. Defaults to 0.001.
	ErrorRate float64
	// WhenFull says what Add does at capacity. Defaults to Refuse.
	WhenFull WhenFull

	seed seed // random unless a test sets it
}

// RotatingOptions are the options of [NewRotating]. The zero value is valid.
type RotatingOptions struct {
	// Capacity is the highest number of ids expected in the window, at an even
	// rate. Must be between 1 and 2^36. Defaults to 1,000,000.
	Capacity int
	// Window is the time for which the filter remembers an id after its last
	// Add; the id may stay a little longer. Must be between 1 millisecond and
	// 100 years. Defaults to 24 h.
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
	// WhenFull says what Add does when the current generation is full. Defaults
	// to Refuse.
	WhenFull WhenFull

	seed seed // as in Options
}

const (
	maxCapacity = 1 << 36
	minWindow   = time.Millisecond
	maxWindow   = 100 * 365 * 24 * time.Hour
	minError    = 1e-9
	minRotating = 1e-5
	maxError    = 0.5

	defaultCapacity = 1_000_000
	defaultError    = 0.001
	defaultWindow   = 24 * time.Hour
)

func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	wrong := invalid.In("filter: Options.")
	common(wrong, &c, minError)
	return c, wrong.Err()
}

func (o *RotatingOptions) withDefaults() (RotatingOptions, error) {
	var c RotatingOptions
	if o != nil {
		c = *o
	}
	c.Generations = cmp.Or(c.Generations, 8)
	c.Window = cmp.Or(c.Window, defaultWindow)
	wrong := invalid.In("filter: RotatingOptions.")
	shared := Options{c.Capacity, c.ErrorRate, c.WhenFull, c.seed}
	common(wrong, &shared, minRotating)
	c.Capacity, c.ErrorRate, c.seed = shared.Capacity, shared.ErrorRate, shared.seed
	if c.Window < minWindow || c.Window > maxWindow {
		wrong.Add("Window: %v is not between %v and 100 years", c.Window, minWindow)
	}
	switch c.Generations {
	case 2, 4, 8, 16:
	default:
		wrong.Add("Generations: %d is not 2, 4, 8 or 16", c.Generations)
	}
	return c, wrong.Err()
}

// common sets the defaults of the options that all filters have, and checks them.
func common(wrong *invalid.List, o *Options, lowest float64) {
	o.Capacity = cmp.Or(o.Capacity, defaultCapacity)
	o.ErrorRate = cmp.Or(o.ErrorRate, defaultError)
	if o.seed == (seed{}) {
		rand.Read(o.seed[:]) // never fails: crypto/rand ends the process instead
	}
	if o.Capacity < 1 || o.Capacity > maxCapacity {
		wrong.Add("Capacity: %d is not between 1 and 2^36", o.Capacity)
	}
	if !(o.ErrorRate >= lowest && o.ErrorRate <= maxError) {
		wrong.Add("ErrorRate: %g is not between %g and %g", o.ErrorRate, lowest, maxError)
	}
	if o.WhenFull > Report {
		wrong.Add("WhenFull: %d is neither Refuse nor Report", o.WhenFull)
	}
}
