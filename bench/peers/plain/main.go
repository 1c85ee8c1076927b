// Command plain moves messages with the runner, the sources and the sinks of semel run, but
// without keys. It is the yardstick for what keys cost.
//
//	plain -from kafka|rabbitmq|nats|sqs|http -address ADDRESS -queue NAME -key RULE
//	      -to postgres|webhook|file -target TARGET [-table NAME -columns COLUMN=RULE,…]
//
// The address is that of a broker, or where requests come in. The queue is a topic, a queue,
// a stream, the URL of a queue, or the path of the requests. The target is the address of a
// database, a URL or a file. It delivers duplicates too, and ends at SIGTERM.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/broker/httpsrc"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/broker/rabbitmq"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/broker/webhook"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// group is the name of the consumer, where it needs one.
const group = "plain"

type config struct{ from, address, queue, key, to, target, table, columns string }

func main() {
	var c config
	flag.StringVar(&c.from, "from", "", "kind of the source")
	flag.StringVar(&c.address, "address", "", "address of the source")
	flag.StringVar(&c.queue, "queue", "", "topic, queue, stream, URL of a queue, or path")
	flag.StringVar(&c.key, "key", "", "rule for the id, which the runner finds and nothing remembers")
	flag.StringVar(&c.to, "to", "", "kind of the sink")
	flag.StringVar(&c.target, "target", "", "address of the sink")
	flag.StringVar(&c.table, "table", "", "table to write")
	flag.StringVar(&c.columns, "columns", "", "columns with their rules")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "plain:", err)
		os.Exit(1)
	}
}

func (c *config) run(ctx context.Context) error {
	sink, err := c.sink(ctx)
	if err != nil {
		return err
	}
	source, err := c.source(ctx)
	if err != nil {
		return err
	}
	rule, err := key.ParseRule(c.key)
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

func (c *config) source(ctx context.Context) (pipeline.Source, error) {
	switch c.from {
	case "kafka":
		return kafka.OpenSource(ctx, &kafka.SourceOptions{
			Client: []kgo.Opt{kgo.SeedBrokers(c.address)}, Group: group, Topics: []string{c.queue}, Instance: group + "-1",
		})
	case "rabbitmq":
		return rabbitmq.OpenSource(ctx, &rabbitmq.SourceOptions{Client: rabbitmq.Client{Addrs: []string{c.address}}, Queue: c.queue})
	case "nats":
		return nats.OpenSource(ctx, &nats.SourceOptions{URL: c.address, Stream: c.queue, Consumer: group, Create: true})
	case "sqs":
		at, err := url.Parse(c.queue)
		if err != nil {
			return nil, err
		}
		client := awssqs.New(awssqs.Options{Region: "us-east-1", BaseEndpoint: aws.String("http://" + at.Host), Credentials: aws.AnonymousCredentials{}})
		return sqs.OpenSource(ctx, &sqs.SourceOptions{Client: client, Queue: c.queue})
	case "http":
		return httpsrc.Open(&httpsrc.Options{Listen: c.address, Path: c.queue})
	}
	return nil, fmt.Errorf("there is no source %q", c.from)
}

func (c *config) sink(ctx context.Context) (pipeline.Sink, error) {
	switch c.to {
	case "postgres":
		opts := &postgres.Options{Table: c.table}
		for column := range strings.SplitSeq(c.columns, ",") {
			name, rule, _ := strings.Cut(column, "=")
			opts.Columns = append(opts.Columns, postgres.Column{Name: name, From: rule})
		}
		// semel run has the same mode in its address.
		return postgres.Open(ctx, c.target+"&default_query_exec_mode=cache_statement", opts)
	case "webhook":
		return webhook.New(&webhook.Options{URL: c.target, AllowPrivate: true})
	case "file":
		return file.OpenSink(c.target, nil)
	}
	return nil, fmt.Errorf("there is no sink %q", c.to)
}
