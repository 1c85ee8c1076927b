package kafkatxn

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/pipeline"
)

// health is what keeps a Transactor from working. It reports a pause when the brokers
// do not answer or a member fails twice in a row, and the end of the pause when all
// members work again. A partition that is held up is a pause of its own.
type health struct {
	observe func(pipeline.Event)
	silent  func(error) bool // whether an error means that no broker answered

	mu      sync.Mutex       // guards the fields below
	client  *kgo.Client      // for requests to brokers; nil before Run
	looked  bool             // everything that is needed was found
	lacking error            // why not everything was found
	failing map[string]error // why members restart, by name
	stalled error            // why a partition is held up
	open    string           // the transaction that holds one up and will end, or ""
	passing bool             // at the last look at the progress, all waited for that one
	since   time.Time        // when that was reported
	paused  time.Time        // start of a reported pause, or zero
	quiet   error            // why the brokers did not answer the last look at partitions
	doing   map[string]task  // what members do, by name; none for an idle one
	settled uint64           // records and results that were committed
}

// task is what a member does, in words, and with how many records.
type task struct {
	what    string
	records int
}

// waitsFor notes what a member waits for now. An idle one waits for "".
func (h *health) waitsFor(name, what string, records int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if what == "" {
		delete(h.doing, name)
		return
	}
	if h.doing == nil {
		h.doing = map[string]task{}
	}
	h.doing[name] = task{what, records}
}

// committed notes that a member has committed records that it read, and results.
func (h *health) committed(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settled += uint64(n)
}

// answered notes whether the brokers answered a look at the partitions.
func (h *health) answered(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.quiet = err
}

// progress returns how many records and results were committed, and whether there is work.
func (h *health) progress() (settled uint64, busy bool) {
	_, _, err := h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	busy = err != nil || h.quiet != nil || len(h.doing) > 0
	before := h.passing
	h.passing = !busy && h.open != ""
	if before && busy {
		return h.settled, false // the time of the work begins now
	}
	return h.settled, busy || h.passing
}

// work returns the number of records in progress, and the list of things for which the members
// wait. err is why that fails, if this is known.
func (h *health) work() (records int, what string, err error) {
	_, _, err = h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []string
	for _, name := range slices.Sorted(maps.Keys(h.doing)) {
		records += h.doing[name].records
		list = append(list, h.doing[name].what)
	}
	if err = cmp.Or(err, h.quiet); err != nil {
		list = append(list, "Kafka")
	}
	if h.open != "" && len(list) == 0 {
		list = append(list, h.open)
	}
	slices.Sort(list)
	return records, strings.Join(slices.Compact(list), ", "), err
}

// passes reports whether nothing but a transaction that will end was waited for at the
// last look at the progress.
func (h *health) passes() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.passing
}

// begin sets the client for requests to brokers.
func (h *health) begin(client *kgo.Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.client = client
}

// look returns the client, whether all that is needed was found, and what keeps members from working.
func (h *health) look() (client *kgo.Client, looked bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.failing)) {
		return h.client, h.looked, h.failing[name] // one reason is enough
	}
	return h.client, h.looked, cmp.Or(h.lacking, h.stalled)
}

// missing notes why not everything that is needed was found.
func (h *health) missing(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lacking = err
	if h.silent(err) {
		h.pause(err)
	} else {
		h.resume()
	}
}

// prepared notes that everything that is needed was found, or why it never will be.
func (h *health) prepared(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looked, h.lacking = err == nil, err
	if !h.silent(err) {
		h.resume()
	}
}

// failed notes that a member restarts, and why.
func (h *health) failed(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing == nil {
		h.failing = map[string]error{}
	}
	if h.failing[name] != nil || h.silent(err) {
		h.pause(err)
	}
	h.failing[name] = err
}

// succeeded notes that a member has committed or is idle.
func (h *health) succeeded(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.failing, name); len(h.failing) == 0 {
		h.resume()
	}
}

// stalls notes why a partition is held up, or nil. It reports the first reason, unless
// that is a transaction that will end.
func (h *health) stalls(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = ""
	if open, ok := errors.AsType[*kafka.OpenError](err); ok {
		h.open, err = strings.TrimPrefix(open.Error(), "kafka: "), nil
	}
	switch {
	case err != nil && h.stalled == nil:
		h.since = time.Now()
		h.observe(pipeline.Event{Kind: pipeline.EventPaused, Reason: "source", Err: err})
	case err == nil && h.stalled != nil:
		h.observe(pipeline.Event{Kind: pipeline.EventResumed, Reason: "source", Elapsed: time.Since(h.since)})
	}
	h.stalled = err
}

func (h *health) pause(err error) {
	if h.paused.IsZero() {
		h.paused = time.Now()
		h.observe(pipeline.Event{Kind: pipeline.EventPaused, Reason: "sink", Err: err})
	}
}

func (h *health) resume() {
	if !h.paused.IsZero() {
		h.observe(pipeline.Event{Kind: pipeline.EventResumed, Reason: "sink", Elapsed: time.Since(h.paused)})
		h.paused = time.Time{}
	}
}
