// Command pginsert writes the records of a topic to a PostgreSQL table, with the runner
// and the source of semel run. It stores no keys. It is the yardstick for keys in the
// transaction of the rows.
//
//	pginsert -bootstrap HOST:PORT,… -in TOPIC -group NAME -dsn ADDRESS -table NAME [-many]
//
// It writes event_id, seq, type and customer of each record, including duplicates. The
// INSERT of each record is a statement, and those of a batch are pipelined in one
// transaction. With -many, one statement writes many rows, as in semel run. It ends at
// SIGTERM.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

type config struct {
	bootstrap, in, group, dsn, table string
	many                             bool
}

func main() {
	var c config
	flag.StringVar(&c.bootstrap, "bootstrap", "", "brokers, with commas between")
	flag.StringVar(&c.in, "in", "", "topic to read")
	flag.StringVar(&c.group, "group", "copy", "group")
	flag.StringVar(&c.dsn, "dsn", "", "address of the database")
	flag.StringVar(&c.table, "table", "", "table to write")
	flag.BoolVar(&c.many, "many", false, "write many rows with one statement")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pginsert:", err)
		os.Exit(1)
	}
}

func (c *config) run(ctx context.Context) error {
	// semel run has the same mode in its address.
	dsn := c.dsn + "?default_query_exec_mode=cache_statement"
	if strings.Contains(c.dsn, "?") {
		dsn = c.dsn + "&default_query_exec_mode=cache_statement"
	}
	opts := &postgres.Options{
		Statement: "INSERT INTO " + pgx.Identifier{c.table}.Sanitize() + " (event_id, seq, type, customer) VALUES ($1, $2, $3, $4)",
		Args:      []string{".event_id", ".seq", ".type", ".customer"},
	}
	if c.many {
		opts = &postgres.Options{Table: c.table, Columns: []postgres.Column{
			{Name: "event_id", From: ".event_id"}, {Name: "seq", From: ".seq"}, {Name: "type", From: ".type"}, {Name: "customer", From: ".customer"},
		}}
	}
	sink, err := postgres.Open(ctx, dsn, opts)
	if err != nil {
		return err
	}
	source, err := kafka.OpenSource(ctx, &kafka.SourceOptions{
		Client: []kgo.Opt{kgo.SeedBrokers(strings.Split(c.bootstrap, ",")...)},
		Group:  c.group, Topics: []string{c.in}, Instance: c.group + "-1",
	})
	if err != nil {
		return err
	}
	rule, err := key.ParseRule("record-key")
	if err != nil {
		return err
	}
	runner, err := pipeline.NewRunner(source, pipeline.NewDirect(sink, nil), &pipeline.Options{
		Key: rule, OnMissing: pipeline.MissingStop, OnLate: pipeline.Stop, OnMismatch: pipeline.Stop, Failure: pipeline.Failure{Then: pipeline.Stop},
	})
	if err != nil {
		return err
	}
	return runner.Run(ctx)
}
