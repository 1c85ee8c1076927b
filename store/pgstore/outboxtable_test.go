package pgstore

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestOutboxAcceptsRowsWrittenWithTheDocumentedSQL writes with the SQL that docs/guides/outbox.md shows,
// in tables with names of their own that an older version had made.
func TestOutboxAcceptsRowsWrittenWithTheDocumentedSQL(t *testing.T) {
	t.Parallel()
	p := pool(t, shared.Database(t))
	opts := &MigrateOptions{Names: Names{Schema: "app", Prefix: "x_"}}
	if _, err := Migrate(t.Context(), p, opts); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{ // back to the version before
		"DROP FUNCTION app.x_outbox_write, app.x_outbox_log_maintain", "DROP TABLE app.x_outbox, app.x_outbox_shards, app.x_outbox_relays, app.x_outbox_log, app.x_outbox_slots, app.x_outbox_pipeline", "DELETE FROM app.x_migrations WHERE version > 4",
	} {
		if _, err := p.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	applied, err := Migrate(t.Context(), p, opts)
	if err != nil || len(applied) != 4 || applied[0].Name != "outbox" || applied[1].Name != "outbox log" || applied[2].Name != "outbox slots" {
		t.Fatalf("an older schema gets %+v, %v", applied, err)
	}
	err = pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`SELECT app.x_outbox_write('orders', '{"id":1}', 'order-1', '{"b":"2","a":"1"}', '018f3c5a-0000-7000-8000-000000000001')`,
			`SELECT app.x_outbox_write('orders', '{"id":2}')`,
			`INSERT INTO app.x_outbox (aggregate, topic, payload) VALUES ('order-1', 'orders', convert_to('{"id":3}', 'UTF8'))`,
		} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var rows, ids int
	var sameShard, ordered bool
	err = p.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT id), count(DISTINCT shard) FILTER (WHERE aggregate = 'order-1') = 1,
		bool_and(headers::text = '{"b":"2","a":"1"}') FILTER (WHERE headers IS NOT NULL) FROM app.x_outbox WHERE shard BETWEEN 0 AND 63`).Scan(&rows, &ids, &sameShard, &ordered)
	if err != nil || rows != 3 || ids != 3 || !sameShard || !ordered {
		t.Errorf("%d rows with %d ids, one shard for an aggregate: %v, headers in order: %v, %v", rows, ids, sameShard, ordered, err)
	}
	if _, err := p.Exec(t.Context(), `INSERT INTO app.x_outbox (headers) VALUES ('["a"]')`); err == nil {
		t.Error("headers that are no object are accepted")
	}
	var left *string
	var days int
	if err := p.QueryRow(t.Context(), "SELECT app.x_outbox_log_maintain('7 days', 9)").Scan(&left); err != nil || left != nil {
		t.Errorf("%v, %v", left, err)
	}
	if err := p.QueryRow(t.Context(), "SELECT count(*) FROM pg_class WHERE relname LIKE 'x_outbox_log_2%' AND relispartition AND relkind = 'r'").Scan(&days); err != nil || days != 10 {
		t.Errorf("%d partitions, %v", days, err)
	}
	var shards int
	if err := p.QueryRow(t.Context(), "SELECT count(*) FROM app.x_outbox_shards WHERE until < now()").Scan(&shards); err != nil || shards != 64 {
		t.Errorf("%d free shards, %v", shards, err)
	}
}
