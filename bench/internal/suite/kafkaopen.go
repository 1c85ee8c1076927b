package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/semel-dev/semel/bench/internal/outputs"
	"github.com/semel-dev/semel/bench/internal/records"
)

// noPeer is the version of a limit.
func noPeer() (string, error) { return "none", nil }

// atMost is a figure of ours with a limit.
func atMost(name, unit string, limit float64) figure {
	return figure{name: name, unit: unit, lessIsBetter: true, limit: limit, target: 1}
}

// withMany is a benchmark that begins with many open windows of 1 h.
type withMany struct {
	name, work string
	// windowed has what differs from the others.
	windowed
	// measure returns the values of these figures: all of limits, or the first ones.
	measure func(context.Context, *windowed, kafkaProgram, []figure) (map[string]float64, error)
	limits  []figure
	// streams is how many of the figures, from the first on, Kafka Streams has too.
	streams int
}

// manyOpenWindows lists the benchmarks with many open windows.
func (e *Env) manyOpenWindows() []Benchmark {
	million := records.Events{Records: e.size(1_000_000, 20_000), Groups: 1 << 30}
	const closing, restart, idle, log = "kafka-windows-close", "kafka-windows-restart", "kafka-windows-idle", "kafka-windows-log"
	hot := records.Events{Records: e.size(2_000_000, 20_000), Groups: e.size(20_000, 100)}
	return []Benchmark{
		e.openWindows(withMany{
			name: closing, work: "Then all windows are closed together. The first figure is the time from the first record that closes them until a reader of committed records has all results. The second is the longest time from the first result of a transaction in a partition to its end there",
			windowed: windowed{input: million}, measure: e.closeWindows, streams: 2,
			limits: []figure{atMost(closing, "s", 3), atMost(closing+"-transaction", "s", 0.2)},
		}),
		e.openWindows(withMany{
			name: restart, work: fmt.Sprintf("Then the program gets SIGKILL and is started again immediately. Time from SIGKILL until it has committed %d further records. Ours does the same once more, after the directory of its state has been deleted too; Kafka Streams does not, because it often ends by itself then. If it ends by itself in its first restart, which happens too, it is started again, as a supervisor does, and the time goes on. Each program is the only member of its group, with a static id and a session timeout of %v", furtherRecords, ownSession),
			windowed: windowed{input: million}, measure: e.restartWindows, streams: 1,
			limits: []figure{atMost(restart, "s", 1), atMost(restart+"-brokers", "s", 3)},
		}),
		e.openWindows(withMany{
			name: idle, work: "Then 1,000 more records come, and no others. Time from the last record until a reader of committed records has all results, which the clock alone causes. idle is 5 s. The limit is idle, the time between two commits, and 1 s. Kafka Streams does not write them",
			windowed: windowed{input: records.Events{Records: e.size(100_000, 20_000), Groups: 1 << 30}, idle: "5s"}, measure: e.idleWindows,
			limits: []figure{atMost(idle, "s", 6.1)},
		}),
		e.openWindows(withMany{
			name: log, work: "The results also have a text of about 100 bytes, the last one of each group, so that the changelog of windows gets several times the bytes of its limit. Bytes in that changelog at the end. The limit is 64 MiB and twice the bytes of the keys and texts of all groups",
			windowed: windowed{input: hot, more: ", note: last .note"}, measure: e.windowsLog,
			limits: []figure{atMost(log, "MiB", 64+2*float64(hot.Groups)*(groupBytes+noteBytes)/(1<<20))},
		}),
	}
}

const (
	// mostStarts is how often a peer is started that ends by itself.
	mostStarts = 4
	// furtherRecords is how many records come when all others are committed.
	furtherRecords = 1000
	// groupBytes is the length of a group, and noteBytes less than that of a note.
	groupBytes, noteBytes = 16, 90
)

func (e *Env) openWindows(m withMany) Benchmark {
	w := &m.windowed
	w.name, w.over, w.args, w.size, w.every, w.end, w.static = m.name, "{ tumbling: 1h }", []string{"--size", "3600000"}, time.Hour, time.Hour, time.Hour+windowGrace, true
	w.input.Seed, w.input.Span, w.input.Jitter = inputSeed, time.Minute, windowJitter
	groups := "about as many groups"
	if w.input.Groups < w.input.Records {
		groups = count(w.input.Groups) + " groups"
	}
	side := func(program kafkaProgram, figures []figure) side {
		return func(ctx context.Context) (map[string]float64, error) { return m.measure(ctx, w, program, figures) }
	}
	b := Benchmark{
		Name:    m.name,
		Work:    fmt.Sprintf("in transactions from Kafka to Kafka, a commit every 100 ms: %s records of %s are counted in open windows of 1 h. %s. ", count(w.input.Records), groups, m.work),
		prepare: e.prepareKafka(e.buildSemel, e.buildStreams),
		ours:    side(e.semelWindows(w), m.limits),
		rivals:  []rival{{work: "The peer is a limit", peerVersion: noPeer, figures: m.limits}},
	}
	if theirs := m.limits[:m.streams]; len(theirs) > 0 {
		s := streams{commit: 100 * time.Millisecond, static: true, class: "Windows", args: append([]string{"--grace", fmt.Sprint(windowGrace.Milliseconds()), "--cache", "10485760"}, w.args...)}
		r := rival{work: "Peer: Kafka Streams with suppress, exactly_once_v2", peerVersion: func() (string, error) { return streamsVersion, nil }, peer: side(e.streams(s), theirs)}
		for _, f := range theirs {
			r.figures = append(r.figures, figure{name: f.name + s.suffix(), value: f.name, unit: f.unit, lessIsBetter: true})
		}
		b.rivals = append(b.rivals, r)
	}
	return b
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
	// The broker sets the times of results, so that the length of transactions is known.
	times := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "message.timestamp.type", Value: kadm.StringPtr("LogAppendTime")}}
	if _, err := c.client.AlterTopicConfigs(ctx, times, kafkaOut); err != nil {
		return err
	}
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

// closeWindows measures how long a program takes to write the results of all windows.
func (e *Env) closeWindows(ctx context.Context, w *windowed, program kafkaProgram, _ []figure) (values map[string]float64, err error) {
	err = e.withOpenWindows(ctx, w, program, func(c *kafkaCluster, _ string, in records.Events, end time.Time, r *running) error {
		var start time.Time
		at, longest, err := w.closeAll(ctx, c, r, in, func() error {
			start = time.Now()
			return in.Close(ctx, c.addrs, kafkaIn, kafkaPartitions, end)
		})
		values = map[string]float64{w.name: at.Sub(start).Seconds(), w.name + "-transaction": longest.Seconds()}
		return err
	})
	return values, err
}

// restartWindows kills a program with open windows and measures the time until it has
// committed further records, once for each figure: the first time with its state, then
// without. The results of all records are then compared.
func (e *Env) restartWindows(ctx context.Context, w *windowed, program kafkaProgram, figures []figure) (map[string]float64, error) {
	values := map[string]float64{}
	err := e.withOpenWindows(ctx, w, program, func(c *kafkaCluster, dir string, in records.Events, end time.Time, r *running) error {
		for i, f := range figures {
			start := time.Now()
			if err := r.kill(); err != nil {
				return err
			}
			if i > 0 {
				if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
					return err
				}
			}
			before := in.Records
			in = further(in)
			for starts := 1; ; starts++ {
				again, err := startProgram(ctx, c, program, dir)
				if err != nil {
					return err
				}
				defer again.kill()
				if r = again; starts == 1 {
					if err := in.Fill(ctx, c.addrs, kafkaIn, kafkaPartitions, before, in.Records); err != nil {
						return err
					}
				}
				err = r.until(ctx, "the further records", c.done(kafkaGroup))
				if err == nil {
					break
				}
				if starts == mostStarts || !errors.Is(err, errPeerEnded) {
					return err
				}
				fmt.Fprintf(os.Stderr, "bench: %s: the peer's program ended by itself after its restart, and is started again\n", w.name)
			}
			values[f.name] = time.Since(start).Seconds()
		}
		_, _, err := w.closeAll(ctx, c, r, in, func() error { return in.Close(ctx, c.addrs, kafkaIn, kafkaPartitions, end) })
		return err
	})
	return values, err
}

// further returns events with some more of them. The first ones keep their times.
func further(in records.Events) records.Events {
	in.Span = in.Span * time.Duration(in.Records+furtherRecords) / time.Duration(in.Records)
	in.Records += furtherRecords
	return in
}

// idleWindows measures when a program writes the results of all windows after the last
// record.
func (e *Env) idleWindows(ctx context.Context, w *windowed, program kafkaProgram, _ []figure) (values map[string]float64, err error) {
	err = e.withOpenWindows(ctx, w, program, func(c *kafkaCluster, _ string, in records.Events, _ time.Time, r *running) error {
		before := in.Records
		in = further(in)
		var last time.Time
		at, _, err := w.closeAll(ctx, c, r, in, func() error {
			defer func() { last = time.Now() }()
			return in.Fill(ctx, c.addrs, kafkaIn, kafkaPartitions, before, in.Records)
		})
		values = map[string]float64{w.name: at.Sub(last).Seconds()}
		return err
	})
	return values, err
}

// windowsLog measures the changelog of windows after its end has been cut off.
func (e *Env) windowsLog(ctx context.Context, w *windowed, program kafkaProgram, _ []figure) (values map[string]float64, err error) {
	const changelog = kafkaGroup + "-state"
	err = e.withOpenWindows(ctx, w, program, func(c *kafkaCluster, _ string, in records.Events, end time.Time, r *running) error {
		first := func() (sum int64, err error) {
			starts, err := c.client.ListStartOffsets(ctx, changelog)
			starts.Each(func(o kadm.ListedOffset) { sum += o.Offset })
			return sum, err
		}
		before, err := first()
		if err != nil {
			return err
		}
		late := time.Now().Add(windowsTrim)
		if err := r.until(ctx, "a cut of the changelog", func(context.Context) (bool, error) {
			now, err := first()
			return now > before || time.Now().After(late), err
		}); err != nil {
			return err
		}
		log, err := outputs.Read(ctx, c.addrs, changelog, true)
		if err != nil {
			return err
		}
		size := 0
		for _, body := range log.Bodies {
			size += len(body)
		}
		values = map[string]float64{w.name: float64(size) / (1 << 20)}
		_, _, err = w.closeAll(ctx, c, r, in, func() error { return in.Close(ctx, c.addrs, kafkaIn, kafkaPartitions, end) })
		return err
	})
	return values, err
}

// windowsTrim is longer than the pause between two cuts of a changelog.
const windowsTrim = 15 * time.Second

// closeAll calls write, which causes the results of all windows, stops the program when it
// has written them, and compares them with the right ones. It returns when a reader had
// counted all of them, and how long the longest transaction was.
func (w *windowed) closeAll(ctx context.Context, c *kafkaCluster, r *running, in records.Events, write func() error) (at time.Time, longest time.Duration, err error) {
	right := w.right(in)
	results, err := outputs.Count(ctx, c.addrs, kafkaOut)
	if err != nil {
		return at, 0, err
	}
	defer results.Close()
	if err := write(); err != nil {
		return at, 0, err
	}
	if err := r.until(ctx, "all results", func(context.Context) (bool, error) {
		n, err := results.Count()
		return n >= len(right), err
	}); err != nil {
		return at, 0, err
	}
	at = time.Now()
	if err := r.stop(); err != nil {
		return at, 0, err
	}
	got, err := results.Finish(ctx)
	if err != nil {
		return at, 0, err
	}
	return at, got.Longest, w.check(got.Bodies, right)
}
