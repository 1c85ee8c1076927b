package redisstore

import (
	"errors"
	"net"
	"strconv"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// In these tests the server answers, but not as usual.

func TestScriptsAreSentAgainAfterAFlush(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil)
	flush := func() { do(t, o.server.Addr(), "SCRIPT", "FLUSH") }
	key := o.key()
	flush()
	held := o.claim(request(key), semel.Fresh)
	flush()
	if err := finish(t.Context(), o.store, key, held.Claim.Token); err != nil {
		t.Errorf("complete after SCRIPT FLUSH: %v", err)
	}
	flush()
	o.claim(request(key), semel.Duplicate)
	if n := errorsOf(t, o.server.Addr(), "NOSCRIPT"); n < 3 {
		t.Errorf("the server has answered NOSCRIPT %d times; want 3 or more", n)
	}
}

func TestReplicaRefusesAsUnavailable(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil)
	done, held := o.done(), request(o.key())
	token := o.claim(held, semel.Fresh).Claim.Token

	other := servicestest.StartRedis(t, nil)
	host, port, _ := net.SplitHostPort(o.server.Addr())
	do(t, other.Addr(), "REPLICAOF", host, port)
	eventually(t, func() bool { return do(t, other.Addr(), "DBSIZE") == do(t, o.server.Addr(), "DBSIZE") }, "the replica has all")
	do(t, other.Addr(), "REPLICAOF", "NO", "ONE")
	host, port, _ = net.SplitHostPort(other.Addr())
	do(t, o.server.Addr(), "REPLICAOF", host, port)

	o.wantRefusal(o.key(), semel.ErrStoreUnavailable, semel.ClassRetryable)
	if err := finish(t.Context(), o.store, held.Key, token); !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("complete on a replica: %v; want unavailable", err)
	}
	o.wantFault("READONLY")

	do(t, o.server.Addr(), "REPLICAOF", "NO", "ONE")
	o.claim(request(held.Key), semel.InFlight)
	if err := finish(t.Context(), o.store, held.Key, token); err != nil {
		t.Errorf("complete on the master: %v", err)
	}
	o.claim(request(done), semel.Duplicate)
}

func TestServerWithoutMemoryRefusesAsFull(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil)
	done, held := o.done(), request(o.key())
	token := o.claim(held, semel.Fresh).Claim.Token

	do(t, o.server.Addr(), "CONFIG", "SET", "maxmemory", "1")
	o.wantRefusal(o.key(), semel.ErrStoreFull, semel.ClassRetryable)
	oneStep := request(o.key())
	oneStep.Done = true
	if answer, err := askFor(t.Context(), o.store, oneStep); !errors.Is(err, semel.ErrStoreFull) || answer.Decision != semel.Undecided {
		t.Errorf("a claim in one step: %v, %v; want it full", answer.Decision, err)
	}
	o.claim(request(done), semel.Duplicate)
	o.claim(request(held.Key), semel.InFlight)
	if err := finish(t.Context(), o.store, held.Key, token); err != nil && !errors.Is(err, semel.ErrStoreFull) {
		t.Errorf("complete: %v; want it done, or full", err)
	}
	o.wantFault("OOM")

	do(t, o.server.Addr(), "CONFIG", "SET", "maxmemory", "0")
	if err := finish(t.Context(), o.store, held.Key, token); err != nil {
		t.Errorf("complete with memory again: %v", err)
	}
	o.claim(oneStep, semel.Fresh)
	o.claim(request(oneStep.Key), semel.Duplicate)
}

func TestServerBusyWithAScriptRefusesAsUnavailable(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil, "--lua-time-limit", "20")
	done := o.done()
	ended := make(chan error, 1)
	go func() {
		_, err := services.RedisDo(t.Context(), o.server.Addr(), "EVAL", "while true do end", "0")
		ended <- err
	}()
	var refused error
	eventually(t, func() bool {
		_, refused = askFor(t.Context(), o.store, request(o.key()))
		return refused != nil
	}, "a claim is refused")
	if !errors.Is(refused, semel.ErrStoreUnavailable) || semel.Classify(refused) != semel.ClassRetryable {
		t.Errorf("claim: %v; want unavailable", refused)
	}
	if s := o.client.Status(); s.Open {
		t.Errorf("a server that answers BUSY has an open circuit: %+v", s)
	}
	do(t, o.server.Addr(), "SCRIPT", "KILL")
	if err := <-ended; err == nil {
		t.Error("the endless script ended without error")
	}
	o.wantFault("BUSY")
	o.claim(request(done), semel.Duplicate)
}

func TestServerThatLoadsRefusesAsUnavailable(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil, "--loading-process-events-interval-bytes", "1024")
	done := o.done()
	for i := range 3000 {
		o.claim(request(semel.Key{Scope: "filler", ID: strconv.Itoa(i)}), semel.Fresh)
	}
	do(t, o.server.Addr(), "BGREWRITEAOF")
	eventually(t, func() bool {
		info := fields(do(t, o.server.Addr(), "INFO", "persistence").(string))
		return info["aof_rewrite_in_progress"] == "0" && info["aof_rewrite_scheduled"] == "0" && info["aof_last_bgrewrite_status"] == "ok"
	}, "the append-only file is rewritten")
	loading := false
	// A slow machine may pause the test, which then sends no request while the
	// server loads. So the load takes longer.
	for delay := 1000; !loading && delay <= 16_000; delay *= 2 {
		if err := o.server.Kill(); err != nil {
			t.Fatal(err)
		}
		restarted := make(chan error, 1)
		go func() { restarted <- o.server.Restart(t.Context(), "--key-load-delay", strconv.Itoa(delay)) }()
		loading = o.wantLoaded(done)
		if err := <-restarted; err != nil {
			t.Fatal(err)
		}
	}
	if !loading {
		t.Error("no claim was refused with LOADING: the fault did not happen")
	}
}

// wantLoaded asks for a done key until the server has loaded it, and reports
// whether the server refused requests before.
func (o *outage) wantLoaded(done semel.Key) (loading bool) {
	t := o.t
	t.Helper()
	eventually(t, func() bool {
		answer, err := askFor(t.Context(), o.store, request(done))
		if err == nil {
			if answer.Decision != semel.Duplicate {
				t.Fatalf("after the restart: %v; want a duplicate", answer.Decision)
			}
			return true
		}
		if answer.Decision != semel.Undecided {
			t.Fatalf("while it loads: %v with error %v", answer.Decision, err)
		}
		if containsCode(err, "LOADING") {
			loading = true
			if !errors.Is(err, semel.ErrStoreUnavailable) || semel.Classify(err) != semel.ClassRetryable {
				t.Fatalf("while it loads: %v; want unavailable", err)
			}
		}
		return false
	}, "the server has loaded its file")
	return loading
}

func TestServerWithoutItsReplicasRefusesAsUnavailable(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil)
	held := request(o.key())
	token := o.claim(held, semel.Fresh).Claim.Token
	do(t, o.server.Addr(), "CONFIG", "SET", "min-replicas-to-write", "1")
	o.wantRefusal(o.key(), semel.ErrStoreUnavailable, semel.ClassRetryable)
	if err := finish(t.Context(), o.store, held.Key, token); !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("complete: %v; want unavailable", err)
	}
	o.wantFault("NOREPLICAS")
	do(t, o.server.Addr(), "CONFIG", "SET", "min-replicas-to-write", "0")
	if err := finish(t.Context(), o.store, held.Key, token); err != nil {
		t.Errorf("complete when the replica is no longer required: %v", err)
	}
}

func TestAClientReconnectsToARestartedServer(t *testing.T) {
	t.Parallel()
	o := newOutage(t, nil)
	done := o.done()
	if err := o.server.Stop(); err != nil {
		t.Fatal(err)
	}
	// One call may be lost with the closed connection, and its outcome is then
	// unknown. Later calls are refused before anything is sent.
	eventually(t, func() bool {
		answer, err := askFor(t.Context(), o.store, request(o.key()))
		if err == nil || answer.Decision != semel.Undecided {
			t.Fatalf("a stopped server answered %v", answer.Decision)
		}
		return errors.Is(err, semel.ErrStoreUnavailable)
	}, "the server is unavailable")
	if s := o.client.Status(); !s.Open {
		t.Errorf("the circuit of a stopped server is closed: %+v", s)
	}
	if err := o.server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		answer, err := askFor(t.Context(), o.store, request(done))
		return err == nil && answer.Decision == semel.Duplicate
	}, "the server is found again, with its keys")
}
