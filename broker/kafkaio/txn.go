package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/vfs"
)

// ErrFenced says that another process runs under this one's names: the later
// one works, and the earlier one must end.
var ErrFenced = errors.New("another process runs under the same instance name")

// Transactor moves records from topics to a topic so that each key takes effect
// once, for whoever reads the output with read_committed. Outputs, changelog and
// offsets are one transaction; the local state is changed after it is known to
// have committed. When the end of a transaction is not known, everything is read
// again from what the brokers have.
type Transactor struct {
	opts    TransactorOptions
	windows windowing
	clock   *clock.Clock

	admin     *kgo.Client // plain: metadata, offsets, barriers
	topics    map[string]topicID
	sizes     map[string]int32   // partitions by input topic
	changelog map[string]topicID // by input topic

	// copyPartitions is how many partitions the topic between the stages has.
	copyPartitions int32
	byID           bool                   // brokers tell of a topic by its id
	limits         atomic.Pointer[limits] // of the topics that are written
	health         health

	mu      sync.Mutex // guards what follows
	slots   map[partitionID]*slot
	copying map[partitionID]*copier // partitions of the first stage
	gone    map[topicID]bool        // topics that are no more
}

// NewTransactor returns a Transactor. Nothing is connected before Run. The error
// names all bad options and wraps semel.ErrInvalidRequest.
func NewTransactor(opts *TransactorOptions) (*Transactor, error) {
	t := &Transactor{slots: map[partitionID]*slot{}, copying: map[partitionID]*copier{}}
	if opts != nil {
		t.opts = *opts
	}
	t.health.observe = t.observe
	t.opts.defaults()
	if err := t.opts.validate(); err != nil {
		return nil, err
	}
	var err error
	if t.windows, err = newWindowing(t.opts.Window, t.opts.Grace, t.opts.EventTime); err != nil {
		return nil, fmt.Errorf("kafkaio: %w", err)
	}
	return t, nil
}

// Run moves records until ctx ends, then finishes or aborts the transactions
// that are open and returns nil. The group keeps its place for a while, so that
// a restart finds its partitions. It blocks. An error means that it cannot go
// on: what it needs is missing or refused, another process took its place
// (ErrFenced), or it was told to stop at a message (pipeline.ErrStopped).
// Rebalances, lost connections and restarts of brokers are none.
//
// It is called once.
func (t *Transactor) Run(ctx context.Context) error {
	t.clock = clock.New(t.opts.clock, time.Time{})
	lock, err := t.lockState()
	if err != nil {
		return err
	}
	defer lock.Close()
	// A barrier may be written twice; a write that cannot be given up may not.
	t.admin, err = kgo.NewClient(t.clientOptions(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite())...)
	if err != nil {
		return fmt.Errorf("kafkaio: %w", err)
	}
	defer t.admin.Close()
	t.health.begin(t.admin)
	if err := t.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	members := t.members()
	errs := make([]error, len(members))
	for i, m := range members {
		running.Go(func() {
			if t.opts.hold != nil {
				select {
				case <-t.opts.hold:
				case <-ctx.Done():
				}
			}
			if errs[i] = m.run(ctx); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	running.Go(func() { t.watchStalls(ctx) })
	if t.opts.Standby {
		running.Go(func() { newStandby(t).run(ctx) })
	}
	if t.opts.EventTime {
		running.Go(func() { t.trim(ctx) })
	}
	if t.opts.Repartition != nil {
		running.Go(func() { t.purge(ctx) })
	}
	running.Wait()
	for _, s := range t.slots {
		s.close()
	}
	return errors.Join(errs...)
}

// groupMember is a member of a group. It works until ctx ends or nothing helps.
type groupMember interface {
	run(ctx context.Context) error
}

// members returns those that run in this process.
func (t *Transactor) members() (list []groupMember) {
	for i := range t.opts.Sessions {
		list = append(list, newSession(t, i))
		if t.opts.Repartition != nil {
			list = append(list, newCopier(t, i))
		}
	}
	return list
}

// clientOptions returns the caller's options, those that every client here has,
// and more.
func (t *Transactor) clientOptions(more ...kgo.Opt) []kgo.Opt {
	opts := append([]kgo.Opt{}, t.opts.Client...)
	// An option of its own: a client changes what is in it.
	opts = append(opts, kgo.ProducerBatchCompression(t.opts.Compression))
	opts = append(opts, kgo.RetryBackoffFn(func(tries int) time.Duration {
		return min(20*time.Millisecond<<min(tries, 6), time.Second)
	}), kgo.MetadataMinAge(100*time.Millisecond))
	return append(opts, more...)
}

func (t *Transactor) lockState() (io.Closer, error) {
	if t.opts.StateDir == "" {
		return io.NopCloser(nil), nil
	}
	if err := t.opts.files.MkdirAll(t.opts.StateDir); err != nil {
		return nil, fmt.Errorf("kafkaio: pipeline %s: state directory: %w", t.opts.Name, err)
	}
	lock, err := t.opts.files.Lock(filepath.Join(t.opts.StateDir, "LOCK"), "process "+strconv.Itoa(os.Getpid()))
	if _, held := errors.AsType[*vfs.LockedError](err); held {
		return nil, fmt.Errorf("kafkaio: pipeline %s: state directory: %w: end that process, or give this one a state directory of its own", t.opts.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("kafkaio: pipeline %s: state directory: %w", t.opts.Name, err)
	}
	return lock, nil
}

// now returns the time in milliseconds.
func (t *Transactor) now() int64 { return t.clock.Nanos() / int64(time.Millisecond) }

func (t *Transactor) observe(e pipeline.Event) {
	if t.opts.Observer != nil && (e.Count > 0 || e.Kind >= pipeline.EventPaused) {
		e.Pipeline = t.opts.Name
		t.opts.Observer.ObservePipeline(e)
	}
}

// adm returns the administrator's view of the plain client.
func (t *Transactor) adm() *kadm.Client { return kadm.NewClient(t.admin) }

// slot is the place of one partition's state in this process. A session that is
// given the partition takes the slot; who holds it though the partition is not its
// own, another session or the standby, is asked to let go.
type slot struct {
	holder  holder
	free    chan struct{} // closed when the holder lets go
	waiting int           // sessions that wait for it
	state   *state        // the holder's
	// cut is an offset up to which the changelog may be cut off, or 0.
	cut atomic.Int64
}

// holder is a session or the standby.
type holder interface {
	// ask says that a session needs the partition. It does not wait.
	ask(id partitionID)
}

func (s *slot) close() {
	if s.state != nil && s.state.log != nil {
		s.state.log.Close() // nothing is lost with what is not written
	}
	s.state = nil
}

// take makes a session the holder of a partition's slot. It waits until another
// holder lets go.
func (t *Transactor) take(ctx context.Context, id partitionID, s *session) (*slot, error) {
	for {
		t.mu.Lock()
		at := t.slots[id]
		if at == nil {
			at = &slot{}
			t.slots[id] = at
		}
		if at.holder == nil || at.holder == holder(s) {
			if at.holder == nil {
				at.holder, at.free = s, make(chan struct{})
			}
			t.mu.Unlock()
			return at, nil
		}
		other, free := at.holder, at.free
		at.waiting++
		t.mu.Unlock()
		other.ask(id)
		var err error
		select {
		case <-free:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		t.mu.Lock()
		at.waiting--
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// takeFree makes the standby the holder of a slot that nobody holds or waits for,
// or returns nil.
func (t *Transactor) takeFree(id partitionID, b *standby) *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.slots[id]
	if at == nil {
		at = &slot{}
		t.slots[id] = at
	}
	if at.holder != nil || at.waiting > 0 {
		return nil
	}
	at.holder, at.free = b, make(chan struct{})
	return at
}

// free returns the partitions that nobody holds or waits for.
func (t *Transactor) free() (list []partitionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for topic, size := range t.sizes {
		for number := range size {
			id := partitionID{topic, number}
			if at := t.slots[id]; at == nil || at.holder == nil && at.waiting == 0 {
				list = append(list, id)
			}
		}
	}
	return list
}

// release lets go of a partition. Without a standby its memory is freed.
func (t *Transactor) release(id partitionID, h holder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.slots[id]
	if at == nil || at.holder != h {
		return
	}
	if t.opts.Standby && at.state != nil {
		at.state.drop() // what is committed is as good for the next holder
	} else {
		at.close()
	}
	at.holder = nil
	close(at.free)
}
