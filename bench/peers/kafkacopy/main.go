// Command kafkacopy copies a topic to another with franz-go, one commit after the other.
// It stores no keys. It is the yardstick for a program that does.
//
//	kafkacopy -bootstrap HOST:PORT,… -in TOPIC -out TOPIC -group NAME [-eos] [-commit 100ms] [-changelog TOPIC]
//
// With -eos, outputs and offsets are committed in one transaction. Without it, offsets are
// committed after the outputs are acknowledged. With -changelog, it also writes a record to
// that topic for each input record, like a program that stores its keys there. It ends
// at SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type config struct {
	bootstrap, in, out, group, changelog, instance string
	eos                                            bool
	commit, session                                time.Duration
}

func main() {
	var c config
	flag.StringVar(&c.bootstrap, "bootstrap", "", "brokers, with commas between")
	flag.StringVar(&c.in, "in", "", "topic to read")
	flag.StringVar(&c.out, "out", "", "topic to write")
	flag.StringVar(&c.group, "group", "copy", "group, and id of the transactions")
	flag.StringVar(&c.changelog, "changelog", "", "topic for one more record for each input")
	flag.StringVar(&c.instance, "instance", "", "static id of the member")
	flag.BoolVar(&c.eos, "eos", false, "commit in transactions")
	flag.DurationVar(&c.commit, "commit", 100*time.Millisecond, "interval of commits")
	flag.DurationVar(&c.session, "session", 45*time.Second, "time-out of the group's session")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kafkacopy:", err)
		os.Exit(1)
	}
}

// maxPoll limits the records of one poll.
const maxPoll = 10_000

func (c *config) run(ctx context.Context) error {
	opts := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(c.bootstrap, ",")...),
		kgo.ConsumeTopics(c.in), kgo.ConsumerGroup(c.group), kgo.SessionTimeout(c.session),
		kgo.HeartbeatInterval(min(3*time.Second, c.session/3)),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DefaultProduceTopic(c.out), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(5 * time.Millisecond),
		kgo.DisableAutoCommit(),
	}
	if c.instance != "" {
		opts = append(opts, kgo.InstanceID(c.instance))
	}
	if c.eos {
		return c.inTransactions(ctx, append(opts, kgo.TransactionalID(c.group)))
	}
	return c.atLeastOnce(ctx, append(opts, kgo.BlockRebalanceOnPoll()))
}

func (c *config) inTransactions(ctx context.Context, opts []kgo.Opt) error {
	session, err := kgo.NewGroupTransactSession(opts...)
	if err != nil {
		return err
	}
	defer session.Close()
	for ctx.Err() == nil {
		if err := session.Begin(); err != nil {
			return err
		}
		copied := c.copyFor(ctx, session.PollRecords, session.Produce)
		// A commit must not be interrupted, because its outcome would be unknown.
		if _, err := session.End(context.WithoutCancel(ctx), kgo.TransactionEndTry(copied == nil)); err != nil {
			return err
		}
		if copied != nil {
			return copied
		}
	}
	return nil
}

func (c *config) atLeastOnce(ctx context.Context, opts []kgo.Opt) error {
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil {
		if err := c.copyFor(ctx, client.PollRecords, client.Produce); err != nil {
			return err
		}
		last := context.WithoutCancel(ctx)
		if err := client.Flush(last); err != nil {
			return err
		}
		if err := client.CommitUncommittedOffsets(last); err != nil {
			return err
		}
		client.AllowRebalance()
	}
	return nil
}

// copyFor copies records until the next commit is due.
func (c *config) copyFor(
	ctx context.Context,
	poll func(context.Context, int) kgo.Fetches,
	produce func(context.Context, *kgo.Record, func(*kgo.Record, error)),
) error {
	due, cancel := context.WithTimeout(ctx, c.commit)
	defer cancel()
	var failed atomic.Pointer[error]
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
	}
	last := context.WithoutCancel(ctx)
	for due.Err() == nil {
		fetches := poll(due, maxPoll)
		if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			return err
		}
		for r := range fetches.RecordsAll() {
			produce(last, &kgo.Record{Key: r.Key, Value: r.Value, Headers: r.Headers}, promise)
			if c.changelog != "" {
				produce(last, &kgo.Record{Topic: c.changelog, Key: r.Key, Value: mark}, promise)
			}
		}
		if err := failed.Load(); err != nil {
			return *err
		}
	}
	return nil
}

// mark returns the value of a changelog record: a time.
var mark = make([]byte, 8)
