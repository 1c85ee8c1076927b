package suite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services"
)

const pgxModule = "github.com/jackc/pgx/v5"

// plainTable is the table of the peers, the narrowest that deduplicates.
const plainTable = "CREATE TABLE plain (key uuid PRIMARY KEY, until timestamptz NOT NULL)"

// postgresStore lists the benchmarks of the store in PostgreSQL.
func postgresStore(e Env) []Benchmark {
	span := time.Duration(e.size(3000, 300)) * time.Millisecond
	keys := e.size(500_000, 20_000)
	server := "PostgreSQL 15 over loopback, fsync on. "
	single := func(ctx context.Context) (float64, error) { return singleRows(ctx, span) }
	return []Benchmark{
		comparison("postgres-batch-single", server+fmt.Sprintf("Claim new ids of 16 bytes, done in one step, in batches of 1000 on 2 connections. Peer: one row a statement, ON CONFLICT DO NOTHING, in a transaction of its own, on 64 connections, for %v", span),
			8, func(ctx context.Context) (float64, error) { return storeBatches1000(ctx, keys) }, single),
		comparison("postgres-batch-copy", server+fmt.Sprintf("Claim %s new ids of 16 bytes, done in one step, in batches of 1000 on 2 connections. Peer: COPY of as many rows into a table of uuid and time, in the same batches", count(keys)),
			0.7, func(ctx context.Context) (float64, error) { return storeBatches1000(ctx, keys) },
			func(ctx context.Context) (float64, error) { return copyBatches(ctx, keys) }),
		comparison("postgres-1024-callers", server+fmt.Sprintf("1024 callers claim new ids of 16 bytes, done in one step, one at a time each, for %v. Peer: 64 connections that insert one row a transaction", span),
			6, func(ctx context.Context) (float64, error) { return joinedCallers(ctx, span) }, single),
		comparison("postgres-transaction-1", server+fmt.Sprintf("One message a transaction, on 16 connections, for %v: its key and one business row, in one round trip (DoTxBatch with a TxQueueFunc). Peer: the business row alone", span),
			0.85, func(ctx context.Context) (float64, error) { return onePerTransaction(ctx, span) },
			func(ctx context.Context) (float64, error) { return businessRows(ctx, span, 1) }),
		comparison("postgres-transaction-100", server+fmt.Sprintf("100 messages a transaction, on 16 connections, for %v: their keys and 100 business rows in one statement (DoTxBatch with a TxQueueFunc). Peer: the business rows alone", span),
			0.45, func(ctx context.Context) (float64, error) { return hundredPerTransaction(ctx, span) },
			func(ctx context.Context) (float64, error) { return businessRows(ctx, span, 100) }),
		{
			Name:        "postgres-disk-per-id",
			Work:        fmt.Sprintf("bytes on disk, table and index, of each of %s ids of 36 characters that were claimed in random order, done in one step. Peer: a table with the id as text PRIMARY KEY and a time", count(keys)),
			peerVersion: linked(pgxModule),
			ours: func(ctx context.Context) (map[string]float64, error) {
				bytes, err := storeDisk(ctx, keys)
				return map[string]float64{"postgres-disk-per-id": bytes}, err
			},
			peer: func(ctx context.Context) (map[string]float64, error) {
				bytes, err := textDisk(ctx, keys)
				return map[string]float64{"postgres-disk-per-id": bytes}, err
			},
			figures: []figure{{name: "postgres-disk-per-id", unit: "B", lessIsBetter: true, target: 1 / 0.75}},
		},
	}
}

// comparison returns a benchmark that compares two rates.
func comparison(name, work string, target float64, ours, peer func(context.Context) (float64, error)) Benchmark {
	one := func(measure func(context.Context) (float64, error)) side {
		return func(ctx context.Context) (map[string]float64, error) {
			rate, err := measure(ctx)
			return map[string]float64{name: rate}, err
		}
	}
	return Benchmark{
		Name: name, Work: work, peerVersion: linked(pgxModule),
		ours: one(ours), peer: one(peer),
		figures: []figure{{name: name, unit: "messages/s", target: target}},
	}
}

// onPostgres starts a server for one side of one round. It creates the tables, and a pool
// of this many connections.
func onPostgres(ctx context.Context, connections int, tables string, measure func(*pgxpool.Pool) error) (err error) {
	server, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return err
	}
	config.MaxConns = int32(connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	if tables != "" {
		if _, err := pool.Exec(ctx, tables); err != nil {
			return err
		}
	}
	return measure(pool)
}

// startPostgres starts an empty server.
func startPostgres(ctx context.Context) (*services.Server, error) {
	return services.StartPostgres(ctx, &services.PostgresOptions{Settings: map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "8GB", "fsync": "on", "synchronous_commit": "on",
	}})
}

// preparing is the address of a server for programs that prepare statements by name, because
// there is no pooler.
func preparing(url string) string { return url + "&default_query_exec_mode=cache_statement" }

// onStore is onPostgres with a store in the database.
func onStore(ctx context.Context, connections int, tables string, opts *pgstore.Options, migrate *pgstore.MigrateOptions, measure func(*pgxpool.Pool, *pgstore.Store) error) error {
	return onPostgres(ctx, connections, tables, func(pool *pgxpool.Pool) error {
		if _, err := pgstore.Migrate(ctx, pool, migrate); err != nil {
			return err
		}
		store, err := pgstore.New(ctx, pool, opts)
		if err != nil {
			return err
		}
		return measure(pool, store)
	})
}

// prepared are the options of a store without a pooler in front of the server.
var prepared = pgstore.Options{Prepare: true}

func storeBatches1000(ctx context.Context, keys int) (rate float64, err error) {
	err = onStore(ctx, 2, "", &prepared, nil, func(_ *pgxpool.Pool, store *pgstore.Store) error {
		took, err := sharedBatches(ctx, store, newIDs(keys, 16), 1000, 2)
		rate = float64(keys) / took.Seconds()
		return err
	})
	return rate, err
}

func copyBatches(ctx context.Context, keys int) (rate float64, err error) {
	err = onPostgres(ctx, 2, plainTable, func(pool *pgxpool.Pool) error {
		ids := newIDs(keys, 16)
		until := time.Now().Add(remembered)
		start := time.Now()
		err := inParallel(2, keys/1000, func(b int) error {
			_, err := pool.CopyFrom(ctx, pgx.Identifier{"plain"}, []string{"key", "until"}, pgx.CopyFromSlice(1000, func(i int) ([]any, error) {
				return []any{[16]byte([]byte(ids.at(b*1000 + i))), until}, nil
			}))
			return err
		})
		rate = float64(keys) / time.Since(start).Seconds()
		return err
	})
	return rate, err
}

func singleRows(ctx context.Context, span time.Duration) (rate float64, err error) {
	err = onPostgres(ctx, 64, plainTable, func(pool *pgxpool.Pool) error {
		rate, err = load(64, span, func(id []byte) error {
			tag, err := pool.Exec(ctx, "INSERT INTO plain VALUES ($1, now() + interval '1 hour') ON CONFLICT DO NOTHING", [16]byte(id))
			return wantFresh(tag.RowsAffected() == 1, err)
		})
		return err
	})
	return rate, err
}

func joinedCallers(ctx context.Context, span time.Duration) (rate float64, err error) {
	err = onStore(ctx, 2, "", &prepared, nil, func(_ *pgxpool.Pool, store *pgstore.Store) error {
		joined := semel.Join(store, 0)
		rate, err = load(1024, span, func(id []byte) error { return wantFresh(doneOnce(ctx, joined, string(id))) })
		return err
	})
	return rate, err
}

const (
	businessTable  = "CREATE TABLE orders (id uuid PRIMARY KEY, amount integer NOT NULL, at timestamptz NOT NULL DEFAULT now())"
	businessInsert = "INSERT INTO orders (id, amount) VALUES ($1, $2)"
	businessMany   = "INSERT INTO orders (id, amount) SELECT * FROM unnest($1::uuid[], $2::integer[])"
	clients        = 16
)

// businessRows inserts rows without keys, this many in a statement. Each statement is a
// transaction. It returns the rows per second.
func businessRows(ctx context.Context, span time.Duration, each int) (rate float64, err error) {
	err = onPostgres(ctx, clients, businessTable, func(pool *pgxpool.Pool) error {
		rate, err = load(clients, span, func(id []byte) error {
			if each == 1 {
				_, err := pool.Exec(ctx, businessInsert, [16]byte(id), 1)
				return err
			}
			_, err := pool.Exec(ctx, businessMany, many([16]byte(id), each), make([]int32, each))
			return err
		})
		return err
	})
	return rate * float64(each), err
}

// many derives several ids from one.
func many(id [16]byte, n int) [][16]byte {
	ids := make([][16]byte, n)
	for i := range ids {
		ids[i] = id
		ids[i][0] ^= byte(i)
		ids[i][7] ^= byte(i >> 8)
	}
	return ids
}

func onePerTransaction(ctx context.Context, span time.Duration) (rate float64, err error) {
	err = onStore(ctx, clients, businessTable, &prepared, nil, func(_ *pgxpool.Pool, store *pgstore.Store) error {
		guard, err := pgstore.NewGuard(store, nil)
		if err != nil {
			return err
		}
		rate, err = load(clients, span, func(id []byte) error {
			out := guard.DoTxBatch(ctx, []semel.Call{{Key: semel.Key{ID: string(id)}}}, pgstore.TxQueueFunc(func(q *pgstore.Statements, fresh []*semel.BatchItem) error {
				q.Queue(fresh[0], businessInsert, [16]byte(id), 1)
				return nil
			}))
			return wantFresh(out[0].Decision == semel.Fresh, out[0].Err)
		})
		return err
	})
	return rate, err
}

func hundredPerTransaction(ctx context.Context, span time.Duration) (rate float64, err error) {
	const each = 100
	err = onStore(ctx, clients, businessTable, &prepared, nil, func(_ *pgxpool.Pool, store *pgstore.Store) error {
		guard, err := pgstore.NewGuard(store, nil)
		if err != nil {
			return err
		}
		rate, err = load(clients, span, func(id []byte) error {
			ids := many([16]byte(id), each)
			calls := make([]semel.Call, each)
			for i := range ids {
				calls[i].Key.ID = string(ids[i][:])
			}
			outcomes := guard.DoTxBatch(ctx, calls, pgstore.TxQueueFunc(func(q *pgstore.Statements, fresh []*semel.BatchItem) error {
				rows := make([][16]byte, len(fresh))
				for i, item := range fresh {
					rows[i] = ids[item.Index]
				}
				q.Queue(nil, businessMany, rows, make([]int32, len(rows)))
				return nil
			}))
			for _, out := range outcomes {
				if err := wantFresh(out.Decision == semel.Fresh, out.Err); err != nil {
					return err
				}
			}
			return nil
		})
		return err
	})
	return rate * each, err
}

// sizeOnDisk reads the disk space of tables and their indexes.
const sizeOnDisk = "SELECT sum(pg_total_relation_size(oid))::float8 FROM pg_class WHERE relkind = 'r' AND relname LIKE $1"

func storeDisk(ctx context.Context, keys int) (bytes float64, err error) {
	err = onStore(ctx, 2, "", &prepared, nil, func(pool *pgxpool.Pool, store *pgstore.Store) error {
		if _, err := sharedBatches(ctx, store, newIDs(keys, 36), 1000, 2); err != nil {
			return err
		}
		return pool.QueryRow(ctx, sizeOnDisk, "semel%").Scan(&bytes)
	})
	return bytes / float64(keys), err
}

func textDisk(ctx context.Context, keys int) (bytes float64, err error) {
	err = onPostgres(ctx, 2, "CREATE TABLE plain (id text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())", func(pool *pgxpool.Pool) error {
		ids := newIDs(keys, 36)
		err := inParallel(2, keys/1000, func(b int) error {
			batch := make([]string, 1000)
			for i := range batch {
				batch[i] = ids.at(b*1000 + i)
			}
			_, err := pool.Exec(ctx, "INSERT INTO plain SELECT unnest($1::text[]) ON CONFLICT DO NOTHING", batch)
			return err
		})
		if err != nil {
			return err
		}
		return pool.QueryRow(ctx, sizeOnDisk, "plain").Scan(&bytes)
	})
	return bytes / float64(keys), err
}
