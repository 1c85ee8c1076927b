package kafkatxn

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
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
			p.Keys, p.Store, p.Clock = p.slot.keys, p.slot.store, p.slot.clock
			p.Begin(s.t.chain, s.work.env)
			if err := p.IdentifyWaiting(); err != nil {
				return err
			}
			p.ready = true
			ready[p.ID.Topic] = append(ready[p.ID.Topic], p.ID.Number)
		}
		s.client.Client().ResumeFetchPartitions(ready)
	}
	var behind []*part
	for _, p := range s.parts {
		if p.given && !p.ready {
			size, known := s.t.sizes[p.ID.Topic]
			switch {
			case !known: // a predecessor read it: the group will revoke it
			case p.ID.Number >= size:
				return restorer{s.t}.grown(ctx, p.ID.Topic)
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
		r.err = restorer{s.t}.bringUpToDate(ctx, s, r.parts)
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

// restorer builds the states of partitions.
type restorer struct{ *Transactor }

// bringUpToDate reads the part of each changelog that the copy on disk lacks, up to a
// barrier that it writes first. All commits of an earlier owner are before the barrier.
// The owner wrote its changelog before it committed, and it cannot commit any longer
// since the group assigned the partition to this process. Reading only committed
// records waits for open transactions before the barrier.
func (t restorer) bringUpToDate(ctx context.Context, s *session, parts []*part) error {
	began := time.Now()
	for _, p := range parts {
		at, err := t.slots.take(ctx, p.ID, s)
		if err != nil {
			return err
		}
		p.slot = at
	}
	if err := cluster.Each(parts, func(p *part) error { return t.load(ctx, p.ID, p.slot) }); err != nil {
		return err
	}
	if err := losses(t).intactParts(ctx, s, parts); err != nil {
		return err
	}
	from, err := t.positions(ctx, parts)
	if err != nil {
		return err
	}
	var nonce state.ID
	rand.Read(nonce[:])
	var barriers []*kgo.Record
	var keys atomic.Int64
	behind := map[cluster.Partition]*reading{}
	for _, p := range parts {
		for i, l := range p.slot.logs {
			barrier := l.Barrier(nonce)
			barriers = append(barriers, barrier)
			behind[cluster.Partition{Topic: barrier.Topic, Number: barrier.Partition}] = &reading{apply: func(records []*kgo.Record) (bool, error) {
				n, reached, err := l.Read(ctx, records, nonce)
				if i == 0 {
					keys.Add(int64(n))
				}
				return reached, err
			}}
		}
	}
	if err := t.admin.ProduceSync(ctx, barriers...).FirstErr(); err != nil {
		return fmt.Errorf("kafka: changelog: write a barrier: %w", err)
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
		p.slot.keys.Begin()
		p.slot.measure()
	}
	t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Count: len(parts), Elapsed: time.Since(began),
		Reason: fmt.Sprintf("%d partitions are up to date, %d keys were read", len(parts), keys.Load())})
	return nil
}

// load opens the changelogs of a partition, unless they are open and not broken, with what their
// copies on disk have.
func (t restorer) load(ctx context.Context, id cluster.Partition, at *slot) error {
	for i, opts := range t.logs(id, at) {
		if i < len(at.logs) {
			if !at.logs[i].Broken() {
				continue
			}
			at.logs[i].Close()
		}
		l, err := state.OpenLog(ctx, opts)
		if err != nil {
			return err
		}
		at.logs = slices.Replace(at.logs, i, min(i+1, len(at.logs)), l)
	}
	return nil
}

// logs returns how to open the changelogs of a partition.
func (t restorer) logs(id cluster.Partition, at *slot) (list []state.LogOptions) {
	news := [...]func(copy *state.Disk) state.State{
		func(*state.Disk) state.State {
			at.keys = keys.New(t.keysOf(id.Topic))
			return at.keys
		},
		func(copy *state.Disk) state.State {
			t.newStore(id, at, copy)
			return at.store
		},
	}
	for i, c := range t.changelogs[id.Topic] {
		list = append(list, state.LogOptions{
			Topic: c.name, Partition: id.Number, Input: t.topics[id.Topic], ByTime: i == 0, Disk: t.disk(c, id.Number),
			New: func(copy *state.Disk) state.State {
				at.deletable[i].Store(0)
				return news[i](copy)
			},
			CheckOwner: func(ctx context.Context, other state.ID) error { return t.checkOwner(ctx, c, other) },
			Detached: func(err error) {
				t.observe(pipeline.Event{Kind: pipeline.EventPaused, Reason: "state directory", Err: err})
			},
		})
	}
	return list
}

// keysOf returns the options of the keys of a topic that is decided.
func (t restorer) keysOf(topic string) *keys.Options {
	return &keys.Options{Windowing: &t.windows, Topic: t.topics[topic], Inputs: t.header, Now: t.now,
		Rule: pipeline.RuleText(t.chain.Rule.String(), t.chain.Unwrap), Scope: t.chain.Scope, Same: t.sameKeys, Spill: t.hooks.spill}
}

// newStore makes an empty state of an operator for a slot, with its clock.
func (t restorer) newStore(id cluster.Partition, at *slot, copy *state.Disk) {
	at.store = t.chain.NewStore()
	at.clock = watermarks.Single{State: at.store}
	if t.chain.Times.BySource {
		at.clock = watermarks.NewSources(at.store, t.sources, t.chain.Times.Ahead.Milliseconds())
	}
	of := state.Of{Definition: state.Definition(t.chain.Text()), Text: t.chain.Text(), Topic: t.topics[id.Topic]}
	at.store.Bind(of, copy, at.clock, t.hooks.slack)
}

// disk returns where the copy of a changelog partition is, or nil without a directory.
func (t restorer) disk(c *changelog, number int32) *state.Disk {
	if t.state.Dir == "" {
		return nil
	}
	d := state.NewDisk(t.hooks.files, filepath.Join(t.state.Dir, c.name+"-"+strconv.Itoa(int(number))), c.suffix, c.id)
	if t.hooks.fileSize > 0 && (c.contents != &keyContents || t.hooks.spill > 0) {
		d.SetFileSize(t.hooks.fileSize)
	}
	return d
}

// positions returns where to read each part's changelogs from. If one has lost records,
// its state is dropped.
func (t restorer) positions(ctx context.Context, parts []*part) (map[string]map[int32]kgo.Offset, error) {
	adm := t.adm()
	names := t.changelogs.names(t.decided...)
	first, err := adm.ListStartOffsets(ctx, names...)
	last, err2 := adm.ListEndOffsets(ctx, names...)
	if err := errors.Join(err, err2, first.Error(), last.Error()); err != nil {
		return nil, fmt.Errorf("kafka: changelog: %w", err)
	}
	live, err := t.live(ctx, adm, t.now())
	if err != nil {
		return nil, err
	}
	from := map[string]map[int32]kgo.Offset{}
	for _, p := range parts {
		for _, l := range p.slot.logs {
			name := l.Topic()
			start, _ := first.Lookup(name, p.ID.Number)
			end, _ := last.Lookup(name, p.ID.Number)
			alive, ok := live.Lookup(name, p.ID.Number)
			if !ok {
				alive.Offset = -1
			}
			at, err := l.Start(start.Offset, alive.Offset, end.Offset)
			if err != nil {
				return nil, err
			}
			if from[name] == nil {
				from[name] = map[int32]kgo.Offset{}
			}
			from[name][p.ID.Number] = kgo.NewOffset().At(at)
		}
	}
	return from, nil
}

// live returns the offsets of the first records that may count at a time in milliseconds, of the
// changelogs whose records have times that show it.
func (t restorer) live(ctx context.Context, adm *kadm.Client, now int64) (kadm.ListedOffsets, error) {
	var names []string
	for _, topic := range t.decided {
		for _, c := range t.changelogs[topic] {
			if c.retention >= 0 {
				names = append(names, c.name)
			}
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	live, err := adm.ListOffsetsAfterMilli(ctx, now-t.windows.Retention().Milliseconds()-1, names...)
	if err := errors.Join(err, live.Error()); err != nil {
		return nil, fmt.Errorf("kafka: changelog: %w", err)
	}
	return live, nil
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
func (t restorer) readTo(ctx context.Context, from map[string]map[int32]kgo.Offset, behind map[cluster.Partition]*reading) error {
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
		err := cluster.FetchError(fetches)
		if errors.Is(err, cluster.ErrOutOfRange) { // the changelog was cut off since, as by an earlier owner
			return fmt.Errorf("kafka: changelog: %w: %v", errAgain, err) // wrapping the cause would end the Transactor
		}
		if err != nil {
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

// restoreWaiting reads the records of parts again that waited when the last transaction was
// committed. It refuses options with which they cannot wait: they would be lost.
// While a transaction may change the offsets, the source says what holds it up.
func (t restorer) restoreWaiting(ctx context.Context, s *session, parts []*part) error {
	queues := map[cluster.Partition]*pending.Queue{}
	for _, p := range parts {
		queues[p.ID] = &p.Waits
	}
	return pending.Restore(ctx, t.adm(), t.clientOptions(), t.chain.Group, t.chain.MayWait, queues, func() { s.restores.Store(new("")) }, func(n int, err error) {
		t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Count: n, Reason: "records that waited for rows are gone", Err: err})
	})
}

// checkOwner refuses a changelog with the state of another existing topic. A record with one of its
// keys would be dropped as a duplicate, without an effect. The state of a topic that no longer
// exists belongs to the input before it was made again.
func (t restorer) checkOwner(ctx context.Context, c *changelog, theirs state.ID) error {
	if theirs == (state.ID{}) { // written when brokers had no ids
		return nil
	}
	t.mu.Lock()
	gone := t.gone[theirs]
	t.mu.Unlock()
	if gone {
		return nil
	}
	other, err := cluster.TopicOf(ctx, t.admin, kadm.TopicID(theirs), t.byID)
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		other = "a topic that may not be seen"
	case err != nil:
		return fmt.Errorf("kafka: the topic whose state %s has: %w", c.name, err)
	case other == "", other == c.of: // a broker may know an earlier id for a while
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.gone == nil {
			t.gone = map[state.ID]bool{}
		}
		t.gone[theirs] = true
		return nil
	default:
		other = "topic " + other
	}
	return c.foreign(c, other)
}

// grown returns the error for a topic that has gained partitions since the start.
func (t restorer) grown(ctx context.Context, topic string) error {
	topics, err := t.adm().ListTopics(ctx, topic)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	partitions, had := len(topics[topic].Partitions), int(t.sizes[topic])
	if partitions <= had {
		return fmt.Errorf("kafka: brokers do not agree on the partitions of %s: %w", topic, errAgain)
	}
	return t.source.differs(topic, partitions, t.changelogs[topic][0].name, had)
}

// readTables waits until all rows are there that are in the topics now. An earlier owner of
// the parts has seen no later ones, so no join goes back in time.
func (t restorer) readTables(ctx context.Context, s *session, parts []*part) error {
	if t.tables == nil {
		return nil
	}
	var numbers []int32
	for _, p := range parts {
		numbers = append(numbers, p.ID.Number)
	}
	return t.tables.ReadToEnd(ctx, numbers, func(text string) { s.restores.Store(&text) })
}
