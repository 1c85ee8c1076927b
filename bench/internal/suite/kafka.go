package suite

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel/bench/internal/records"
	"github.com/semel-dev/semel/test/services"
)

const (
	streamsVersion = "Kafka Streams 4.3.1"
	// streamsName is the name of its program. No other peer has it.
	streamsName = "java"
	// ownSession is the session timeout of the group in the benchmark of restarts.
	ownSession = 6 * time.Second
)

// kafka lists the benchmarks from Kafka to Kafka.
func kafka(e Env) []Benchmark {
	in := records.Input{Seed: inputSeed, Records: e.size(2_000_000, 20_000)}
	work := fmt.Sprintf("from Kafka to Kafka, %s records of %d bytes and a key of 36, in %d partitions, every tenth a duplicate of one of the 100,000 before it; keys are remembered for 1 h. Records a second from the first one written until all are committed, processor time in that span, and peak memory of the program. ",
		count(in.Records), records.ValueBytes, kafkaPartitions)
	// move compares ours with several peers by the same three figures.
	move := func(name, how string, nodes int, ours semelKafka, rivals ...rival) Benchmark {
		return Benchmark{
			Name:    name,
			Work:    work + how,
			prepare: e.prepareKafka(e.buildSemel, e.buildStreams, e.build("kafkacopy")),
			ours:    e.moves(name, nodes, in, true, e.semelKafka(ours)),
			rivals:  rivals,
		}
	}
	byStreams := func(name, as string, s streams, memory float64) rival {
		return rival{
			work:        "Peer: Kafka Streams with a persistent window store, exactly_once_v2, " + as,
			peerVersion: func() (string, error) { return streamsVersion, nil },
			peer:        e.moves(name, 1, in, true, e.streams(s)),
			figures:     kafkaFigures(name, s.suffix(), 4, 5, memory),
		}
	}
	byCopy := func(name, as string, nodes int, c kafkaCopy, target float64) rival {
		return rival{
			work:        "Peer: a copy by franz-go " + as,
			peerVersion: builtInto(e.work("bin", "kafkacopy"), "github.com/twmb/franz-go"),
			peer:        e.moves(name, nodes, in, false, e.kafkaCopy(c)),
			figures:     kafkaFigures(name, "-copy", target, 0, 0),
		}
	}
	const (
		defaults  = "its defaults"
		tuned     = "batches of 256 KiB, polls of 5,000 records and 4 MiB, two threads"
		changelog = "in transactions, one after the other, with a changelog record for each, which remembers nothing"
	)
	var list []Benchmark
	for _, c := range []struct {
		name, how string
		commit    time.Duration
	}{
		{"kafka-100ms", "In transactions, a commit every 100 ms. ", 100 * time.Millisecond},
		{"kafka-1s", "In transactions, a commit every second. ", time.Second},
	} {
		list = append(list, move(c.name, c.how, 1, semelKafka{eos: true, commit: c.commit},
			byStreams(c.name, defaults, streams{commit: c.commit}, 0),
			byStreams(c.name, tuned, streams{commit: c.commit, tuned: true}, 3),
			byCopy(c.name, changelog, 1, kafkaCopy{eos: true, commit: c.commit, changelog: true}, 0.8)))
	}
	const tenth = 100 * time.Millisecond
	list = append(list,
		move("kafka-replicated", "In transactions, a commit every 100 ms, on three nodes with three replicas. ", 3, semelKafka{eos: true, commit: tenth},
			byCopy("kafka-replicated", changelog, 3, kafkaCopy{eos: true, commit: tenth, changelog: true}, 1.5)),
		move("kafka-at-least-once", "At least once, with the embedded store; both commit their offsets every second, ours also as soon as it has caught up. ", 1, semelKafka{},
			byCopy("kafka-at-least-once", "which remembers nothing", 1, kafkaCopy{commit: time.Second}, 0.85)),
		e.kafkaRestart(), kafkaPostgres(e))
	return append(list, kafkaJoins(e)...)
}

// kafkaFigures are the rate, the processor time and the memory of a move, compared with a
// peer, and the least ratio of each.
func kafkaFigures(name, peer string, rate, processor, memory float64) []figure {
	return []figure{
		{name: name + peer, value: name, unit: "records/s", target: rate},
		{name: name + peer + "-cpu", value: name + "-cpu", unit: "s", lessIsBetter: true, target: processor},
		{name: name + peer + "-memory", value: name + "-memory", unit: "MiB", lessIsBetter: true, target: memory},
	}
}

func (e *Env) kafkaRestart() Benchmark {
	const name, further = "kafka-restart", 1000
	// Nine in ten records have a key of their own. That makes a million keys.
	in := records.Input{Seed: inputSeed, Records: e.size(1_111_111, 20_000) + further}
	before := records.Input{Records: in.Records - further}
	side := func(program kafkaProgram) side {
		return func(ctx context.Context) (map[string]float64, error) {
			return e.comeBack(ctx, name, in, further, program)
		}
	}
	return Benchmark{
		Name: name,
		Work: fmt.Sprintf("in transactions from Kafka to Kafka, a commit every 100 ms: after %[2]s records with %[3]s keys, the program gets SIGKILL and is started again immediately. Time from SIGKILL until it has committed %[1]d further records. It is the only member of its group, with a static id and a session timeout of %[4]v. Peer: Kafka Streams with a persistent key-value store",
			further, count(before.Records), count(before.FreshRecords()), ownSession),
		peerVersion: func() (string, error) { return streamsVersion, nil },
		prepare:     e.prepareKafka(e.buildSemel, e.buildStreams),
		ours:        side(e.semelKafka(semelKafka{eos: true, commit: 100 * time.Millisecond, static: true})),
		peer:        side(e.streams(streams{commit: 100 * time.Millisecond, store: "kv", static: true})),
		figures:     []figure{{name: name, unit: "s", lessIsBetter: true, target: 5}},
	}
}

// prepareKafka returns a step that installs Kafka and runs other steps.
func (e *Env) prepareKafka(steps ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, name := range []string{services.Kafka43, services.Maven} {
			if _, err := services.Find(name); err != nil {
				return err
			}
		}
		for _, step := range steps {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// moves returns the side that measures a program on the whole input.
func (e *Env) moves(name string, nodes int, in records.Input, distinct bool, program kafkaProgram) side {
	return func(ctx context.Context) (map[string]float64, error) {
		return e.move(ctx, name, nodes, in, distinct, program)
	}
}

// semelKafka describes a run of our side.
type semelKafka struct {
	// eos: use transactions. Without it, the embedded store has the keys, and offsets
	// are committed every second.
	eos    bool
	commit time.Duration // the interval of transactions
	static bool          // a static member with a short session
	window time.Duration // of the keys; 0 is 1 h
}

// semelKafka runs semel run with a pipeline from kafkaIn to kafkaOut in kafkaGroup. All
// benchmarks use this configuration. Like its peers, it does not compress, and adds no
// headers.
func (e *Env) semelKafka(s semelKafka) kafkaProgram {
	return func(ctx context.Context, addrs []string, dir string) (*exec.Cmd, error) {
		brokers := `"` + strings.Join(addrs, `", "`) + `"`
		source := fmt.Sprintf("brokers: [%s], topics: [%s], group: %s", brokers, kafkaIn, kafkaGroup)
		if s.static {
			source += fmt.Sprintf(", instance: one, session_timeout: %v", ownSession)
		}
		bounds := ""
		if s.commit >= time.Second {
			bounds = "\n    in_flight: { max: 1000000, bytes: 256MiB }" // the defaults would end the transaction earlier
		}
		commit := fmt.Sprintf("transaction: { interval: %v, state: %s }%s", s.commit, filepath.Join(dir, "state"), bounds)
		stores := ""
		if !s.eos {
			stores = fmt.Sprintf("stores: { keys: { embedded: { path: %s } } }\n", filepath.Join(dir, "keys"))
			commit = "store: keys"
		}
		config := fmt.Sprintf("%spipelines:\n  once:\n    source: { kafka: { %s } }\n    key: { id: record-key, on_missing: fail }\n    window: %v\n    sink: { kafka: { brokers: [%s], topic: %s, compression: none, key_headers: false } }\n    %s\n",
			stores, source, cmp.Or(s.window, time.Hour), brokers, kafkaOut, commit)
		file := filepath.Join(dir, "semel.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return nil, err
		}
		return e.semelRun(ctx, file), nil
	}
}

// semelRun runs the pipelines of a configuration.
func (e *Env) semelRun(ctx context.Context, file string) *exec.Cmd {
	return exec.CommandContext(ctx, e.work("bin", "semel"), "run", file, "--admin", "off", "--log-level", "warn")
}

// kafkaCopy describes a run of peers/kafkacopy, the copy with franz-go.
type kafkaCopy struct {
	eos, changelog bool
	commit         time.Duration
}

func (e *Env) kafkaCopy(c kafkaCopy) kafkaProgram {
	return func(ctx context.Context, addrs []string, _ string) (*exec.Cmd, error) {
		args := []string{"-bootstrap", strings.Join(addrs, ","), "-in", kafkaIn, "-out", kafkaOut, "-group", kafkaGroup, "-commit", c.commit.String()}
		if c.eos {
			args = append(args, "-eos")
		}
		if c.changelog {
			args = append(args, "-changelog", kafkaChangelog)
		}
		return exec.CommandContext(ctx, e.work("bin", "kafkacopy"), args...), nil
	}
}

// streams describes a run of peers/streams, which uses Kafka Streams.
type streams struct {
	class  string   // of peers/streams; empty is "Dedup"
	args   []string // further arguments
	store  string   // "window" or "kv"; empty is "window"
	tuned  bool
	commit time.Duration
	static bool // a static member with a short session
}

// suffix names the peer in a figure.
func (s *streams) suffix() string {
	if s.tuned {
		return "-streams-tuned"
	}
	return "-streams"
}

func (e *Env) streams(s streams) kafkaProgram {
	return func(ctx context.Context, addrs []string, dir string) (*exec.Cmd, error) {
		java, err := services.Find(services.Java17)
		if err != nil {
			return nil, err
		}
		classes := e.work("streams", "classes") + ":" + e.work("streams", "lib", "*")
		args := []string{
			"-Xmx1g", "-XX:+UseG1GC", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
			"-Djava.io.tmpdir=" + dir, "-cp", classes, cmp.Or(s.class, "Dedup"),
			"--bootstrap", strings.Join(addrs, ","), "--in", kafkaIn, "--out", kafkaOut, "--group", kafkaGroup,
			"--state", filepath.Join(dir, "state"), "--commit", strconv.FormatInt(s.commit.Milliseconds(), 10),
		}
		if s.store != "" {
			args = append(args, "--store", s.store)
		}
		if s.tuned {
			args = append(args, "--tuned", "true", "--threads", "2")
		}
		if s.static {
			args = append(args, "--instance", "one", "--session", strconv.FormatInt(ownSession.Milliseconds(), 10))
		}
		return exec.CommandContext(ctx, java, append(args, s.args...)...), nil
	}
}

// building keeps two builds of the peer apart, because they write the same files.
var building sync.Mutex

func (e *Env) buildStreams(ctx context.Context) error {
	building.Lock()
	defer building.Unlock()
	return e.run(ctx, e.Root, "mvn", "-B", "-q", "-f", e.peer("streams", "pom.xml"), "-Dwork="+e.work("streams"), "compile", "dependency:copy-dependencies")
}
