package storetest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
)

// RunSilent checks a store whose server accepts connections and does not answer: it was
// stopped, or its packets are lost. Each call must end within most, although its context
// does not end, with an error that says so: nothing was changed, or the outcome is
// unknown. No key may be decided.
//
// server is the address of a server. open opens the store with another address in its
// place, behind which the server falls silent. Each call has a store of its own, so that
// none profits from what another one has learned.
func RunSilent(t *testing.T, server string, most time.Duration, open func(t *testing.T, address string) semel.Store) {
	t.Helper()
	for name, call := range silentCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelay(t, server)
			store := open(t, r.address)
			if closer, ok := store.(io.Closer); ok {
				t.Cleanup(func() { _ = closer.Close() })
			}
			err := call(store)
			for began := time.Now(); unanswered(err) && time.Since(began) < most; err = call(store) {
				<-time.After(10 * time.Millisecond) // a server may be slower than the store waits
			}
			if errors.Is(err, errLacks) {
				return
			}
			if unanswered(err) {
				t.Fatalf("the server answers, and the call fails: %v", err)
			}
			r.silent.Store(true)
			// The first call has a connection to a server that is silent now, and the
			// others may have to connect.
			for _, which := range []string{"first", "second"} {
				began := time.Now()
				ended := make(chan error, 1)
				go func() { ended <- call(store) }()
				select {
				case err := <-ended:
					if !unanswered(err) {
						t.Errorf("the %s call ends with %v, of class %s, after %v", which, err, semel.Classify(err), time.Since(began))
					}
				case <-time.After(most):
					t.Fatalf("the %s call has not ended after %v", which, most)
				}
			}
		})
	}
}

// unanswered reports whether an error says that a server has not answered.
func unanswered(err error) bool {
	class := semel.Classify(err)
	return class == semel.ClassUnknown || class == semel.ClassRetryable
}

// silentCalls are the calls of a store and of its abilities. One that the store lacks
// is not made: its error is errLacks.
var silentCalls = map[string]func(semel.Store) error{
	"claim": func(s semel.Store) error {
		answers := make([]semel.ClaimAnswer, 1)
		return s.Claim(context.Background(), []semel.ClaimRequest{silentClaim}, answers)
	},
	"claim with Done": func(s semel.Store) error {
		req, answers := silentClaim, make([]semel.ClaimAnswer, 1)
		req.Done = true
		return s.Claim(context.Background(), []semel.ClaimRequest{req}, answers)
	},
	"complete": func(s semel.Store) error {
		return s.Complete(context.Background(), []semel.CompleteRequest{{Key: silentClaim.Key, Token: 7, Window: time.Hour}}, make([]error, 1))
	},
	"release": func(s semel.Store) error {
		return s.Release(context.Background(), []semel.ReleaseRequest{{Key: silentClaim.Key, Token: 7}}, make([]error, 1))
	},
	"extend": func(s semel.Store) error {
		return s.Extend(context.Background(), []semel.ExtendRequest{{Key: silentClaim.Key, Token: 7, Lease: time.Minute}}, make([]semel.ExtendAnswer, 1))
	},
	"look": ability(func(i semel.Inspector) error {
		return i.Look(context.Background(), []semel.Key{silentClaim.Key}, make([]semel.Record, 1))
	}),
	"list": ability(func(i semel.Inspector) error {
		for _, err := range i.List(context.Background(), semel.ListOptions{}) {
			if err != nil {
				return err
			}
		}
		return nil
	}),
	"count": ability(func(i semel.Inspector) error {
		_, err := i.Count(context.Background())
		return err
	}),
	"resolve": ability(func(r semel.Resolver) error {
		return r.Resolve(context.Background(), semel.ResolveRequest{Key: silentClaim.Key, As: semel.Absent, Window: time.Hour})
	}),
	"remove": ability(func(r semel.Resolver) error {
		_, err := r.Remove(context.Background(), silentClaim.Key)
		return err
	}),
	"purge": ability(func(p semel.Purger) error {
		_, err := p.Purge(context.Background())
		return err
	}),
	"bind": ability(func(b semel.ScopeBinder) error {
		_, err := b.BindScope(context.Background(), "silent", "")
		return err
	}),
	"ready": ability(func(r doctor.Readier) error { return r.Ready(context.Background()) }),
}

var silentClaim = semel.ClaimRequest{Key: semel.Key{Scope: "silent", ID: "k"}, Owner: semel.Owner{Name: "silent", Nonce: 1}, Lease: time.Minute, Window: time.Hour}

// ability returns the call of an ability.
func ability[A any](call func(A) error) func(semel.Store) error {
	return func(s semel.Store) error {
		if a, ok := semel.As[A](s); ok {
			return call(a)
		}
		return errLacks
	}
}

var errLacks = errors.New("the store lacks the ability")

// relay passes connections on to a server until it is silent. Then it accepts
// connections, reads their data, and passes nothing on.
type relay struct {
	address string
	silent  atomic.Bool
}

func newRelay(t *testing.T, server string) *relay {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{address: listener.Addr().String()}
	var mu sync.Mutex
	var open []net.Conn
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			mu.Lock()
			open = append(open, client, upstream)
			mu.Unlock()
			running.Go(func() { r.pass(client, upstream) })
			running.Go(func() { r.pass(upstream, client) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return r
}

// pass copies from one connection to the other, and drops what it gets while it is silent.
func (r *relay) pass(from, to net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			to.Close()
			return
		}
		if !r.silent.Load() {
			_, _ = to.Write(buffer[:n])
		}
	}
}
