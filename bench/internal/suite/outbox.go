package suite

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services"
)

const (
	outboxBytes      = 1024
	outboxAggregates = 1000
	outboxPartitions = 4
	// outboxWarm is for how many seconds messages are written before latencies count.
	outboxWarm = 1
	// outboxLeast is the least rate, and outboxMost how many microseconds of processor time
	// two cores have for each message at that rate.
	outboxLeast, outboxMost = 20_000, 100
)

// outboxes lists the benchmarks of the transactional outbox.
func outboxes(e Env) []Benchmark {
	n, less := e.size(200_000, 5_000), e.size(20_000, 2_000)
	backlog := e.size(10_000_000, 20_000)
	seconds := e.size(10, 2)
	span := time.Duration(e.size(3000, 300)) * time.Millisecond
	const rows = "PostgreSQL 15 with fsync, and Kafka, both over loopback. "
	rate := func(name string, measure func(context.Context) (float64, error)) side {
		return func(ctx context.Context) (map[string]float64, error) {
			rate, err := measure(ctx)
			return map[string]float64{name: rate}, err
		}
	}
	relay := e.prepareKafka(e.buildSemel, e.build("forwarder"))
	const latency = 2000
	ours := func(ctx context.Context) (float64, error) { return e.relayRate(ctx, n, n, outboxBytes) }
	measured := func(ctx context.Context) (map[string]float64, error) {
		return e.relayLatency(ctx, latency, (outboxWarm+seconds)*latency, semelOutbox(e))
	}
	list := []Benchmark{
		{
			Name:        "outbox-kafka",
			Work:        fmt.Sprintf(rows+"One relay, messages of %d bytes and %s aggregates that are in the outbox when it starts, in the order of each aggregate: messages a second from the first one in the topic to the last. Ours %s messages. Peer: Watermill's forwarder with its queue table in PostgreSQL, rows deleted on ack, %s messages", outboxBytes, count(outboxAggregates), count(n), count(less)),
			peerVersion: builtInto(e.work("bin", "forwarder"), "github.com/ThreeDotsLabs/watermill-sql/v4"),
			prepare:     relay,
			ours:        rate("outbox-kafka", ours),
			peer: rate("outbox-kafka", func(ctx context.Context) (float64, error) {
				return e.onRelay(ctx, less, e.fillForwarder, e.forwarder)
			}),
			figures: []figure{{name: "outbox-kafka", unit: "messages/s", target: 3}},
		},
		{
			Name:        "outbox-latency",
			Work:        fmt.Sprintf(rows+"%s transactions a second for %d s, each with one message of %d bytes: the time from commit to the message at a consumer of the topic. The first second does not count. One relay, adaptive polling", count(latency), seconds, outboxBytes),
			peerVersion: limit("50 ms"),
			prepare:     relay,
			ours:        measured,
			figures: []figure{
				{name: "outbox-latency-p50", unit: "ms", lessIsBetter: true, limit: 50},
				{name: "outbox-latency-p99", unit: "ms", lessIsBetter: true, target: 1, limit: 50},
			},
		},
		comparison("outbox-insert", fmt.Sprintf("PostgreSQL 15 over loopback, fsync on. On 16 connections, for %v: a business row and a message of %d bytes in one transaction and one round trip (outbox.Queue). Peer: the business row alone, in a transaction", span, outboxBytes),
			0.7, func(ctx context.Context) (float64, error) { return insertRows(ctx, span, true) },
			func(ctx context.Context) (float64, error) { return insertRows(ctx, span, false) }),
		{
			Name:        "outbox-backlog",
			Work:        fmt.Sprintf(rows+"One relay, messages of 100 bytes: the first %s of %s that wait in the outbox, messages a second. Peer: the same relay with an outbox of only as many", count(n), count(backlog)),
			peerVersion: func() (string, error) { return "the same relay", nil },
			prepare:     relay,
			ours: rate("outbox-backlog", func(ctx context.Context) (float64, error) {
				return e.relayRate(ctx, backlog, n, 100)
			}),
			peer: rate("outbox-backlog", func(ctx context.Context) (float64, error) {
				return e.relayRate(ctx, n, n, 100)
			}),
			figures: []figure{{name: "outbox-backlog", unit: "messages/s", target: 0.8}},
		},
		{
			Name:        "outbox-rate",
			Work:        fmt.Sprintf(rows+"One relay, %s messages of %d bytes and %s aggregates that are in the outbox when it starts: messages a second, and the processor time of relay, PostgreSQL and Kafka for each message, from the first message in the topic to the last", count(n), outboxBytes, count(outboxAggregates)),
			peerVersion: limit(fmt.Sprintf("%s messages/s; %d µs are what two cores have for a message at that rate", count(outboxLeast), outboxMost)),
			prepare:     relay,
			ours:        func(ctx context.Context) (map[string]float64, error) { return e.relayCost(ctx, n) },
			figures: []figure{
				{name: "outbox-rate", unit: "messages/s", target: 1, limit: outboxLeast},
				{name: "outbox-rate-relay", unit: "µs/message", lessIsBetter: true, limit: outboxMost},
				{name: "outbox-rate-postgres", unit: "µs/message", lessIsBetter: true, limit: outboxMost},
				{name: "outbox-rate-kafka", unit: "µs/message", lessIsBetter: true, limit: outboxMost},
			},
		},
	}
	peer := openOutbox()
	if peer == "" {
		return list
	}
	return append(list,
		Benchmark{
			Name:        "outbox-kafka-open",
			Work:        fmt.Sprintf(rows+"As outbox-kafka. Peer: open-outbox/relay without order, with batches of 1,000 and no compression, %s messages", count(less)),
			peerVersion: commitOf(peer, "github.com/open-outbox/relay"),
			prepare:     e.prepareKafka(e.buildSemel, e.buildOpenOutbox(peer)),
			ours:        rate("outbox-kafka-open", ours),
			peer: rate("outbox-kafka-open", func(ctx context.Context) (float64, error) {
				return e.onRelay(ctx, less, e.fillOpenOutbox(peer, less), e.openOutboxRelay)
			}),
			figures: []figure{{name: "outbox-kafka-open", unit: "messages/s", target: 1.5}},
		},
		Benchmark{
			Name:        "outbox-latency-open",
			Work:        fmt.Sprintf(rows+"%s transactions a second, as outbox-latency. Peer: open-outbox/relay without order, polling every 10 ms, with batches of 1,000 and no compression", count(latency)),
			peerVersion: commitOf(peer, "github.com/open-outbox/relay"),
			prepare:     e.prepareKafka(e.buildSemel, e.buildOpenOutbox(peer)),
			ours:        measured,
			peer: func(ctx context.Context) (map[string]float64, error) {
				return e.relayLatency(ctx, latency, (outboxWarm+seconds)*latency, e.openOutboxTarget(peer))
			},
			figures: []figure{
				{name: "outbox-latency-open-p50", value: "outbox-latency-p50", unit: "ms", lessIsBetter: true},
				{name: "outbox-latency-open-p99", value: "outbox-latency-p99", unit: "ms", lessIsBetter: true, target: 2},
			},
		})
}

// insertRows measures transactions with a business row, and with a message if both.
func insertRows(ctx context.Context, span time.Duration, both bool) (rate float64, err error) {
	body := bytes.Repeat([]byte("x"), outboxBytes)
	err = onStore(ctx, clients, businessTable, nil, nil, func(pool *pgxpool.Pool, _ *pgstore.Store) error {
		rate, err = load(clients, span, func(id []byte) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				var b pgx.Batch
				b.Queue(businessInsert, [16]byte(id), 1)
				if both {
					if err := outbox.Queue(&b, outbox.Message{Aggregate: hex.EncodeToString(id[:2]), Topic: kafkaOut, Payload: body}); err != nil {
						return err
					}
				}
				return tx.SendBatch(ctx, &b).Close()
			})
		})
		return err
	})
	return rate, err
}

// relayProgram returns the command of a relay.
type relayProgram func(ctx context.Context, dsn, kafka, dir string) (*exec.Cmd, error)

// onRelay fills an outbox and returns the messages a second of a relay, until n are in
// the topic.
func (e *Env) onRelay(ctx context.Context, n int, fill func(ctx context.Context, dsn, dir string) error, relay relayProgram) (rate float64, err error) {
	err = e.withOutbox(ctx, fill, relay, func(_ *services.Server, c *kafkaCluster, r *running) error {
		rate, err = relayedRate(ctx, n, c, r, func() error { return nil })
		return err
	})
	return rate, err
}

// relayedRate returns the messages a second until n are in the topic. It calls first when
// it has the first one.
func relayedRate(ctx context.Context, n int, c *kafkaCluster, r *running, first func() error) (rate float64, err error) {
	received, began := 0, time.Time{}
	last := map[string]int{}
	err = readTopic(ctx, c, r, func(record *kgo.Record) (bool, error) {
		if began.IsZero() {
			if err := first(); err != nil {
				return false, err
			}
			began = time.Now()
		}
		received++
		if seq, ok := sequence(record.Value); ok {
			if before, known := last[string(record.Key)]; known && seq <= before {
				return false, fmt.Errorf("suite: message %d of aggregate %s came after %d", seq, record.Key, before)
			}
			last[string(record.Key)] = seq
		}
		return received >= n, nil
	})
	return float64(n) / time.Since(began).Seconds(), err
}

// relayCost measures our relay, and the processor time of relay and servers.
func (e *Env) relayCost(ctx context.Context, n int) (values map[string]float64, err error) {
	err = e.withOutbox(ctx, e.fillOutbox(n, outboxBytes), e.semelRelay, func(db *services.Server, c *kafkaCluster, r *running) error {
		pids := map[string]int{"outbox-rate-relay": r.cmd.Process.Pid, "outbox-rate-postgres": db.PID(), "outbox-rate-kafka": c.servers[0].PID()}
		before := map[string]time.Duration{}
		rate, err := relayedRate(ctx, n, c, r, func() (err error) {
			for name, pid := range pids {
				if before[name], err = familyTime(pid); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		values = map[string]float64{"outbox-rate": rate}
		for name, pid := range pids {
			after, err := familyTime(pid)
			if err != nil {
				return err
			}
			values[name] = max(after-before[name], tick).Seconds() * 1e6 / float64(n)
		}
		return nil
	})
	return values, err
}

// sequence reads the number at the start of a payload of ours.
func sequence(payload []byte) (int, bool) {
	digits, _, ok := bytes.Cut(payload, []byte(" "))
	n, err := strconv.Atoi(string(digits))
	return n, ok && err == nil
}

// relayRate measures our relay until n of the messages in the outbox are in the topic.
func (e *Env) relayRate(ctx context.Context, waiting, n, size int) (float64, error) {
	return e.onRelay(ctx, n, e.fillOutbox(waiting, size), e.semelRelay)
}

// fillOutbox returns a function that creates our tables and writes n messages. It ends with a
// checkpoint, so that no measurement pays for what the server has not yet written of them.
func (e *Env) fillOutbox(n, size int) func(ctx context.Context, dsn, dir string) error {
	return func(ctx context.Context, dsn, dir string) error {
		if err := e.migrateOutbox(ctx, dsn, dir); err != nil {
			return err
		}
		return inDatabase(ctx, dsn, fmt.Sprintf("INSERT INTO semel_outbox (aggregate, topic, payload) SELECT (i %% %d)::text, '%s', convert_to(rpad(i || ' ', %d, 'x'), 'UTF8') FROM generate_series(1, %d) i",
			outboxAggregates, kafkaOut, size, n), "VACUUM ANALYZE semel_outbox", "CHECKPOINT")
	}
}

// inDatabase runs statements.
func inDatabase(ctx context.Context, dsn string, statements ...string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// latencyTarget is a relay whose latency is measured.
type latencyTarget struct {
	fill  func(ctx context.Context, dsn, dir string) error // creates the tables
	write func(ctx context.Context, tx pgx.Tx, aggregate string, payload []byte) error
	relay relayProgram
}

// semelOutbox is our relay.
func semelOutbox(e Env) latencyTarget {
	return latencyTarget{e.migrateOutbox, func(ctx context.Context, tx pgx.Tx, aggregate string, payload []byte) error {
		return outbox.Write(ctx, tx, outbox.Message{Aggregate: aggregate, Topic: kafkaOut, Payload: payload})
	}, e.semelRelay}
}

// relayLatency measures the time from a commit to the message in the topic.
func (e *Env) relayLatency(ctx context.Context, rate, n int, of latencyTarget) (values map[string]float64, err error) {
	err = e.withOutbox(ctx, of.fill, of.relay, func(db *services.Server, c *kafkaCluster, r *running) error {
		pool, err := pgxpool.New(ctx, db.URL())
		if err != nil {
			return err
		}
		defer pool.Close()
		const ahead = 100 // until the relay runs
		committed := make([]time.Time, ahead+n)
		took := make([]time.Duration, 0, n)
		var mu sync.Mutex // guards committed and took
		writing := make(chan error, 1)
		write := func(i int) error {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				return of.write(ctx, tx, strconv.Itoa(i%outboxAggregates), append(strconv.AppendInt(nil, int64(i), 10), bytes.Repeat([]byte(" x"), outboxBytes/2)...))
			})
			mu.Lock()
			defer mu.Unlock()
			committed[i] = time.Now()
			return err
		}
		runs := make(chan struct{}) // closed when the relay has delivered the first messages
		go func() {
			if err := inParallel(4, ahead, write); err != nil {
				writing <- err
				return
			}
			select {
			case <-runs:
			case <-r.ended:
			}
			writing <- paced(n, rate, func(i int) error { return write(ahead + i) })
		}()
		arrived := make([]time.Time, ahead+n)
		left := len(arrived)
		err = readTopic(ctx, c, r, func(record *kgo.Record) (bool, error) {
			i, ok := sequence(record.Value)
			if !ok || !arrived[i].IsZero() {
				return false, fmt.Errorf("suite: message %.20q came twice or is foreign", record.Value)
			}
			arrived[i] = time.Now()
			if left--; left == n {
				close(runs)
			}
			return left == 0, nil
		})
		if err := errors.Join(err, <-writing); err != nil {
			return err
		}
		for i := ahead + outboxWarm*rate; i < len(arrived); i++ {
			took = append(took, max(arrived[i].Sub(committed[i]), 0))
		}
		slices.Sort(took)
		at := func(share float64) float64 { return took[int(share*float64(len(took)-1))].Seconds() * 1e3 }
		values = map[string]float64{"outbox-latency-p50": at(0.5), "outbox-latency-p99": at(0.99)}
		return nil
	})
	return values, err
}

// paced calls do for n numbers at this rate a second, on 16 goroutines.
func paced(n, rate int, do func(int) error) error {
	began := time.Now()
	return inParallel(clients, n, func(i int) error {
		<-time.After(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		return do(i)
	})
}

// withOutbox starts both servers, fills the outbox, starts the relay and measures.
func (e *Env) withOutbox(ctx context.Context, fill func(ctx context.Context, dsn, dir string) error, relay relayProgram, measure func(db *services.Server, c *kafkaCluster, r *running) error) (err error) {
	dir, err := e.fresh("outbox")
	if err != nil {
		return err
	}
	server, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := fill(ctx, server.URL(), dir); err != nil {
		return err
	}
	c, err := startKafka(ctx, 1, outboxPartitions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	r, err := startProgram(ctx, c, func(ctx context.Context, addrs []string, dir string) (*exec.Cmd, error) {
		return relay(ctx, server.URL(), addrs[0], dir)
	}, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.kill()) }()
	if err := measure(server, c, r); err != nil {
		return fmt.Errorf("%w: %s", err, r.said())
	}
	return r.stop()
}

// readTopic passes records of the output to take until it reports true.
func readTopic(ctx context.Context, c *kafkaCluster, r *running, take func(*kgo.Record) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, kafkaLimit)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.ConsumeTopics(kafkaOut), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return err
		}
		for record := range fetches.RecordsAll() {
			if done, err := take(record); done || err != nil {
				return err
			}
		}
		select {
		case <-r.ended:
			return fmt.Errorf("suite: the relay has ended: %w", r.err)
		default:
		}
	}
}

// relayConfig writes a configuration and returns its path.
func relayConfig(dir, dsn, kafka string) (string, error) {
	file := filepath.Join(dir, "relay.yaml")
	return file, os.WriteFile(file, fmt.Appendf(nil, `stores: { db: { postgres: { dsn: %q } } }
pipelines:
  relay:
    source: { outbox: { store: db } }
    key: { id: property:message-id }
    sink: { kafka: { brokers: [%q], topic: %s, compression: none } }
    parked: { store: db }
`, dsn, kafka, kafkaOut), 0o600)
}

func (e *Env) migrateOutbox(ctx context.Context, dsn, dir string) error {
	file, err := relayConfig(dir, dsn, "localhost:9092")
	if err != nil {
		return err
	}
	return e.run(ctx, dir, e.work("bin", "semel"), "migrate", "up", "--config", file)
}

func (e *Env) semelRelay(ctx context.Context, dsn, kafka, dir string) (*exec.Cmd, error) {
	file, err := relayConfig(dir, dsn, kafka)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, e.work("bin", "semel"), "outbox", "relay", file, "--admin", "off", "--log-level", "warn"), nil
}

func (e *Env) fillForwarder(ctx context.Context, dsn, dir string) error {
	return e.run(ctx, dir, e.work("bin", "forwarder"), "-dsn", dsn, "-topic", kafkaOut, "-fill", strconv.Itoa(e.size(20_000, 2_000)),
		"-bytes", strconv.Itoa(outboxBytes), "-aggregates", strconv.Itoa(outboxAggregates))
}

func (e *Env) forwarder(ctx context.Context, dsn, kafka, _ string) (*exec.Cmd, error) {
	return exec.CommandContext(ctx, e.work("bin", "forwarder"), "-dsn", dsn, "-bootstrap", kafka), nil
}
