package outbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// Defaults of [Options].
const (
	defaultLease = 30 * time.Second
	defaultBatch = 1000
)

// leastLease leaves time for a renewal.
const leastLease = time.Second

// Options are the options of [Open]. The zero value is valid.
type Options struct {
	// Names are the names of the tables; see pgstore.Names.
	Names pgstore.Names
	// Lease is how long this process owns a shard without renewing its lease. It
	// renews after a third of it. After a crash, another process waits that long.
	// Defaults to 30 s. Must be at least 1 s.
	Lease time.Duration
	// Keep is how long delivered rows are kept, in a table with a partition for each day.
	// A row may be kept for up to a day longer. Defaults to 0: rows are not kept. Must not be negative.
	Keep time.Duration
	// Batch limits the rows that one read returns. Defaults to 1000.
	Batch int
	// Pipeline is the pipeline that the outbox must belong to, and Target is where it
	// delivers, for people. The first relay binds the outbox to its pipeline; see
	// [PipelineError] and [TargetError]. Pipeline is also the name in events. Defaults to
	// "": any relay may read the outbox.
	Pipeline, Target string
	// Observer gets an event when the relay has repaired its tables. Defaults to none.
	Observer pipeline.Observer

	name string // of this process; tests that tell two relays apart set it
}

func (o *Options) checked() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	c.Lease, c.Batch = cmp.Or(c.Lease, defaultLease), cmp.Or(c.Batch, defaultBatch)
	wrong := invalid.In("outbox: Options.")
	if c.Lease < leastLease {
		wrong.Add("Lease: %v is below %v", c.Lease, leastLease)
	}
	if c.Keep < 0 {
		wrong.Add("Keep: %v is negative", c.Keep)
	}
	if c.Batch < 0 {
		wrong.Add("Batch: %d is negative", c.Batch)
	}
	return c, wrong.Err()
}

// Source reads the rows of the shards that it owns. [Open] returns one.
//
// It has no position. A row is read when it is seen for the first time, even if its
// transaction commits after rows with higher numbers were read. It is deleted when it
// is acknowledged.
type Source struct {
	opts    Options
	pool    *pgxpool.Pool
	sql     *statements
	owner   string
	bound   binding
	wake    chan struct{} // tells Read that there may be more to read
	stop    context.CancelFunc
	ended   sync.WaitGroup
	reading reader
	archive *archive // nil if no rows are kept

	mu     sync.Mutex // guards the fields below, and those of shards that say so
	shards map[int16]*shard
	// valid is when the leases end, if they are not renewed.
	valid time.Time
	held  holds[heldShard]
	// Errors of the last read, and of the last look after the leases.
	readTrouble, leaseTrouble error
}

// shard is a shard that this process owns.
type shard struct {
	number    int16
	epoch     int64
	partition *pipeline.Partition

	paused bool               // guarded by Source.mu
	flying map[int64]struct{} // the rows that were read and are not acknowledged; guarded by Source.mu

	// These belong to the reader. Rows up to next were read, if they were visible.
	// Of the rows up to settled, all that will ever be visible were read.
	settled, next int64
	full          bool // the last read returned as many rows as it was allowed to
}

var (
	_ pipeline.Source = (*Source)(nil)
	_ doctor.Readier  = (*Source)(nil)
)

// Open connects to a database and returns the source. It blocks until the server has
// answered. If the tables are missing, the error wraps pgstore.ErrSchema. Invalid
// options and addresses are errors that wrap semel.ErrInvalidRequest. If the outbox belongs
// to another pipeline, the error is a [*PipelineError], and if relays of this pipeline
// deliver to another target, a [*TargetError].
func Open(ctx context.Context, dsn string, opts *Options) (*Source, error) {
	o, err := opts.checked()
	if err != nil {
		return nil, err
	}
	pool, sql, err := connect(ctx, dsn, o.Names)
	if err != nil {
		return nil, err
	}
	s := &Source{opts: o, pool: pool, sql: sql, owner: ownerName(o.name), bound: binding{o.Pipeline, o.Target}, wake: make(chan struct{}, 1), shards: map[int16]*shard{}}
	s.reading.most = o.Batch
	if err := s.claim(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	if s.archive, err = openArchive(ctx, pool, sql, o.Keep); err != nil {
		pool.Close()
		return nil, err
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.ended.Go(func() { s.keep(keeping) })
	s.ended.Go(func() { s.listen(keeping) })
	if s.archive != nil {
		s.ended.Go(func() { s.archive.tend(keeping) })
	}
	return s, nil
}

// ownerName returns a name of this process that no other one has. People read it in the
// table of shards and in the server's list of connections, which cuts off what is behind 63
// bytes. Without a name it begins with host and process id.
func ownerName(name string) string {
	if name == "" {
		host, _ := os.Hostname() // the process id alone will do
		name = fmt.Sprintf("%s/%d", host[:min(len(host), 40)], os.Getpid())
	}
	return name + "/" + strings.ToLower(rand.Text()[:8])
}

// claim says that this process lives, and binds the outbox to its pipeline. Two processes
// with different targets see each other, because each says so first.
func (s *Source) claim(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, s.sql.live, s.owner, s.opts.Lease.Microseconds())
	if err == nil {
		err = s.rebind(ctx)
	}
	if err == nil {
		return nil
	}
	_, _ = s.pool.Exec(context.WithoutCancel(ctx), s.sql.leave, s.owner) // otherwise it is forgotten when its lease ends
	if errors.Is(err, semel.ErrInvalidRequest) || errors.Is(err, semel.ErrStoreUnavailable) {
		return err
	}
	return fmt.Errorf("outbox: %w: %w", semel.ErrStoreUnavailable, missing(err))
}

// rebind checks that the outbox belongs to the pipeline of this process.
func (s *Source) rebind(ctx context.Context) error {
	return s.bound.bind(ctx, s.pool, s.sql, func() (bool, error) {
		var others, shards int
		var free bool
		err := s.pool.QueryRow(ctx, s.sql.look, s.owner).Scan(&others, &free, &shards)
		return others == 0, err
	})
}

// event tells the observer.
func (s *Source) event(reason string) {
	if s.opts.Observer != nil {
		s.opts.Observer.ObservePipeline(pipeline.Event{Kind: pipeline.EventSourceChanged, Pipeline: s.opts.Pipeline, Reason: reason})
	}
}

// missing adds pgstore.ErrSchema to an error about a table that is gone.
func missing(err error) error {
	if isState(err, "42P01") {
		return fmt.Errorf("%w: %w", pgstore.ErrSchema, err)
	}
	return err
}

// connect returns a pool whose connections keep no state in their sessions, and the
// statements on the tables, which exist.
func connect(ctx context.Context, dsn string, names pgstore.Names) (*pgxpool.Pool, *statements, error) {
	sql, err := newStatements(names)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: %w", err)
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: the address is not one of PostgreSQL: %w", semel.ErrInvalidRequest) // its text may be the password
	}
	if !strings.Contains(dsn, "default_query_exec_mode") {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: %w", err)
	}
	switch err := names.Check(ctx, pool, "outbox", "outbox_shards", "outbox_relays", "outbox_pipeline"); {
	case errors.Is(err, pgstore.ErrSchema):
		pool.Close()
		return nil, nil, fmt.Errorf("outbox: %w", err)
	case err != nil:
		pool.Close()
		return nil, nil, fmt.Errorf("outbox: %w: %w", semel.ErrStoreUnavailable, err)
	}
	return pool, sql, nil
}

// Traits implements pipeline.Source.
func (s *Source) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{Positions: true, Pause: s.pause, Hold: s.hold, Resume: s.resume, Place: place, Lag: s.Lag, Gauges: s.Gauges}
}

// heldShard says where the rows of a held aggregate are.
type heldShard struct {
	shard *shard // nil at first
	// from is below the numbers of all rows of the aggregate that are not in flight.
	from int64
}

// hold takes rows back.
func (s *Source) hold(items []*pipeline.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		sh, seq := it.Ref.(*shard), it.Message.Origin.Offset
		delete(sh.flying, seq)
		of := s.held.add(it)
		if of.shard != sh {
			of.shard, of.from = sh, sh.settled
		}
		of.from = min(of.from, seq-1)
	}
}

// resume lets Read offer the rows of a group again.
func (s *Source) resume(group uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.resume(group)
	s.hurry()
}

// pause stops or resumes reading a shard.
func (s *Source) pause(partition *pipeline.Partition, paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		if sh.partition == partition {
			sh.paused = paused
		}
	}
	if !paused {
		s.hurry()
	}
}

// hurry makes Read look soon.
func (s *Source) hurry() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Ack implements pipeline.Source: it deletes the rows of items or moves them to the log,
// and no others. Rows of a shard that has another owner by now stay: that owner delivers
// them again.
func (s *Source) Ack(ctx context.Context, items []*pipeline.Item) error {
	seqs, numbers, epochs := make([]int64, len(items)), make([]int16, len(items)), make([]int64, len(items))
	for i, it := range items {
		of := it.Ref.(*shard)
		seqs[i], numbers[i], epochs[i] = it.Message.Origin.Offset, of.number, of.epoch
	}
	if err := s.remove(ctx, items, seqs, numbers, epochs); err != nil {
		return fmt.Errorf("outbox: delete rows that were delivered: %w", err)
	}
	// Only now: a row that was not in flight, and still there, would be read again.
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, it := range items {
		delete(it.Ref.(*shard).flying, seqs[i])
	}
	return nil
}

// remove deletes the rows of items, or moves them to the log.
func (s *Source) remove(ctx context.Context, items []*pipeline.Item, seqs []int64, numbers []int16, epochs []int64) error {
	ids := idsOf(items)
	if s.archive == nil {
		_, err := s.pool.Exec(ctx, s.sql.remove, s.owner, seqs, numbers, epochs, ids)
		return err
	}
	attempts, failures := outcomes(items)
	return s.archive.move(ctx, func() error {
		_, err := s.pool.Exec(ctx, s.sql.keep, s.owner, seqs, numbers, epochs, ids, attempts, failures)
		return err
	})
}

// Return implements pipeline.Source. The rows are still there, and the next owner of
// their shards reads them.
func (s *Source) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }

// Ready implements doctor.Readier.
func (s *Source) Ready(ctx context.Context) error {
	s.mu.Lock()
	err := cmp.Or(s.leaseTrouble, s.readTrouble, s.archive.ready())
	s.mu.Unlock()
	if err == nil {
		err = s.pool.Ping(ctx)
	}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// mostLag is the number of rows of one shard that Lag counts.
const mostLag = 2000

// Lag returns the backlog, as in pipeline.SourceTraits. It counts the rows of the shards
// that this process owns, up to 2,000 of each, without rows that had to wait for a time.
func (s *Source) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	var numbers []int16
	for _, sh := range s.owned() {
		numbers = append(numbers, sh.number)
	}
	lag := pipeline.Lag{Source: "outbox", Bytes: pipeline.UnknownLag}
	if err := s.pool.QueryRow(ctx, s.sql.lag, numbers, mostLag).Scan(&lag.Messages, &lag.More); err != nil {
		return nil, fmt.Errorf("outbox: count rows: %w", err)
	}
	return []pipeline.Lag{lag}, nil
}

// note notes the outcome of a request.
func (s *Source) note(trouble *error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*trouble = err
}

// Close implements pipeline.Source. It gives the shards back.
func (s *Source) Close(ctx context.Context) error {
	s.stop()
	s.ended.Wait()
	_, err := s.pool.Exec(ctx, s.sql.leave, s.owner)
	s.pool.Close()
	if err != nil {
		return fmt.Errorf("outbox: give the shards back: %w", err)
	}
	return nil
}
