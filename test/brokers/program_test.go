package brokers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
)

// The points at which a program kills itself. At inEffect the target kills it.
const (
	received     = "received"      // the source has handed messages over, and nothing is decided
	claimed      = "claimed"       // keys are claimed, and the sink has no message yet
	inEffect     = "in the effect" // the target has had the effect, and does not answer
	delivered    = "delivered"     // the sink has its answer, and keys are not completed
	completed    = "completed"     // keys are completed, and the broker does not know
	acknowledged = "acknowledged"  // the source has acknowledged, perhaps into a buffer
	parking      = "parking"       // a message is parked, and the broker does not know
	stopping     = "stopping"      // the pipeline has drained, and the source is not closed
)

var points = []string{received, claimed, inEffect, delivered, completed, acknowledged, parking, stopping}

// programVariable makes this binary the program. Its value is the address of the
// journal. Each line on its standard input is a point and a number, separated by a tab; see
// doom. The program reads the first one, and prints a line when it heeds signals. It prints heard
// when it heeds another signal, unless it dies first.
const (
	programVariable = "SEMEL_TEST_BROKERS_PROGRAM"
	heard           = "heard\n"
)

// program is cmd/semel with kinds that stop at the points.
func program(journal string) int {
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	kinds, d := kind.All(), &doom{journal: journal}
	if os.Args[1] == "run" {
		orders := bufio.NewScanner(os.Stdin)
		d.hear(orders)
		go func() {
			for {
				d.hear(orders)
				fmt.Print(heard)
			}
		}()
		kinds = d.kinds(kinds)
		fmt.Println("heeds signals")
	}
	return cli.Main(ctx, kinds, os.Args[1:], strings.NewReader(""), os.Stdout, os.Stderr, os.Getenv)
}

// doom kills the program when it comes to a point.
type doom struct {
	journal string
	next    atomic.Pointer[death]
}

type death struct {
	point string
	n     int
}

// hear reads where to die. The end of the input is the end of the test.
func (d *doom) hear(orders *bufio.Scanner) {
	if !orders.Scan() {
		os.Exit(1)
	}
	point, text, _ := strings.Cut(orders.Text(), "\t")
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	d.next.Store(&death{point, n})
}

// reach dies if this is the point, and n has reached the number. It prints n before.
func (d *doom) reach(point string, n int) {
	if next := d.next.Load(); next != nil && next.point == point && n >= next.n {
		fmt.Println(n)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// acked is what the program tells the journal of a message before it acknowledges it.
type acked struct {
	Key       string
	Duplicate bool
	Parked    pipeline.Reason
}

// tell ends the program if the journal does not answer, because then nothing is proved.
func (d *doom) tell(items []*pipeline.Item) {
	var list []acked
	for _, it := range items {
		list = append(list, acked{it.Call.Key.ID, it.Decision == semel.Duplicate, it.Parked})
	}
	text, err := json.Marshal(list)
	if err == nil {
		var answer *http.Response
		if answer, err = http.Post(d.journal+ackPath, "application/json", bytes.NewReader(text)); err == nil {
			err = answer.Body.Close()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the journal:", err)
		os.Exit(1)
	}
}

// kinds returns kinds that open what stops at the points.
func (d *doom) kinds(all *config.Kinds) *config.Kinds {
	doomed := &config.Kinds{}
	for _, source := range all.Sources {
		doomed.Sources = append(doomed.Sources, func() config.Source { return sourceKind{source(), d} })
	}
	for _, sink := range all.Sinks {
		doomed.Sinks = append(doomed.Sinks, func() config.Sink { return sinkKind{sink(), d} })
	}
	for _, store := range all.Stores {
		doomed.Stores = append(doomed.Stores, func() config.StoreKind { return storeKind{store(), d} })
	}
	return doomed
}

type sourceKind struct {
	config.Source
	doom *doom
}

// Open implements config.Source.
func (k sourceKind) Open(ctx context.Context, env *config.Env) (pipeline.Source, error) {
	opened, err := k.Source.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return source{opened.(brokerSource), k.doom}, nil
}

// brokerSource is what the sources of all brokers can do.
type brokerSource interface {
	pipeline.Source
	pipeline.Waiter
	doctor.Readier
}

type source struct {
	brokerSource
	doom *doom
}

// Read implements pipeline.Source.
func (s source) Read(ctx context.Context) ([]*pipeline.Item, error) {
	items, err := s.brokerSource.Read(ctx)
	for _, it := range items {
		s.doom.reach(received, it.Message.Origin.Delivery)
	}
	return items, err
}

// Traits implements pipeline.Source.
func (s source) Traits() pipeline.SourceTraits {
	traits := s.brokerSource.Traits()
	if exhausted := traits.Exhausted; exhausted != nil {
		traits.Exhausted = func(ctx context.Context) ([]*pipeline.Item, error) {
			items, err := exhausted(ctx)
			for _, it := range items {
				s.doom.reach(received, it.Message.Origin.Delivery)
			}
			return items, err
		}
	}
	return traits
}

// Ack implements pipeline.Source.
func (s source) Ack(ctx context.Context, items []*pipeline.Item) error {
	s.doom.tell(items)
	if slices.ContainsFunc(items, func(it *pipeline.Item) bool { return it.Parked != "" }) {
		s.doom.reach(parking, 1)
	}
	err := s.brokerSource.Ack(ctx, items)
	s.doom.reach(acknowledged, 1)
	return err
}

// Close implements pipeline.Source.
func (s source) Close(ctx context.Context) error {
	s.doom.reach(stopping, 1)
	return s.brokerSource.Close(ctx)
}

type sinkKind struct {
	config.Sink
	doom *doom
}

// Open implements config.Sink.
func (k sinkKind) Open(ctx context.Context, env *config.Env) (pipeline.Sink, error) {
	opened, err := k.Sink.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return sink{opened, k.doom}, nil
}

type sink struct {
	pipeline.Sink
	doom *doom
}

// Deliver implements pipeline.Sink.
func (s sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	s.Sink.Deliver(ctx, items)
	s.doom.reach(delivered, 1)
}

// Ready implements doctor.Readier.
func (s sink) Ready(ctx context.Context) error {
	if ready, ok := s.Sink.(doctor.Readier); ok {
		return ready.Ready(ctx)
	}
	return nil
}

type storeKind struct {
	config.StoreKind
	doom *doom
}

// Open implements config.StoreKind.
func (k storeKind) Open(ctx context.Context, env *config.StoreEnv) (semel.Store, error) {
	opened, err := k.StoreKind.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return keyStore{opened, k.doom}, nil
}

type keyStore struct {
	semel.Store
	doom *doom
}

// Unwrap returns the store, for semel.As.
func (s keyStore) Unwrap() semel.Store { return s.Store }

// Claim implements semel.Store.
func (s keyStore) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	err := s.Store.Claim(ctx, reqs, answers)
	s.doom.reach(claimed, 1)
	return err
}

// Complete implements semel.Store.
func (s keyStore) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	err := s.Store.Complete(ctx, reqs, answers)
	s.doom.reach(completed, 1)
	return err
}

// within waits for d, or until ctx ends.
func within(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
