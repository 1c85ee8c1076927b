package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel/bench/internal/outputs"
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
	// alone: ours only drops duplicates, and computes no windows.
	alone bool
	// idle is that of our configuration; empty is forever. more are further values there.
	idle, more string
	// size and every are those of tumbling and hopping windows; 0 is sessions.
	size, every time.Duration
	// input is that of the benchmark. Its Base is set when it is written.
	input records.Events
	// theirs is how many records the peers read, if it is not as many.
	theirs int
	// end is how long after the last record's time all windows are closed.
	end time.Duration
	// targets are the least ratios of rate, processor time and memory to each peer.
	targets [3]float64
	peers   []windowsPeer
	// besideDedup is the least ratio of our rate to that of dedup alone; 0 does not compare.
	besideDedup float64
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
			targets: [3]float64{6, 7, 2.5}, peers: []windowsPeer{suppress, tuned}, besideDedup: 0.7,
		},
		{
			name: "kafka-windows-hopping", work: "the sum of a member of the records of each hour, every minute", sum: true,
			over: "{ hopping: 1h, every: 1m }", args: []string{"--size", "3600000", "--every", "60000"}, size: time.Hour, every: time.Minute, end: time.Hour + windowGrace,
			input: records.Events{Records: e.size(1_000_000, 5000), Groups: e.size(1000, 20), Span: time.Hour}, theirs: e.size(50_000, 2500),
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
	return append(list, e.manyOpenWindows()...)
}

func (e *Env) windowed(w windowed) Benchmark {
	w.input.Seed, w.input.Jitter = inputSeed, windowJitter
	alone, theirs := w, w
	alone.alone = true
	fewer := ""
	if w.theirs > 0 {
		theirs.input.Records = w.theirs
		fewer = fmt.Sprintf("Each record changes %d windows in Kafka Streams, so it reads only %s records with the same groups and span, and its processor time is that of fewer records. ", w.size/w.every, count(w.theirs))
	}
	b := Benchmark{
		Name: w.name,
		Work: fmt.Sprintf("from Kafka to Kafka in transactions, a commit every 100 ms: %s and group, %s records of %d bytes of %s groups in %d partitions, whose times span %v and are at most %v late, with a grace of %v. One final result for each window and group, compared with the right ones. Records a second from the first commit until a reader of committed records has all results and all records are committed, processor time in that span, and peak memory of the program. Ours also remembers the id of each record for 1 h, and drops duplicates. %s",
			w.work, count(w.input.Records), records.ValueBytes, count(w.input.Groups), kafkaPartitions, w.input.Span, windowJitter, windowGrace, fewer),
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
			peer: func(ctx context.Context) (map[string]float64, error) {
				return e.moveWindows(ctx, &theirs, e.streams(p.s))
			},
			figures: kafkaFigures(w.name, p.suffix, w.targets[0], w.targets[1], w.targets[2]),
		})
	}
	if w.besideDedup > 0 {
		b.rivals = append(b.rivals, rival{
			work:        "Peer: semel run with the same input, which only drops duplicates and writes all other records",
			peerVersion: func() (string, error) { return "semel run without aggregate", nil },
			peer: func(ctx context.Context) (map[string]float64, error) {
				return e.moveWindows(ctx, &alone, e.semelWindows(&alone))
			},
			figures: []figure{{name: w.name + "-dedup", value: w.name, unit: "records/s", target: w.besideDedup}},
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
		aggregate := fmt.Sprintf("aggregate: { by: record-key, over: %s, grace: %v, idle: %s, values: { n: %s%s } }",
			w.over, windowGrace, cmp.Or(w.idle, "forever"), w.value("count", "sum .cents"), w.more)
		if w.alone {
			aggregate = ""
		}
		config := fmt.Sprintf(`pipelines:
  windows:
    source: { kafka: { brokers: [%[1]s], topics: [%[2]s], group: %[3]s%[7]s } }
    key: { id: .event_id, on_missing: fail }
    window: 1h
    %[5]s
    sink: { kafka: { brokers: [%[1]s], topic: %[4]s, compression: none, key_headers: false } }
    transaction: { interval: 100ms, state: %[6]s }
    parked: { topic: parked }
`, brokers, kafkaIn, kafkaGroup, kafkaOut, aggregate, filepath.Join(dir, "state"), member)
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
	if w.alone {
		values, err := c.measure(ctx, w.name, in.Records, program, dir, c.started(kafkaGroup), c.done(kafkaGroup))
		if err != nil {
			return nil, err
		}
		return values, c.checkDistinct(ctx, in.Records)
	}
	right := w.right(in)
	results, err := outputs.Count(ctx, c.addrs, kafkaOut)
	if err != nil {
		return nil, err
	}
	defer results.Close()
	all := func(ctx context.Context) (bool, error) {
		if n, err := results.Count(); err != nil || n < len(right) {
			return false, err
		}
		return c.done(kafkaGroup)(ctx)
	}
	values, err := c.measure(ctx, w.name, in.Records, program, dir, c.started(kafkaGroup), all)
	if err != nil {
		return nil, err
	}
	got, err := results.Finish(ctx)
	if err != nil {
		return nil, err
	}
	return values, w.check(got.Bodies, right)
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

// checkDistinct returns an error unless the output has n records, all of them different,
// apart from those of groups that only close windows.
func (c *kafkaCluster) checkDistinct(ctx context.Context, n int) error {
	got, err := outputs.Read(ctx, c.addrs, kafkaOut, false)
	if err != nil {
		return err
	}
	return distinct(got.Bodies, n)
}

// distinct returns an error unless there are n bodies, all of them different.
func distinct(got [][]byte, n int) error {
	seen := make(map[string]bool, len(got))
	for _, body := range got {
		seen[string(body)] = true
	}
	if len(got) != n || len(seen) != n {
		return fmt.Errorf("there are %d outputs, of which %d are different, of %d records", len(got), len(seen), n)
	}
	return nil
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
