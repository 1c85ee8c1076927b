package pgstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

// README.md shows the functions of this file as they stand here, and
// TestExamplesOfTransactions runs them on a real server.

type order struct {
	ID      string
	Account string
	Cents   int64
}

func connect(ctx context.Context, address string) (*pgstore.Store, *pgstore.Guard, error) {
	store, err := pgstore.Connect(ctx, address, &pgstore.Options{Migrate: true})
	if err != nil {
		return nil, nil, err
	}
	guard, err := pgstore.NewGuard(store, nil) // keys are remembered for 24 hours
	return store, guard, err
}

func pay(ctx context.Context, guard *pgstore.Guard, o order) (string, error) {
	key := semel.Key{Scope: "payments", ID: o.ID}
	out, err := guard.DoTx(ctx, key, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := tx.Exec(ctx, "UPDATE accounts SET cents = cents - $1 WHERE id = $2", o.Cents, o.Account)
		return []byte("receipt of " + o.ID), err
	})
	return string(out.Result.Data), err // a second delivery gets the first one's receipt
}

func payAll(ctx context.Context, guard *pgstore.Guard, orders []order) []semel.BatchOutcome {
	calls := make([]semel.Call, len(orders))
	for i, o := range orders {
		calls[i].Key = semel.Key{Scope: "payments", ID: o.ID}
	}
	return guard.DoTxBatch(ctx, calls, pgstore.TxBatchFunc(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
		for _, item := range fresh {
			o := orders[item.Index]
			_, item.Err = tx.Exec(ctx, "UPDATE accounts SET cents = cents - $1 WHERE id = $2", o.Cents, o.Account)
			if item.Err != nil {
				break // the transaction is aborted; the guard does it again without this order
			}
		}
		return nil
	}))
}

func payInOneTrip(ctx context.Context, guard *pgstore.Guard, orders []order) []semel.BatchOutcome {
	calls := make([]semel.Call, len(orders))
	for i, o := range orders {
		calls[i].Key = semel.Key{Scope: "payments", ID: o.ID}
	}
	return guard.DoTxBatch(ctx, calls, pgstore.TxQueueFunc(func(q *pgstore.Statements, fresh []*semel.BatchItem) error {
		for _, item := range fresh {
			o := orders[item.Index]
			q.Queue(item, "UPDATE accounts SET cents = cents - $1 WHERE id = $2", o.Cents, o.Account)
		}
		return nil
	}))
}

func payEach(ctx context.Context, guard *pgstore.Guard, orders []order) []semel.BatchOutcome {
	calls := make([]semel.Call, len(orders))
	for i, o := range orders {
		calls[i].Key = semel.Key{Scope: "payments", ID: o.ID}
	}
	return guard.DoTxBatch(ctx, calls, pgstore.TxItemFunc(func(ctx context.Context, tx pgx.Tx, item *semel.BatchItem) error {
		o := orders[item.Index]
		_, err := tx.Exec(ctx, "UPDATE accounts SET cents = cents - $1 WHERE id = $2", o.Cents, o.Account)
		item.Data = []byte("receipt of " + o.ID)
		return err
	}))
}

func payInOurs(ctx context.Context, pool *pgxpool.Pool, guard *pgstore.Guard, o order) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		out, err := guard.InTx(tx).Claim(ctx, semel.Call{Key: semel.Key{Scope: "payments", ID: o.ID}})
		if err != nil || out.Decision != semel.Fresh {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE accounts SET cents = cents - $1 WHERE id = $2", o.Cents, o.Account)
		return err
	})
}

func payInSQL(ctx context.Context, db *sql.DB, guard *pgstore.Guard, o order) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	out, err := guard.InSQLTx(tx).Claim(ctx, semel.Call{Key: semel.Key{Scope: "payments", ID: o.ID}})
	if err != nil || out.Decision != semel.Fresh {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE accounts SET cents = cents - $1 WHERE id = $2", o.Cents, o.Account); err != nil {
		return err
	}
	return tx.Commit()
}

type customer struct {
	ID       string
	Revision int64
	Name     string
}

func keepNewest(ctx context.Context, pool *pgxpool.Pool, c customer) (stale bool, err error) {
	const upsert = `
		INSERT INTO customers AS old (id, revision, name) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, name = excluded.name
		WHERE old.revision IS NULL OR old.revision < excluded.revision`
	tag, err := pool.Exec(ctx, upsert, c.ID, c.Revision, c.Name)
	return err == nil && tag.RowsAffected() == 0, err
}

func ExampleGuard_DoTx() {
	ctx := context.Background()
	store, err := pgstore.Connect(ctx, "postgres://shop@localhost/shop", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	guard, err := pgstore.NewGuard(store, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	out, err := guard.DoTx(ctx, semel.Key{Scope: "payments", ID: "order-42"}, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := tx.Exec(ctx, "UPDATE accounts SET cents = cents - 1250 WHERE id = 'alice'")
		return []byte("receipt of order-42"), err
	})
	fmt.Println(out.Decision, string(out.Result.Data), err)
}

func ExampleGuard_InTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://shop@localhost/shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	store, err := pgstore.New(ctx, pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	guard, err := pgstore.NewGuard(store, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(payInOurs(ctx, pool, guard, order{ID: "order-42", Account: "alice", Cents: 1250}))
}

func TestExamplesOfTransactions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address := pgstore.SharedServers().Database(t)
	pool, err := pgxpool.New(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	store, guard, err := connect(ctx, address) // to a fresh database
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE accounts (id text PRIMARY KEY, cents bigint NOT NULL CHECK (cents >= 0))"); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "INSERT INTO accounts VALUES ('alice', 1000), ('bob', 10); CREATE TABLE customers (id text PRIMARY KEY, revision bigint, name text)"); err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	o := order{"order-1", "alice", 100}
	for range 2 { // each order is delivered twice
		if receipt, err := pay(ctx, guard, o); receipt != "receipt of order-1" || err != nil {
			t.Errorf("pay: %q, %v", receipt, err)
		}
		outcomes := payAll(ctx, guard, []order{o, {"order-2", "alice", 100}, {"order-3", "bob", 100}, {"order-4", "alice", 100}})
		for i, out := range outcomes {
			if (out.Err != nil) != (i == 2) { // bob cannot pay
				t.Errorf("pay all, order %d: %v", i+1, out.Err)
			}
		}
		for name, err := range map[string]error{
			"one trip": payInOneTrip(ctx, guard, []order{{"order-5", "alice", 100}})[0].Err,
			"each":     payEach(ctx, guard, []order{{"order-8", "alice", 100}})[0].Err,
			"ours":     payInOurs(ctx, pool, guard, order{"order-6", "alice", 100}),
			"sql":      payInSQL(ctx, db, guard, order{"order-7", "alice", 100}),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	var cents int64
	if err := pool.QueryRow(ctx, "SELECT cents FROM accounts WHERE id = 'alice'").Scan(&cents); err != nil || cents != 300 {
		t.Errorf("alice has %d cents, %v; want 300", cents, err)
	}
	for i, want := range []bool{false, true, true, false} {
		stale, err := keepNewest(ctx, pool, customer{"c", []int64{2, 2, 1, 3}[i], "Carol"})
		if stale != want || err != nil {
			t.Errorf("message %d is stale: %t, %v; want %t", i, stale, err, want)
		}
	}
}

func TestPageShowsTestedCode(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("example_tx_test.go")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(document), -1)
	if len(blocks) == 0 {
		t.Fatal("the document shows no code")
	}
	for _, block := range blocks {
		if !strings.Contains(string(source), block[1]) {
			t.Errorf("this code is not in example_tx_test.go:\n%s", block[1])
		}
	}
}
