// Package budget says how many records a transaction reads and how many results it writes,
// so that it does not take too long.
package budget

import "time"

const (
	// first is how many results the first transaction may write, and also one after which
	// brokers took long.
	first = 5_000
	// chunk is how many results are written between two looks at the clock.
	chunk = 100
)

// Results says how many results each transaction of a session may write, so that it takes
// about an interval from its first result to its end. How long brokers take is known only
// after a transaction, so the next one has more or fewer results. How long it takes to
// make the results is seen while they are written: at most half an interval.
//
// A transaction with few results may take long, too, because brokers are far away. So some
// thousand results are always allowed.
type Results struct {
	fit         int // in a transaction
	left, wrote int
	began       time.Time
	interval    time.Duration
	chunk       int
}

// Begin starts a transaction with at most a number of results. Each of them may be slow, so
// that the clock is looked at after each one.
func (r *Results) Begin(most int, interval time.Duration, slow bool) {
	if r.chunk = chunk; slow {
		r.chunk = 1
	}
	r.fit = max(r.fit, first)
	r.left, r.wrote, r.began, r.interval = min(most, r.fit), 0, time.Now(), interval
}

// Left returns how many more results the transaction may write.
func (r *Results) Left() int { return r.left }

// Write calls a function that writes at most a number of results and returns how many
// there were, until there are no more or it has taken half an interval. It calls the
// function at least once.
func (r *Results) Write(write func(most int) (int, error)) error {
	for {
		most := min(r.left, r.chunk)
		n, err := write(most)
		r.note(n)
		if err != nil || n < most || r.left == 0 {
			return err
		}
		if time.Since(r.began) > r.interval/2 {
			r.left = 0
			return nil
		}
	}
}

// Preview calls a function that writes at most a number of results and returns how many
// there were.
func (r *Results) Preview(write func(most int) (int, error)) error {
	n, err := write(r.left)
	r.note(n)
	return err
}

func (r *Results) note(n int) { r.left, r.wrote = r.left-n, r.wrote+n }

// End notes that the transaction has committed. It returns how many results that has.
func (r *Results) End() (wrote int) {
	took := max(time.Since(r.began), time.Microsecond)
	next := int(float64(r.wrote) * float64(r.interval) / float64(took))
	if took > r.interval {
		r.fit = max(next, first)
	} else if r.wrote >= r.fit {
		r.fit = min(next, 2*r.fit)
	}
	return r.wrote
}
