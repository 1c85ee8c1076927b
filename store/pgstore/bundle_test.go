package pgstore

import (
	"context"
	cryptorand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
)

// bundle is a store on its own database, with helpers for tests.
type bundle struct {
	*Store
	t testing.TB
}

// opened creates the tables in a new database of the shared server and opens a
// store on them.
func opened(t testing.TB, opts *Options) *bundle {
	t.Helper()
	return openedAt(t, shared.Database(t), opts)
}

func openedAt(t testing.TB, address string, opts *Options) *bundle {
	t.Helper()
	migrated(t, address, nil)
	return openAt(t, address, opts)
}

// openAt opens a store on existing tables.
func openAt(t testing.TB, address string, opts *Options) *bundle {
	t.Helper()
	s, err := New(t.Context(), pool(t, address), opts)
	if err != nil {
		t.Fatal(err)
	}
	return &bundle{s, t}
}

// exec runs a statement outside of the store.
func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// number reads one number.
func (b *bundle) number(sql string, args ...any) (n int64) {
	b.t.Helper()
	if err := b.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func keyOf(n int) semel.Key { return key(fmt.Sprintf("key-%d", n)) }

func request(k semel.Key) semel.ClaimRequest {
	return semel.ClaimRequest{Key: k, Owner: semel.Owner{Name: "test", Nonce: rand.Uint64()}, Lease: time.Minute, Window: time.Hour}
}

// ask claims keys in one call.
func (b *bundle) ask(ctx context.Context, keys ...int) ([]semel.ClaimAnswer, error) {
	reqs := make([]semel.ClaimRequest, len(keys))
	for i, n := range keys {
		reqs[i] = request(keyOf(n))
	}
	answers := make([]semel.ClaimAnswer, len(keys))
	return answers, b.Claim(ctx, reqs, answers)
}

// want claims keys and expects the same decision for all.
func (b *bundle) want(decision semel.Decision, keys ...int) []semel.ClaimAnswer {
	b.t.Helper()
	answers, err := b.ask(context.Background(), keys...)
	if err != nil {
		b.t.Fatalf("claim: %v", err)
	}
	for i, a := range answers {
		if a.Decision != decision || a.Err != nil {
			b.t.Fatalf("claim of key %d is answered %s, %v, want %s", keys[i], a.Decision, a.Err, decision)
		}
	}
	return answers
}

// complete completes a key that was granted.
func (b *bundle) complete(n int, a semel.ClaimAnswer, window time.Duration) {
	b.t.Helper()
	errs := make([]error, 1)
	err := b.Complete(context.Background(), []semel.CompleteRequest{{Key: keyOf(n), Token: a.Claim.Token, Window: window}}, errs)
	if err != nil || errs[0] != nil {
		b.t.Fatalf("complete: %v, %v", err, errs[0])
	}
}

// release releases a granted key.
func (b *bundle) release(n int, a semel.ClaimAnswer, unknown bool) {
	b.t.Helper()
	errs := make([]error, 1)
	err := b.Release(context.Background(), []semel.ReleaseRequest{{Key: keyOf(n), Token: a.Claim.Token, Unknown: unknown}}, errs)
	if err != nil || errs[0] != nil {
		b.t.Fatalf("release: %v, %v", err, errs[0])
	}
}

// begin begins a transaction. It ends with the test at the latest, because an
// open transaction keeps its connection and the pool waits for that.
func (b *bundle) begin() pgx.Tx {
	b.t.Helper()
	tx, err := b.pool.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { rollback(context.Background(), tx) })
	return tx
}

// waiting returns the number of sessions of a database that wait for a lock.
func waiting(t testing.TB, p *pgxpool.Pool) (n int) {
	t.Helper()
	err := p.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// newRole creates a role without privileges. It is dropped when the test ends.
func newRole(t testing.TB, b *bundle) string {
	t.Helper()
	name := "r" + strings.ToLower(cryptorand.Text()[:10])
	b.exec("CREATE ROLE " + name + " LOGIN")
	t.Cleanup(func() {
		for _, sql := range []string{"DROP OWNED BY " + name + " CASCADE", "DROP ROLE " + name} {
			if _, err := b.pool.Exec(context.Background(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
	})
	return name
}

// as changes the user in an address.
func as(address, user string) string { return strings.Replace(address, "postgres@", user+"@", 1) }

// finding examines a store and returns the finding about a subject.
func finding(t testing.TB, s *Store, subject string) doctor.Finding {
	t.Helper()
	findings, err := s.Examine(context.Background())
	if err != nil {
		t.Fatalf("examine: %v", err)
	}
	i := slices.IndexFunc(findings, func(f doctor.Finding) bool { return f.Subject == subject })
	if i < 0 {
		t.Fatalf("nothing is said of %s in %+v", subject, findings)
	}
	return findings[i]
}
