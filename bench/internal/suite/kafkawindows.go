package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/bench/internal/records"
)

const (
	// windowGrace is how late a record may be, and windowJitter how late the records of
	// the input are at most.
	windowGrace  = 30 * time.Second
	windowJitter = 10 * time.Second
	sessionGap   = 30 * time.Second
)

// windowed is a benchmark of windows.
type windowed struct {
	name, work string
	// over are the windows as in a configuration of Semel, and args those of
	// peers/streams.
	over string
	args []string
	sum  bool // of .cents, instead of the count
	// static: a static member with a short session.
	static bool
	// size and every are those of tumbling and hopping windows; 0 is sessions.
	size, every time.Duration
	// input is that of the benchmark. Its Base is set when it is written.
	input records.Events
	// end is how long after the last record's time all windows are closed.
	end time.Duration
	// targets are the least ratios of rate, processor time and memory to each peer.
	targets [3]float64
	peers   []windowsPeer
}

// windowsPeer is a way to run peers/streams.
type windowsPeer struct {
	suffix, as string
	s          streams
	args       []string
}

// windows lists the benchmarks of windows, from Kafka to Kafka.
func windows(e Env) []Benchmark {
	var (
		suppress = windowsPeer{"-streams", "the results held back by suppress, its defaults with a commit every 100 ms",
			streams{commit: 100 * time.Millisecond}, []string{"--final", "suppress", "--cache", "10485760"}}
		tuned = windowsPeer{"-streams-tuned", "the results emitted by the aggregate when a window closes, which it looks for at each record; no cache, batches of 256 KiB, polls of 5,000 records and 4 MiB, two threads",
			streams{commit: 100 * time.Millisecond, tuned: true}, []string{"--final", "close", "--emit", "0"}}
		list []Benchmark
	)
	for _, w := range []windowed{
		{
			name: "kafka-windows", work: "the number of records of each minute",
			over: "{ tumbling: 1m }", args: []string{"--size", "60000"}, size: time.Minute, every: time.Minute, end: time.Minute + windowGrace,
			input:   records.Events{Records: e.size(2_000_000, 20_000), Groups: e.size(100_000, 1000), Span: 5 * time.Minute},
			targets: [3]float64{5, 6, 2}, peers: []windowsPeer{suppress, tuned},
		},
		{
			name: "kafka-windows-hopping", work: "the sum of a member of the records of each hour, every minute anew,", sum: true,
			over: "{ hopping: 1h, every: 1m }", args: []string{"--size", "3600000", "--every", "60000"}, size: time.Hour, every: time.Minute, end: time.Hour + windowGrace,
			input:   records.Events{Records: e.size(100_000, 5000), Groups: e.size(1000, 20), Span: time.Hour},
			targets: [3]float64{20, 0, 0}, peers: []windowsPeer{suppress},
		},
		{
			name: "kafka-windows-sessions", work: "the number of records of each session with a gap of 30 s",
			over: "{ session: 30s, max: 1d }", args: []string{"--gap", "30000"}, end: sessionGap + windowGrace + time.Second,
			input:   records.Events{Records: e.size(1_000_000, 20_000), Groups: e.size(100_000, 1000), Span: 5 * time.Minute},
			targets: [3]float64{4, 0, 0}, peers: []windowsPeer{suppress},
		},
	} {
		list = append(list, e.windowed(w))
	}
	return append(list, e.openWindows("kafka-windows-close", "all windows are closed at once. Time from the first record that closes them until a reader of committed records has all results", 3, e.closeWindows),
		e.openWindows("kafka-windows-restart", fmt.Sprintf("the program gets SIGKILL and is started again immediately. Time from SIGKILL until it has committed 1,000 further records. It is the only member of its group, with a static id and a session timeout of %v", ownSession), 1, e.restartWindows))
}

// openWindows is a benchmark with many open windows. Ours has a limit in seconds too.
func (e *Env) openWindows(name, what string, limit float64, measure func(context.Context, *windowed, kafkaProgram) (time.Duration, error)) Benchmark {
	w := &windowed{
		name: name, over: "{ tumbling: 1h }", args: []string{"--size", "3600000"}, size: time.Hour, every: time.Hour, end: time.Hour + windowGrace, static: true,
		input: records.Events{Seed: inputSeed, Records: e.size(1_000_000, 20_000), Groups: 1 << 30, Span: time.Minute, Jitter: windowJitter},
	}
	side := func(program kafkaProgram) side {
		return func(ctx context.Context) (map[string]float64, error) {
			took, err := measure(ctx, w, program)
			return map[string]float64{name: took.Seconds()}, err
		}
	}
	s := streams{commit: 100 * time.Millisecond, static: true, class: "Windows", args: append([]string{"--grace", fmt.Sprint(windowGrace.Milliseconds()), "--cache", "10485760"}, w.args...)}
	return Benchmark{
		Name:    name,
		Work:    fmt.Sprintf("in transactions from Kafka to Kafka, a commit every 100 ms: %s records of about as many groups are counted in open windows of 1 h. Then %s. ", count(w.input.Records), what),
		prepare: e.prepareKafka(e.buildSemel, e.buildStreams),
		ours:    side(e.semelWindows(w)),
		rivals: []rival{
			{work: "The peer is a limit", peerVersion: func() (string, error) { return "none", nil }, figures: []figure{{name: name, unit: "s", lessIsBetter: true, limit: limit, target: 1}}},
			{work: "Peer: Kafka Streams with suppress, exactly_once_v2", peerVersion: func() (string, error) { return streamsVersion, nil }, peer: side(e.streams(s)),
				figures: []figure{{name: name + "-streams", value: name, unit: "s", lessIsBetter: true}}},
		},
	}
}

// withOpenWindows has a program read the input, and passes it to fn when the group has
// committed all.
func (e *Env) withOpenWindows(ctx context.Context, w *windowed, program kafkaProgram, fn func(c *kafkaCluster, dir string, in records.Events, end time.Time, r *running) error) (err error) {
	dir, err := e.fresh("kafka")
	if err != nil {
		return err
	}
	c, err := startKafka(ctx, 1, kafkaPartitions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	in := w.input
	end := w.place(&in)
	in.Base = in.Base.Truncate(time.Hour) // so that each group has one window
	if err := in.Fill(ctx, c.addrs, kafkaIn, kafkaPartitions, 0, in.Records); err != nil {
		return err
	}
	r, err := startProgram(ctx, c, program, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.kill()) }()
	if err := r.until(ctx, "the end of its input", c.done(kafkaGroup)); err != nil {
		return err
	}
	return fn(c, dir, in, end, r)
}

// closeWindows measures the time in which a program writes the results of all windows.
func (e *Env) closeWindows(ctx context.Context, w *windowed, program kafkaProgram) (took time.Duration, err error) {
	err = e.withOpenWindows(ctx, w, program, func(c *kafkaCluster, _ string, in records.Events, end time.Time, r *running) error {
		took, err = w.closeAll(ctx, c, r, in, end)
		return err
	})
	return took, err
}

// restartWindows kills a program with open windows and measures the time until it has
// committed further records. The results of all records are then compared.
func (e *Env) restartWindows(ctx context.Context, w *windowed, program kafkaProgram) (took time.Duration, err error) {
	const further = 1000
	err = e.withOpenWindows(ctx, w, program, func(c *kafkaCluster, dir string, in records.Events, end time.Time, r *running) error {
		start := time.Now()
		if err := r.kill(); err != nil {
			return err
		}
		again, err := startProgram(ctx, c, program, dir)
		if err != nil {
			return err
		}
		defer again.kill()
		all := in
		all.Records += further
		all.Span = in.Span * time.Duration(all.Records) / time.Duration(in.Records) // the first records keep their times
		if err := all.Fill(ctx, c.addrs, kafkaIn, kafkaPartitions, in.Records, all.Records); err != nil {
			return err
		}
		if err := again.until(ctx, "the further records", c.done(kafkaGroup)); err != nil {
			return err
		}
		took = time.Since(start)
		_, err = w.closeAll(ctx, c, again, all, end)
		return err
	})
	return took, err
}

// closeAll closes all windows, stops the program when it has written the results, and
// compares them with the right ones. It returns how long the program took.
func (w *windowed) closeAll(ctx context.Context, c *kafkaCluster, r *running, in records.Events, end time.Time) (took time.Duration, err error) {
	right := w.right(in)
	reader, err := newReader(ctx, c, kafkaOut, false)
	if err != nil {
		return 0, err
	}
	defer reader.close()
	start := time.Now()
	if err := in.Close(ctx, c.addrs, kafkaIn, kafkaPartitions, end); err != nil {
		return 0, err
	}
	if err := r.until(ctx, "all results", func(context.Context) (bool, error) {
		return reader.count.Load() >= int64(len(right)), reader.failed()
	}); err != nil {
		return 0, err
	}
	took = time.Since(start)
	if err := r.stop(); err != nil {
		return 0, err
	}
	got, err := reader.finish(ctx)
	if err != nil {
		return 0, err
	}
	return took, w.check(got, right)
}

func (e *Env) windowed(w windowed) Benchmark {
	w.input.Seed, w.input.Jitter = inputSeed, windowJitter
	b := Benchmark{
		Name: w.name,
		Work: fmt.Sprintf("from Kafka to Kafka in transactions, a commit every 100 ms: %s and group, %s records of %d bytes of %s groups in %d partitions, whose times span %v and are at most %v late, with a grace of %v. One final result for each window and group, compared with the right ones. Records a second from the first commit until a reader of committed records has all results and all records are committed, processor time in that span, and peak memory of the program. Ours also remembers the id of each record for 1 h, and drops duplicates. ",
			w.work, count(w.input.Records), records.ValueBytes, count(w.input.Groups), kafkaPartitions, w.input.Span, windowJitter, windowGrace),
		prepare: e.prepareKafka(e.buildSemel, e.buildStreams),
		ours: func(ctx context.Context) (map[string]float64, error) {
			return e.moveWindows(ctx, &w, e.semelWindows(&w))
		},
	}
	for _, p := range w.peers {
		p.args = append(append([]string{"--grace", fmt.Sprint(windowGrace.Milliseconds()), "--value", w.value("count", "sum")}, w.args...), p.args...)
		p.s.class, p.s.args = "Windows", p.args
		b.rivals = append(b.rivals, rival{
			work:        "Peer: Kafka Streams, exactly_once_v2, " + p.as,
			peerVersion: func() (string, error) { return streamsVersion, nil },
			peer:        func(ctx context.Context) (map[string]float64, error) { return e.moveWindows(ctx, &w, e.streams(p.s)) },
			figures:     kafkaFigures(w.name, p.suffix, w.targets[0], w.targets[1], w.targets[2]),
		})
	}
	return b
}

func (w *windowed) value(count, sum string) string {
	if w.sum {
		return sum
	}
	return count
}

// semelWindows runs semel run with a pipeline that computes the windows.
func (e *Env) semelWindows(w *windowed) kafkaProgram {
	return func(ctx context.Context, addrs []string, dir string) (*exec.Cmd, error) {
		brokers := `"` + strings.Join(addrs, `", "`) + `"`
		member := ""
		if w.static {
			member = fmt.Sprintf(", instance: one, session_timeout: %v", ownSession)
		}
		config := fmt.Sprintf(`pipelines:
  windows:
    source: { kafka: { brokers: [%[1]s], topics: [%[2]s], group: %[3]s%[9]s } }
    key: { id: .event_id, on_missing: fail }
    window: 1h
    aggregate: { by: record-key, over: %[5]s, grace: %[6]v, idle: forever, values: { n: %[7]s } }
    sink: { kafka: { brokers: [%[1]s], topic: %[4]s, compression: none, key_headers: false } }
    transaction: { interval: 100ms, state: %[8]s }
    parked: { topic: parked }
`, brokers, kafkaIn, kafkaGroup, kafkaOut, w.over, windowGrace, w.value("count", "sum .cents"), filepath.Join(dir, "state"), member)
		file := filepath.Join(dir, "semel.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return nil, err
		}
		return e.semelRun(ctx, file), nil
	}
}

// moveWindows measures a program that computes windows, and compares its results with the
// right ones. Results come only when windows close, so the span starts with the first
// commit, and the records of that commit do not count.
func (e *Env) moveWindows(ctx context.Context, w *windowed, program kafkaProgram) (_ map[string]float64, err error) {
	dir, err := e.fresh("kafka")
	if err != nil {
		return nil, err
	}
	c, err := startKafka(ctx, 1, kafkaPartitions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	in := w.input
	end := w.place(&in)
	if err := errors.Join(in.Fill(ctx, c.addrs, kafkaIn, kafkaPartitions, 0, in.Records), in.Close(ctx, c.addrs, kafkaIn, kafkaPartitions, end)); err != nil {
		return nil, err
	}
	right := w.right(in)
	reader, err := newReader(ctx, c, kafkaOut, false)
	if err != nil {
		return nil, err
	}
	defer reader.close()
	all := func(ctx context.Context) (bool, error) {
		if reader.count.Load() < int64(len(right)) {
			return false, reader.failed()
		}
		return c.done(kafkaGroup)(ctx)
	}
	values, err := c.measure(ctx, w.name, in.Records, program, dir, c.started(kafkaGroup), all)
	if err != nil {
		return nil, err
	}
	got, err := reader.finish(ctx)
	if err != nil {
		return nil, err
	}
	return values, w.check(got, right)
}

// place puts the events into the past, and returns when all windows are closed.
func (w *windowed) place(in *records.Events) (end time.Time) {
	length := in.Span + in.Jitter + w.end
	in.Base = time.Now().Add(-length - time.Minute).Truncate(time.Minute)
	return in.Base.Add(length)
}

// right returns the right results.
func (w *windowed) right(in records.Events) map[records.Result]records.Totals {
	if w.size > 0 {
		return in.Windows(w.size, w.every)
	}
	return in.Sessions(sessionGap)
}

// check compares results with the right ones.
func (w *windowed) check(got [][]byte, right map[records.Result]records.Totals) error {
	seen := make(map[records.Result]bool, len(right))
	for _, body := range got {
		r, n, err := records.ParseResult(body)
		if err != nil {
			return err
		}
		want, ok := right[r]
		if !ok || seen[r] {
			return fmt.Errorf("%s is not a result of the input, or is there twice", body)
		}
		seen[r] = true
		if w.sum && n != want.Cents || !w.sum && n != want.Count {
			return fmt.Errorf("%s, want %+v", body, want)
		}
	}
	if len(seen) != len(right) {
		return fmt.Errorf("there are %d results, want %d", len(seen), len(right))
	}
	return nil
}

// reader reads the committed results in the output while a program writes them, without
// those of groups that only close windows.
type reader struct {
	topic string
	// closing: also count the results of groups that only close windows.
	closing bool
	client  *kgo.Client
	cancel  context.CancelFunc
	ended   chan struct{}
	count   atomic.Int64

	mu     sync.Mutex // guards the rest
	bodies [][]byte
	next   map[int32]int64 // offset after the last record or marker
	err    error
}

func newReader(ctx context.Context, c *kafkaCluster, topic string, closing bool) (*reader, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords()) // the last record of a partition may be one
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{topic: topic, closing: closing, client: client, cancel: cancel, ended: make(chan struct{}), next: map[int32]int64{}}
	go r.run(ctx)
	return r, nil
}

func (r *reader) run(ctx context.Context) {
	defer close(r.ended)
	for ctx.Err() == nil {
		fetches := r.client.PollFetches(ctx)
		r.mu.Lock()
		if err := fetches.Err(); err != nil && ctx.Err() == nil {
			r.err = err
		}
		for record := range fetches.RecordsAll() {
			if !record.Attrs.IsControl() && (r.closing || !bytes.HasPrefix(record.Key, []byte(records.Closing))) {
				r.bodies = append(r.bodies, record.Value)
			}
			r.next[record.Partition] = record.Offset + 1
		}
		n := len(r.bodies)
		r.mu.Unlock()
		r.count.Store(int64(n))
	}
}

func (r *reader) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// finish reads to the end of the output and returns the bodies.
func (r *reader) finish(ctx context.Context) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(kafkaPoll)
	defer ticker.Stop()
	ends, err := kadm.NewClient(r.client).ListCommittedOffsets(ctx, r.topic)
	if err != nil {
		return nil, err
	}
	for {
		r.mu.Lock()
		all, bodies, err := true, r.bodies, r.err
		ends.Each(func(o kadm.ListedOffset) { all = all && r.next[o.Partition] >= o.Offset })
		r.mu.Unlock()
		if all || err != nil {
			return bodies, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("read %s to its end: %w", r.topic, ctx.Err())
		}
	}
}

func (r *reader) close() {
	r.cancel()
	<-r.ended
	r.client.Close()
}

// started returns a check that reports whether the group has committed something, and how
// many records.
func (c *kafkaCluster) started(group string) func(context.Context) (int, bool, error) {
	return func(ctx context.Context) (int, bool, error) {
		committed, err := c.client.FetchOffsetsForTopics(ctx, group, kafkaIn)
		if errors.Is(err, kerr.GroupIDNotFound) {
			return 0, false, nil
		}
		sum := 0
		committed.Each(func(o kadm.OffsetResponse) { sum += int(max(o.At, 0)) })
		return sum, sum > 0, err
	}
}
