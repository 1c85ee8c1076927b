package bearer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// jwt returns a token with claims, and without a valid signature.
func jwt(claims map[string]any) string {
	text, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	return "eyJhbGciOiJub25lIn0." + base64.RawURLEncoding.EncodeToString(text) + ".c2lnbmF0dXJl"
}

// issuer is an Origin that a test controls.
type issuer struct {
	lives   time.Duration
	fetched atomic.Int64
	failing atomic.Pointer[Error]
	hang    atomic.Bool // until the context ends
	slow    atomic.Int64
}

func (*issuer) String() string { return "the issuer" }

func (i *issuer) Fetch(ctx context.Context) (Token, error) {
	n := i.fetched.Add(1)
	if i.hang.Load() {
		<-ctx.Done()
		return Token{}, silent(i)
	}
	select {
	case <-time.After(time.Duration(i.slow.Load())):
	case <-ctx.Done():
		return Token{}, silent(i)
	}
	if err := i.failing.Load(); err != nil {
		return Token{}, err
	}
	return newToken(fmt.Sprint("token", n), i.lives, time.Now()), nil
}

func TestATokenIsRenewedBeforeItEnds(t *testing.T) {
	t.Parallel()
	for lives, most := range map[time.Duration]int64{5 * time.Second: 1200, 10 * time.Minute: 8, time.Hour: 2, 0: 61} {
		synctest.Test(t, func(t *testing.T) {
			from := &issuer{lives: lives}
			c := NewCache(from)
			for range 3600 {
				token, err := c.Token(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if left := time.Until(token.Ends); lives > 0 && left < lastUse {
					t.Fatalf("a token of %v is used %v before its end", lives, left)
				}
				time.Sleep(time.Second)
			}
			if n := from.fetched.Load(); n > most {
				t.Errorf("%d tokens of %v in an hour, want %d at most", n, lives, most)
			}
		})
	}
}

func TestAFailedRenewalUsesTheOldTokenUntilItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &issuer{lives: 10 * time.Minute}
		c := NewCache(from)
		first, err := c.Token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		from.failing.Store(&Error{Cause: "the issuer answers 500", Remedy: "is it up?"})
		begun := time.Now()
		for {
			token, err := c.Token(t.Context())
			if err != nil {
				break
			}
			if token != first {
				t.Fatalf("another token: %+v", token)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if used := time.Since(begun); used < 10*time.Minute-lastUse-time.Second || used > 10*time.Minute {
			t.Errorf("the old token is used for %v", used)
		}
		if n := from.fetched.Load(); n < 5 || n > 20 {
			t.Errorf("the issuer is asked %d times in the last two minutes", n)
		}
		_, err = c.Token(t.Context())
		if !errors.Is(err, semel.ErrStoreUnavailable) || err.Error() != "the issuer answers 500: is it up?" || c.Trouble() == nil {
			t.Errorf("%v", err)
		}
		from.failing.Store(nil)
		time.Sleep(mostPause)
		if token, err := c.Token(t.Context()); err != nil || token == first || c.Trouble() != nil {
			t.Errorf("%v, %v", token, err)
		}
	})
}

func TestARefusedTokenIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &issuer{lives: time.Hour}
		c := NewCache(from)
		for range 10 * 60 { // a client logs in each second, and is refused
			token, err := c.Token(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.Refused(token)
			time.Sleep(time.Second)
		}
		if n := from.fetched.Load(); n < 35 || n > 50 {
			t.Errorf("%d tokens in ten minutes", n)
		}
		time.Sleep(mostPause)
		token, err := c.Token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.Accepted(token)
		before := from.fetched.Load()
		time.Sleep(30 * time.Minute)
		if again, err := c.Token(t.Context()); err != nil || again.Text != token.Text || from.fetched.Load() != before {
			t.Errorf("an accepted token is replaced by %v, %v", again, err)
		}
		c.Refused(token)
		time.Sleep(leastPause)
		if again, err := c.Token(t.Context()); err != nil || again.Text == token.Text {
			t.Errorf("a token that the server stopped accepting is kept: %v", err)
		}
	})
}

func TestAnIssuerThatRefusesTheClientIsAskedLessOften(t *testing.T) {
	t.Parallel()
	for lasting, most := range map[bool]int64{true: 80, false: 320} {
		synctest.Test(t, func(t *testing.T) {
			from := &issuer{}
			from.failing.Store(&Error{Cause: "the issuer answers 401", Remedy: "correct client_secret", Lasting: lasting})
			c := NewCache(from)
			for range 3600 {
				if _, err := c.Token(t.Context()); err == nil {
					t.Fatal("there is a token")
				}
				time.Sleep(time.Second)
			}
			if n := from.fetched.Load(); n > most || n < most/2 {
				t.Errorf("lasting %v: it is asked %d times in an hour, want up to %d", lasting, n, most)
			}
		})
	}
}

func TestLoginsContinueDuringARenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &issuer{lives: 10 * time.Minute}
		c := NewCache(from)
		if _, err := c.Token(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Minute)
		from.hang.Store(true)
		begun := time.Now()
		for range 20 {
			synctest.Wait() // until the attempt asks
			if _, err := c.Token(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begun); took != 0 || from.fetched.Load() != 2 {
			t.Errorf("20 logins took %v, and %d tokens were asked for", took, from.fetched.Load())
		}
		time.Sleep(fetchWithin) // until the attempt ends
	})
}

func TestARenewalHasTheTimeOfTheFirstToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &issuer{lives: 10 * time.Minute}
		c := NewCache(from)
		from.slow.Store(int64(7 * time.Second))
		first, err := c.Token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		if token, err := c.Token(ctx); err != nil || token != first {
			t.Errorf("during the renewal: %v, %v", token, err)
		}
		cancel() // the login that began the renewal is over
		time.Sleep(8 * time.Second)
		if token, err := c.Token(t.Context()); err != nil || token == first || from.fetched.Load() != 2 {
			t.Errorf("after the renewal: %v, %v", token, err)
		}
	})
}

func TestARefusedTokenIsNoUsableToken(t *testing.T) {
	t.Parallel()
	for _, lives := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			from := &issuer{lives: lives}
			c := NewCache(from)
			refused, err := c.Token(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.Refused(refused)
			time.Sleep(leastPause)
			from.slow.Store(int64(5 * time.Second)) // slow, and in time
			next, err := c.Token(t.Context())
			if err != nil || next.Text == refused.Text {
				t.Errorf("from a slow issuer: %v, %v", next, err)
			}
			c.Refused(next)
			from.failing.Store(&Error{Cause: "the issuer answers 500", Remedy: "is it up?"})
			time.Sleep(mostPause)
			for range 100 {
				if token, err := c.Token(t.Context()); err == nil || err.Error() != "the issuer answers 500: is it up?" {
					t.Fatalf("a token that the server refused: %v, %v", token, err)
				}
				time.Sleep(time.Second)
			}
		})
	}
}

func TestAnIssuerThatNeverAnswersHoldsUpNobodyForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &issuer{lives: time.Hour}
		from.hang.Store(true)
		c := NewCache(from)
		var all sync.WaitGroup
		begun := time.Now()
		for range 20 {
			all.Go(func() {
				_, err := c.Token(t.Context())
				if err == nil || err.Error() != "no answer from the issuer: is it up, and can this machine reach it?" {
					t.Errorf("%v", err)
				}
			})
		}
		time.Sleep(time.Second)
		if trouble := c.Trouble(); trouble == nil || !strings.HasPrefix(trouble.Cause, "no answer from the issuer") {
			t.Errorf("while it is asked: %v", trouble)
		}
		all.Wait()
		if took := time.Since(begun); took != fetchWithin {
			t.Errorf("20 callers waited for %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.Sleep(mostPause)
		if _, err := c.Token(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the end of the caller's context: %v", err)
		}
		time.Sleep(fetchWithin) // until the attempt ends
	})
}

// deaf is an origin that does not end with its context.
type deaf struct {
	issuer
	until chan struct{}
}

func (d *deaf) Fetch(context.Context) (Token, error) {
	d.fetched.Add(1)
	<-d.until
	return newToken("late", 0, time.Now()), nil
}

func TestAnOriginThatDoesNotEndIsAskedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &deaf{until: make(chan struct{})}
		c := NewCache(from)
		begun := time.Now()
		for range 100 {
			if _, err := c.Token(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "no answer from the issuer") {
				t.Errorf("%v", err)
			}
		}
		if took := time.Since(begun); took > 10*time.Second || from.fetched.Load() != 1 {
			t.Errorf("%d times in %v", from.fetched.Load(), took)
		}
		close(from.until)
		synctest.Wait()
		if token, err := c.Token(t.Context()); err != nil || token.Text != "late" {
			t.Errorf("%v, %v", token, err)
		}
	})
}

func TestATokenThatNobodyAcceptsIsAnError(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for text, want := range map[string]string{
		"":                                    "the issuer gives an empty token",
		"two words":                           "the issuer gives something that is no token",
		"a\nb":                                "the issuer gives something that is no token",
		jwt(map[string]any{"exp": 1_000_000}): "the issuer gives a token that ended at 1970-01-12T13:46:40Z, and it is ",
	} {
		token := newToken(text, 0, now)
		err := token.check(&issuer{}, now)
		if err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, semel.ErrInvalidRequest) || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestClaimsOfATokenAreDescribed(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	for text, want := range map[string]string{
		"opaque": "of unknown end, scope none, audience none, issuer none, subject none",
		jwt(map[string]any{"exp": 1_700_003_600, "scope": "a b", "aud": "kafka", "iss": "i", "sub": "s"}):           "valid until 2023-11-14T23:13:20Z, scope a b, audience kafka, issuer i, subject s",
		jwt(map[string]any{"exp": 1_700_003_600.5, "scp": []string{"a", "b"}, "aud": []string{"k", "l"}}):           "valid until 2023-11-14T23:13:20Z, scope a b, audience k l, issuer none, subject none",
		jwt(map[string]any{"exp": "soon", "roles": []string{"r"}, "aud": 7, "scope": map[string]any{}, "sub": "s"}): "of unknown end, scope none, audience none, issuer none, subject none",
		jwt(map[string]any{"exp": 1_700_003_600, "azp": 7, "client_id": 7, "iss": 7, "scope": "a"}):                 "valid until 2023-11-14T23:13:20Z, scope a, audience none, issuer none, subject none",
		"a.!!!.c": "of unknown end, scope none, audience none, issuer none, subject none",
	} {
		token := newToken(text, 0, now)
		if got := token.Validity() + ", " + token.Claims(); got != want || strings.Contains(got, text) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for _, exp := range []time.Duration{-time.Hour, time.Minute, 5 * time.Hour} { // the clocks differ
		if token := newToken(jwt(map[string]any{"exp": now.Add(exp).Unix()}), time.Hour, now); !token.Ends.Equal(now.Add(time.Hour)) {
			t.Errorf("a token with expires_in 1h that ends in %v: %s", exp, token.Validity())
		}
	}
	if token := newToken("opaque", time.Minute, now); !token.Ends.Equal(now.Add(time.Minute)) || !token.Renew.Equal(now.Add(48*time.Second)) {
		t.Errorf("an opaque token: %+v", token)
	}
}
