// Package brokers kills the real program and real brokers while messages move, cuts
// connections in the middle of acknowledgements, and compares what happened with an
// independent journal. Nothing may be lost, and an effect may repeat only where
// `semel explain` says so.
package brokers

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
)

var (
	messages = flag.Int("messages", 0, "how many messages a test produces; 0 is 20,000, or 1,500 with -short")
	rounds   = flag.Int("rounds", 1, "how often each event of a full run happens")
)

// broker is a broker under test.
type broker struct {
	name string
	// slow: a message whose process died comes again after half a minute. The test
	// runs without -short only.
	slow  bool
	start func(t *testing.T) *services.Server
	// prepare makes the stream or queue. Nil means that start has made it.
	prepare func(t *testing.T, url string)
	// produce sends messages with these bodies, and returns when the broker has
	// confirmed all. It may be called again with the same bodies.
	produce func(ctx context.Context, url string, bodies []string) error
	// source is the source of a pipeline that reads from this address.
	source func(addr string) string
	// left returns how many messages the broker would still deliver.
	left func(t *testing.T, url string) int

	// sink is a sink of a pipeline to another place of the broker at this address.
	sink func(addr string) string
	// written calls fn with the messages there: the id of the key, and the headers that
	// tell its effects apart.
	written func(t *testing.T, url string, fn func(id, token, attempt string))
	// once: the broker recognises a message that the sink repeats.
	once bool

	// immortal leaves out the events that kill the broker.
	immortal bool
	// ordered: messages of an aggregate keep their order when they come again.
	ordered bool
	// deliveries is how often the broker delivers a message before it gives up, or 0. The
	// program parks a message without processing it at its delivery number nearEnd, unless
	// it dies before.
	deliveries, nearEnd int
	// revive puts the messages that the broker gave up back. It calls moved with the id
	// of each one before.
	revive func(ctx context.Context, url string, moved func(id string)) error
	// patience is how long the broker waits for an acknowledgement; 0 leaves out the
	// event that makes an effect take longer.
	patience time.Duration
	// window is how long the broker itself recognises a message that is produced again.
	window time.Duration
}

var brokers = []broker{natsBroker, rabbitBroker(false), sqsBroker, sqsFIFO}

// How many effects a program has under way: requests, or messages that wait for their
// confirms.
const (
	parallel  = 16
	confirms  = 2
	published = 20 // in each of them
)

// Events other than a death at one of the points.
const (
	kill      = "kill the program"
	killAll   = "kill the broker"
	cut       = "cut the connections"
	slowness  = "an effect takes longer than the broker waits"
	exhausted = "a message comes as often as the broker delivers it"
	nearly    = "a message comes as often as the program processes it"
	hang      = "the broker hangs"
)

// hanging is how long the broker hangs. It is longer than the time after which a connection
// without a sign of life counts as lost, and than the visibility time-out of SQS.
const hanging = 40 * time.Second

// schedule returns the events of a run in random order.
func (r *run) schedule() (list []string) {
	if testing.Short() {
		if list = []string{kill, cut, killAll, exhausted, nearly}; r.confirmed {
			list = []string{kill, cut, cut}
		}
		for _, i := range r.random.Perm(len(points))[:3] {
			list = append(list, points[i])
		}
	} else {
		for range *rounds {
			list = append(list, points...)
			for event, n := range map[string]int{kill: 12, killAll: 3, cut: 5, slowness: 1, exhausted: 1, nearly: 1, hang: 1} {
				for range n {
					list = append(list, event)
				}
			}
		}
	}
	var possible []string
	for _, event := range list {
		switch {
		case event == exhausted && r.deliveries == 0, event == nearly && r.nearEnd == 0, event == slowness && r.patience == 0, event == killAll && r.immortal:
		case r.confirmed && (event == slowness || event == inEffect || event == parking): // the target is a broker
		default:
			possible = append(possible, event)
		}
	}
	r.random.Shuffle(len(possible), func(i, j int) { possible[i], possible[j] = possible[j], possible[i] })
	return possible
}

func (b *broker) skipSlow(t *testing.T) {
	t.Helper()
	if b.slow && testing.Short() && *messages == 0 {
		t.Skip("slow: make test-full, or go test ./test/brokers -run " + t.Name())
	}
}

func TestBrokerMessagesSurviveKillsOfProgramBrokerAndConnections(t *testing.T) {
	for _, b := range brokers {
		t.Run(b.name, func(t *testing.T) {
			b.skipSlow(t)
			t.Parallel()
			newRun(t, b, false).all()
		})
	}
}

// TestBrokerMessagesSurviveLostConfirms has the pipeline write to the broker that it reads.
func TestBrokerMessagesSurviveLostConfirms(t *testing.T) {
	for _, b := range []broker{natsBroker, rabbitBroker(true), sqsBroker, sqsFIFO} {
		t.Run(b.name, func(t *testing.T) {
			b.skipSlow(t)
			t.Parallel()
			newRun(t, b, true).all()
		})
	}
}

// run is one test of one broker.
type run struct {
	*testing.T
	broker
	random  *rand.Rand
	server  *services.Server
	cutter  *cutter
	journal *journal
	dir     string
	target  string // address of the journal

	confirmed bool // the effects are messages in the broker

	program *exec.Cmd
	orders  io.Writer     // standard input of the program
	out     *bufio.Reader // standard output of the program

	sent     map[string]bool // the ids of all messages
	next     map[string]int  // the next number of each prefix
	produced int
	last     time.Time // when a message was produced
	kills    int       // of the program
	underWay int       // how many effects a fault may repeat
	repeats  int       // how many effects may have been repeated so far
	revived  int

	exhausted bool // the broker has given up messages
	nearly    bool // the program has processed messages as often as it does
	atLimit   int  // how many messages were parked, because the broker would have given them up
}

func newRun(t *testing.T, b broker, confirmed bool) *run {
	seed := rand.Uint64()
	if text := os.Getenv("SEMEL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SEMEL_SEED=%d", seed)
	r := &run{
		T: t, broker: b, random: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(), journal: newJournal(b.ordered, b.deliveries > 0),
		sent: map[string]bool{}, next: map[string]int{}, confirmed: confirmed, underWay: parallel,
	}
	r.server = b.start(t)
	r.cutter = newCutter(t, r.server.Addr())
	if b.prepare != nil {
		b.prepare(t, r.server.URL())
	}
	receiver := httptest.NewServer(r.journal)
	t.Cleanup(receiver.Close)
	r.target = receiver.URL
	target := fmt.Sprintf("sink: { webhook: { url: %q, allow_private: true, timeout: 1m } }\n    parallel: %d", r.target, parallel)
	if confirmed {
		r.underWay, r.journal.elsewhere = confirms*published, true
		target = fmt.Sprintf("sink: %s\n    parallel: %d\n    batch: %d", b.sink(r.cutter.addr()), confirms, published)
	}
	config := fmt.Sprintf(`stores: { keys: { embedded: { path: ./keys } } }
pipelines:
  p:
    source: %s
    key: { id: .id, on_missing: park }
    window: 24h
    lease: 1m
    store: keys
    %s
    on_failure: { attempts: 1000, backoff: 100ms, then: park }
    parked: { path: ./parked }
`, b.source(r.cutter.addr()), target)
	if err := os.WriteFile(filepath.Join(r.dir, "semel.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.end(syscall.SIGKILL)
		if t.Failed() {
			log, err := os.ReadFile(filepath.Join(r.dir, "log"))
			t.Logf("the end of the program's log: %s%v", log[max(0, len(log)-8000):], err)
		}
	})
	return r
}

func (r *run) all() {
	limit := 25 * time.Minute
	if testing.Short() {
		limit = 10 * time.Minute
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	events, total := r.schedule(), *messages
	if total == 0 {
		if total = 20_000; testing.Short() {
			total = 1500
		}
	}
	r.begin()
	for _, event := range append(events, "") {
		bodies := r.some(total / (len(events) + 1))
		var producing sync.WaitGroup
		producing.Go(func() { r.send(ctx, bodies) })
		if event != "" {
			r.journal.await(ctx, r.journal.settled()+r.random.IntN(len(bodies)/2+1))
			r.Logf("%s %s, %d of %d keys are settled", time.Now().Format("15:04:05.000"), event, r.journal.settled(), len(r.sent))
			r.happen(ctx, event)
		}
		producing.Wait()
	}
	r.settle(ctx, func() bool { return r.journal.settled() == len(r.sent) })
	r.redrive(ctx)
	if r.confirmed {
		r.written(r.T, r.server.URL(), func(id, token, attempt string) {
			r.journal.do(func() { r.journal.effect(id, token+", attempt "+attempt) })
		})
		if r.once {
			r.repeats = r.atLimit // the sink gives a redriven message an id of its own
		}
	}
	r.check()
}

// some returns new messages, some of them duplicates and some that the target refuses.
func (r *run) some(n int) (ids []string) {
	for range n {
		switch chance := r.random.IntN(100); {
		case chance < 25 && r.next[ordered] > 0: // perhaps of a message that is under way
			ids = append(ids, ordered+strconv.Itoa(r.random.IntN(r.next[ordered])))
		case chance == 99 && !r.confirmed:
			ids = append(ids, r.id(refused))
		default:
			ids = append(ids, r.id(ordered))
		}
	}
	return ids
}

// id returns a new id.
func (r *run) id(prefix string) string {
	id := prefix + strconv.Itoa(r.next[prefix])
	r.next[prefix]++
	r.sent[id] = true
	return id
}

// send produces messages. After a failure it sends all of them again.
func (r *run) send(ctx context.Context, ids []string) {
	bodies := make([]string, len(ids))
	for i, id := range ids {
		bodies[i] = fmt.Sprintf(`{"id":%q}`, id)
	}
	for {
		err := r.produce(ctx, r.server.URL(), bodies)
		if err == nil {
			r.journal.do(func() { r.produced, r.last = r.produced+len(ids), time.Now() })
			return
		}
		if ctx.Err() != nil {
			r.Errorf("produce: %v", err)
			return
		}
		within(ctx, 20*time.Millisecond)
	}
}

// idOf returns the id in the body of a message.
func idOf(body string) string {
	return strings.TrimSuffix(strings.TrimPrefix(body, `{"id":"`), `"}`)
}

// happen kills, cuts or delays something.
func (r *run) happen(ctx context.Context, event string) {
	switch event {
	case kill:
		r.end(syscall.SIGKILL)
		r.repeats += r.underWay
		r.begin()
	case killAll:
		err := errors.Join(r.server.Kill(), r.server.Restart(ctx))
		if err != nil { // the machine may be busy
			r.Log(err)
			err = r.server.Restart(ctx)
		}
		if err != nil {
			r.Fatal(err)
		}
		if r.confirmed {
			r.repeats += r.underWay
		}
	case hang:
		err := r.server.Pause()
		if err == nil {
			within(ctx, hanging)
			err = r.server.Continue()
		}
		if err != nil {
			r.Fatal(err)
		}
		if r.confirmed {
			r.repeats += r.underWay
		}
	case cut: // what the program has sent arrives in part, and answers do not
		if r.confirmed {
			r.repeats += r.underWay
			r.cutter.disconnect(1 + r.random.IntN(3000))
			return
		}
		r.cutter.disconnect(1 + r.random.IntN(200)) // a few acknowledgements
	case slowness:
		held := make(chan struct{})
		r.journal.do(func() { r.journal.hold, r.journal.held = r.patience+time.Second, held })
		r.send(ctx, []string{r.id(other)})
		select {
		case <-held:
		case <-ctx.Done():
		}
	case exhausted:
		r.die(ctx, received, r.deliveries)
		r.exhausted = true
	case nearly: // the next program parks it, unless that dies before it can
		r.die(ctx, received, r.nearEnd-1)
		r.nearly = true
		r.awaitLimit(ctx)
	default:
		r.die(ctx, event, 0)
	}
}

// awaitLimit waits, for a while, until the program has parked a message that the broker would
// give up.
func (r *run) awaitLimit(ctx context.Context) {
	for late := time.Now().Add(30 * time.Second); ctx.Err() == nil && time.Now().Before(late); within(ctx, 50*time.Millisecond) {
		if log, _ := os.ReadFile(filepath.Join(r.dir, "log")); strings.Contains(string(log), `"reason":"`+string(pipeline.ReasonDeliveries)+`"`) {
			return
		}
	}
}

// die has the program die at a point, and starts it again. At each of the other numbers it dies
// again, when it has received a message as many times as the next number says. It returns when
// the number is most.
func (r *run) die(ctx context.Context, point string, most int) {
	r.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	process := r.program.Process
	line := ""
	if point == inEffect {
		r.journal.do(func() { r.journal.strike = func() { _ = process.Kill() } })
	} else {
		if _, err := fmt.Fprintf(r.orders, "%s\t1\n", point); err != nil {
			r.Fatal(err)
		}
		defer context.AfterFunc(ctx, func() { _ = process.Kill() })()
		line, _ = r.out.ReadString('\n') // Wait tells why it has ended
	}
	if point == stopping {
		if err := process.Signal(syscall.SIGTERM); err != nil {
			r.Fatal(err)
		}
	} else {
		r.repeats += r.underWay
		some := []string{r.id(other), r.id(other)} // all others may be settled
		if point == parking {
			some = append(some, r.id(refused))
		}
		r.send(ctx, some)
	}
	if line == heard {
		line = ""
	}
	for met := r.death(ctx, point, line); met < most; {
		r.repeats += r.underWay
		r.begin(fmt.Sprintf("%s\t%d\n", point, met+1))
		// The broker may have delivered the message once more to a program that had died, and
		// given it up. Then none has the number, and another message comes from the first one on.
		process := r.program.Process
		late := time.AfterFunc(90*time.Second, func() { _ = process.Kill() })
		if met = r.death(ctx, point, ""); !late.Stop() {
			r.send(ctx, []string{r.id(other)})
		}
	}
	r.begin()
}

// death waits until the program has died at a point, and returns the number that it has
// printed. The line is what it has printed already.
func (r *run) death(ctx context.Context, point, line string) (met int) {
	r.Helper()
	process := r.program.Process
	release := context.AfterFunc(ctx, func() { _ = process.Kill() })
	if line == "" {
		line, _ = r.out.ReadString('\n')
	}
	met, _ = strconv.Atoi(strings.TrimSpace(line)) // without a number it is 0
	err := r.program.Wait()
	status := r.program.ProcessState.Sys().(syscall.WaitStatus)
	r.program = nil
	if !release() || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		r.Fatalf("the program did not die at the point %s: %v", point, err)
	}
	r.kills++
	return met
}

// begin starts the program and waits until it heeds signals. It has heard the orders by
// then, so that it receives nothing before.
func (r *run) begin(orders ...string) {
	r.Helper()
	log, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.Fatal(err)
	}
	defer log.Close()
	program := r.command("run", "semel.yaml", "--admin", "off")
	program.Stderr = log
	stdin, err := program.StdinPipe()
	if err != nil {
		r.Fatal(err)
	}
	out, err := program.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := program.Start(); err != nil {
		r.Fatal(err)
	}
	r.program, r.orders, r.out = program, stdin, bufio.NewReader(out)
	if _, err := fmt.Fprint(stdin, cmp.Or(strings.Join(orders, ""), "nowhere\t0\n")); err != nil {
		r.Fatal(err)
	}
	if _, err := r.out.ReadString('\n'); err != nil {
		r.Fatalf("the program does not start: %v", err)
	}
}

// command returns the program with arguments.
func (r *run) command(args ...string) *exec.Cmd {
	command := exec.Command(os.Args[0], args...)
	command.Dir = r.dir
	command.Env = append(os.Environ(), programVariable+"="+r.target, "GORACE=atexit_sleep_ms=0")
	return command
}

func (r *run) end(how syscall.Signal) {
	if r.program == nil {
		return
	}
	_ = r.program.Process.Signal(how) // it may have ended, which Wait tells
	err := r.program.Wait()
	if how == syscall.SIGTERM && err != nil {
		r.Errorf("the program ended with %v", err)
	}
	if how == syscall.SIGKILL {
		r.kills++
	}
	r.program = nil
}

// settle waits until so is true and the broker has nothing left to deliver, and ends
// the program.
func (r *run) settle(ctx context.Context, so func() bool) {
	r.Helper()
	for {
		for r.reviveAll(ctx); !so() || r.left(r.T, r.server.URL()) > 0; r.reviveAll(ctx) {
			if within(ctx, 50*time.Millisecond); ctx.Err() != nil {
				r.Fatalf("%d of %d keys are settled, and the broker has %d messages left", r.journal.settled(), len(r.sent), r.left(r.T, r.server.URL()))
			}
		}
		if text, err := r.command("keys", "ls", "--config", "semel.yaml", "--state", "claimed", "--json").Output(); err != nil || len(text) > 0 {
			r.Errorf("keys in progress: %s, %v", text, err)
		}
		r.end(syscall.SIGTERM)
		if r.left(r.T, r.server.URL()) == 0 { // otherwise an acknowledgement was lost
			return
		}
		r.begin()
	}
}

// reviveAll puts back what the broker has given up.
func (r *run) reviveAll(ctx context.Context) {
	if r.revive == nil {
		return
	}
	err := r.revive(ctx, r.server.URL(), func(id string) {
		r.revived++
		r.journal.do(func() { r.journal.moved[id] = true })
	})
	if err != nil {
		r.Log(err)
	}
}

// redrive heals the target, processes the parked messages again, and produces them and
// others once more when the broker has forgotten them.
func (r *run) redrive(ctx context.Context) {
	letters, err := pipeline.OpenDeadLetterDir(filepath.Join(r.dir, "parked"))
	if err != nil {
		r.Fatal(err)
	}
	parked := map[string]bool{}
	if err := letters.List(ctx, "p", func(p *pipeline.Parked) bool {
		parked[p.Key.ID] = true
		switch {
		case r.nearEnd > 0 && p.Reason == pipeline.ReasonDeliveries && p.Message.Origin.Delivery >= r.nearEnd:
			r.atLimit++
		case p.Reason != pipeline.ReasonPermanent || !strings.HasPrefix(p.Key.ID, refused):
			r.Errorf("%s is parked at delivery %d: %s", p.Key.ID, p.Message.Origin.Delivery, p.Reason)
		}
		return true
	}); err != nil {
		r.Error(err)
	}
	again := slices.Sorted(maps.Keys(parked))
	for id := range r.sent {
		if strings.HasPrefix(id, refused) && !parked[id] {
			r.Errorf("%s is not parked, and was refused", id)
		}
	}
	r.journal.do(func() { r.journal.healed = true })
	if len(again) > 0 { // before the program has the store
		if text, err := r.command("parked", "retry", "--all", "--config", "semel.yaml", "-q").CombinedOutput(); err != nil {
			r.Errorf("redrive: %v: %s", err, text)
		}
	}
	r.begin()
	for range 100 {
		again = append(again, ordered+strconv.Itoa(r.random.IntN(r.next[ordered])))
	}
	r.journal.do(func() { clear(r.journal.duplicates) })
	within(ctx, time.Until(r.last.Add(r.window)))
	r.send(ctx, again)
	r.settle(ctx, func() (all bool) {
		r.journal.do(func() {
			all = true
			for _, id := range again {
				all = all && r.journal.duplicates[id]
			}
		})
		if !all && time.Since(r.last) > r.window+10*time.Second { // the broker forgets them late
			r.send(ctx, again)
		}
		return all
	})
}

// check compares the journal with the produced messages.
func (r *run) check() {
	j := r.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	lost, again := 0, 0
	for id := range r.sent {
		lost += max(0, 1-len(j.tokens[id]))
		again += max(0, len(j.tokens[id])-1)
	}
	r.Logf("%d messages of %d keys; the program was killed %d times; %d keys lost; %d effects repeated, at most %d may be; %d messages parked and redriven, %d of them near the limit of the broker, which gave up %d; %d connections cut",
		r.produced, len(r.sent), r.kills, lost, again, r.repeats, j.parked, r.atLimit, r.revived, r.cutter.count())
	if lost > 0 || again > r.repeats || len(j.tokens) > len(r.sent) {
		r.Errorf("%d of %d keys are lost, %d effects were repeated (at most %d may be), %d keys had an effect", lost, len(r.sent), again, r.repeats, len(j.tokens))
	}
	for id, text := range j.late {
		if !j.moved[id] { // a later duplicate of one that is moved has the effect
			j.wrong = append(j.wrong, text)
		}
	}
	if len(j.wrong) > 0 {
		r.Errorf("%d faults:\n%s", len(j.wrong), strings.Join(j.wrong[:min(20, len(j.wrong))], "\n"))
	}
	if r.exhausted && r.revived == 0 {
		r.Errorf("the broker did not give up any message after %d deliveries", r.deliveries)
	}
	if r.nearly && r.atLimit == 0 {
		r.Errorf("the program did not park any message at its delivery %d", r.nearEnd)
	}
	if r.Failed() {
		log, _ := os.ReadFile(filepath.Join(r.dir, "log"))
		r.Logf("the program wrote:\n%s", log[max(0, len(log)-8000):])
	}
}

func TestMain(m *testing.M) {
	if journal := os.Getenv(programVariable); journal != "" {
		os.Exit(program(journal))
	}
	flag.Parse()
	// The program needs credentials for SQS. The server accepts any.
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
