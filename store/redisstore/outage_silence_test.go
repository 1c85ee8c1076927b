package redisstore

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// In these tests the server does not answer, so the outcome of a request is
// unknown.

// cutter is a proxy in front of a server that can lose an answer. It forwards a
// request, waits until the server has answered, and then closes the connection
// without forwarding the answer.
type cutter struct {
	addr string

	mu   sync.Mutex // guards the fields below
	lose []byte     // the answer to a request that contains this text is lost
	lost int
}

func newCutter(t *testing.T, upstream string) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: listener.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.serve(client, upstream) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		wg.Wait()
	})
	return c
}

// loseAnswerTo loses the next answer to a request that contains a word.
func (c *cutter) loseAnswerTo(word string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = []byte(word)
}

// losses returns how many answers were lost.
func (c *cutter) losses() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// serve forwards bytes in both directions. Small requests arrive in one piece
// here.
func (c *cutter) serve(client net.Conn, upstream string) {
	defer client.Close()
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer server.Close()
	var armed sync.Mutex // held while the next answer will be lost
	losing := false
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer client.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if err != nil {
				return
			}
			armed.Lock()
			lose := losing
			armed.Unlock()
			if lose {
				c.mu.Lock()
				c.lost++
				c.mu.Unlock()
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	defer server.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		c.mu.Lock()
		if c.lose != nil && bytes.Contains(buffer[:n], c.lose) {
			c.lose = nil
			armed.Lock()
			losing = true
			armed.Unlock()
		}
		c.mu.Unlock()
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// newCut returns a server with a store behind a cutter, and a second store with
// a direct connection.
func newCut(t *testing.T) (o *outage, cut *cutter, direct *Store) {
	t.Helper()
	o = newOutage(t, nil)
	direct = o.store
	cut = newCutter(t, o.server.Addr())
	o.client = oneWire(t, "redis://"+cut.addr, time.Minute) // the answer that is lost is not that of a ping
	var err error
	if o.store, err = New(t.Context(), o.client, nil); err != nil {
		t.Fatal(err)
	}
	return o, cut, direct
}

// stateOf returns the state of a key.
func stateOf(t *testing.T, store *Store, key semel.Key) semel.State {
	t.Helper()
	records := make([]semel.Record, 1)
	if err := store.Look(t.Context(), []semel.Key{key}, records); err != nil {
		t.Fatal(err)
	}
	return records[0].State
}

// wantLost makes a call whose answer is lost, and expects an unknown outcome.
func wantLost(t *testing.T, cut *cutter, call func() error) {
	t.Helper()
	before := cut.losses()
	cut.loseAnswerTo("EVALSHA")
	if err := call(); semel.Classify(err) != semel.ClassUnknown {
		t.Errorf("the answer was lost, and the call says %v of class %v; want an unknown outcome", err, semel.Classify(err))
	}
	if cut.losses() != before+1 {
		t.Fatalf("%d answers were lost; want 1", cut.losses()-before)
	}
}

// again repeats a call until the connection is back.
func again(t *testing.T, call func() error) {
	t.Helper()
	eventually(t, func() bool {
		err := call()
		if err != nil && semel.Classify(err) == semel.ClassPermanent {
			t.Fatalf("the repetition is refused: %v", err)
		}
		return err == nil
	}, "the repetition succeeds")
}

func TestRepetitionAfterALostAnswerIsRecognised(t *testing.T) {
	t.Parallel()
	o, cut, direct := newCut(t)
	ctx, key := t.Context(), o.key()
	o.claim(request(o.key()), semel.Fresh) // now the server knows the scripts
	if err := finish(ctx, o.store, key, 1); !errors.Is(err, semel.ErrStaleToken) {
		t.Fatal(err)
	}

	// This tests a claim. The store has made it, and the repetition gets it.
	req := request(key)
	wantLost(t, cut, func() error { _, err := askFor(ctx, o.store, req); return err })
	if got := stateOf(t, direct, key); got != semel.Claimed {
		t.Fatalf("after the lost answer the key is %v: the fault came before the write", got)
	}
	if answer, err := askFor(ctx, direct, request(key)); err != nil || answer.Decision != semel.InFlight {
		t.Errorf("another claim: %v, %v; want in flight", answer.Decision, err)
	}
	var held semel.ClaimAnswer
	again(t, func() (err error) { held, err = askFor(ctx, o.store, req); return err })
	if held.Decision != semel.Fresh || held.Claim.Attempt != 1 || held.Claim.Token == 0 {
		t.Fatalf("the repeated claim: %+v; want its own, fresh", held)
	}

	// This tests an extension.
	extend := func() error {
		var answers [1]semel.ExtendAnswer
		err := o.store.Extend(ctx, []semel.ExtendRequest{{Key: key, Token: held.Claim.Token, Lease: time.Hour}}, answers[:])
		return errors.Join(err, answers[0].Err)
	}
	wantLost(t, cut, extend)
	again(t, extend)

	// This tests a completion.
	complete := func() error { return finish(ctx, o.store, key, held.Claim.Token) }
	wantLost(t, cut, complete)
	if got := stateOf(t, direct, key); got != semel.Done {
		t.Fatalf("after the lost answer the key is %v: the fault came before the write", got)
	}
	again(t, complete)
	if answer := o.claim(request(key), semel.Duplicate); string(answer.Result.Data) != key.ID {
		t.Errorf("the duplicate gets %q; want %q", answer.Result.Data, key.ID)
	}
}

func TestClaimInOneStepIsRecognisedAfterALostAnswer(t *testing.T) {
	t.Parallel()
	o, cut, direct := newCut(t)
	req := request(o.key())
	req.Done = true
	cut.loseAnswerTo("\r\nNX\r\n")
	if _, err := askFor(t.Context(), o.store, req); semel.Classify(err) != semel.ClassUnknown || cut.losses() != 1 {
		t.Fatalf("got %v of class %v, %d answers lost; want an unknown outcome", err, semel.Classify(err), cut.losses())
	}
	if got := stateOf(t, direct, req.Key); got != semel.Done {
		t.Fatalf("after the lost answer the key is %v: the fault came before the write", got)
	}
	var answer semel.ClaimAnswer
	again(t, func() (err error) { answer, err = askFor(t.Context(), o.store, req); return err })
	if answer.Decision != semel.Fresh {
		t.Errorf("the repeated claim: %v; want fresh, or its message is lost", answer.Decision)
	}
	o.claim(request(req.Key), semel.Duplicate)
}

func TestReleaseThatWasNotAnsweredIsNotADuplicate(t *testing.T) {
	t.Parallel()
	o, cut, direct := newCut(t)
	key := o.key()
	token := o.claim(request(key), semel.Fresh).Claim.Token
	release := func(store *Store) error {
		var answers [1]error
		err := store.Release(t.Context(), []semel.ReleaseRequest{{Key: key, Token: token}}, answers[:])
		return errors.Join(err, answers[0])
	}
	if err := release(direct); err != nil {
		t.Fatal(err)
	}
	token = o.claim(request(key), semel.Fresh).Claim.Token
	wantLost(t, cut, func() error { return release(o.store) })
	if got := stateOf(t, direct, key); got != semel.Absent {
		t.Fatalf("after the lost answer the key is %v: the fault came before the write", got)
	}
	eventually(t, func() bool {
		answer, err := askFor(t.Context(), o.store, request(key))
		return err == nil && answer.Decision == semel.Fresh
	}, "the key is fresh again")
}

func TestGuardRunsTheEffectOnceWhenAnswersAreLost(t *testing.T) {
	t.Parallel()
	o, cut, _ := newCut(t)
	guard, err := semel.NewGuard(o.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	o.claim(request(o.key()), semel.Fresh)
	for i := range 20 {
		key, effects := o.key(), 0
		if i%2 == 0 {
			cut.loseAnswerTo("EVALSHA") // of the claim
		}
		out, err := guard.Do(t.Context(), key, func(context.Context, semel.Claim) ([]byte, error) {
			effects++
			if i%2 == 1 {
				cut.loseAnswerTo("EVALSHA") // of the completion
			}
			return nil, nil
		})
		if err != nil || out.Decision != semel.Fresh || effects != 1 {
			t.Fatalf("delivery %d: %+v, error %v, %d effects; want one", i, out, err, effects)
		}
	}
	if cut.losses() != 20 {
		t.Errorf("%d answers were lost; want 20", cut.losses())
	}
}

// oneWire returns a client with one connection, on which it sends nothing of its own,
// so that a request reaches the socket of a paused server. By default the library picks one of
// several connections, dials it at its first use, and pings a connection after an idle second. A
// paused server answers neither the greeting of a new connection nor the ping, and the request
// waits for that answer unsent.
func oneWire(t *testing.T, url string, timeout time.Duration) *Client {
	t.Helper()
	opts, target, err := unhurried(&ClientOptions{Timeout: timeout}).resolve(url)
	if err != nil {
		t.Fatal(err)
	}
	option := opts.client(target.hosts, t.Context())
	option.PipelineMultiplex, option.Dialer.KeepAlive = -1, time.Hour
	inner := inTime(t, func() (rueidis.Client, error) { return rueidis.NewClient(option) })
	client := &Client{Client: inner, timeout: opts.Timeout}
	t.Cleanup(client.Close)
	return client
}

func TestAClaimOfAPausedServerIsUnknownAndThenRecognised(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil)
	done, req := o.done(), request(o.key())
	client := oneWire(t, o.server.URL(), 2*time.Second)
	hasty := inTime(t, func() (*Store, error) { return New(t.Context(), client, nil) })
	if err := o.server.Pause(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	answer, err := askFor(t.Context(), hasty, req)
	if semel.Classify(err) != semel.ClassUnknown || answer.Decision != semel.Undecided {
		t.Errorf("claim: %v, %v of class %v; want an unknown outcome", answer.Decision, err, semel.Classify(err))
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	if answer, err := askFor(t.Context(), hasty, request(done)); err == nil || answer.Decision != semel.Undecided {
		t.Errorf("a duplicate while nothing answers: %v, %v; want no decision", answer.Decision, err)
	}
	if err := o.server.Continue(); err != nil {
		t.Fatal(err)
	}
	// The server reads the claim from its socket and grants it, although the
	// caller is gone.
	eventually(t, func() bool { return stateOf(t, o.store, req.Key) == semel.Claimed }, "the claim is there although its answer never came")
	if answer := o.claim(req, semel.Fresh); answer.Claim.Attempt != 1 {
		t.Errorf("the repeated claim: %+v; want its own", answer)
	}
	o.claim(request(req.Key), semel.InFlight)
	o.claim(request(done), semel.Duplicate)
}

func TestKilledServerWithSyncedLogLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil, "--appendfsync", "always")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newWork(t, o.store, 1500)
	pid := o.server.PID()
	end := w.start(ctx, w.again)
	for _, n := range []int{200, 700} {
		w.waitFor(ctx, n)
		if err := errors.Join(o.server.Kill(), o.server.Restart(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	end()
	if o.server.PID() == pid {
		t.Fatal("the server was not killed")
	}
	w.wantFailures()
	if second := w.check(); second != 0 {
		t.Errorf("%d effects happened twice, though nothing that was answered is lost", second)
	}
	for _, key := range w.keys {
		o.claim(request(key), semel.Duplicate)
	}
}

func TestEveryCallTimesOutOnASilentServer(t *testing.T) {
	t.Parallel()
	storetest.RunSilent(t, redisAddr(t), time.Minute, func(t *testing.T, address string) semel.Store {
		return inTime(t, func() (*Store, error) {
			client, err := NewClient(t.Context(), "redis://"+address, &ClientOptions{Timeout: time.Second})
			if err != nil {
				return nil, err
			}
			t.Cleanup(client.Close)
			return New(t.Context(), client, &Options{Prefix: servicestest.Prefix()})
		})
	})
}
