package kafkaio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

var _ semel.Readier = (*Transactor)(nil)

// Ready implements semel.Readier. It returns nil, or what keeps the Transactor
// from its work: it has not begun, what it needs is not there yet, a member begins
// anew after an error and has done nothing since, no broker answers, or a transaction
// that does not end holds up a partition. It blocks at most until ctx ends and may be
// called at any time.
func (t *Transactor) Ready(ctx context.Context) error {
	client, looked, err := t.health.look()
	if err != nil {
		return err
	}
	if client == nil {
		return errors.New("kafkaio: it has not begun")
	}
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("kafkaio: no broker answers: %w", err)
	}
	if !looked {
		return errors.New("kafkaio: it looks at brokers and topics")
	}
	return nil
}

// health is what keeps a Transactor from its work. It tells of a pause when the
// brokers do not answer or a member fails twice in a row, and of its end when all
// members work again. A partition that stalls is a pause of its own.
type health struct {
	observe func(pipeline.Event)

	mu      sync.Mutex       // guards what follows
	client  *kgo.Client      // to ask brokers with; nil before Run
	looked  bool             // all that is needed was there
	lacking error            // why not
	failing map[string]error // members that begin anew, by name
	stalled error            // why a partition is not read any further
	since   time.Time        // when that was told of
	paused  time.Time        // when a pause began that was told of, or zero
}

// begin names a client to ask brokers with.
func (h *health) begin(client *kgo.Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.client = client
}

func (h *health) look() (client *kgo.Client, looked bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(h.failing)) {
		return h.client, h.looked, h.failing[name] // one is enough to say why
	}
	return h.client, h.looked, cmp.Or(h.lacking, h.stalled)
}

// missing notes why not all that is needed is there yet.
func (h *health) missing(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lacking = err
	if silent(err) {
		h.pause(err)
	} else {
		h.resume()
	}
}

// prepared notes that all that is needed is there, or why it never will be.
func (h *health) prepared(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looked, h.lacking = err == nil, err
	if !silent(err) {
		h.resume()
	}
}

// failed notes that a member begins anew, and why.
func (h *health) failed(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing == nil {
		h.failing = map[string]error{}
	}
	if h.failing[name] != nil || silent(err) {
		h.pause(err)
	}
	h.failing[name] = err
}

// works notes that a member committed, or has nothing to do.
func (h *health) works(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.failing, name); len(h.failing) == 0 {
		h.resume()
	}
}

// stalls notes why a partition is not read any further, or nil. The reason is told once.
func (h *health) stalls(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
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

// silent reports whether an error says that no broker answered, in place of what
// one answered.
func silent(err error) bool {
	_, answered := errors.AsType[*kerr.Error](err)
	return err != nil && !answered && !errors.Is(err, semel.ErrInvalidRequest) && !errors.Is(err, errAgain)
}

// joined reports whether a client is in its group.
func joined(client *kgo.GroupTransactSession) bool {
	member, _ := client.Client().GroupMetadata()
	return member != ""
}

// watchStalls looks for partitions that are not read any further, until ctx ends.
func (t *Transactor) watchStalls(ctx context.Context) {
	w := &stallWatch{admin: &Admin{client: t.admin, adm: t.adm()}, patience: t.opts.TransactionTimeout}
	every := min(t.opts.TransactionTimeout/4, 5*time.Second)
	for pause(ctx, every) {
		patient, cancel := context.WithTimeout(ctx, every)
		stalled, err := w.look(patient, t.readings())
		cancel()
		if err == nil {
			t.health.stalls(stalled)
		}
	}
}

// readings returns what the members of this process read.
func (t *Transactor) readings() []reading {
	decided := reading{group: t.opts.Group, changelog: t.opts.changelogOf}
	copied := reading{group: t.opts.copyGroup()}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, at := range t.slots {
		if _, own := at.holder.(*session); own {
			decided.parts = append(decided.parts, id)
		}
	}
	for id := range t.copying {
		copied.parts = append(copied.parts, id)
	}
	return []reading{decided, copied}
}
