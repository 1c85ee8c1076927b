package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/bench/internal/records"
)

// rowPartitions is the number of partitions of the input.
const rowPartitions = 16

// rowTable has no constraint that a duplicate violates, because the peer writes the
// duplicates too.
const rowTable = "CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL, seq bigint NOT NULL, type text NOT NULL, customer bigint NOT NULL)"

// kafkaPostgres is the benchmark from Kafka to a table.
func kafkaPostgres(e Env) Benchmark {
	const name = "kafka-postgres"
	in := records.Input{Seed: inputSeed, Records: e.size(500_000, 20_000)}
	side := func(program func(dsn string) kafkaProgram, distinct bool) side {
		return func(ctx context.Context) (map[string]float64, error) {
			return e.moveRows(ctx, name, in, distinct, program)
		}
	}
	return Benchmark{
		Name: name,
		Work: fmt.Sprintf("from Kafka to PostgreSQL, %s records of %d bytes, in %d partitions, every tenth a duplicate, each fresh one a row of four values, in batches of 500 on 4 connections. semel run with the keys in the same transaction as the rows. Records a second from the first row until all are committed. Peer: the same runner and source without keys, which writes the duplicates too (bench/peers/pginsert), ",
			count(in.Records), records.ValueBytes, rowPartitions),
		prepare: e.prepareKafka(e.buildSemel, e.build("pginsert")),
		ours:    side(e.semelRows, true),
		rivals: []rival{
			{
				work: "with an INSERT for each record, pipelined in one transaction for a batch", peerVersion: standard("bench/peers/pginsert"),
				peer: side(e.plainRows(), false), figures: []figure{{name: name, unit: "records/s", target: 0.8}},
			},
			{
				work: "with the statements of semel run, of up to 64 rows", peerVersion: standard("bench/peers/pginsert -many"),
				peer: side(e.plainRows("-many"), false), figures: []figure{{name: name + "-many", value: name, unit: "records/s"}},
			},
		},
	}
}

// semelRows runs semel run with a pipeline from Kafka to the table.
func (e *Env) semelRows(dsn string) kafkaProgram {
	return func(ctx context.Context, addrs []string, dir string) (*exec.Cmd, error) {
		config := fmt.Sprintf(`stores: { keys: { postgres: { dsn: %q } } }
pipelines:
  rows:
    source: { kafka: { brokers: ["%s"], topics: [%s], group: %s } }
    key: { id: record-key, on_missing: fail }
    window: 1h
    store: keys
    sink: { postgres: { store: keys, table: events, columns: { event_id: .event_id, seq: .seq, type: .type, customer: .customer } } }
    on_failure: { then: stop }
    parked: { path: %q }
`, preparing(dsn), strings.Join(addrs, `", "`), kafkaIn, kafkaGroup, filepath.Join(dir, "parked"))
		file := filepath.Join(dir, "semel.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return nil, err
		}
		if err := e.run(ctx, dir, e.work("bin", "semel"), "migrate", "up", "--config", file); err != nil {
			return nil, err
		}
		return e.semelRun(ctx, file), nil
	}
}

// plainRows runs peers/pginsert.
func (e *Env) plainRows(more ...string) func(dsn string) kafkaProgram {
	return func(dsn string) kafkaProgram {
		return func(ctx context.Context, addrs []string, _ string) (*exec.Cmd, error) {
			return exec.CommandContext(ctx, e.work("bin", "pginsert"), append([]string{"-bootstrap", strings.Join(addrs, ","),
				"-in", kafkaIn, "-group", kafkaGroup, "-dsn", dsn, "-table", "events"}, more...)...), nil
		}
	}
}

// moveRows measures a program from Kafka to a table on the whole input. It compares the
// table with the input.
func (e *Env) moveRows(ctx context.Context, name string, in records.Input, distinct bool, program func(dsn string) kafkaProgram) (_ map[string]float64, err error) {
	dir, err := e.fresh("kafka")
	if err != nil {
		return nil, err
	}
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
	c, err := startKafka(ctx, 1, rowPartitions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := in.Fill(ctx, c.addrs, kafkaIn, 0, in.Records); err != nil {
		return nil, err
	}
	values, err := c.measure(ctx, name, in.Records, program(server.URL()), dir, func(ctx context.Context) (already int, some bool, err error) {
		err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM events)").Scan(&some)
		return 0, some, err
	}, c.done(kafkaGroup))
	if err != nil {
		return nil, err
	}
	return map[string]float64{name: values[name]}, checkRows(ctx, conn, in, distinct)
}

// checkRows returns an error unless each record of the input has its row once. With
// distinct, only the first record of each key must have one.
func checkRows(ctx context.Context, conn *pgx.Conn, in records.Input, distinct bool) error {
	rows, err := conn.Query(ctx, "SELECT seq, event_id::text FROM events")
	if err != nil {
		return err
	}
	defer rows.Close()
	check := rowChecker{in: in, distinct: distinct, seen: make([]bool, in.Records)}
	for rows.Next() {
		var i int
		var id string
		if err := rows.Scan(&i, &id); err != nil {
			return err
		}
		if err := check.row(i, id); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), check.end())
}

// rowChecker compares rows with the input.
type rowChecker struct {
	in         records.Input
	distinct   bool
	seen       []bool
	count      int
	key, value []byte // buffers
}

func (c *rowChecker) row(i int, id string) error {
	if i < 0 || i >= c.in.Records {
		return fmt.Errorf("row %d is not of the input", i)
	}
	c.key, c.value = c.in.Append(c.key[:0], c.value[:0], i)
	switch {
	case id != string(c.key):
		return fmt.Errorf("row %d has the id %s, want %s", i, id, c.key)
	case c.distinct && !c.in.Fresh(i):
		return fmt.Errorf("row %d is a duplicate", i)
	case c.seen[i]:
		return fmt.Errorf("row %d is there twice", i)
	}
	c.seen[i] = true
	c.count++
	return nil
}

// end returns an error if rows are missing.
func (c *rowChecker) end() error {
	want := c.in.Records
	if c.distinct {
		want = c.in.FreshRecords()
	}
	if c.count != want {
		return fmt.Errorf("there are %d rows, want %d", c.count, want)
	}
	return nil
}
