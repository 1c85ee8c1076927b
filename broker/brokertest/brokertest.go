// Package brokertest is the suite that every source and every sink passes.
//
// [RunSource] and [RunSink] run pipelines over numbered messages, some of which
// are produced twice, against effects that at random succeed, fail, fail for
// good, panic, take their time or are unavailable. A ledger holds what was
// produced and what became of it. In the end each key must have had its effect
// or be parked, and none twice; what was acknowledged must not come again, and
// what was not must; and the order of a partition must hold. A position must be a key, or
// the source must say that it has none. Pipelines are ended in
// the middle and begun again; where there is a server, it is restarted under
// them, an answer of it is lost, and a consumer vanishes.
//
// A case that waits for longer than [Patience] fails, and says what it waited for.
// [RunSourceBenchmarks] and [RunSinkBenchmarks] measure instead.
//
// The suite prints its seed; SEMEL_SEED in the environment repeats one.
package brokertest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Numbered is one message of the ledger. Its place in its partition is unique; the
// ID is not: two with one ID are duplicates.
type Numbered struct {
	// ID is what makes two messages the same. It stands in the body as id.
	ID string
	// Partition is the ordered unit it is produced to, from 0, and Place its place
	// there, from 0.
	Partition, Place int
	// Body is JSON on one line. It must arrive byte for byte.
	Body []byte
	// Headers must arrive, too, unless the harness says NoHeaders. Most messages have none.
	Headers []semel.Header
}

type body struct {
	ID        string `json:"id"`
	Partition int    `json:"partition"`
	Place     int    `json:"place"`
	Pad       string `json:"pad,omitempty"`
}

func newNumbered(id string, partition, place int, pad int) Numbered {
	data, err := json.Marshal(body{id, partition, place, strings.Repeat("x", pad)})
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return Numbered{ID: id, Partition: partition, Place: place, Body: data}
}

// parse returns the message that a body belongs to.
func parse(data []byte) (Numbered, error) {
	var b body
	if err := json.Unmarshal(data, &b); err != nil {
		return Numbered{}, fmt.Errorf("the body %q is none of the suite's: %w", data, err)
	}
	return Numbered{ID: b.ID, Partition: b.Partition, Place: b.Place, Body: data}, nil
}

// SourceHarness tells the suite how to make the source under test.
type SourceHarness struct {
	// New prepares an empty place for the messages of one test: a topic, a
	// queue, a directory. It registers with tb.Cleanup what must be cleaned.
	New func(tb testing.TB) SourcePlace
	// NewLimited is New for a place whose server delivers a message that is not
	// acknowledged four times at most. Defaults to nil: the server has no such limit.
	NewLimited func(tb testing.TB) SourcePlace
	// Messages is how many a case produces. Defaults to 600.
	Messages int
	// Unordered: partitions have no order. Defaults to false.
	Unordered bool
	// ForgetsAcks: after the server was killed, a message may come again although it was
	// acknowledged. Defaults to false.
	ForgetsAcks bool
	// Joint: senders send several messages together, and repeat all of them until all are
	// settled, so that acknowledged ones come again. Defaults to false.
	Joint bool
	// Blocking: a partition delivers nothing more while a message that it delivered
	// is not settled, as a message group does. Messages that a case reads before it
	// settles any are then produced to partitions of their own, beyond Partitions.
	// Defaults to false.
	Blocking bool
	// Alone: one consumer reads at a time. While the first reads, a second one cannot be
	// opened or gets no message. Or it takes the place of the first, and gets all that the
	// first did not settle; Read of the first ends with pipeline.ErrReplaced when it learns of
	// that. Defaults to false: consumers share the messages.
	Alone bool
	// NoTime: messages have no time. Defaults to false.
	NoTime bool
	// NoHeaders: messages have no headers. Defaults to false.
	NoHeaders bool
	// Patience is how long a case waits for an event. Set it if the server takes longer,
	// for instance to notice that a consumer is gone. Defaults to [Patience].
	Patience time.Duration
}

// SourcePlace is where the messages of one test are.
type SourcePlace struct {
	// Partitions is how many ordered units messages are produced to. Defaults to 1.
	Partitions int
	// Produce adds messages, in this order within each partition, and returns when
	// they are there to stay. It tries until it succeeds or ctx ends. One
	// goroutine calls it, while sources come and go. Where a message is
	// answered when it is settled, Produce does not wait for that.
	Produce func(ctx context.Context, list []Numbered) error
	// Open opens the source. The case with two consumers calls it from two goroutines concurrently;
	// the others close a source before they open the next.
	Open func(ctx context.Context) (pipeline.Source, error)
	// Again deletes the place and its messages, and makes an empty place with the same name: a
	// topic that is created again, a replaced file, numbers that start again. No source is open.
	// A source with positions needs it, and nil is right for the others only.
	Again func(ctx context.Context) error
	// Restart ends the server in the hardest way there is, starts it again and
	// returns when it answers. Defaults to nil: there is no server to restart.
	Restart func(ctx context.Context) error
	// Server is the address of the server, as host:port, and OpenAt is Open with another
	// address in its place. The suite listens there, passes on what it gets, loses an answer
	// or cuts the source off. The connection must not be encrypted. A source with Restart
	// needs both. Default to none: there is no server.
	Server string
	OpenAt func(ctx context.Context, address string) (pipeline.Source, error)
}

// SinkHarness tells the suite how to make the sink under test.
type SinkHarness struct {
	// New prepares an empty target for one test. It registers with tb.Cleanup
	// what must be cleaned.
	New func(tb testing.TB) SinkTarget
	// Messages is how many a case delivers. Defaults to 600.
	Messages int
	// AtLeastOnce: where an outcome is unknown the effect may come twice.
	// Defaults to false: none does, whatever happens.
	AtLeastOnce bool
	// Unordered: effects show no order. A sink with the trait Ordered shows one. Defaults
	// to false.
	Unordered bool
	// NoHeaders: the target takes no headers, as a line of a file. Defaults to false: it has
	// those of header.Output.
	NoHeaders bool
	// Patience is as in SourceHarness.
	Patience time.Duration
}

// SinkTarget is where the messages of one test go. Sink or Session is set.
type SinkTarget struct {
	// Sink opens the sink. The suite closes it before it opens the next.
	Sink func(ctx context.Context) (pipeline.Sink, error)
	// Session opens a session whose keys and effects are one. They last from
	// one session to the next.
	Session func(ctx context.Context) (pipeline.Session, error)
	// Effects returns the effects that the target has, in the order of each partition. It is called
	// when no sink is open, or while Restart may run.
	Effects func(ctx context.Context) ([]Effect, error)
	// Refused is a body that the target refuses whatever its state is, such as one that is
	// too large. Defaults to nil: it takes every body.
	Refused []byte
	// Restart is as in SourcePlace.
	Restart func(ctx context.Context) error
	// Server, and SinkAt or SessionAt, are as Server and OpenAt in SourcePlace.
	Server    string
	SinkAt    func(ctx context.Context, address string) (pipeline.Sink, error)
	SessionAt func(ctx context.Context, address string) (pipeline.Session, error)
}

// Effect is an effect at a target: the body of a message, and the headers that it has there.
type Effect struct {
	Body    []byte
	Headers []semel.Header
}

// testCase is one check of a suite.
type testCase[E any] struct {
	name  string
	check func(e E)
}

// RunSource runs the suite for sources.
func RunSource(t *testing.T, h SourceHarness) {
	t.Helper()
	for _, c := range sourceCases() {
		t.Run(c.name, func(t *testing.T) { watch(t, func(w *watched) { c.check(newSourceEnv(w, h)) }) })
	}
}

// RunSink runs the suite for sinks, and for sessions that have one in them.
func RunSink(t *testing.T, h SinkHarness) {
	t.Helper()
	for _, c := range sinkCases() {
		t.Run(c.name, func(t *testing.T) { watch(t, func(w *watched) { c.check(newSinkEnv(w, h)) }) })
	}
}

// Patience is how long a case waits for an event, unless the harness says otherwise.
// Only a connector that hangs, or has lost a message, needs all of it.
const Patience = 30 * time.Second

// quiet is how long it waits for what must not come.
const quiet = 200 * time.Millisecond

// newRandom returns a source whose seed is printed.
func newRandom(tb testing.TB) *rand.Rand {
	seed := rand.Uint64()
	if text := os.Getenv("SEMEL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			tb.Fatalf("SEMEL_SEED: %v", err)
		}
	}
	tb.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
