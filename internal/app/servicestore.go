package app

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/semel-dev/semel"
)

// storeLogEvery is the least time between two lines about a store that fails.
const storeLogEvery = 10 * time.Second

// storeFaults logs that the store of a service fails: clients see no cause, and a pipeline,
// which would pause, is not there.
type storeFaults struct {
	log    *slog.Logger
	advise func(error) error // adds the remedy

	mu       sync.Mutex // guards the fields below
	failures int        // that no line has counted
	said     time.Time  // of the last line
	last     time.Time  // of the last failure
	down     bool       // a line has said that the store fails
}

// Observe implements semel.Observer.
func (f *storeFaults) Observe(e semel.Event) {
	switch e.Kind {
	case semel.EventStoreError:
		f.failed(e.Err)
	case semel.EventDecided, semel.EventCompleted:
		f.worked()
	}
}

func (f *storeFaults) failed(err error) {
	for _, answer := range []error{semel.ErrInvalidKey, semel.ErrInvalidRequest, semel.ErrStaleToken} {
		if errors.Is(err, answer) && semel.Classify(err) == semel.ClassPermanent {
			return // the store works: this is its answer to one request
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures++
	f.last = time.Now()
	if f.down && time.Since(f.said) < storeLogEvery {
		return
	}
	f.log.Error("the store fails: requests with a key get 503, and answers may not be recorded", "failures", f.failures, "error", f.advise(err))
	f.failures, f.said, f.down = 0, f.last, true
}

func (f *storeFaults) worked() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.down || time.Since(f.last) < storeLogEvery {
		return
	}
	f.log.Info("the store works again", "failures", f.failures)
	f.failures, f.down = 0, false
}
