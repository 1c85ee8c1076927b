package pgstore

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
)

// benchConns is the number of connections on each side of the comparison.
const benchConns = 16

// newBusiness creates the table that effects write to.
func newBusiness(b *testing.B, prepare bool) (*Guard, *pgxpool.Pool) {
	b.Helper()
	s, p := benchStore(b, benchConns, &Options{Prepare: prepare})
	if _, err := p.Exec(b.Context(), "CREATE TABLE orders (id text PRIMARY KEY, body text NOT NULL, at timestamptz NOT NULL DEFAULT now())"); err != nil {
		b.Fatal(err)
	}
	g, err := NewGuard(s, nil)
	if err != nil {
		b.Fatal(err)
	}
	return g, p
}

const (
	insertOrder  = "INSERT INTO orders (id, body) VALUES ($1, $2)"
	insertOrders = "INSERT INTO orders (id, body) SELECT id, 'an order of a hundred bytes' FROM unnest($1::text[]) AS o (id)"
	orderBody    = "an order of a hundred bytes"
)

// inParallelFor measures messages per second, and the processor time of this
// process and of the server's sessions for each message. The processor time is
// meaningful even on a busy machine.
func inParallelFor(b *testing.B, p *pgxpool.Pool, each int, f func(ctx context.Context) error) {
	b.Helper()
	for range 4 * optimisticAfter {
		if err := f(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	server, client := processorTime(b, p)
	b.SetParallelism(benchConns / 2)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := f(context.Background()); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	serverAfter, clientAfter := processorTime(b, p)
	n := float64(b.N * each)
	b.ReportMetric(n/b.Elapsed().Seconds(), "messages/s")
	b.ReportMetric((serverAfter-server).Seconds()*1e6/n, "server-us")
	b.ReportMetric((clientAfter-client).Seconds()*1e6/n, "client-us")
}

// processorTime returns the time that this process and the server's sessions have
// used so far.
func processorTime(b *testing.B, p *pgxpool.Pool) (server, client time.Duration) {
	b.Helper()
	rows, _ := p.Query(b.Context(), "SELECT pid FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walwriter')")
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		b.Fatal(err)
	}
	for _, pid := range pids {
		server += usedBy(fmt.Sprintf("/proc/%d/stat", pid))
	}
	return server, usedBy("/proc/self/stat")
}

// usedBy reads user and system time in hundredths of a second. It returns 0 if
// the system has no such file.
func usedBy(file string) time.Duration {
	stat, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var used time.Duration
	for _, field := range fields[11:13] {
		n, _ := strconv.ParseInt(field, 10, 64)
		used += time.Duration(n) * 10 * time.Millisecond
	}
	return used
}

func orders(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = uuidText()
	}
	return ids
}

// BenchmarkSameTransaction compares a transaction with key and effect to one with
// the effect alone, both on the same number of connections.
func BenchmarkSameTransaction(b *testing.B) {
	b.Run("1/effect alone", func(b *testing.B) {
		_, p := newBusiness(b, false)
		inParallelFor(b, p, 1, func(ctx context.Context) error {
			_, err := p.Exec(ctx, insertOrder, uuidText(), orderBody)
			return err
		})
	})
	for _, prepare := range []bool{false, true} {
		b.Run(fmt.Sprintf("1/TxQueueFunc, prepare %t", prepare), func(b *testing.B) {
			g, p := newBusiness(b, prepare)
			inParallelFor(b, p, 1, func(ctx context.Context) error {
				id := uuidText()
				out := g.DoTxBatch(ctx, []semel.Call{{Key: key(id)}}, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
					q.Queue(fresh[0], insertOrder, id, orderBody)
					return nil
				}))
				return out[0].Err
			})
		})
	}
	b.Run("1/DoTx", func(b *testing.B) {
		g, p := newBusiness(b, false)
		inParallelFor(b, p, 1, func(ctx context.Context) error {
			id := uuidText()
			_, err := g.DoTx(ctx, key(id), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				_, err := tx.Exec(ctx, insertOrder, id, orderBody)
				return nil, err
			})
			return err
		})
	})
	const size = 100
	b.Run("100/effect alone", func(b *testing.B) {
		_, p := newBusiness(b, false)
		inParallelFor(b, p, size, func(ctx context.Context) error {
			_, err := p.Exec(ctx, insertOrders, orders(size))
			return err
		})
	})
	batches := map[string]func(ctx context.Context, g *Guard, calls []semel.Call) []semel.BatchOutcome{
		"TxBatchFunc": func(ctx context.Context, g *Guard, calls []semel.Call) []semel.BatchOutcome {
			return g.DoTxBatch(ctx, calls, TxBatchFunc(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
				_, err := tx.Exec(ctx, insertOrders, idsOf(fresh))
				return err
			}))
		},
		"TxQueueFunc": func(ctx context.Context, g *Guard, calls []semel.Call) []semel.BatchOutcome {
			return g.DoTxBatch(ctx, calls, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
				q.Queue(nil, insertOrders, idsOf(fresh))
				return nil
			}))
		},
	}
	for _, name := range []string{"TxBatchFunc", "TxQueueFunc"} {
		b.Run("100/"+name, func(b *testing.B) {
			g, p := newBusiness(b, false)
			inParallelFor(b, p, size, func(ctx context.Context) error {
				ids := orders(size)
				calls := make([]semel.Call, size)
				for i := range calls {
					calls[i].Key = key(ids[i])
				}
				for _, out := range batches[name](ctx, g, calls) {
					if out.Err != nil || out.Decision != semel.Fresh {
						return fmt.Errorf("%s: %w", out.Decision, out.Err)
					}
				}
				return nil
			})
		})
	}
}

func idsOf(fresh []*semel.BatchItem) []string {
	ids := make([]string, len(fresh))
	for i, item := range fresh {
		ids[i] = item.Call.Key.ID
	}
	return ids
}
