package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// ledger records the answers to workers, for a comparison with the store after
// the faults.
type ledger struct {
	mu        sync.Mutex
	asked     map[int]semel.ClaimRequest
	completed map[int]bool // the completion was answered
	intended  map[int]bool // a completion was requested
	failures  int
}

// work claims and completes keys, each call with a deadline, until stop is
// closed. No call may get Duplicate for a key that was not completed.
func (l *ledger) work(t *testing.T, b *bundle, worker int, stop <-chan struct{}) {
	for n := worker; ; n += 16 {
		select {
		case <-stop:
			return
		default:
		}
		req := request(keyOf(n))
		req.Lease = time.Hour
		l.mu.Lock()
		l.asked[n] = req
		l.mu.Unlock()
		for try := range 3 {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			token, err := claimOne(ctx, b, req)
			if err == nil {
				l.mu.Lock()
				l.intended[n] = true
				l.mu.Unlock()
				errs := make([]error, 1)
				err = b.Complete(ctx, []semel.CompleteRequest{{Key: req.Key, Token: token, Window: time.Hour}}, errs)
				err = errors.Join(err, errs[0])
			}
			cancel()
			l.mu.Lock()
			if err == nil {
				l.completed[n] = true
			} else {
				l.failures++
			}
			l.mu.Unlock()
			if err == nil {
				break
			}
			if class := semel.Classify(err); class != semel.ClassUnknown && class != semel.ClassRetryable {
				t.Errorf("key %d, try %d: %v, of class %s", n, try, err, class)
				return
			}
		}
	}
}

var errDuplicate = errors.New("duplicate")

// claimOne claims for one owner, even if an earlier answer was lost.
func claimOne(ctx context.Context, b *bundle, req semel.ClaimRequest) (semel.Token, error) {
	answers := make([]semel.ClaimAnswer, 1)
	if err := b.Claim(ctx, []semel.ClaimRequest{req}, answers); err != nil {
		return 0, err
	}
	switch a := answers[0]; a.Decision {
	case semel.Fresh:
		return a.Claim.Token, nil
	case semel.Duplicate:
		return 0, errors.Join(errDuplicate, semel.ErrOutcomeUnknown)
	default:
		return 0, errors.Join(errors.New(a.Decision.String()), a.Err)
	}
}

// underLoad runs workers, calls fault, and checks the remaining records.
func underLoad(t *testing.T, b *bundle, fault func()) {
	t.Helper()
	l := &ledger{asked: map[int]semel.ClaimRequest{}, completed: map[int]bool{}, intended: map[int]bool{}}
	stop := make(chan struct{})
	var group sync.WaitGroup
	for w := range 16 {
		group.Go(func() { l.work(t, b, w, stop) })
	}
	enough := func(n int) func() bool {
		return func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.completed) >= n
		}
	}
	eventually(t, "the workers work", enough(50))
	fault()
	l.mu.Lock()
	before := len(l.completed)
	l.mu.Unlock()
	eventually(t, "the workers work again", enough(before+50))
	close(stop)
	group.Wait()
	if l.failures == 0 {
		t.Error("the fault reached no call")
	}
	for n, req := range l.asked {
		answers := make([]semel.ClaimAnswer, 1)
		if err := b.Claim(t.Context(), []semel.ClaimRequest{req}, answers); err != nil {
			t.Fatalf("claim after the fault: %v", err)
		}
		switch d := answers[0].Decision; {
		case d == semel.Fresh && !l.completed[n]:
		case d == semel.Duplicate && l.intended[n]:
		default:
			t.Errorf("key %d (completion asked for: %t, answered: %t) is %s", n, l.intended[n], l.completed[n], d)
		}
	}
}

func TestKilledConnectionsLoseNothing(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	b := openedAt(t, address, &Options{LockWait: mostLockWait}) // a killed session may hold its locks for long
	killer := &bundle{&Store{pool: pool(t, address+"&application_name=killer")}, t}
	underLoad(t, b, func() {
		killed := int64(0)
		eventually(t, "enough sessions were killed at work", func() bool {
			killed += killer.number(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name <> 'killer' AND state = 'active' AND backend_type = 'client backend'`)
			return killed > 50
		})
	})
}

func TestKilledServerLosesNothing(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	underLoad(t, openedAt(t, server.URL(), &Options{LockWait: mostLockWait}), func() {
		if err := errors.Join(server.Kill(), server.Restart(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
}

func TestServerThatDoesNotAnswerLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	b := openedAt(t, server.URL(), nil)
	b.want(semel.Fresh, 1)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the claim must be sent within
	defer cancel()
	req := request(keyOf(2))
	answers := make([]semel.ClaimAnswer, 1)
	err := b.Claim(ctx, []semel.ClaimRequest{req}, answers)
	if semel.Classify(err) != semel.ClassUnknown || answers[0].Decision != semel.Undecided {
		t.Errorf("no answer is reported as %v, of class %s, with decision %s", err, semel.Classify(err), answers[0].Decision)
	}
	if err := server.Continue(); err != nil {
		t.Fatal(err)
	}
	if _, err := claimOne(t.Context(), b, req); err != nil {
		t.Errorf("the same claim again: %v", err)
	}
}

func TestStandbyIsUnavailableAndNotTrusted(t *testing.T) {
	t.Parallel()
	primary := servicestest.StartPostgres(t, nil)
	b := openedAt(t, primary.URL(), nil)
	a := b.want(semel.Fresh, 1)[0]
	b.complete(1, a, time.Hour)
	standby := servicestest.StartStandby(t, primary, nil)
	if f := finding(t, b.Store, "synchronous_standby_names"); f.Severity != doctor.Warning {
		t.Errorf("with an asynchronous standby the examination says %+v", f)
	}
	s, err := New(t.Context(), pool(t, standby.URL()), nil)
	if err != nil {
		t.Fatalf("open a standby: %v", err)
	}
	if f := finding(t, s, "pg_is_in_recovery"); f.Severity != doctor.Broken {
		t.Errorf("of a standby the examination says %+v", f)
	}
	_, err = (&bundle{s, t}).ask(t.Context(), 2)
	if !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("claim on a standby: %v, want ErrStoreUnavailable", err)
	}
}

func TestFailoverIsFollowedByAddressesOfManyHosts(t *testing.T) {
	t.Parallel()
	primary := servicestest.StartPostgres(t, nil)
	openedAt(t, primary.URL(), nil)
	standby := servicestest.StartStandby(t, primary, nil)
	address := "postgres://postgres@" + primary.Addr() + "," + standby.Addr() + "/postgres?sslmode=disable&target_session_attrs=read-write"
	b := openAt(t, address, nil)
	a := b.want(semel.Fresh, 1)[0]
	b.complete(1, a, time.Hour)
	other := pool(t, standby.URL())
	eventually(t, "the standby has the key", func() (has bool) {
		err := other.QueryRow(t.Context(), "SELECT count(*) = 1 FROM semel_keys WHERE owner IS NULL").Scan(&has)
		return err == nil && has
	})
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), "SELECT pg_promote()"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a claim goes to the new primary", func() bool {
		answers, err := b.ask(t.Context(), 1)
		return err == nil && answers[0].Decision == semel.Duplicate
	})
	b.want(semel.Fresh, 2)
}

func TestIsolationAboveReadCommittedIsRefusedAtOpening(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	migrated(t, address, nil)
	for _, level := range []string{"repeatable read", "serializable"} {
		p := pool(t, address+"&default_transaction_isolation="+strings.ReplaceAll(level, " ", "%20"))
		if _, err := New(t.Context(), p, nil); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), level) {
			t.Errorf("open under %s: %v", level, err)
		}
	}
}

// TestClaimsAreCorrectUnderSerializableIsolation: an operator may change the
// setting outside of the store.
func TestClaimsAreCorrectUnderSerializableIsolation(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	b := openedAt(t, address, &Options{retries: 50})
	b.Store.pool = pool(t, address+"&default_transaction_isolation=serializable")
	for n := range 20 {
		var group sync.WaitGroup
		decisions := make([]semel.Decision, 8)
		for i := range decisions {
			group.Go(func() {
				answers, err := b.ask(context.Background(), n, 1000+rand.IntN(1000)+1000*n)
				if err != nil {
					t.Errorf("claim: %v", err)
				}
				decisions[i] = answers[0].Decision
			})
		}
		group.Wait()
		fresh := 0
		for _, d := range decisions {
			if d == semel.Fresh {
				fresh++
			} else if d != semel.InFlight {
				t.Errorf("a racer is answered %s", d)
			}
		}
		if fresh != 1 {
			t.Errorf("%d racers won", fresh)
		}
	}
}
