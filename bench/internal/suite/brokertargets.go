package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/bench/internal/records"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/broker/webhook"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// brokerTargets lists the benchmarks from a queue to a table or to a service.
func brokerTargets(e Env) []Benchmark {
	return []Benchmark{rabbitBroker(e).intoTable(), sqsBroker(e).intoTable(), natsWebhook(e)}
}

// againstDirect is a benchmark beside the same source, runner and sink without keys.
func (b broker) againstDirect(name, work, peer string, ours, plain side) Benchmark {
	return Benchmark{
		Name: name,
		Work: fmt.Sprintf("%s: read %s messages of %d bytes, every tenth a duplicate, %s. Messages a second until all are acknowledged; then, at %d messages a second for 5 s, the time from publishing a message to its acknowledgement. Peer: %s, which keeps the duplicates",
			b.about, count(b.records), records.ValueBytes, work, b.rate, peer),
		peerVersion: linked(b.module),
		ours:        ours,
		peer:        plain,
		figures: []figure{
			{name: name, unit: "messages/s", target: 0.7},
			{name: name + "-p50", unit: "ms", lessIsBetter: true},
			{name: name + "-p99", unit: "ms", lessIsBetter: true},
		},
	}
}

// intoTable is the benchmark of a consumer that writes rows.
func (b broker) intoTable() Benchmark {
	name := b.name + "-postgres"
	return b.againstDirect(name, "each fresh one a row of four values. Keys in the same transaction as the rows", "the same source, runner and sink without keys",
		func(ctx context.Context) (map[string]float64, error) { return b.rows(ctx, name, true) },
		func(ctx context.Context) (map[string]float64, error) { return b.rows(ctx, name, false) })
}

// rows measures a consumer that writes rows, with keys or without.
func (b broker) rows(ctx context.Context, name string, withKeys bool) (_ map[string]float64, err error) {
	server, err := startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	conn, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, rowTable); err != nil {
		return nil, err
	}
	into := &postgres.Options{Table: "events", Columns: []postgres.Column{
		{Name: "event_id", From: ".event_id"}, {Name: "seq", From: ".seq"}, {Name: "type", From: ".type"}, {Name: "customer", From: ".customer"},
	}}
	open := func(*meter) (pipeline.Session, error) {
		sink, err := postgres.Open(ctx, preparing(server.URL()), into)
		if err != nil {
			return nil, err
		}
		return pipeline.NewDirect(sink, nil), nil
	}
	if withKeys {
		open = func(*meter) (pipeline.Session, error) {
			// The process ends soon after the measurement, and the store with it.
			store, err := pgstore.Connect(ctx, server.URL(), &pgstore.Options{Prepare: true, Migrate: true})
			if err != nil {
				return nil, err
			}
			guard, err := pgstore.NewGuard(store, nil)
			if err != nil {
				return nil, err
			}
			return postgres.NewSession(guard, into)
		}
	}
	return b.measureInto(ctx, name, b.input(), withKeys, open, func(ctx context.Context, m *meter) error { return m.countRows(ctx, conn) })
}

// countRows counts the rows of a table as handled messages.
func (m *meter) countRows(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "SELECT seq, event_id::text FROM events")
	if err != nil {
		return err
	}
	var i int
	var id string
	_, err = pgx.ForEachRow(rows, []any{&i, &id}, func() error {
		if i < 0 || i >= len(m.handled) {
			return fmt.Errorf("suite: row %d is not of the input", i)
		}
		if want, _ := m.in.Append(nil, nil, i); id != string(want) {
			return fmt.Errorf("suite: row %d has the id %s, want %s", i, id, want)
		}
		m.handled[i].Add(1)
		return nil
	})
	return err
}

// natsWebhook is the benchmark from NATS to a service.
func natsWebhook(e Env) Benchmark {
	const name = "nats-webhook"
	b := natsBroker(e)
	b.records, b.rate = e.size(50_000, 2000), 1000
	return b.againstDirect(name, "each fresh one a POST request to a service in the same process, 16 at a time. Keys in an embedded store that syncs each batch", "the same source, runner and sink without keys",
		func(ctx context.Context) (_ map[string]float64, err error) {
			keys, end, err := openEmbedded(ctx, &e)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, end()) }()
			return b.requests(ctx, name, true, func(sink pipeline.Sink) (pipeline.Session, error) { return pipeline.NewTwoPhase(keys, sink, nil) })
		},
		func(ctx context.Context) (map[string]float64, error) {
			return b.requests(ctx, name, false, func(sink pipeline.Sink) (pipeline.Session, error) { return pipeline.NewDirect(sink, nil), nil })
		})
}

// requests measures a consumer that sends requests to a service.
func (b broker) requests(ctx context.Context, name string, distinct bool, open func(pipeline.Sink) (pipeline.Session, error)) (map[string]float64, error) {
	var service *httptest.Server
	defer func() {
		if service != nil {
			service.Close()
		}
	}()
	return b.measureInto(ctx, name, b.input(), distinct, func(m *meter) (pipeline.Session, error) {
		service = httptest.NewServer(http.HandlerFunc(m.take))
		sink, err := webhook.New(&webhook.Options{URL: service.URL, AllowPrivate: true})
		if err != nil {
			return nil, err
		}
		return open(sink)
	}, nil)
}

// take is the service that counts the messages.
func (m *meter) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sink sees a broken answer
	}
	i, err := m.seq(body)
	if err != nil || strings.TrimSpace(r.Header.Get("Idempotency-Key")) == "" {
		http.Error(w, "not of the input, or without a key", http.StatusBadRequest)
		return
	}
	m.handled[i].Add(1)
	w.WriteHeader(http.StatusNoContent)
}
