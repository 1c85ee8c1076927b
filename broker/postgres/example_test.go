package postgres_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// The rows that the function writes commit together with the key of the
// message, or not at all. The session goes where NewTwoPhase's would.
func ExampleNewHandler() {
	book := func(ctx context.Context, tx pgx.Tx, m pipeline.Delivery) (semel.Result, error) {
		_, err := tx.Exec(ctx, "INSERT INTO bookings (id, body) VALUES ($1, $2)", m.Key.ID, string(m.Body))
		return semel.Result{}, err
	}
	open := func(store *pgstore.Store) (*postgres.Session, error) {
		guard, err := pgstore.NewGuard(store, nil)
		if err != nil {
			return nil, err
		}
		return postgres.NewHandler(guard, book), nil
	}
	_ = open
}

// TestTheExampleOfNewHandlerRuns does what the example shows on a server.
func TestTheExampleOfNewHandlerRuns(t *testing.T) {
	t.Parallel()
	pool := open(t, servers.Database(t))
	exec(t, pool, "CREATE TABLE bookings (id text PRIMARY KEY, body text)")
	session := postgres.NewHandler(guard(t, pool), func(ctx context.Context, tx pgx.Tx, m pipeline.Delivery) (semel.Result, error) {
		if _, err := tx.Exec(ctx, "INSERT INTO bookings (id, body) VALUES ($1, $2)", m.Key.ID, string(m.Body)); err != nil {
			return semel.Result{}, err
		}
		if string(m.Body) == "panics" {
			panic("after it wrote")
		}
		return semel.Result{Kind: semel.Value, Data: []byte(fmt.Sprint("booked ", m.Key.ID))}, nil
	})
	list := items("one", "panics", "three")
	list = append(list, item("k0", "one again"))
	session.Process(t.Context(), list)
	wantClasses(t, list, "delivered", "retry", "delivered", "delivered")
	if list[3].Decision != semel.Duplicate || string(list[3].Result.Data) != "booked k0" {
		t.Errorf("the repetition: %v %q", list[3].Decision, list[3].Result.Data)
	}
	if n := one[int](t, pool, "SELECT count(*) FROM bookings"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}
