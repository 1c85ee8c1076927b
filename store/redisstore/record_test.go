package redisstore

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

func TestOneStepRecordIsReadAsWritten(t *testing.T) {
	t.Parallel()
	key, origin := ids{key: semel.Key{Scope: "scope", ID: "id\x00\xff"}}, ids{origin: "orders 2/17"}
	for _, c := range []struct {
		window time.Duration
		print  semel.Fingerprint
		ids    ids
		length int
	}{
		{time.Hour, semel.Fingerprint{}, ids{}, oneStepPlain},
		{semel.Forever, semel.Fingerprint{}, ids{}, oneStepPlain},
		{time.Hour, semel.Fingerprint{1, 2, 3, 4, 5, 6, 7, 8, 9}, ids{}, oneStepPrints},
		{time.Hour, semel.Fingerprint{}, key, oneStepPrints + 4 + 8 + 9},
		{time.Hour, semel.Fingerprint{1}, key, oneStepPrints + 4 + 8 + 9},
		{time.Hour, semel.Fingerprint{}, origin, oneStepPrints + 4 + 12 + 11},
		{time.Hour, semel.Fingerprint{1}, ids{key.key, origin.origin}, oneStepPrints + 4 + 12 + 9 + 11},
	} {
		rec := string(appendOneStep(nil, [8]byte{9, 8}, c.window, c.print, c.ids))
		r, ok := decode(rec)
		if !ok || len(rec) != c.length {
			t.Fatalf("%+v is written with %d bytes, want %d, and read: %t", c, len(rec), c.length, ok)
		}
		window := c.window
		if window == semel.Forever {
			window = 0
		}
		if r.publicState() != semel.Done || r.owner != [8]byte{9, 8} || r.window != window || !r.print.Matches(c.print) || r.print.IsZero() != c.print.IsZero() {
			t.Errorf("%+v is read as %+v", c, r)
		}
		if r.ids != c.ids {
			t.Errorf("%+v is read with the ids %+v", c, r.ids)
		}
	}
}

func TestRedisExpiryTimesAreRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]uint64{1: 1, time.Microsecond: 1, time.Microsecond + 1: 2, time.Second: 1e6, semel.Forever: maxMicros} {
		if got := microsUp(d); got != want {
			t.Errorf("%v is %d µs, want %d", d, got, want)
		}
	}
	for d, want := range map[time.Duration]uint64{1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, semel.Forever: 0, semel.Forever - 1: 9223372036855} {
		if got := windowMillis(d); got != want {
			t.Errorf("a window of %v is %d ms, want %d", d, got, want)
		}
	}
	at := time.Unix(100, 999)
	for _, c := range []struct {
		at     time.Time
		window time.Duration
		want   uint64
	}{
		{time.Time{}, time.Hour, 0},
		{at, semel.Forever, 0},
		{at, time.Second, 101e6},
		{time.Unix(-1e9, 0), time.Hour, 1},
		{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), 1 << 62, latest},
	} {
		if got := lateAfter(&semel.ClaimRequest{Time: c.at, Window: c.window}); got != c.want {
			t.Errorf("a message of %v with a window of %v is late after %d, want %d", c.at, c.window, got, c.want)
		}
	}
}

// FuzzDecode searches for bytes that break a reader.
func FuzzDecode(f *testing.F) {
	f.Add("")
	f.Add("d")
	f.Add("c" + strings.Repeat("\x01", 60))
	f.Add("d" + strings.Repeat("\x00", 40) + "result")
	f.Add(string(appendOneStep(nil, [8]byte{1}, time.Hour, semel.Fingerprint{1}, ids{semel.Key{Scope: "s", ID: "i"}, "o"})))
	f.Fuzz(func(t *testing.T, rec string) {
		claimOf(rec)
		r, ok := decode(rec)
		if !ok {
			return
		}
		if shown := r.show(1, 1); shown.State == semel.Absent {
			t.Errorf("%q is read as a record of no state", rec)
		}
		for _, kind := range []string{"F", "D", "I", "U", "M", "L", "C", "X"} {
			var a semel.ClaimAnswer
			if err := readClaim(&semel.ClaimRequest{}, kind+rec, &a); err == nil && a.Err == nil && a.Decision == semel.Undecided {
				t.Errorf("the answer %q decides nothing", kind+rec)
			}
		}
	})
}

func TestErrorsAreClassified(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errors.New("connection refused"))}
	for _, c := range []struct {
		err   error
		is    error
		class semel.Class
	}{
		{refused, semel.ErrStoreUnavailable, semel.ClassRetryable},
		{fmt.Errorf("wrapped: %w", refused), semel.ErrStoreUnavailable, semel.ClassRetryable},
		{rueidis.ErrNoSlot, semel.ErrStoreUnavailable, semel.ClassRetryable},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, semel.ErrOutcomeUnknown, semel.ClassUnknown},
		{&net.OpError{Op: "write", Err: errors.New("broken pipe")}, semel.ErrOutcomeUnknown, semel.ClassUnknown},
		{io.EOF, semel.ErrOutcomeUnknown, semel.ClassUnknown},
		{os.ErrDeadlineExceeded, semel.ErrOutcomeUnknown, semel.ClassUnknown},
		{errors.New("what nobody knows"), semel.ErrOutcomeUnknown, semel.ClassUnknown},
		// A call that was running when the client was closed may have been
		// executed.
		{rueidis.ErrClosing, semel.ErrOutcomeUnknown, semel.ClassUnknown},
		{rueidis.ErrClosing, semel.ErrClosed, semel.ClassUnknown},
		{fmt.Errorf("%w before anything was sent", semel.ErrClosed), semel.ErrClosed, semel.ClassPermanent},
	} {
		err := storeError("claim", c.err)
		if !errors.Is(err, c.is) || !errors.Is(err, c.err) || semel.Classify(err) != c.class {
			t.Errorf("%v becomes %v of class %s, want %v of class %s", c.err, err, semel.Classify(err), c.is, c.class)
		}
	}
	for message, want := range map[string]error{
		"OOM command not allowed when used memory > 'maxmemory'.":                                                                          semel.ErrStoreFull,
		"READONLY You can't write against a read only replica. script: 5f, on @user_script:1.":                                             semel.ErrStoreUnavailable,
		"ERR Error running script (call to f_5f): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.": semel.ErrStoreUnavailable,
		"@user_script: 61: -OOM command not allowed when used memory > 'maxmemory'.":                                                       semel.ErrStoreFull,
		"MISCONF Errors writing to the AOF file: No space left on device":                                                                  semel.ErrStoreUnavailable,
		"@user_script: 61: -MISCONF Errors writing to the AOF file: No space left on device":                                               semel.ErrOutcomeUnknown,
		"PARTLY NOPERM this user has no permissions to run the 'sadd' command":                                                             semel.ErrOutcomeUnknown,
		"NOREPLICAS Not enough good replicas to write.":                                                                                    semel.ErrStoreUnavailable,
		"CLUSTERDOWN Hash slot not served":                                                                                                 semel.ErrStoreUnavailable,
		"CROSSSLOT Keys in request don't hash to the same slot":                                                                            semel.ErrInvalidRequest,
		"ERR user_script:10: Script attempted to access nonexistent global variable 'OOM '":                                                semel.ErrOutcomeUnknown,
		"OOMPH": semel.ErrOutcomeUnknown,
		"ERR unknown command 'BF.ADD', with args: ": semel.ErrOutcomeUnknown,
	} {
		if got := refusal(message); got != want {
			t.Errorf("%q means %v, want %v", message, got, want)
		}
	}
}

func TestListShowsIdsThatAreLongAndResultsBySize(t *testing.T) {
	t.Parallel()
	s := newStore(t, &Options{KeepIDs: true})
	scope := "a scope"
	ids := []string{"short", strings.Repeat("long", pageCut)}
	results := map[string]int{"short": 5, ids[1]: 3 * pageCut}
	for i, id := range ids {
		key := semel.Key{Scope: scope, ID: id}
		a := wantDecision(t, s, semel.Fresh, semel.ClaimRequest{Key: key, Owner: semel.Owner{Name: "w", Nonce: uint64(i)}, Lease: time.Minute, Window: time.Hour})
		req := semel.CompleteRequest{Key: key, Token: a.Claim.Token, Window: time.Hour, Result: semel.Result{Kind: semel.Value, Data: make([]byte, results[id])}}
		answer := make([]error, 1)
		if err := s.Complete(t.Context(), []semel.CompleteRequest{req}, answer); err != nil || answer[0] != nil {
			t.Fatal(err, answer[0])
		}
	}
	seen := make(map[string]int)
	for r, err := range s.List(t.Context(), semel.ListOptions{Scope: &scope}) {
		if err != nil {
			t.Fatal(err)
		}
		records := make([]semel.Record, 1)
		if err := s.Look(t.Context(), []semel.Key{r.Key}, records); err != nil || records[0].Digest != r.Digest || records[0].ResultSize != r.ResultSize {
			t.Errorf("list shows %s with %d bytes, look %s with %d (%v)", r.Digest, r.ResultSize, records[0].Digest, records[0].ResultSize, err)
		}
		seen[r.Key.ID] = r.ResultSize
	}
	if len(seen) != len(ids) || seen[ids[0]] != results[ids[0]] || seen[ids[1]] != results[ids[1]] {
		t.Errorf("list yields %d keys", len(seen))
	}
}

func TestForeignKeysInRedisAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t, nil)
	wantDecision(t, s, semel.Fresh, done(ask("ours", 1)))
	for _, name := range []string{"", "x", "{", "{00}", "{00}other", "{00}0123456789abcdef", "{zz}0123456789abcdef"} {
		command(t, s, "SET", s.opts.Prefix+name, "theirs")
		defer command(t, s, "DEL", s.opts.Prefix+name)
	}
	counts, err := s.Count(t.Context())
	if err != nil || counts.Done != 1 || counts.Claimed != 0 || counts.Unknown != 0 {
		t.Errorf("count says %+v (%v), want 1 done", counts, err)
	}
}

// TestTruncatedScriptReplyIsRefused: a cut answer could look like another one.
func TestTruncatedScriptReplyIsRefused(t *testing.T) {
	t.Parallel()
	const reply = "\x01\x00\x00\x00K\x00\x00\x00\x00\x03\x00\x00\x00Sab"
	if got, err := cutAnswers(reply, 3); err != nil || !slices.Equal(got, []string{"K", "", "Sab"}) {
		t.Errorf("the whole reply: %q, %v", got, err)
	}
	for _, cut := range []string{"", reply[:4], reply[:len(reply)-1], reply[:5], reply + "\x00", reply + reply} {
		if got, err := cutAnswers(cut, 3); err == nil {
			t.Errorf("%q has the answers %q", cut, got)
		}
	}
}
