// Package tables reads the topics of tables into memory, and tells when all rows up to a
// moment are there.
package tables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/internal/rows"
	"github.com/semel-dev/semel/stream"
)

// Reader follows the topics of tables. A topic is never read again while it works, so a
// row never goes back in time.
type Reader struct {
	tables  []*stream.Table
	admin   *kadm.Client
	client  *kgo.Client
	now     func() int64
	observe func(reason string, err error)
	changes []rows.Change // memory for those of a fetch

	mu    sync.Mutex // guards the fields below
	logs  map[string]*log
	moved chan struct{} // closed when records were read
}

// log is the topic of a table.
type log struct {
	topic string
	local bool
	rows  *rows.State
	id    kadm.TopicID    // zero if brokers have no ids
	size  int32           // the number of its partitions
	from  map[int32]int64 // the first offset that was read, by partition
	at    map[int32]int64 // the offset after the last record that was read, by partition
	// missing is since when the topic does not exist, or zero. Only Run uses it.
	missing time.Time
}

// Options are the options of New.
type Options struct {
	Tables []*stream.Table
	// Topics are their topics.
	Topics kadm.TopicDetails
	// Client returns the options of a client, and Admin asks brokers.
	Client func(more ...kgo.Opt) []kgo.Opt
	Admin  *kadm.Client
	// Now returns the time in milliseconds.
	Now func() int64
	// Observe hears of what keeps the Reader from reading.
	Observe func(reason string, err error)
}

// New returns a Reader and attaches the rows to the tables. Run or Close ends it.
func New(o Options) (*Reader, error) {
	r := &Reader{tables: o.Tables, admin: o.Admin, now: o.Now, observe: o.Observe, logs: map[string]*log{}, moved: make(chan struct{})}
	var err error
	// An operator hears of every error, including those that the client would retry in silence.
	r.client, err = kgo.NewClient(o.Client(append(cluster.ReadOptions(), kgo.FetchMaxWait(500*time.Millisecond), kgo.KeepRetryableFetchErrors())...)...)
	if err != nil {
		return nil, fmt.Errorf("kafka: tables: %w", err)
	}
	for _, t := range o.Tables {
		l := r.logs[t.Topic]
		if l == nil {
			l = &log{topic: t.Topic, local: t.Local, rows: rows.New(t.History),
				id: o.Topics[t.Topic].ID, size: int32(len(o.Topics[t.Topic].Partitions)), from: map[int32]int64{}, at: map[int32]int64{}}
			r.logs[t.Topic] = l
		}
		t.Attach(r.rowsOf(l, t.History))
	}
	return r, nil
}

// ErrElsewhere means that the row of a record is in another partition than the record.
var ErrElsewhere = fmt.Errorf("the topic of the table is not partitioned as the input: write read: global, or write both topics with the key of the row as record key: %w", semel.ErrInvalidRequest)

// rowsOf returns the function that finds rows in a topic.
func (r *Reader) rowsOf(l *log, history time.Duration) stream.Rows {
	return func(key []byte, m *semel.Message) ([]byte, error) {
		partition := l.place(m.Origin.Partition)
		if history > 0 && (m.Time.IsZero() || m.Time.Unix() < 0) {
			return nil, semel.Permanent(errors.New("it has no time since 1970, so the row of its time is not known (history)"))
		}
		row, found := l.rows.Find(partition, key, max(m.Time.UnixMilli(), 0), r.now())
		switch found {
		case rows.Row:
			return row, nil
		case rows.Unknown:
			return nil, fmt.Errorf("the message is of %s, and former rows are kept for %v (history): %w", m.Time.UTC().Format(time.RFC3339), history, semel.ErrLate)
		}
		if l.local {
			if where, ok := l.rows.Where(key, partition); ok {
				return nil, fmt.Errorf("the row %q is in partition %d of %s, and the message in partition %d of %s: %w", key, where, l.topic, partition, m.Origin.Source, ErrElsewhere)
			}
		}
		return nil, nil
	}
}

// place returns the partition of the state that has the rows for a partition. A table of
// which all partitions are read has one.
func (l *log) place(partition int32) int32 {
	if l.local {
		return partition
	}
	return 0
}

// Run reads the topics until ctx ends. An error means that the rows are not complete.
func (r *Reader) Run(ctx context.Context) error {
	defer r.Close()
	told, looked := "", time.Now()
	for ctx.Err() == nil {
		patient, cancel := context.WithTimeout(ctx, lookEvery)
		fetches := r.client.PollFetches(patient)
		cancel()
		err := r.failure(fetches)
		if cluster.IsFinal(err) {
			return err
		}
		fetches.EachPartition(r.take)
		unknown := cluster.IsAny(err, kerr.UnknownTopicID, kerr.UnknownTopicOrPartition)
		if since := time.Since(looked); since >= lookEvery || unknown && since >= time.Second {
			looked = time.Now()
			if found := r.look(ctx); cluster.IsFinal(found) {
				return found
			}
		}
		if err == nil {
			told = ""
			continue
		}
		if err.Error() != told {
			told = err.Error()
			r.observe("a table is not read", err)
		}
		_ = retry.Sleep(ctx, 100*time.Millisecond)
	}
	return nil
}

// Close ends a Reader that does not run.
func (r *Reader) Close() { r.client.Close() }

// lookEvery is how often a Reader looks for new partitions, and for lost rows.
const lookEvery = 10 * time.Second

// failure returns an error of a fetch, or nil. It is final if only another start can
// help; see cluster.IsFinal.
func (r *Reader) failure(fetches kgo.Fetches) (found error) {
	fetches.EachError(func(topic string, number int32, err error) {
		switch {
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), cluster.IsFinal(found):
		case errors.Is(err, kerr.OffsetOutOfRange):
			found = cluster.Damaged("kafka: table topic %s/%d: records were deleted before they were read, or the topic was created again: start the pipeline again, which reads all rows: %w", topic, number, err)
		case cluster.IsAny(err, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed):
			found = fmt.Errorf("kafka: table topic %s: allow Read on it: %w: %w", topic, semel.ErrInvalidRequest, err)
		default:
			found = fmt.Errorf("kafka: table topic %s/%d: %w", topic, number, err)
		}
	})
	return found
}

// take adds the records of a partition.
func (r *Reader) take(f kgo.FetchTopicPartition) {
	if len(f.Records) == 0 {
		return
	}
	r.mu.Lock()
	l := r.logs[f.Topic]
	r.mu.Unlock()
	changes := r.changes[:0]
	for _, record := range f.Records {
		if record.Attrs.IsControl() || record.Key == nil {
			continue
		}
		changes = append(changes, rows.Change{Key: record.Key, Row: record.Value, At: max(record.Timestamp.UnixMilli(), 0)})
	}
	l.rows.Apply(l.place(f.Partition), changes)
	clear(changes) // it must not keep the memory of the fetch
	r.changes = changes
	r.mu.Lock()
	defer r.mu.Unlock()
	l.at[f.Partition] = max(l.at[f.Partition], f.Records[len(f.Records)-1].Offset+1)
	close(r.moved)
	r.moved = make(chan struct{})
}

// look looks for new partitions, and for topics that were made again: the rows would be those of
// a deleted topic. A final error says so; see cluster.IsFinal.
func (r *Reader) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookEvery/2)
	defer cancel()
	topics, err := r.admin.ListTopics(ctx, r.topics()...)
	if err != nil {
		return err
	}
	if err := r.same(topics); err != nil {
		return err
	}
	if err := r.whole(ctx); err != nil {
		return err
	}
	for name, l := range r.logs {
		n := int32(len(topics[name].Partitions))
		switch {
		case topics[name].Err != nil || n <= l.size:
		case l.local:
			return fmt.Errorf("kafka: table topic %s had %d partitions and has %d: rows and messages are no longer in the same partitions: %w", name, l.size, n, semel.ErrInvalidRequest)
		default:
			r.mu.Lock()
			l.size = n
			r.mu.Unlock()
			err = errors.Join(err, r.read(ctx, nil))
		}
	}
	return err
}

// same returns an error if a topic was deleted or made again.
func (r *Reader) same(topics kadm.TopicDetails) error {
	for name, l := range r.logs {
		topic := topics[name]
		switch {
		case errors.Is(topic.Err, kerr.UnknownTopicOrPartition):
			if l.missing.IsZero() {
				l.missing = time.Now()
			}
			if time.Since(l.missing) >= lookEvery { // a broker that has just started knows no topics
				return lostRows(name, "was deleted")
			}
			continue
		case topic.Err == nil && topic.ID != l.id && topic.ID != (kadm.TopicID{}) && l.id != (kadm.TopicID{}):
			return lostRows(name, "was deleted and made again")
		}
		l.missing = time.Time{}
	}
	return nil
}

// whole returns an error if records that were read were deleted otherwise than by compaction.
func (r *Reader) whole(ctx context.Context) error {
	r.mu.Lock()
	read := map[behind]int64{}
	for name, l := range r.logs {
		for number, at := range l.at {
			read[behind{topic: name, partition: number, at: at}] = l.from[number]
		}
	}
	r.mu.Unlock()
	starts, err := r.admin.ListStartOffsets(ctx, r.topics()...)
	ends, err2 := r.admin.ListEndOffsets(ctx, r.topics()...)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	for b, from := range read {
		start, ok := starts.Lookup(b.topic, b.partition)
		end, ok2 := ends.Lookup(b.topic, b.partition)
		switch {
		case !ok || !ok2 || start.Err != nil || end.Err != nil:
		case start.Offset > from:
			return lostRows(b.topic, fmt.Sprintf("has lost the records of partition %d before offset %d", b.partition, start.Offset))
		case end.Offset < b.at:
			return lostRows(b.topic, fmt.Sprintf("has lost the records of partition %d from offset %d on", b.partition, end.Offset))
		}
	}
	return nil
}

func lostRows(topic, what string) error {
	return cluster.Damaged("kafka: table topic %s %s while its rows were in use: write the rows again, and start the pipeline again, which reads all rows", topic, what)
}

func (r *Reader) topics() (names []string) {
	for name := range r.logs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// read begins to read partitions that are not read yet: those of the numbers, and all of
// tables that are not local.
func (r *Reader) read(ctx context.Context, numbers []int32) error {
	if !slices.ContainsFunc(r.topics(), func(name string) bool { return len(r.unread(name, numbers)) > 0 }) {
		return nil
	}
	starts, err := r.admin.ListStartOffsets(ctx, r.topics()...)
	if err := errors.Join(err, starts.Error()); err != nil {
		return fmt.Errorf("kafka: tables: %w", err)
	}
	from := map[string]map[int32]kgo.Offset{}
	for _, name := range r.topics() {
		for _, number := range r.unread(name, numbers) {
			start, ok := starts.Lookup(name, number)
			if !ok {
				return fmt.Errorf("kafka: table topic %s has no partition %d", name, number)
			}
			if from[name] == nil {
				from[name] = map[int32]kgo.Offset{}
			}
			from[name][number] = kgo.NewOffset().At(start.Offset)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, partitions := range from {
		for number, at := range partitions {
			if _, other := r.logs[name].at[number]; other { // another caller was faster
				delete(partitions, number)
				continue
			}
			r.logs[name].at[number] = at.EpochOffset().Offset
			r.logs[name].from[number] = at.EpochOffset().Offset
		}
	}
	r.client.AddConsumePartitions(from)
	return nil
}

// unread returns the partitions of a topic that should be read and are not yet.
func (r *Reader) unread(name string, numbers []int32) (list []int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.logs[name]
	for number := range l.size {
		if _, reads := l.at[number]; !reads && (!l.local || slices.Contains(numbers, number)) {
			list = append(list, number)
		}
	}
	return list
}

// ReadToEnd waits until all rows are there that are in the topics now, for messages of
// partitions with these numbers. Rows of open transactions count: it waits until they are
// committed or aborted. told hears what it waits for.
func (r *Reader) ReadToEnd(ctx context.Context, numbers []int32, told func(text string)) error {
	if err := r.read(ctx, numbers); err != nil {
		return err
	}
	ends, err := r.admin.ListEndOffsets(ctx, r.topics()...)
	if err := errors.Join(err, ends.Error()); err != nil {
		return fmt.Errorf("kafka: tables: %w", err)
	}
	quiet := time.NewTimer(cluster.EndQuiet)
	defer quiet.Stop()
	var last behind
	for {
		r.mu.Lock()
		moved := r.moved
		first, ok := r.behind(ends, numbers)
		r.mu.Unlock()
		if !ok {
			return nil
		}
		if first != last {
			last = first
			quiet.Reset(cluster.EndQuiet)
			told(fmt.Sprintf("the rows of table topic %s, of which partition %d is read up to offset %d of %d", first.topic, first.partition, first.at, first.end))
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("kafka: table topic %s: partition %d is read up to offset %d of %d: %w", first.topic, first.partition, first.at, first.end, context.Cause(ctx))
		case <-quiet.C:
			if err := r.skip(ctx, first); err != nil {
				return err
			}
			quiet.Reset(cluster.EndQuiet)
		}
	}
}

// behind is a partition that is not read up to an offset.
type behind struct {
	topic     string
	partition int32
	at, end   int64
}

// behind returns the first partition that is not read to its end. r.mu is held.
func (r *Reader) behind(ends kadm.ListedOffsets, numbers []int32) (behind, bool) {
	for _, name := range r.topics() {
		l := r.logs[name]
		for number := range l.size {
			if l.local && !slices.Contains(numbers, number) {
				continue
			}
			if end, ok := ends.Lookup(name, number); ok && l.at[number] < end.Offset {
				return behind{name, number, l.at[number], end.Offset}, true
			}
		}
	}
	return behind{}, false
}

// skip notes that a partition is read to an end if nothing is left before that end, and no
// transaction is open there: compaction may have deleted its last records.
func (r *Reader) skip(ctx context.Context, b behind) error {
	ended, err := cluster.Ended(ctx, r.client, cluster.Partition{Topic: b.topic, Number: b.partition}, b.at, b.end)
	if err != nil || !ended {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.logs[b.topic]
	l.at[b.partition] = max(l.at[b.partition], b.end)
	return nil
}

// Size is what a table has in memory.
type Size struct {
	Table string
	Rows  int
	// Lag is how many offsets of its topic are not read yet, or -1.
	Lag int64
}

// Sizes returns the sizes of the tables. Lag needs an answer of brokers.
func (r *Reader) Sizes(ctx context.Context) (list []Size) {
	ends, err := r.admin.ListEndOffsets(ctx, r.topics()...)
	err = errors.Join(err, ends.Error())
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tables {
		l := r.logs[t.Topic]
		size := Size{Table: t.Title(), Lag: -1}
		size.Rows, _ = l.rows.Len()
		if err == nil {
			size.Lag = 0
			for number, at := range l.at {
				if end, ok := ends.Lookup(l.topic, number); ok {
					size.Lag += max(0, end.Offset-at)
				}
			}
		}
		list = append(list, size)
	}
	return list
}
