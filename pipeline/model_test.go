package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// world has two processes that share the partitions of a source, a store and a sink. All
// of these fail at random. No failure lasts longer than a lease, so each key must have
// its effect exactly once.
type world struct {
	t     *testing.T
	store semel.Store
	hold  bool
	// goesAhead: the sessions are of type worldAhead, and need no store. outside: they
	// are of type outsideSession, which uses only what pipeline exports.
	goesAhead, outside bool

	mu         sync.Mutex // guards the fields below
	random     *rand.Rand
	partitions []*assignment
	effects    map[string]int
	parked     map[string]bool
	last       map[string]int64 // for each group, the place of its last effect
	outage     time.Time        // when the store works again
	away       time.Time        // when the sink works again
	ahead      int              // the number of batches that began behind another
}

// assignment is a partition that one process has.
type assignment struct {
	log       []*pipeline.Item // the produced items; each read makes a copy
	owner     int
	partition *pipeline.Partition
	next      int
	acked     map[int64]bool
	committed int
}

func (w *world) chance(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n) == 0
}

func (w *world) number(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}

// process is the source of one process.
type process struct {
	*world
	number int
	blocks pipeline.Blocks
}

func (p *process) Read(ctx context.Context) ([]*pipeline.Item, error) {
	for ctx.Err() == nil {
		if items := p.some(); len(items) > 0 {
			return items, nil
		}
		nap(ctx, 5*time.Millisecond)
	}
	return nil, ctx.Err()
}

// nap waits inside the bubble.
func nap(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (p *process) some() (items []*pipeline.Item) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.random.Perm(len(p.partitions)) {
		a := p.partitions[i]
		if a.owner != p.number || a.partition.Closed() {
			continue
		}
		made := p.blocks.Items(min(p.random.IntN(12), len(a.log)-a.next))
		for i := range made {
			made[i].Partition, made[i].Message = a.partition, a.log[a.next].Message
			items = append(items, &made[i])
			a.next++
		}
		if len(items) > 0 {
			return items
		}
	}
	return nil
}

func (p *process) Ack(_ context.Context, items []*pipeline.Item) error {
	if p.chance(50) {
		return errors.New("not noted")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, it := range items {
		id := it.Call.Key.ID
		if p.effects[id] == 0 && !p.parked[id] {
			p.t.Errorf("%s was acknowledged without effect", id)
		}
		for _, a := range p.partitions {
			if a.partition != it.Partition {
				continue
			}
			if a.acked[it.Message.Origin.Offset] {
				p.t.Errorf("offset %d was acknowledged twice", it.Message.Origin.Offset)
			}
			a.acked[it.Message.Origin.Offset] = true
			for a.acked[int64(a.committed)] {
				a.committed++
			}
		}
	}
	return nil
}

func (p *process) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }
func (p *process) Traits() pipeline.SourceTraits                                 { return pipeline.SourceTraits{} }
func (p *process) Close(context.Context) error                                   { return nil }

// Park implements pipeline.Parker.
func (w *world) Park(_ context.Context, list []pipeline.Parked) error {
	if w.chance(10) {
		return errors.New("the disk is full")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range list {
		id := list[i].Key.ID
		// Under Hold, a claim that was not released while the store was down ends in
		// doubt. There is no other cause.
		if w.effects[id] > 0 || list[i].Reason != "permanent" && !(w.hold && list[i].Reason == "unknown") {
			w.t.Errorf("%s is parked for %q, and had %d effects", id, list[i].Reason, w.effects[id])
		}
		w.parked[id] = true
	}
	return nil
}

// worldSink has effects, or returns errors.
type worldSink struct {
	*world
	ordered bool
}

func (s worldSink) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Ordered: s.ordered, MaxBatch: 20, Parallel: 4}
}
func (s worldSink) Close(context.Context) error { return nil }

func (s worldSink) Deliver(ctx context.Context, items []*pipeline.Item) {
	nap(ctx, time.Duration(s.number(400))*time.Millisecond)
	if s.chance(100) {
		nap(ctx, 40*time.Second) // longer than a lease, which is renewed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := map[uint64]bool{}
	for _, it := range items {
		if it.Err = ctx.Err(); it.Err == nil {
			it.Err = s.deliver(it)
		}
		if failed[it.Group] {
			it.Err = pipeline.ErrBehind
		}
		failed[it.Group] = failed[it.Group] || it.Err != nil
		if it.Err != nil {
			continue
		}
		s.hasEffect(it)
	}
}

// hasEffect notes the effect of an item. The caller holds mu.
func (w *world) hasEffect(it *pipeline.Item) {
	id := it.Call.Key.ID
	if w.effects[id]++; w.effects[id] > 1 || w.parked[id] {
		w.t.Errorf("%s had %d effects, parked: %t", id, w.effects[id], w.parked[id])
	}
	group := it.Partition.Name() + "/" + string(it.Message.RecordKey)
	if at := it.Message.Origin.Offset; at < w.last[group] {
		w.t.Errorf("group %s is out of order: %d behind %d", group, at, w.last[group])
	}
	w.last[group] = it.Message.Origin.Offset
}

func (s worldSink) deliver(it *pipeline.Item) error {
	switch n := s.random.IntN(100); {
	case time.Now().Before(s.away):
		return pipeline.Unavailable(errors.New("nobody there"), 0)
	case n == 0:
		s.away = time.Now().Add(time.Duration(s.random.IntN(3000)) * time.Millisecond)
		return pipeline.Unavailable(errors.New("nobody there"), time.Second)
	case it.Call.Key.ID[0] == 'x':
		return semel.Permanent(errors.New("never"))
	case n < 6:
		return errors.New("try again")
	case n < 8:
		return pipeline.Retry(errors.New("try again later"), 2*time.Second)
	}
	return nil
}

// trouble returns the error of a store call. after reports that the store carries out the
// call nevertheless.
func (w *world) trouble() (err error, after bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch n := w.random.IntN(200); {
	case time.Now().Before(w.outage):
		return semel.ErrStoreUnavailable, false
	case n == 0:
		w.outage = time.Now().Add(time.Duration(w.random.IntN(5000)) * time.Millisecond)
		return semel.ErrStoreUnavailable, false
	case n < 3:
		return semel.ErrOutcomeUnknown, false
	case n < 6:
		return semel.ErrOutcomeUnknown, true
	}
	return nil, true
}

func troubled[R, A any](w *world, call func(context.Context, []R, []A) error) func(context.Context, []R, []A) error {
	return func(ctx context.Context, reqs []R, answers []A) error {
		err, carriedOut := w.trouble()
		if carriedOut {
			if e := call(ctx, reqs, answers); e != nil {
				return e
			}
		}
		if err != nil {
			clear(answers)
		}
		return err
	}
}

// run starts one process. end drains it.
func (w *world) run(number int, ordered bool) (end func()) {
	store := &flaky{Store: w.store, claim: troubled(w, w.store.Claim), complete: troubled(w, w.store.Complete), extend: troubled(w, w.store.Extend)}
	opts := pipeline.Options{Key: rule(w.t), DeadLetters: w, MaxItems: 40, Batch: 15, Shutdown: 10 * time.Minute, Failure: pipeline.Failure{Attempts: 1 << 30, To: 3 * time.Second}}
	if ordered {
		opts.Order = pipeline.OrderPartition
	}
	var phases pipeline.TwoPhaseOptions
	if w.hold {
		phases.Guard.OnLeaseExpired = semel.ExpiryHold
	}
	var session pipeline.Session
	var err error
	switch {
	case w.goesAhead:
		session = worldAhead{w}
	case w.outside:
		session = &outsideSession{store: store, sink: worldSink{w, ordered}, name: fmt.Sprint("process ", number)}
	default:
		if session, err = pipeline.NewTwoPhase(store, worldSink{w, ordered}, &phases); err != nil {
			w.t.Fatal(err)
		}
	}
	r, err := pipeline.NewRunner(&process{world: w, number: number}, session, &opts)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("run: %v", err)
		}
		if n, bytes := r.UnderWay(); n != 0 || bytes != 0 {
			w.t.Errorf("%d messages of %d bytes are under way after the end", n, bytes)
		}
	}
}

// move moves a partition to another process.
func (w *world) move(a *assignment, to int) {
	if err := a.partition.Close(context.Background()); err != nil {
		w.t.Error(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	a.owner, a.partition, a.next, a.acked = to, pipeline.NewPartition(a.partition.Name()), a.committed, map[int64]bool{}
}

func (w *world) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.partitions {
		if a.committed < len(a.log) {
			return false
		}
	}
	return true
}

func TestEachKeyHasItsEffectOnceWhateverFails(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if text := os.Getenv("SEMEL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d; SEMEL_SEED repeats it", seed)
	for round := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{t: t, store: newStore(t), hold: round/2 == 1, goesAhead: round/4 == 1, outside: round >= 8, random: rand.New(rand.NewPCG(seed, round)), effects: map[string]int{}, parked: map[string]bool{}, last: map[string]int64{}}
			keys := map[string]bool{}
			for l := range 3 {
				a := &assignment{owner: l % 2, partition: pipeline.NewPartition(fmt.Sprint("partition-", l)), acked: map[int64]bool{}}
				for i := range int64(150) {
					id := fmt.Sprint("k", w.random.IntN(300))
					if w.random.IntN(20) == 0 {
						id = "x" + id
					}
					keys[id] = true
					a.log = append(a.log, message(a.partition, i, id, fmt.Sprint("g", w.random.IntN(5))))
				}
				w.partitions = append(w.partitions, a)
			}
			ordered := round%2 == 1
			ends := []func(){w.run(0, ordered), w.run(1, ordered)}
			deadline := time.Now().Add(24 * time.Hour)
			for !w.settled() && time.Now().Before(deadline) {
				time.Sleep(time.Duration(w.number(4000)) * time.Millisecond)
				switch n := w.number(10); {
				case n < 5:
					w.move(w.partitions[w.number(3)], w.number(2))
				case n == 5: // one process ends, its partitions move to the other, and it starts again
					ends[0]()
					for _, a := range w.partitions {
						if a.owner == 0 {
							w.move(a, 1)
						}
					}
					ends[0] = w.run(0, ordered)
				}
			}
			for _, end := range ends {
				end()
			}
			if !w.settled() {
				t.Error("messages are stuck")
			}
			for id := range keys {
				if w.effects[id] == 0 && !w.parked[id] {
					t.Errorf("%s is lost", id)
				}
			}
			if len(w.parked) == 0 || len(w.effects) == 0 {
				t.Error("the run shows nothing: nothing was parked, or nothing had an effect")
			}
			if w.goesAhead && ordered && w.ahead == 0 {
				t.Error("the run shows nothing: no batch was begun behind another")
			}
		})
	}
}
