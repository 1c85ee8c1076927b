// Package brokers kills the real program and real brokers while messages move, cuts
// connections in the middle of acknowledgements, and compares what happened with an
// independent journal: nothing is lost, and an effect repeats only where
// `semel explain` says that it may.
package brokers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/services"
)

var (
	messages = flag.Int("messages", 0, "how many messages a test produces; 0 is 20,000, or 3,000 with -short")
	events   = flag.Int("events", 0, "how often it kills or cuts something; 0 is 20, or 6 with -short")
)

// broker is a broker under test.
type broker struct {
	name string
	// slow: a message whose process died comes again after half a minute. The test
	// runs without -short only.
	slow  bool
	start func(t *testing.T) *services.Server
	// prepare makes the stream or queue.
	prepare func(t *testing.T, url string)
	// produce sends messages with these bodies, and returns when the broker has
	// confirmed all. It may be called again with the same bodies.
	produce func(ctx context.Context, url string, bodies []string) error
	// source is the source of a pipeline that reads from this address.
	source func(addr string) string
	// left returns how many messages the broker would still deliver.
	left func(t *testing.T, url string) int
}

var brokers = []broker{natsBroker, sqsBroker}

// parallel is how many effects a program has under way.
const parallel = 16

func TestNothingIsLostWhenProgramBrokerAndConnectionsDie(t *testing.T) {
	for _, b := range brokers {
		t.Run(b.name, func(t *testing.T) {
			if b.slow && testing.Short() && *messages == 0 {
				t.Skip("slow: make test-full, or go test ./test/brokers -run " + t.Name())
			}
			t.Parallel()
			newRun(t, b).all()
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
	program *exec.Cmd
	dir     string
	keys    int
	repeats int // how many effects may have been repeated so far
}

func newRun(t *testing.T, b broker) *run {
	seed := rand.Uint64()
	if text := os.Getenv("SEMEL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SEMEL_SEED=%d", seed)
	r := &run{T: t, broker: b, random: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(), journal: &journal{effects: map[string]int{}}}
	r.server = b.start(t)
	r.cutter = newCutter(t, r.server.Addr())
	b.prepare(t, r.server.URL())
	receiver := httptest.NewServer(r.journal)
	t.Cleanup(receiver.Close)
	config := fmt.Sprintf(`stores: { keys: { embedded: { path: ./keys } } }
pipelines:
  p:
    source: %s
    key: { id: .id, on_missing: park }
    window: 24h
    lease: 5s
    store: keys
    sink: { webhook: { url: %q, allow_private: true } }
    parallel: %d
    on_failure: { attempts: 1000, backoff: 100ms, then: park }
    parked: { path: ./parked }
`, b.source(r.cutter.addr()), receiver.URL, parallel)
	if err := os.WriteFile(filepath.Join(r.dir, "semel.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	lint := exec.Command(program(t), "lint", "semel.yaml")
	lint.Dir = r.dir
	if output, err := lint.CombinedOutput(); lint.ProcessState.ExitCode() > 3 || lint.ProcessState.ExitCode() == 2 {
		t.Fatalf("%v: %s", err, output)
	}
	t.Cleanup(func() { r.end(syscall.SIGKILL) })
	return r
}

// count returns a number for a short and for a full run.
func count(chosen, short, full int) int {
	switch {
	case chosen > 0:
		return chosen
	case testing.Short():
		return short
	}
	return full
}

func (r *run) all() {
	total, events := count(*messages, 3000, 20000), count(*events, 6, 20)
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Minute)
	defer cancel()
	r.begin()
	for event := range events + 1 {
		var bodies []string
		for range total / (events + 1) {
			id := r.keys
			if r.keys > 0 && r.random.IntN(4) == 0 {
				id = r.random.IntN(r.keys) // a duplicate, perhaps of a message that is under way
			} else {
				r.keys++
			}
			bodies = append(bodies, fmt.Sprintf(`{"id":"k%d"}`, id))
		}
		var producing sync.WaitGroup
		producing.Go(func() {
			for {
				err := r.produce(ctx, r.server.URL(), bodies) // after a crash all are sent again
				if err == nil {
					return
				}
				if ctx.Err() != nil {
					r.Errorf("produce: %v", err)
					return
				}
			}
		})
		if event < events {
			r.journal.await(ctx, r.journal.count()+r.random.IntN(len(bodies)/2+1))
			r.happen(event)
		}
		producing.Wait()
	}
	r.journal.await(ctx, r.keys)
	r.settle(ctx)
	r.check()
}

// happen kills or cuts something.
func (r *run) happen(event int) {
	switch event % 3 {
	case 0: // the program dies
		r.end(syscall.SIGKILL)
		r.repeats += parallel
		r.begin()
	case 1: // the broker dies
		if err := errors.Join(r.server.Kill(), r.server.Restart(r.Context())); err != nil {
			r.Fatal(err)
		}
	case 2: // what the program has sent arrives in part, and answers do not
		r.cutter.cut(r.random.IntN(2000))
	}
}

func (r *run) begin() {
	r.Helper()
	log, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.Fatal(err)
	}
	defer log.Close()
	r.program = exec.Command(program(r.T), "run", "semel.yaml", "--admin", "off")
	r.program.Dir, r.program.Stderr = r.dir, log
	if err := r.program.Start(); err != nil {
		r.Fatal(err)
	}
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
	r.program = nil
}

// settle waits until the broker has nothing left to deliver, and ends the program.
func (r *run) settle(ctx context.Context) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for left := r.left(r.T, r.server.URL()); left > 0; left = r.left(r.T, r.server.URL()) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			r.Errorf("the broker has %d messages left", left)
			return
		}
	}
	r.end(syscall.SIGTERM)
}

// check compares the journal with what was produced.
func (r *run) check() {
	j := r.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	lost, again := 0, 0
	for n := range r.keys {
		switch effects := j.effects["k"+strconv.Itoa(n)]; {
		case effects == 0:
			lost++
		default:
			again += effects - 1
		}
	}
	r.Logf("%d keys; %d lost; %d effects repeated, at most %d may be", r.keys, lost, again, r.repeats)
	if lost > 0 || again > r.repeats || len(j.effects) > r.keys {
		r.Errorf("%d of %d keys are lost, %d effects were repeated (at most %d may be), %d keys had an effect", lost, r.keys, again, r.repeats, len(j.effects))
	}
	if parked, _ := filepath.Glob(filepath.Join(r.dir, "parked", "*", "*.json")); len(parked) > 0 {
		r.Errorf("%d messages are parked", len(parked))
	}
	if r.Failed() {
		log, _ := os.ReadFile(filepath.Join(r.dir, "log"))
		r.Logf("the program wrote:\n%s", log[max(0, len(log)-8000):])
	}
}

// journal counts the effects of each key.
type journal struct {
	mu      sync.Mutex
	effects map[string]int
	changed chan struct{}
}

// ServeHTTP implements http.Handler.
func (j *journal) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.effects[r.Header.Get("Idempotency-Key")]++
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

func (j *journal) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.effects)
}

// await waits until n keys had their effect, or ctx ends.
func (j *journal) await(ctx context.Context, n int) {
	for {
		j.mu.Lock()
		if len(j.effects) >= n {
			j.mu.Unlock()
			return
		}
		if j.changed == nil {
			j.changed = make(chan struct{})
		}
		changed := j.changed
		j.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// cutter stands between the program and the broker, and cuts connections.
type cutter struct {
	listener net.Listener
	mu       sync.Mutex
	upstream string
	open     map[net.Conn]*int // the bytes that may still pass to the broker, or nil for no limit
}

func newCutter(t *testing.T, upstream string) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: listener, upstream: upstream, open: map[net.Conn]*int{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		c.cut(0)
		serving.Wait()
	})
	return c
}

func (c *cutter) addr() string { return c.listener.Addr().String() }

// cut ends all connections as soon as so many bytes have passed to the broker. The
// program learns nothing of what arrived: answers do not pass any more.
func (c *cutter) cut(after int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		if after == 0 {
			conn.Close()
			continue
		}
		c.open[conn] = &after
	}
}

func (c *cutter) serve(client net.Conn) {
	defer client.Close()
	broker, err := net.Dial("tcp", c.upstream)
	if err != nil {
		return
	}
	defer broker.Close()
	c.mu.Lock()
	c.open[client] = nil
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.open, client)
		c.mu.Unlock()
	}()
	var both sync.WaitGroup
	both.Go(func() {
		c.copy(client, client, broker, false)
		client.Close()
	})
	c.copy(client, broker, client, true)
	broker.Close()
	client.Close()
	both.Wait()
}

// copy copies until the connection of the client is cut.
func (c *cutter) copy(client, to, from net.Conn, sends bool) {
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		c.mu.Lock()
		limit, passes := c.open[client], n
		switch {
		case limit != nil && !sends:
			passes = 0 // the answer is lost
		case limit != nil:
			passes = min(n, *limit)
			*limit -= passes
		}
		over := limit != nil && *limit == 0
		c.mu.Unlock()
		if _, err := to.Write(buffer[:passes]); err != nil || over {
			return
		}
	}
}

// program builds the program once.
func program(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "semel-brokers")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "semel")
	output, err := exec.Command("go", "build", "-o", path, "../../cmd/semel").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, output)
	}
	return path, err
})

func TestMain(m *testing.M) {
	flag.Parse()
	// The program needs credentials for SQS. The server accepts any.
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	status := m.Run()
	if path, err := built(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(status)
}
