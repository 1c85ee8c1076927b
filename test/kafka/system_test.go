// Package kafka runs the loop from Kafka to Kafka on a real broker, kills both at
// random, and compares the messages that readers saw with the written ones.
package kafka

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the input and of the moments; 0 chooses one")
	messages = flag.Int("messages", 0, "how many messages to write, a fifth of which are duplicates; 0 means 100000, or 30000 with -short")
	kills    = flag.Int("kills", 3, "how often each is stopped and killed, broker and programs, at least")
)

const (
	inPartitions, outPartitions = 2, 3
	group                       = "once"
)

// settings is what a program under test is started with.
type settings struct {
	Brokers  []string
	Prefix   string // of the group and of the topics
	Instance string
	StateDir string
	Session  time.Duration // when the group takes it for dead
	Windows  bool          // counts messages in windows instead of moving them
	Mixed    bool          // groups of windows are in all partitions
	Keep     bool          // keeps one message of each key by each of the rules
	Tables   bool          // joins messages with rows of tables
}

const childVariable = "SEMEL_TEST_KAFKA_PROGRAM"

// servers has a broker for tests that neither end nor change one. Their topics and groups have
// names of their own.
var servers servicestest.Pool

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		os.Exit(program(text))
	}
	flag.Parse()
	if *messages == 0 && testing.Short() {
		*messages = 15_000
	}
	*messages = cmp.Or(*messages, 100_000)
	var err error
	if binaries, err = os.MkdirTemp("", "semel-kafka"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := servers.Run(m)
	os.RemoveAll(binaries)
	os.Exit(status)
}

// program is the program under test: this binary, started again.
func program(text string) int {
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	rule, err := key.ParseRule("record-key")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	opts := &kafkatxn.TransactorOptions{
		Client: []kgo.Opt{kgo.SeedBrokers(s.Brokers...)}, Group: s.Prefix + group, Member: kafkatxn.Member{Instance: s.Instance, Sessions: 1}, Inputs: []string{s.Prefix + "in"}, Output: kafkatxn.Output{Topic: s.Prefix + "out"},
		Key: kafkatxn.KeyOptions{Rule: rule, OnMissing: pipeline.MissingStop}, Window: time.Hour, State: kafkatxn.StateOptions{Dir: s.StateDir},
		Limits: kafkatxn.Limits{Records: 750}, Timeouts: kafkatxn.Timeouts{Transaction: 5 * time.Second, Session: s.Session}, Observer: logged{},
	}
	if s.Windows {
		if err := countWindows(opts); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		if s.Mixed {
			opts.Repartition = &kafkatxn.Repartition{}
		}
	}
	all := []*kafkatxn.TransactorOptions{opts}
	if s.Keep {
		if all, err = keepMessages(opts); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	if s.Tables {
		if all, err = joinRows(opts); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	return runAll(all)
}

// runAll runs loops until SIGTERM.
func runAll(all []*kafkatxn.TransactorOptions) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Fprintln(os.Stderr, "heeds signals")
	var running sync.WaitGroup
	var status atomic.Int64
	for _, opts := range all {
		t, err := kafkatxn.NewTransactor(opts)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		running.Go(func() {
			if err := t.Run(ctx); err != nil {
				fmt.Fprintln(os.Stderr, opts.Group, err)
				status.Store(1)
				stop()
			}
		})
	}
	running.Wait()
	return int(status.Load())
}

// logged writes what changes at the source.
type logged struct{}

func (logged) Observe(semel.Event) {}

func (logged) ObservePipeline(e pipeline.Event) {
	if e.Kind != pipeline.EventSourceChanged && e.Err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, time.Now().Format("15:04:05.000"), e.Kind, e.Count, e.Reason, e.Err)
}

// running is a program that was started.
type running struct {
	settings
	cmd    *exec.Cmd
	logs   string
	logged int64 // how much of logs is of earlier starts
}

func (r *running) start(t *testing.T) {
	t.Helper()
	text, err := json.Marshal(r.settings)
	must(t, err)
	r.cmd = exec.Command(os.Args[0])
	r.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	log, err := os.OpenFile(r.logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer log.Close()
	r.logged, err = log.Seek(0, io.SeekEnd)
	must(t, err)
	r.cmd.Stderr = log
	must(t, r.cmd.Start())
}

// end sends a signal and waits for the program to end.
func (r *running) end(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Errorf("%s had ended: %v", r.Instance, err)
	}
	if err := r.cmd.Wait(); s == syscall.SIGTERM && err != nil && !neverBegan(r.cmd.ProcessState, r.logs, r.logged) {
		t.Errorf("%s ended with %v", r.Instance, err)
	}
}

// neverBegan reports whether SIGTERM ended a program before it heeded signals: it has
// written nothing to its log since that had a length.
func neverBegan(ended *os.ProcessState, log string, since int64) bool {
	status, ok := ended.Sys().(syscall.WaitStatus)
	info, err := os.Stat(log)
	return ok && err == nil && status.Signaled() && status.Signal() == syscall.SIGTERM && info.Size() == since
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reader reads the committed output from the beginning on.
type reader struct {
	stop func()
	done chan struct{}

	mu     sync.Mutex
	lists  [outPartitions][]string // the values of each partition in order
	count  int
	others []string // records whose key is not their value
}

// add notes a record. The caller holds mu.
func (r *reader) add(partition int32, key, value string) {
	r.lists[partition] = append(r.lists[partition], value)
	r.count++
	if key != value {
		r.others = append(r.others, fmt.Sprintf("%q with key %q", value, key))
	}
}

type newReaderFunc func(t *testing.T, addr string) *reader

func newReader(t *testing.T, addr string) *reader {
	t.Helper()
	return readTopic(t, addr, "out")
}

func readTopic(t *testing.T, addr, topic string) *reader {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		defer client.Close()
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			r.mu.Lock()
			for record := range fetches.RecordsAll() {
				r.add(record.Partition, string(record.Key), string(record.Value))
			}
			r.mu.Unlock()
		}
	}()
	return r
}

func (r *reader) read() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// rest waits until nothing more was read for a second, which is time for what
// should not be there.
func (r *reader) rest() {
	for more := true; more; {
		had := r.read()
		more = within(time.Second, func() bool { return r.read() > had })
	}
}

func (r *reader) close() {
	r.stop()
	<-r.done
}

// input makes messages: the value is the number of the message among messages with a new key, or
// the number of the repeated message.
type input struct {
	random *rand.Rand
	keys   int
}

func (in *input) next() int {
	if in.keys > 0 && in.random.IntN(5) == 0 {
		return in.keys - 1 - in.random.IntN(min(in.keys, 5000))
	}
	in.keys++
	return in.keys - 1
}

// process is a program that a test starts, stops and kills.
type process interface {
	start(t *testing.T)
	end(t *testing.T, s syscall.Signal)
}

func newRunning(t *testing.T, addr string, i int) process { return newProgram(t, addr, i) }

func newProgram(t *testing.T, addr string, i int) *running {
	t.Helper()
	name, dir := "program-"+strconv.Itoa(i), t.TempDir()
	r := &running{settings: settings{Brokers: []string{addr}, Instance: name, StateDir: filepath.Join(dir, name), Session: time.Second}, logs: filepath.Join(dir, "log")}
	t.Cleanup(func() {
		if r.cmd != nil && r.cmd.ProcessState == nil {
			r.end(t, syscall.SIGKILL)
		}
		showLog(t, name, r.logs)
	})
	return r
}

// showLog shows the end of what a program wrote, if the test failed.
func showLog(t *testing.T, name, file string) {
	t.Helper()
	if t.Failed() {
		text, _ := os.ReadFile(file)
		t.Logf("%s wrote:\n%s", name, text[max(0, len(text)-20_000):])
	}
}

// TestBrokerAndProgramsAreKilledAndEachKeyIsWrittenOnce has this binary move
// messages, as a program that is written in Go.
func TestBrokerAndProgramsAreKilledAndEachKeyIsWrittenOnce(t *testing.T) {
	seed, random := chooseSeed(t)
	events := shuffled(random, allEnds, *kills)
	if testing.Short() {
		// Each end of the only broker may cost a run: see services.StartKafka.
		events = shuffled(random, allEnds+strings.Repeat(" "+programEnds, *kills-1), 1)
	}
	moveOnce(t, *messages, events, seed, newRunning)
}

// allEnds are how programs and broker end while messages are moved.
const (
	allEnds     = "stop-broker kill-broker " + programEnds
	programEnds = "stop-program kill-program"
)

// moveOnce writes messages, a fifth of them duplicates, while two programs move
// them and both they and the broker are stopped and killed. Where the broker did
// not write a transaction that it had committed it does so again, on another. The output is read by
// the client of the programs, and by the other readers.
func moveOnce(t *testing.T, messages int, events []string, seed uint64, newProcess func(t *testing.T, addr string, i int) process, others ...newReaderFunc) {
	t.Helper()
	readers := append([]newReaderFunc{newReader}, others...)
	for try := 1; !moveOnceOnABroker(t, messages, events, seed, newProcess, readers); try++ {
		if try == 6 {
			t.Fatal("Kafka called a transaction complete that is not in each of six runs")
		}
		t.Log("Kafka called a transaction complete that is not, so that this run says nothing: once more, with the next seed")
		seed++
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	}
}

// moveOnceOnABroker reports whether the run says something.
func moveOnceOnABroker(t *testing.T, messages int, events []string, seed uint64, newProcess func(t *testing.T, addr string, i int) process, readers []newReaderFunc) bool {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 3))
	server := servicestest.StartKafka(t, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Addr()), kgo.DefaultProduceTopic("in"), kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }), kgo.MaxBufferedRecords(5000))
	must(t, err)
	defer client.Close()
	adm := kadm.NewClient(client)
	_, err = adm.CreateTopic(t.Context(), inPartitions, 1, nil, "in")
	must(t, err)
	_, err = adm.CreateTopic(t.Context(), outPartitions, 1, nil, "out")
	must(t, err)
	var all []*reader
	read := func() {
		for _, newReader := range readers {
			all = append(all, newReader(t, server.Addr()))
		}
	}
	defer func() {
		for _, r := range all {
			r.close()
		}
	}()
	read()
	during := all[0]

	var programs [2]process
	for i := range programs {
		programs[i] = newProcess(t, server.Addr(), i)
		programs[i].start(t)
	}

	in := &input{random: rand.New(rand.NewPCG(seed, 1))}
	written := make(chan int) // tokens: how many to write until the next event
	failed := make(chan error, 1)
	go func() { failed <- in.write(t.Context(), client, written) }()
	share := messages / (len(events) + 1)
	for _, event := range events {
		written <- share
		// Some events meet programs that are busy, some such as have caught up.
		waitFor(during, random.IntN(share*3/4))
		i := random.IntN(2)
		t.Logf("%s %s %d", time.Now().Format("15:04:05.000"), event, i)
		happen(t, event, server, programs[i], random)
	}
	written <- messages - share*len(events)
	close(written)
	must(t, <-failed)
	began, settled := time.Now(), false
	within(settleFor, func() bool {
		settled = isSettled(t.Context(), adm, group, "in")
		return settled || time.Since(began) > 30*time.Second && lostMarkers(t, server).unsettle()
	})
	if !settled && lostMarkers(t, server).unsettle() {
		endHanging(t, server.Addr())
		if !within(settleFor, func() bool { return isSettled(t.Context(), adm, group, "in") }) {
			t.Error("the group did not commit all of the input, though no transaction hangs")
		}
		for _, p := range programs {
			p.end(t, syscall.SIGKILL)
		}
		return false
	}
	if !settled {
		t.Error("the group did not commit all of the input")
	}
	for _, p := range programs {
		p.end(t, syscall.SIGTERM)
	}

	read() // again, from the beginning
	for _, r := range all {
		had, since := -1, time.Now()
		within(settleFor, func() bool {
			if n := r.read(); n != had {
				had, since = n, time.Now()
			}
			return had >= in.keys || time.Since(since) > 15*time.Second && len(lostMarkers(t, server)) > 0
		})
		r.rest()
	}
	var wrong []fault
	for _, r := range all {
		wrong = append(wrong, faultsOf(t, r, in.keys)...)
		if r != during {
			wrong = append(wrong, unequal(during, r)...)
		}
		if len(r.others) > 0 {
			t.Errorf("%d records have another key than they had, such as %s", len(r.others), r.others[0])
		}
	}
	if len(wrong) > 0 && excused(t, server, wrong) {
		return false
	}
	t.Logf("%d messages, %d keys, %v", messages, in.keys, events)
	return true
}

// write writes as many messages as the caller asks for, each number that comes.
func (in *input) write(ctx context.Context, client *kgo.Client, counts <-chan int) error {
	var failed error
	var mu sync.Mutex
	for n := range counts {
		for range n {
			text := []byte(strconv.Itoa(in.next()))
			client.Produce(ctx, &kgo.Record{Key: text, Value: text}, func(_ *kgo.Record, err error) {
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
			})
		}
	}
	err := client.Flush(ctx)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(failed, err)
}

// waitFor waits until so much more was read, or a moment.
func waitFor(r *reader, more int) {
	had := r.read()
	within(5*time.Second, func() bool { return r.read() >= had+more })
}

func happen(t *testing.T, event string, server *services.Server, p process, random *rand.Rand) {
	t.Helper()
	switch event {
	case "stop-broker":
		must(t, server.Stop())
		restart(t, server)
	case "kill-broker":
		must(t, server.Kill())
		restart(t, server)
	case "stop-program":
		p.end(t, syscall.SIGTERM)
		absent(random)
		p.start(t)
	case "kill-program":
		p.end(t, syscall.SIGKILL)
		absent(random)
		p.start(t)
	}
}

// restart starts a server again, twice if a busy machine keeps the server from answering in time.
func restart(t *testing.T, server *services.Server) {
	t.Helper()
	err := server.Restart(t.Context())
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		t.Log(text)
		err = server.Restart(t.Context())
	}
	must(t, err)
}

// absent lets a program be away for longer than its session in half of the cases,
// so that its partitions go to the other.
func absent(random *rand.Rand) {
	if random.IntN(2) == 0 {
		within(3*time.Second, func() bool { return false })
	}
}

// within reports whether something comes true within a time.
func within(most time.Duration, so func() bool) bool {
	end := time.After(most)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-end:
			return false
		}
	}
	return true
}
