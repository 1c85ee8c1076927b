package kafkatxn

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keystate"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/localcopy"
	"github.com/semel-dev/semel/pipeline"
)

// restoring brings the states of some partitions up to date while the session works on
// others.
type restoring struct {
	parts  []*part
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
}

// restore resumes partitions that are up to date, and starts to bring the others up to
// date. It does not block.
func (s *session) restore(ctx context.Context) error {
	if r := s.restoring; r != nil {
		select {
		case <-r.done:
		default:
			return nil
		}
		s.restoring = nil
		if r.err != nil {
			return r.err
		}
		ready := map[string][]int32{}
		for _, p := range r.parts {
			if err := s.work.adopt(p); err != nil {
				return err
			}
			p.ready = true
			ready[p.id.Topic] = append(ready[p.id.Topic], p.id.Number)
		}
		s.client.Client().ResumeFetchPartitions(ready)
	}
	var behind []*part
	for _, p := range s.parts {
		if p.given && !p.ready {
			size, known := s.t.sizes[p.id.Topic]
			switch {
			case !known: // a predecessor read it: the group will revoke it
			case p.id.Number >= size:
				return s.t.grown(ctx, p.id.Topic)
			default:
				behind = append(behind, p)
			}
		}
	}
	if len(behind) == 0 {
		return nil
	}
	reads := "the keys of new partitions, which it reads from their changelog"
	s.restores.Store(&reads)
	ctx, cancel := context.WithCancel(ctx)
	r := &restoring{parts: behind, cancel: cancel, done: make(chan struct{})}
	s.restoring = r
	go func() {
		r.err = s.t.bringUpToDate(ctx, s, r.parts)
		close(r.done)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wakeUp()
	}()
	return nil
}

// stopRestoring waits for the goroutine of restore. Its parts stay behind and continue
// later.
func (s *session) stopRestoring() {
	if s.restoring != nil {
		s.restoring.cancel()
		<-s.restoring.done
		s.restoring = nil
	}
}

// bringUpToDate reads the part of each changelog that the local copy lacks, up to a
// barrier that it writes first. All commits of an earlier owner are before the barrier:
// the owner wrote its changelog before it committed, and it cannot commit any longer
// since the group assigned the partition to this process. Reading only committed
// records waits for open transactions before the barrier.
func (t *Transactor) bringUpToDate(ctx context.Context, s *session, parts []*part) error {
	began := time.Now()
	for _, p := range parts {
		at, err := t.take(ctx, p.id, s)
		if err != nil {
			return err
		}
		p.slot = at
	}
	if err := cluster.Each(parts, func(p *part) (err error) {
		if p.slot.state == nil {
			p.slot.state, err = t.load(ctx, p.id)
		}
		return err
	}); err != nil {
		return err
	}
	if err := t.intactParts(ctx, s, parts); err != nil {
		return err
	}
	from, err := t.positions(ctx, parts)
	if err != nil {
		return err
	}
	var nonce digest.Secret
	rand.Read(nonce[:])
	if err := t.writeBarriers(ctx, parts, nonce); err != nil {
		return err
	}
	now := t.now()
	var keys atomic.Int64
	behind := map[cluster.Partition]*reading{} // by the changelog's topic
	for _, p := range parts {
		behind[cluster.Partition{Topic: t.opts.changelogOf(p.id.Topic), Number: p.id.Number}] = &reading{apply: func(records []*kgo.Record) (bool, error) {
			n, reached, err := t.applyAll(ctx, p, records, nonce, now)
			keys.Add(int64(n))
			return reached, err
		}}
		if t.opts.hasState() {
			behind[cluster.Partition{Topic: t.opts.windowsOf(p.id.Topic), Number: p.id.Number}] = &reading{apply: func(records []*kgo.Record) (bool, error) {
				return t.applyWindows(ctx, p, records, nonce)
			}}
		}
	}
	if err := t.readTo(ctx, from, behind); err != nil {
		return err
	}
	if err := t.restoreWaiting(ctx, s, parts); err != nil {
		return err
	}
	if err := t.readTables(ctx, s, parts); err != nil {
		return err
	}
	for _, p := range parts {
		if st := p.slot.state; st.Position == 0 {
			st.Secure(digest.NewSecret(), t.opts.Key.Scope.Name, t.opts.keyMaker())
		}
	}
	t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Count: len(parts), Elapsed: time.Since(began),
		Reason: fmt.Sprintf("%d partitions are up to date, %d keys were read", len(parts), keys.Load())})
	return nil
}

// load returns the state of a partition from the local copy.
func (t *Transactor) load(ctx context.Context, id cluster.Partition) (*keystate.State, error) {
	st := keystate.New(id, t.topics[id.Topic], &t.windows)
	if t.opts.State.Dir == "" {
		return st, nil
	}
	now := t.now()
	dir := filepath.Join(t.opts.State.Dir, t.opts.changelogOf(id.Topic)+"-"+strconv.Itoa(int(id.Number)))
	var err error
	st.Log, err = keystate.OpenLog(t.opts.files, dir, t.changelog[id.Topic], st.Expect, func(value []byte, position int64) error {
		return t.apply(ctx, st, value, position, now)
	})
	return st, err
}

// apply adds a record of the changelog to a state.
func (t *Transactor) apply(ctx context.Context, st *keystate.State, value []byte, position, now int64) error {
	c, err := keystate.Parse(value)
	if err != nil || c.Kind == keystate.KindBarrier {
		return err
	}
	if c.Topic != st.Topic {
		if err := t.checkKeysOf(ctx, st.ID.Topic, c.Topic); err != nil {
			return err
		}
	}
	if made := t.opts.keyMaker(); c.Made.Conflicts(made) && !t.opts.Key.Scope.Same {
		return fmt.Errorf("kafka: changelog %s: %w", t.opts.changelogOf(st.ID.Topic), &semel.ScopeError{Scope: t.opts.Key.Scope.Name, Owner: semel.ScopeOwner{Rule: t.opts.Key.Rule.String()}})
	}
	if st.Position == 0 { // its secret, if it has one, was never written
		st.Secure(c.Secret, t.opts.Key.Scope.Name, t.opts.keyMaker())
	} else if st.Secret != c.Secret {
		return fmt.Errorf("kafka: changelog %s/%d was written with two secrets, so another pipeline writes it too, and keys of one are not found by the other: use a new group and another changelog (transaction.changelog): %w", t.opts.changelogOf(st.ID.Topic), st.ID.Number, semel.ErrInvalidRequest)
	}
	st.Apply(&c, now)
	st.Passed(value, position)
	return nil
}

// positions returns where to read each part's changelogs from. If one has lost records,
// its state is dropped.
func (t *Transactor) positions(ctx context.Context, parts []*part) (map[string]map[int32]kgo.Offset, error) {
	adm := t.adm()
	var names []string
	for _, topic := range t.opts.reads() {
		names = append(names, t.opts.changelogOf(topic))
	}
	first, err := adm.ListStartOffsets(ctx, names...)
	last, err2 := adm.ListEndOffsets(ctx, names...)
	if err := errors.Join(err, err2, first.Error(), last.Error()); err != nil {
		return nil, fmt.Errorf("kafka: changelog: %w", err)
	}
	live, err := t.live(ctx, adm, t.now(), names)
	if err != nil {
		return nil, err
	}
	from := map[string]map[int32]kgo.Offset{}
	for _, p := range parts {
		st, name := p.slot.state, t.opts.changelogOf(p.id.Topic)
		start, _ := first.Lookup(name, p.id.Number)
		end, _ := last.Lookup(name, p.id.Number)
		if st.Position > end.Offset { // the changelog has lost records
			if err := t.forget(p); err != nil {
				return nil, err
			}
			st = p.slot.state
		}
		// The last applied record is read again, to check that it still exists.
		at := max(st.Position-1, start.Offset)
		p.verify = at == st.Position-1
		if alive, ok := live.Lookup(name, p.id.Number); ok && alive.Offset >= 0 {
			if alive := min(alive.Offset, end.Offset); alive > at {
				at, p.verify = alive, false
			}
		}
		if from[name] == nil {
			from[name] = map[int32]kgo.Offset{}
		}
		from[name][p.id.Number] = kgo.NewOffset().At(at)
	}
	if !t.opts.hasState() {
		return from, nil
	}
	return from, t.windowPositions(ctx, parts, from)
}

// live returns the offsets of the first changelog records that may count at a time in
// milliseconds. It returns nothing if the times of records do not show that.
func (t *Transactor) live(ctx context.Context, adm *kadm.Client, now int64, changelogs []string) (kadm.ListedOffsets, error) {
	keep := t.windows.Retention()
	if t.windows.EventTime || keep == semel.Forever {
		return nil, nil
	}
	live, err := adm.ListOffsetsAfterMilli(ctx, now-keep.Milliseconds()-1, changelogs...)
	if err := errors.Join(err, live.Error()); err != nil {
		return nil, fmt.Errorf("kafka: changelog: %w", err)
	}
	return live, nil
}

// forget replaces a part's state by an empty one.
func (t *Transactor) forget(p *part) error {
	old := p.slot.state
	st := keystate.New(p.id, old.Topic, &t.windows)
	if st.Log = old.Log; st.Log != nil {
		if err := st.Log.Clear(); err != nil {
			return err
		}
	}
	p.slot.state = st
	p.slot.cut.Store(0)
	return nil
}

func (t *Transactor) writeBarriers(ctx context.Context, parts []*part, nonce digest.Secret) error {
	var records []*kgo.Record
	for _, p := range parts {
		value := keystate.Encode(&keystate.Header{Kind: keystate.KindBarrier, Secret: nonce, Topic: p.slot.state.Topic})
		records = append(records, &kgo.Record{Topic: t.opts.changelogOf(p.id.Topic), Partition: p.id.Number, Value: value})
		if t.opts.hasState() {
			records = append(records, &kgo.Record{Topic: t.opts.windowsOf(p.id.Topic), Partition: p.id.Number, Value: t.windowsBarrier(nonce, t.topics[p.id.Topic])})
		}
	}
	if err := t.admin.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("kafka: changelog: write a barrier: %w", err)
	}
	return nil
}

// reading is a partition of a changelog that is read up to its barrier.
type reading struct {
	apply   func(records []*kgo.Record) (reached bool, err error)
	records []*kgo.Record
	reached bool
}

func (r *reading) run() (err error) {
	r.reached, err = r.apply(r.records)
	r.records = nil
	return err
}

// readTo reads committed records of partitions until each has reached its barrier. It
// applies those of several partitions together.
func (t *Transactor) readTo(ctx context.Context, from map[string]map[int32]kgo.Offset, behind map[cluster.Partition]*reading) error {
	client, err := kgo.NewClient(t.clientOptions(
		kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(500*time.Millisecond), kgo.FetchMaxBytes(16<<20), kgo.FetchMaxPartitionBytes(4<<20),
	)...)
	if err != nil {
		return fmt.Errorf("kafka: changelog: %w", err)
	}
	defer client.Close()
	for len(behind) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := cluster.FetchError(fetches); err != nil {
			return err
		}
		var read []*reading
		fetches.EachPartition(func(f kgo.FetchTopicPartition) {
			if r := behind[cluster.Partition{Topic: f.Topic, Number: f.Partition}]; r != nil && len(f.Records) > 0 {
				if len(r.records) == 0 {
					read = append(read, r)
				}
				r.records = append(r.records, f.Records...)
			}
		})
		if err := cluster.Each(read, (*reading).run); err != nil {
			return err
		}
		maps.DeleteFunc(behind, func(_ cluster.Partition, r *reading) bool { return r.reached })
	}
	return nil
}

// applyAll applies records of the changelog up to the barrier, and reports whether it
// was reached. It drops a state that the changelog contradicts, because brokers may
// lose acknowledged records.
func (t *Transactor) applyAll(ctx context.Context, p *part, records []*kgo.Record, nonce digest.Secret, now int64) (keys int, reached bool, err error) {
	st := p.slot.state
	for _, r := range records {
		if p.verify && (r.Offset != st.Position-1 || st.Last != crc32.Checksum(r.Value, localcopy.Castagnoli)) {
			return keys, false, errors.Join(fmt.Errorf("kafka: %s/%d at %d is another record than before: %w", r.Topic, r.Partition, r.Offset, errAgain), t.forget(p))
		}
		p.verify = false
		if r.Offset < st.Position {
			continue
		}
		c, err := keystate.Parse(r.Value)
		if err != nil {
			return keys, false, fmt.Errorf("kafka: %s/%d at %d: %w", r.Topic, r.Partition, r.Offset, err)
		}
		if c.Kind == keystate.KindBarrier {
			if c.Secret == nonce {
				reached = true
				break
			}
			continue
		}
		if err := t.apply(ctx, st, r.Value, r.Offset+1, now); err != nil {
			return keys, false, err
		}
		keys += c.Len()
		if st.Log != nil {
			st.Log.Add(r.Value, c.StreamTime, st.Position)
		}
	}
	t.writeLog(st)
	return keys, reached, nil
}
