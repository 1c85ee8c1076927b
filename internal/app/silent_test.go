package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/peertest"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// openWithin is how long a pipeline may wait for a server that never answers, until
	// the log names it and it is opened again.
	openWithin = 20 * time.Second
	// verbWithin is the same for a verb of an open source or sink. soonWithin is for a verb
	// whose context ends after half of that time.
	verbWithin, soonWithin = 40 * time.Second, 10 * time.Second
)

// read reads a configuration with one pipeline p.
func read(t *testing.T, ends string) (*config.File, *config.Pipeline) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "semel.yaml")
	text := "stores: { keys: { memory: {} } }\npipelines:\n  p: { key: { id: .id }, parked: { path: parked }, " + ends + " }\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := kind.All().Read(name, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	return f, f.Pipelines[0]
}

// TestOpeningASourceOrSinkTimesOutWhenTheServerIsSilent opens each kind of source and sink at a peer
// that accepts connections and never answers. The error comes in time, and says that the
// server may answer later.
func TestOpeningASourceOrSinkTimesOutWhenTheServerIsSilent(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(name, "any") // so it cannot run in parallel
	}
	at := peertest.Silent(t)
	const fromFile, toFile = ", store: keys, source: { file: { paths: [in] } }", ", store: keys, sink: { file: { path: out } }"
	for name, ends := range map[string]string{
		"kafka source":    fmt.Sprintf("source: { kafka: { brokers: [%q], topics: [in], group: g } }", at) + toFile,
		"kafka sink":      fmt.Sprintf("sink: { kafka: { brokers: [%q], topic: out } }", at) + fromFile,
		"nats source":     fmt.Sprintf("source: { nats: { servers: [%q], stream: S, consumer: c } }", at) + toFile,
		"nats sink":       fmt.Sprintf("sink: { nats: { servers: [%q], subject: s } }", at) + fromFile,
		"rabbitmq source": fmt.Sprintf("source: { rabbitmq: { servers: [%q], queue: q } }", at) + toFile,
		"rabbitmq sink":   fmt.Sprintf("sink: { rabbitmq: { servers: [%q], routing_key: q } }", at) + fromFile,
		"sqs source":      fmt.Sprintf("source: { sqs: { queue: \"http://%s/1/q\" } }", at) + toFile,
		"sqs sink":        fmt.Sprintf("sink: { sqs: { queue: \"http://%s/1/q\" } }", at) + fromFile,
		"postgres sink":   fmt.Sprintf("sink: { postgres: { dsn: \"postgres://u:p@%s/d?sslmode=disable\", table: t, columns: { id: .id } } }", at) + fromFile,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, p := read(t, ends)
			stores := NewStores(f, nil)
			defer stores.Close()
			err := peertest.Within(t, openWithin, "opening", func(ctx context.Context) error {
				_, err := OpenPipeline(ctx, f, p, stores, nil)
				return err
			})
			if err == nil || semel.Classify(err) == semel.ClassPermanent {
				t.Errorf("the error is %v of the class %v", err, semel.Classify(err))
			}
		})
	}
}

// front passes connections to a server until it is silent: then it reads and passes
// nothing on.
type front struct {
	addr   string
	silent atomic.Bool
}

func newFront(t *testing.T, target string) *front {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{addr: listener.Addr().String()}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	pass := func(to, from net.Conn) {
		defer to.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if f.silent.Load() {
				continue
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _ = errors.Join(client.Close(), server.Close()) })
			running.Go(func() { pass(server, client) })
			running.Go(func() { pass(client, server) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		running.Wait()
	})
	return f
}

// host returns HOST:PORT of an address.
func host(address string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = rest[strings.LastIndexByte(rest, '@')+1:]
	}
	address, _, _ = strings.Cut(address, "/")
	return address
}

// verbs calls the verbs of one source or sink, whose server is silent.
type verbs struct{ *testing.T }

// within calls a verb that ends by itself.
func (v verbs) within(name string, call func(ctx context.Context) error) error {
	v.Helper()
	return peertest.Within(v, verbWithin, name, call)
}

// soon calls a verb that ends with its context.
func (v verbs) soon(name string, call func(ctx context.Context) error) error {
	v.Helper()
	return peertest.Within(v, soonWithin, name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, soonWithin/2)
		defer cancel()
		return call(ctx)
	})
}

// ofSink lets the server of a sink fall silent. The delivery ends with an error of the
// server.
func (v verbs) ofSink(ends string, of *front) {
	v.Helper()
	f, p := read(v.T, ends+", store: keys, source: { file: { paths: [in] } }")
	s, err := p.Sink.Open(v.Context(), &config.Env{File: f, Pipeline: p})
	if err != nil {
		v.Fatal(err)
	}
	of.silent.Store(true)
	err = v.within("Deliver", func(context.Context) error { return peertest.DeliverOne(v, s, `{"id":"1"}`) })
	if meaning := peertest.MeaningOf(err); meaning != peertest.Server && meaning != peertest.ServerInDoubt {
		v.Errorf("Deliver means %q: %v", meaning, err)
	}
	if ready, ok := s.(doctor.Readier); ok && v.soon("Ready", ready.Ready) == nil {
		v.Error("the sink is ready")
	}
	_ = v.soon("Close", s.Close) // it may say so
}

// ofSource lets the server of a source fall silent, after one message was read.
func (v verbs) ofSource(ends string, of *front) {
	v.Helper()
	f, p := read(v.T, ends+", store: keys, sink: { file: { path: out } }")
	s, err := p.Source.Open(v.Context(), &config.Env{File: f, Pipeline: p})
	if err != nil {
		v.Fatal(err)
	}
	items, err := s.Read(v.Context())
	if err != nil || len(items) == 0 {
		v.Fatal(len(items), err)
	}
	of.silent.Store(true)
	// The errors say that the server is silent, unless the verb needs no answer.
	_ = v.within("Ack", func(ctx context.Context) error { return s.Ack(ctx, items[:1]) })
	_ = v.within("Return", func(ctx context.Context) error { return s.Return(ctx, items[:1], time.Millisecond) })
	if lag := s.Traits().Lag; lag != nil {
		_ = v.soon("Lag", func(ctx context.Context) error { _, err := lag(ctx); return err })
	}
	if ready, ok := s.(doctor.Readier); ok {
		_ = v.soon("Ready", ready.Ready)
	}
	if waiter, ok := s.(pipeline.Waiter); ok {
		_ = v.soon("WaitsFor", func(ctx context.Context) error { waiter.WaitsFor(ctx); return nil })
	}
	_ = v.soon("Read", func(ctx context.Context) error { _, err := s.Read(ctx); return err })
	_ = v.soon("Close", s.Close)
}

// TestEveryVerbTimesOutOnASilentServer lets the servers of open sinks and sources fall
// silent.
func TestEveryVerbTimesOutOnASilentServer(t *testing.T) {
	t.Parallel()
	conn, err := nats.Connect(servers.NATS(t), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("silent-%d", time.Now().UnixNano())
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), name, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	t.Run("nats sink", func(t *testing.T) {
		t.Parallel()
		of := newFront(t, host(servers.NATS(t)))
		verbs{t}.ofSink(fmt.Sprintf("sink: { nats: { servers: [%q], subject: %s } }", of.addr, name), of)
	})
	for _, confirm := range []bool{false, true} {
		t.Run(fmt.Sprintf("nats source, confirm_acks %v", confirm), func(t *testing.T) {
			t.Parallel()
			of := newFront(t, host(servers.NATS(t)))
			verbs{t}.ofSource(fmt.Sprintf("source: { nats: { servers: [%q], stream: %s, consumer: c%v, create: true, confirm_acks: %[3]v } }", of.addr, name, confirm), of)
		})
	}
	t.Run("rabbitmq sink", func(t *testing.T) {
		t.Parallel()
		of := newFront(t, servers.RabbitMQ(t))
		verbs{t}.ofSink(fmt.Sprintf("sink: { rabbitmq: { servers: [%q], routing_key: %s, create: true } }", of.addr, name), of)
	})
	t.Run("rabbitmq source", func(t *testing.T) {
		t.Parallel()
		f, p := read(t, fmt.Sprintf("sink: { rabbitmq: { servers: [%q], routing_key: %s-in, create: true } }, store: keys, source: { file: { paths: [in] } }", servers.RabbitMQ(t), name))
		s, err := p.Sink.Open(t.Context(), &config.Env{File: f, Pipeline: p})
		if err != nil {
			t.Fatal(err)
		}
		err = peertest.DeliverOne(t, s, "{}")
		if err := errors.Join(err, s.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		of := newFront(t, servers.RabbitMQ(t))
		verbs{t}.ofSource(fmt.Sprintf("source: { rabbitmq: { servers: [%q], queue: %s-in } }", of.addr, name), of)
	})
	t.Run("postgres sink", func(t *testing.T) {
		t.Parallel()
		database := servers.Database(t)
		of := newFront(t, host(database))
		verbs{t}.ofSink(fmt.Sprintf("sink: { postgres: { dsn: %q, statement: \"SELECT $1::text\", args: [.id] } }", strings.Replace(database, host(database), of.addr, 1)), of)
	})
}
