package kafkaio

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/pipeline"
)

// restoring brings the states of some partitions up to date while others are
// worked on.
type restoring struct {
	parts  []*part
	cancel context.CancelFunc
	done   chan struct{}
	err    error // when done is closed
}

// restore lets partitions that are up to date be read, and begins to bring those
// up to date that are not. It does not wait.
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
			p.ready = true
			ready[p.id.topic] = append(ready[p.id.topic], p.id.number)
		}
		s.client.Client().ResumeFetchPartitions(ready)
	}
	var behind []*part
	for _, p := range s.parts {
		if p.given && !p.ready {
			size, known := s.t.sizes[p.id.topic]
			switch {
			case !known: // its predecessor read it: the group takes it away again
			case p.id.number >= size:
				return s.t.grown(ctx, p.id.topic)
			default:
				behind = append(behind, p)
			}
		}
	}
	if len(behind) == 0 {
		return nil
	}
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

// stopRestoring waits for the end of the goroutine that restore began. Its parts
// remain behind, and go on from where they are.
func (s *session) stopRestoring() {
	if s.restoring != nil {
		s.restoring.cancel()
		<-s.restoring.done
		s.restoring = nil
	}
}

// bringUpToDate reads for each part what the local copy lacks of the changelog,
// up to a barrier that it writes first. What an earlier owner of the partition
// committed lies before the barrier: it had written its changelog before it
// could commit, and since the group gave the partition to this process it cannot
// commit any more. Reading only what is committed waits for transactions before
// the barrier that are still open.
func (t *Transactor) bringUpToDate(ctx context.Context, s *session, parts []*part) error {
	began := time.Now()
	for _, p := range parts {
		at, err := t.take(ctx, p.id, s)
		if err != nil {
			return err
		}
		p.slot = at
		if at.state == nil {
			if at.state, err = t.load(ctx, p.id); err != nil {
				return err
			}
		}
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
	keys, err := t.readChangelog(ctx, parts, from, nonce)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if st := p.slot.state; !st.secured {
			st.secure(digest.NewSecret(), t.opts.Scope)
		}
	}
	t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Count: len(parts), Elapsed: time.Since(began),
		Reason: fmt.Sprintf("%d partitions are up to date, %d keys were read", len(parts), keys)})
	return nil
}

// load returns the state of a partition as the local copy has it.
func (t *Transactor) load(ctx context.Context, id partitionID) (*state, error) {
	st, err := newState(id, t.topics[id.topic], &t.windows)
	if err != nil || t.opts.StateDir == "" {
		return st, err
	}
	now := t.now()
	dir := filepath.Join(t.opts.StateDir, t.opts.changelogOf(id.topic)+"-"+strconv.Itoa(int(id.number)))
	st.log, err = openStateLog(t.opts.files, dir, t.changelog[id.topic], st.expect, func(value []byte, position int64) error {
		return t.apply(ctx, st, value, position, now)
	})
	return st, err
}

// apply adds a record of the changelog to a state.
func (t *Transactor) apply(ctx context.Context, st *state, value []byte, position, now int64) error {
	c, err := parseChangelog(value)
	if err != nil || c.kind == kindBarrier {
		return err
	}
	if c.topic != st.topic {
		if err := t.checkKeysOf(ctx, st.id.topic, c.topic); err != nil {
			return err
		}
	}
	if !st.secured {
		st.secure(c.secret, t.opts.Scope)
	} else if st.secret != c.secret {
		return fmt.Errorf("kafkaio: the changelog of %s/%d was written with two secrets: %w", st.id.topic, st.id.number, errChangelog)
	}
	st.apply(&c, now)
	st.passed(value, position)
	return nil
}

// positions returns where to read each part's changelog from. A state that is
// ahead of its changelog, which lost what it had, is dropped.
func (t *Transactor) positions(ctx context.Context, parts []*part) (map[string]map[int32]kgo.Offset, error) {
	adm := t.adm()
	var names []string
	for _, topic := range t.opts.reads() {
		names = append(names, t.opts.changelogOf(topic))
	}
	first, err := adm.ListStartOffsets(ctx, names...)
	if err == nil {
		err = first.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafkaio: changelog: %w", err)
	}
	last, err := adm.ListEndOffsets(ctx, names...)
	if err == nil {
		err = last.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafkaio: changelog: %w", err)
	}
	var live kadm.ListedOffsets
	if keep := t.windows.retention(); !t.windows.eventTime && keep != semel.Forever {
		if live, err = adm.ListOffsetsAfterMilli(ctx, t.now()-keep.Milliseconds()-1, names...); err == nil {
			err = live.Error()
		}
		if err != nil {
			return nil, fmt.Errorf("kafkaio: changelog: %w", err)
		}
	}
	from := map[string]map[int32]kgo.Offset{}
	for _, p := range parts {
		st, name := p.slot.state, t.opts.changelogOf(p.id.topic)
		start, _ := first.Lookup(name, p.id.number)
		end, _ := last.Lookup(name, p.id.number)
		if st.position > end.Offset { // the changelog lost what it had
			if err := t.forget(p); err != nil {
				return nil, err
			}
			st = p.slot.state
		}
		// The last record that was applied is read again, to see that it is
		// still there.
		at := max(st.position-1, start.Offset)
		p.verify = at == st.position-1
		if alive, ok := live.Lookup(name, p.id.number); ok && alive.Offset >= 0 {
			if alive := min(alive.Offset, end.Offset); alive > at {
				at, p.verify = alive, false
			}
		}
		if from[name] == nil {
			from[name] = map[int32]kgo.Offset{}
		}
		from[name][p.id.number] = kgo.NewOffset().At(at)
	}
	return from, nil
}

// forget begins a part's state anew.
func (t *Transactor) forget(p *part) error {
	old := p.slot.state
	st, err := newState(p.id, old.topic, &t.windows)
	if err != nil {
		return err
	}
	if st.log = old.log; st.log != nil {
		if err := st.log.clear(); err != nil {
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
		value := withoutEntries(&changelogHeader{kind: kindBarrier, secret: nonce, topic: p.slot.state.topic})
		records = append(records, &kgo.Record{Topic: t.opts.changelogOf(p.id.topic), Partition: p.id.number, Value: value})
	}
	if err := t.admin.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("kafkaio: changelog: write a barrier: %w", err)
	}
	return nil
}

// readChangelog applies what was committed up to the barriers, and returns how
// many keys that was.
func (t *Transactor) readChangelog(ctx context.Context, parts []*part, from map[string]map[int32]kgo.Offset, nonce digest.Secret) (keys int, err error) {
	client, err := kgo.NewClient(t.clientOptions(
		kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(500*time.Millisecond), kgo.FetchMaxBytes(16<<20), kgo.FetchMaxPartitionBytes(4<<20),
	)...)
	if err != nil {
		return 0, fmt.Errorf("kafkaio: changelog: %w", err)
	}
	defer client.Close()
	behind := map[partitionID]*part{} // by the changelog's topic
	for _, p := range parts {
		behind[partitionID{t.opts.changelogOf(p.id.topic), p.id.number}] = p
	}
	now := t.now()
	for len(behind) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return keys, context.Cause(ctx)
		}
		if err := fetches.Err(); err != nil {
			return keys, fmt.Errorf("kafkaio: read changelog: %w", err)
		}
		fetches.EachPartition(func(f kgo.FetchTopicPartition) {
			id := partitionID{f.Topic, f.Partition}
			if p := behind[id]; p != nil && err == nil {
				var reached bool
				var n int
				n, reached, err = t.applyAll(ctx, p, f.Records, nonce, now)
				keys += n
				if reached {
					delete(behind, id)
				}
			}
		})
		if err != nil {
			return keys, err
		}
	}
	return keys, nil
}

// applyAll applies records of the changelog up to the barrier, and reports
// whether that was reached. A state of which the changelog knows nothing any
// more is dropped: brokers may lose what they said they had.
func (t *Transactor) applyAll(ctx context.Context, p *part, records []*kgo.Record, nonce digest.Secret, now int64) (keys int, reached bool, err error) {
	st := p.slot.state
	for _, r := range records {
		if p.verify && (r.Offset != st.position-1 || st.last != crc32.Checksum(r.Value, castagnoli)) {
			return keys, false, errors.Join(fmt.Errorf("kafkaio: %s/%d at %d is another record than before: %w", r.Topic, r.Partition, r.Offset, errAgain), t.forget(p))
		}
		p.verify = false
		if r.Offset < st.position {
			continue
		}
		c, err := parseChangelog(r.Value)
		if err != nil {
			return keys, false, fmt.Errorf("kafkaio: %s/%d at %d: %w", r.Topic, r.Partition, r.Offset, err)
		}
		if c.kind == kindBarrier {
			if c.secret == nonce {
				reached = true
				break
			}
			continue
		}
		if err := t.apply(ctx, st, r.Value, r.Offset+1, now); err != nil {
			return keys, false, err
		}
		keys += c.len()
		if st.log != nil {
			st.log.add(r.Value, &c, st.position)
		}
	}
	t.writeLog(st)
	return keys, reached, nil
}
