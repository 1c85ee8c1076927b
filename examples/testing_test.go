package examples_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/pgstore"
)

// docs/testing.md shows most of this file.

// payments charges each order once.
type payments struct {
	guard  *semel.Guard
	charge func(ctx context.Context, order string, claim semel.Claim) error
}

func (p *payments) handle(ctx context.Context, order string) error {
	return p.guard.Run(ctx, orderKey(order), func(ctx context.Context) error {
		claim, _ := semel.ClaimOf(ctx)
		return p.charge(ctx, order, claim)
	})
}

func orderKey(order string) semel.Key { return semel.Key{Scope: "payments", ID: order} }

// inMemory returns a consumer with keys in memory, and the claims for which it charged.
// The first charges return the errors, in this order.
func inMemory(t *testing.T, errs ...error) (p *payments, charged *[]semel.Claim) {
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	charged = new([]semel.Claim)
	return &payments{guard, func(_ context.Context, _ string, claim semel.Claim) error {
		*charged = append(*charged, claim)
		if n := len(*charged); n <= len(errs) {
			return errs[n-1]
		}
		return nil
	}}, charged
}

func TestADuplicateIsNotCharged(t *testing.T) {
	p, charged := inMemory(t)
	for range 3 {
		if err := p.handle(t.Context(), "order-42"); err != nil {
			t.Error(err)
		}
	}
	if len(*charged) != 1 {
		t.Errorf("charged %d times", len(*charged))
	}
}

func TestAFailedChargeIsRepeated(t *testing.T) {
	down := errors.New("the bank is down")
	p, charged := inMemory(t, down)
	if err := p.handle(t.Context(), "order-42"); !errors.Is(err, down) || semel.MayAck(err) {
		t.Errorf("%v: the broker must deliver the message again", err)
	}
	if err := p.handle(t.Context(), "order-42"); err != nil || len(*charged) != 2 {
		t.Errorf("charged %d times, %v", len(*charged), err)
	}
}

func TestACrashedHolderIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, charged := inMemory(t)
		// Another process claims the key and dies: nothing extends its lease.
		claims := []semel.ClaimRequest{p.guard.Request(&semel.Call{Key: orderKey("order-42")})}
		if err := p.guard.Store().Claim(t.Context(), claims, make([]semel.ClaimAnswer, 1)); err != nil {
			t.Fatal(err)
		}
		if err := p.handle(t.Context(), "order-42"); !errors.Is(err, semel.ErrInFlight) {
			t.Errorf("%v: the other process may still work", err)
		}
		time.Sleep(semel.DefaultLease) // in the bubble, without waiting
		if err := p.handle(t.Context(), "order-42"); err != nil {
			t.Error(err)
		}
		if len(*charged) != 1 || (*charged)[0].Attempt != 2 {
			t.Errorf("charged with %v; a second attempt tells that the first may have had its effect", *charged)
		}
	})
}

// pay is the effect in the transaction of the key.
func pay(ctx context.Context, guard *pgstore.Guard, order string, cents int) error {
	_, err := guard.DoTx(ctx, orderKey(order), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1, $2)", order, cents)
		return nil, err
	})
	return err
}

// inSchema returns a guard and a pool whose tables are in a schema of this test.
func inSchema(t *testing.T, address string) (*pgstore.Guard, *pgxpool.Pool) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	schema := "test_" + strings.ToLower(rand.Text())
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	store, err := pgstore.New(t.Context(), pool, &pgstore.Options{Names: pgstore.Names{Schema: schema}, Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer pool.Close()
		if _, err := pool.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	guard, err := pgstore.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	return guard, pool
}

func testRowsOfOrders(t *testing.T, address string) {
	guard, pool := inSchema(t, address)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE payments (id text, cents int CHECK (cents > 0))"); err != nil {
		t.Fatal(err)
	}
	if err := pay(t.Context(), guard, "order-42", -1); err == nil || semel.MayAck(err) {
		t.Errorf("%v: neither key nor row must be there", err)
	}
	for range 2 {
		if err := pay(t.Context(), guard, "order-42", 100); err != nil {
			t.Error(err)
		}
	}
	var rows int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM payments").Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

func TestRepeatedOrderHasOneRow(t *testing.T) {
	t.Parallel()
	testRowsOfOrders(t, servers.Database(t))
}
