package logstore

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/faultfs"
)

// durably returns options with DurableClaims, small segments and a clock that
// the test moves.
func durably() (*Options, *handClock) {
	clock, opts := newHandClock(), small()
	opts.Clock, opts.DurableClaims = clock.now, true
	return opts, clock
}

func owner(nonce uint64) semel.Owner { return semel.Owner{Name: "proxy", Nonce: nonce} }

func claimBy(t *testing.T, s *Store, n int, nonce uint64, lease time.Duration) semel.ClaimAnswer {
	t.Helper()
	return claimOne(t, s, semel.ClaimRequest{Key: key(n), Owner: owner(nonce), Lease: lease})
}

func extendBy(t *testing.T, s *Store, n int, token semel.Token, lease time.Duration) error {
	t.Helper()
	var a [1]semel.ExtendAnswer
	err := s.Extend(t.Context(), []semel.ExtendRequest{{Key: key(n), Token: token, Lease: lease}}, a[:])
	if err != nil && !a[0].LeaseEnd.IsZero() {
		t.Errorf("Extend returns %v and the lease end %v", err, a[0].LeaseEnd)
	}
	return errors.Join(err, a[0].Err)
}

func wantDecision(t *testing.T, a semel.ClaimAnswer, want semel.Decision, token semel.Token) {
	t.Helper()
	if a.Decision != want || token != 0 && a.Claim.Token != token {
		t.Fatalf("the claim is %s under token %d, want %s under %d", a.Decision, a.Claim.Token, want, token)
	}
}

func wantOrphaned(t *testing.T, s *Store, n int, want bool) {
	t.Helper()
	r, err := s.LookDigest(t.Context(), s.keys.digestOf(key(n)))
	if err != nil || r.State != semel.Claimed || r.Orphaned != want {
		t.Errorf("the record is %+v, %v, want claimed and orphaned: %t", r, err, want)
	}
}

// TestClaimsStayDurableWithoutTheOption: without the option, the next process
// keeps the claims that it finds. If it took over a key in memory only, a crash
// would give the key back to the old token.
func TestClaimsStayDurableWithoutTheOption(t *testing.T) {
	t.Parallel()
	opts, clock := durably()
	s := open(t, t.TempDir(), opts)
	running, ended := claimBy(t, s, 1, 1, time.Hour), claimBy(t, s, 2, 2, time.Minute)
	clock.advance(2 * time.Minute)
	s.opts.DurableClaims = false
	if s = reopen(t, s); !s.Traits().DurableClaims {
		t.Error("the store does not say that its claims are durable")
	}
	wantDecision(t, claimBy(t, s, 1, 3, time.Hour), semel.InFlight, running.Claim.Token)
	wantOrphaned(t, s, 1, true)
	taken := claimBy(t, s, 2, 4, time.Hour)
	wantDecision(t, taken, semel.Fresh, 0)
	wantOrphaned(t, s, 2, false)
	s.opts.DurableClaims = false
	s = reopen(t, s)
	wantDecision(t, claimBy(t, s, 2, 5, time.Hour), semel.InFlight, taken.Claim.Token)
	if err := complete(t, s, semel.CompleteRequest{Key: key(2), Token: ended.Claim.Token}); !errors.Is(err, semel.ErrStaleToken) {
		t.Errorf("a token that was taken over before the reopen is answered %v", err)
	}

	// An hour after the last lease the store forgets the claims.
	clock.advance(2*time.Hour + time.Second)
	s.opts.DurableClaims = false
	if s = reopen(t, s); s.Traits().DurableClaims {
		t.Error("abandoned claims keep the store durable")
	}
	if a := claimBy(t, s, 1, 6, time.Minute); a.Decision != semel.Fresh || a.Claim.Attempt != 1 {
		t.Errorf("an abandoned key is %s with attempt %d", a.Decision, a.Claim.Attempt)
	}
}

// TestDurableClaimsOutliveTheirSegments deletes the segment with two claims. A
// transaction has taken one of them, and gives it back.
func TestDurableClaimsOutliveTheirSegments(t *testing.T) {
	t.Parallel()
	opts, clock := durably()
	s := open(t, t.TempDir(), opts)
	const window = 10 * time.Minute
	running, ended := claimBy(t, s, 1, 1, 24*time.Hour), claimBy(t, s, 2, 2, time.Minute)
	for n := 1000; n < 5000; n += 500 {
		wantAll(t, claimDone(t, s, n, n+500, window), semel.Fresh) // fills a segment
	}
	clock.advance(2 * time.Minute)
	tx, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out [1]semel.Decision
	if err := tx.Claim(TxKeys{Digests: []semel.Digest{s.keys.digestOf(key(2))}}, window, out[:]); err != nil || out[0] != semel.Fresh {
		t.Fatalf("Tx.Claim: %s, %v", out[0], err)
	}
	clock.advance(window)
	purged := make(chan error)
	go func() {
		_, err := s.Purge(t.Context())
		purged <- err
	}()
	for waits := false; !waits; runtime.Gosched() { // until the deletion waits for the transaction
		s.log.mu.Lock()
		waits = len(s.committer.gate.changes) > 0
		s.log.mu.Unlock()
	}
	tx.Abort()
	if err := <-purged; err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	if s.log.segments.first == 1 {
		t.Fatal("the first segment was not deleted")
	}
	wantDecision(t, claimBy(t, s, 1, 3, time.Hour), semel.InFlight, running.Claim.Token)
	if err := extendBy(t, s, 2, ended.Claim.Token, time.Minute); err != nil {
		t.Fatalf("Extend of the claim that the transaction gave back: %v", err)
	}
}

// TestSegmentsOfLiveClaimsAreNotCopiedRepeatedly: segments without done keys are due for
// deletion, but their live claims only move to other such segments.
func TestSegmentsOfLiveClaimsAreNotCopiedRepeatedly(t *testing.T) {
	t.Parallel()
	for _, hold := range []bool{true, false} {
		opts, _ := durably()
		s := open(t, t.TempDir(), opts)
		const n = 3000
		reqs, answers := make([]semel.ClaimRequest, n), make([]semel.ClaimAnswer, n)
		for i := range reqs {
			reqs[i] = semel.ClaimRequest{Key: key(i), Owner: owner(uint64(i)), Lease: time.Hour, Window: time.Hour, Hold: hold}
		}
		if err := s.Claim(t.Context(), reqs, answers); err != nil {
			t.Fatal(err)
		}
		segments := func() (first, last uint32) {
			s.log.mu.Lock()
			defer s.log.mu.Unlock()
			return s.log.segments.first, s.log.active.num
		}
		_, before := segments()
		if _, err := s.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first, last := segments(); last > before+1 {
			t.Errorf("hold %t: the log had segments up to %d, and has %d to %d", hold, before, first, last)
		}
		releases, errs := make([]semel.ReleaseRequest, n), make([]error, n)
		for i := range releases {
			releases[i] = semel.ReleaseRequest{Key: key(i), Token: answers[i].Claim.Token}
		}
		if err := s.Release(t.Context(), releases, errs); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first, last := segments(); first != last {
			t.Errorf("hold %t: the log of released claims has segments %d to %d", hold, first, last)
		}
	}
}

func TestLeaseExtensionIsAnsweredOnlyWhenDurable(t *testing.T) {
	t.Parallel()
	fs := faultfs.New()
	s, err := Open("/d/store", &Options{FS: fs, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes, DurableClaims: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a := claimBy(t, s, 1, 1, time.Hour)
	if err := extendBy(t, s, 1, a.Claim.Token, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Sync {
			return syscall.EIO
		}
		return nil
	})
	if err := extendBy(t, s, 1, a.Claim.Token, 3*time.Hour); !errors.Is(err, semel.ErrStoreFailed) {
		t.Errorf("Extend whose sync fails returns %v", err)
	}
}

func TestOwnerWithALongNameRecognisesItsClaimAfterAReopen(t *testing.T) {
	t.Parallel()
	opts, _ := durably()
	s := open(t, t.TempDir(), opts)
	r := semel.ClaimRequest{Key: key(1), Owner: semel.Owner{Name: strings.Repeat("n", 2*holderMost), Nonce: 7}, Lease: time.Hour}
	first := claimOne(t, s, r)
	s = reopen(t, s)
	wantDecision(t, claimOne(t, s, r), semel.Fresh, first.Claim.Token)
	r.Owner.Nonce++
	wantDecision(t, claimOne(t, s, r), semel.InFlight, first.Claim.Token)
}

// TestStoredClaimFormatIsUnchanged fails if the form of a claim in retry mode
// changes. Older programs read its state as "not 1" and take the key for
// unknown.
func TestStoredClaimFormatIsUnchanged(t *testing.T) {
	t.Parallel()
	c := claim{token: 1<<tokenBits + 5, nonce: 9, name: "proxy", first: 1e18, leaseEnd: 1e18 + 3e10, attempt: 2, durable: true, fingerprint: semel.Fingerprint{1}}
	r := c.rich()
	d := semel.Digest([]byte("sixteen byte key"))
	got := r.encode(nil, &d, kindClaim)
	const want = "7369787465656e2062797465206b6579140e0000cc293f1c020085808080802009028080a0f6f4acdbe01b80b0bdb8d4aedbe01b" +
		"010000000000000000000000000000000570726f7879000000000000"
	if hex.EncodeToString(got) != want {
		t.Errorf("the entry is\n%x, want\n%s", got, want)
	}
	e, ok := decodeEntry(got, 0)
	if back := claimOf(e.rich, c.pos); !ok || back != c {
		t.Errorf("the entry is read as %+v (%t), want %+v", back, ok, c)
	}
	got[richHead] = 4 // a state of a later program
	if r.decode(got[richHead:]); !claimOf(&r, 0).unknown {
		t.Error("a claim in a state that the program does not know is not unknown")
	}
}

// TestKilledProcessKeepsItsClaims kills a process that claims keys from several
// goroutines. The next process must find every claim that the first one printed,
// with the printed token.
func TestKilledProcessKeepsItsClaims(t *testing.T) {
	if dir := os.Getenv("SEMEL_CLAIMS_DIR"); dir != "" {
		claimUntilKilled(t, dir)
		return
	}
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	for range tries(10) {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledProcessKeepsItsClaims$")
		child.Env = append(os.Environ(), "SEMEL_CLAIMS_DIR="+dir)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		granted, most := map[string]semel.Token{}, 50+rand.IntN(200)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var id string
			var token semel.Token
			if n, _ := fmt.Sscanf(lines.Text(), "claimed %s %d.", &id, &token); n == 2 {
				granted[id] = token
			}
			if len(granted) == most {
				_ = child.Process.Kill() // then the pipe ends
			}
		}
		if err := child.Wait(); err == nil || len(granted) < most {
			t.Fatalf("the process ended with %v after %d claims", err, len(granted))
		}
		s := open(t, dir, &Options{DurableClaims: true})
		for id, token := range granted {
			k := semel.Key{Scope: "killed", ID: id}
			a := claimOne(t, s, semel.ClaimRequest{Key: k, Owner: owner(0), Lease: time.Minute})
			wantDecision(t, a, semel.InFlight, token)
			if err := complete(t, s, semel.CompleteRequest{Key: k, Token: token}); err != nil {
				t.Fatalf("complete %s: %v", id, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// claimUntilKilled claims new keys, extends their leases, and prints them.
func claimUntilKilled(t *testing.T, dir string) {
	s := open(t, dir, &Options{DurableClaims: true})
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := uint64(1); ; i++ {
				r := semel.ClaimRequest{
					Key:   semel.Key{Scope: "killed", ID: fmt.Sprintf("%d-%d-%d", os.Getpid(), g, i)},
					Owner: owner(i), Lease: time.Minute, Window: time.Hour,
				}
				var a [1]semel.ClaimAnswer
				var e [1]semel.ExtendAnswer
				if err := s.Claim(t.Context(), []semel.ClaimRequest{r}, a[:]); err != nil || a[0].Decision != semel.Fresh {
					return
				}
				if s.Extend(t.Context(), []semel.ExtendRequest{{Key: r.Key, Token: a[0].Claim.Token, Lease: time.Hour}}, e[:]) != nil || e[0].Err != nil {
					return
				}
				fmt.Printf("claimed %s %d.\n", r.Key.ID, a[0].Claim.Token)
			}
		})
	}
	group.Wait()
}

// TestAHeldClaimKeepsItsLeaseOverOpens: several processes open the store in turn, one of
// them without the option. The holder renews and completes its claim all the same, and
// a claim that no holder renews becomes unknown at the end of its lease.
func TestAHeldClaimKeepsItsLeaseOverOpens(t *testing.T) {
	t.Parallel()
	opts, clock := durably()
	s := open(t, t.TempDir(), opts)
	claim := func(n int) semel.ClaimAnswer {
		t.Helper()
		return claimOne(t, s, semel.ClaimRequest{Key: key(n), Owner: owner(uint64(n)), Lease: time.Minute, Hold: true})
	}
	held, dead := claim(1), claim(2)
	s = reopen(t, s)
	if err := extendBy(t, s, 1, held.Claim.Token, time.Hour); err != nil {
		t.Fatal(err)
	}
	s.opts.DurableClaims = false
	if s = reopen(t, s); s.Traits().DurableClaims {
		t.Error("held claims make those in retry mode durable")
	}
	wantOrphaned(t, s, 1, true)
	clock.advance(2 * time.Minute)
	wantDecision(t, claimBy(t, s, 1, 9, time.Hour), semel.InFlight, held.Claim.Token)
	wantDecision(t, claimBy(t, s, 2, 9, time.Hour), semel.OutcomeUnknown, dead.Claim.Token)
	if err := extendBy(t, s, 2, dead.Claim.Token, time.Hour); !errors.Is(err, semel.ErrStaleToken) {
		t.Errorf("the lease of an unknown key is extended: %v", err)
	}
	s = reopen(t, s)
	if err := complete(t, s, semel.CompleteRequest{Key: key(1), Token: held.Claim.Token}); err != nil {
		t.Fatal(err)
	}
	clock.advance(1000 * time.Hour) // an unknown key is never forgotten
	s = reopen(t, s)
	wantDecision(t, claimBy(t, s, 2, 10, time.Hour), semel.OutcomeUnknown, dead.Claim.Token)
}
