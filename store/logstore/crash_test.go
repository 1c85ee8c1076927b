package logstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/faultfs"
)

// seed returns the seed of a random test and prints it. Set SEMEL_SEED to
// repeat a run.
func seed(t testing.TB) uint64 {
	t.Helper()
	n := rand.Uint64()
	if text := os.Getenv("SEMEL_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SEMEL_SEED=%d", n)
	return n
}

// tries returns the number of tries of a random test. With -short it is a fifth
// of n.
func tries(n int) int {
	if testing.Short() {
		return n / 5
	}
	return n
}

// history records the requests of a workload and their answers.
type history struct {
	done    map[int]bool // answered as done
	tried   map[int]bool // requested to be done
	held    map[int]semel.Token
	txs     int // number of transactions that were answered as durable
	txTried int
	opened  bool
}

const (
	keysPerTx = 40
	txBase    = 1_000_000 // higher keys belong to transactions
)

// crashWorkload changes a store in every supported way until an error occurs.
func crashWorkload(fs *faultfs.FS, h *history, steps int) error {
	ctx := context.Background()
	s, err := Open("/d/store", &Options{FS: fs, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes})
	if err != nil {
		return err
	}
	defer s.Close()
	h.opened = true
	next := 0
	for step := range steps {
		var err error
		switch step % 4 {
		case 0:
			err = crashDone(ctx, s, h, next, 200+step*13%700)
			next += 1000
		case 1:
			err = crashComplete(ctx, s, h, next)
			next++
		case 2:
			err = crashHold(ctx, s, h, next)
			next++
		case 3:
			err = crashTx(ctx, s, h, step%8 == 3)
		}
		if err == nil && step%9 == 8 {
			err = spillNow(s)
		}
		if err != nil {
			return err
		}
	}
	return s.Close()
}

// spillNow lets the keys of all sealed segments leave memory.
func spillNow(s *Store) error {
	s.maintenance.maintaining.Lock()
	defer s.maintenance.maintaining.Unlock()
	for {
		if more, err := s.maintenance.spill(context.Background()); !more || err != nil {
			return err
		}
	}
}

func crashDone(ctx context.Context, s *Store, h *history, from, n int) error {
	reqs := make([]semel.ClaimRequest, n)
	answers := make([]semel.ClaimAnswer, n)
	for i := range reqs {
		reqs[i] = semel.ClaimRequest{Key: key(from + i), Done: true, Window: semel.Forever}
		h.tried[from+i] = true
	}
	if err := s.Claim(ctx, reqs, answers); err != nil {
		return err
	}
	for i := range reqs {
		h.done[from+i] = true
	}
	return nil
}

func crashComplete(ctx context.Context, s *Store, h *history, n int) error {
	var a [1]semel.ClaimAnswer
	err := s.Claim(ctx, []semel.ClaimRequest{{Key: key(n), Lease: time.Hour, Window: semel.Forever, Owner: semel.Owner{Nonce: uint64(n)}}}, a[:])
	if err != nil {
		return err
	}
	h.tried[n] = true
	var errs [1]error
	r := semel.CompleteRequest{Key: key(n), Token: a[0].Claim.Token, Window: semel.Forever,
		Result: semel.Result{Kind: semel.Value, Data: fmt.Appendf(nil, "result %d", n)}}
	if err := errors.Join(s.Complete(ctx, []semel.CompleteRequest{r}, errs[:]), errs[0]); err != nil {
		return err
	}
	h.done[n] = true
	return nil
}

func crashHold(ctx context.Context, s *Store, h *history, n int) error {
	var a [1]semel.ClaimAnswer
	err := s.Claim(ctx, []semel.ClaimRequest{{Key: key(n), Lease: time.Hour, Window: semel.Forever, Hold: true, Owner: semel.Owner{Nonce: uint64(n)}}}, a[:])
	if err != nil {
		return err
	}
	h.held[n] = a[0].Claim.Token
	return nil
}

func crashTx(ctx context.Context, s *Store, h *history, seal bool) error {
	tx, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Abort()
	d := s.Digester("test")
	var keys []semel.Digest
	for i := range keysPerTx {
		keys = append(keys, d.String(key(txBase+h.txTried*keysPerTx+i).ID))
	}
	out := make([]semel.Decision, len(keys))
	if err := tx.Claim(TxKeys{Digests: keys}, semel.Forever, out); err != nil {
		return err
	}
	h.txTried++
	tx.Set("position", []byte(strconv.Itoa(h.txTried)))
	if seal {
		err = tx.Seal(nil).Wait(ctx)
	} else {
		err = tx.Commit(ctx)
	}
	if err == nil {
		h.txs = h.txTried
	}
	return err
}

// check compares a store that was opened after a crash with the history.
func (h *history) check(s *Store) error {
	var numbers []int
	for n := range h.tried {
		numbers = append(numbers, n)
	}
	for n := range h.held {
		numbers = append(numbers, n)
	}
	for i := range h.txTried * keysPerTx {
		numbers = append(numbers, txBase+i)
	}
	for n := 500_000; n < 500_100; n++ { // were never claimed
		numbers = append(numbers, n)
	}
	keys, records := make([]semel.Key, len(numbers)), make([]semel.Record, len(numbers))
	for i, n := range numbers {
		keys[i] = key(n)
	}
	if err := s.Look(context.Background(), keys, records); err != nil {
		return err
	}
	state := make(map[int]semel.Record, len(numbers))
	for i, n := range numbers {
		state[n] = records[i]
	}
	for n := range h.tried {
		r := state[n]
		if h.done[n] && r.State != semel.Done {
			return fmt.Errorf("key %d was answered as done and is %s", n, r.State)
		}
		if r.Result.Kind == semel.Value && string(r.Result.Data) != fmt.Sprintf("result %d", n) {
			return fmt.Errorf("key %d has the result %q", n, r.Result.Data)
		}
	}
	for n, token := range h.held {
		if r := state[n]; r.State != semel.Unknown || r.Token != token {
			return fmt.Errorf("held key %d is %s with token %d, want unknown with %d", n, r.State, r.Token, token)
		}
	}
	return h.checkTxs(s, state)
}

func (h *history) checkTxs(s *Store, state map[int]semel.Record) error {
	v, _ := s.Value("position")
	position, _ := strconv.Atoi(string(v))
	if position < h.txs || position > h.txTried {
		return fmt.Errorf("position is %d, %d transactions were durable and %d tried", position, h.txs, h.txTried)
	}
	for i := range h.txTried * keysPerTx {
		want := i < position*keysPerTx
		if r := state[txBase+i]; (r.State == semel.Done) != want {
			return fmt.Errorf("key %d of the transactions is %s at position %d", i, r.State, position)
		}
	}
	for n := 500_000; n < 500_100; n++ {
		if r := state[n]; r.State != semel.Absent {
			return fmt.Errorf("key %d was never claimed and is %s", n, r.State)
		}
	}
	return nil
}

func newHistory() *history {
	return &history{done: map[int]bool{}, tried: map[int]bool{}, held: map[int]semel.Token{}}
}

func TestAcknowledgedWritesSurviveACrash(t *testing.T) {
	t.Parallel()
	n := seed(t)
	const steps = 36
	whole := faultfs.New()
	if err := crashWorkload(whole, newHistory(), steps); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(n, 1))
	points := random.Perm(whole.Ops())
	for _, at := range points[:min(len(points), tries(40))] {
		at++
		fs := faultfs.New()
		fs.CrashAt(at)
		h := newHistory()
		if err := crashWorkload(fs, h, steps); err == nil {
			continue // the background did less this time
		}
		for _, policy := range []faultfs.Policy{faultfs.OnlySynced, faultfs.Torn, faultfs.Torn, faultfs.Everything} {
			left := fs.Survive(policy, random)
			s, err := Open("/d/store", &Options{FS: left, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes})
			if err != nil {
				t.Fatalf("crash at operation %d, %s: Open: %v", at, policy, err)
			}
			if err := h.check(s); err != nil {
				t.Fatalf("crash at operation %d, %s: %v", at, policy, err)
			}
			if err := s.Close(); err != nil {
				t.Fatalf("crash at operation %d, %s: Close: %v", at, policy, err)
			}
		}
	}
}
