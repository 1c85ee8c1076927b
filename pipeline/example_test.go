package pipeline_test

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// threeOrders is a source of three messages. One of them is a duplicate.
type threeOrders struct{ partition *pipeline.Partition }

func (s *threeOrders) Read(context.Context) ([]*pipeline.Item, error) {
	var items []*pipeline.Item
	for _, body := range []string{`{"order":"o-1","cents":150}`, `{"order":"o-1","cents":150}`, `{"order":"o-2","cents":99}`} {
		it := &pipeline.Item{Partition: s.partition}
		it.Message.Body = []byte(body)
		items = append(items, it)
	}
	return items, io.EOF
}

func (s *threeOrders) Ack(_ context.Context, items []*pipeline.Item) error {
	for _, it := range items {
		fmt.Println("acknowledged", it.Call.Key.ID, it.Decision)
	}
	return nil
}

func (s *threeOrders) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }
func (s *threeOrders) Traits() pipeline.SourceTraits                                 { return pipeline.SourceTraits{} }
func (s *threeOrders) Close(context.Context) error                                   { return nil }

// This pipeline calls a Go function for each message.
func ExampleNewHandler() {
	store, err := memstore.New(nil)
	if err != nil {
		panic(err)
	}
	rule, err := key.ParseRule(".order")
	if err != nil {
		panic(err)
	}
	charge := func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
		fmt.Printf("charge for %s, attempt %d\n", m.Key.ID, m.Attempt)
		return semel.Result{}, nil
	}
	session, err := pipeline.NewTwoPhase(store, pipeline.NewHandler(charge), nil)
	if err != nil {
		panic(err)
	}
	source := &threeOrders{pipeline.NewPartition("orders")}
	runner, err := pipeline.NewRunner(source, session, &pipeline.Options{
		Key:       rule,
		Order:     pipeline.OrderPartition,
		OnMissing: pipeline.MissingStop, OnLate: pipeline.Stop, OnMismatch: pipeline.Stop, Failure: pipeline.Failure{Then: pipeline.Stop},
	})
	if err != nil {
		panic(err)
	}
	if err := runner.Run(context.Background()); err != nil {
		panic(err)
	}
	// Output:
	// charge for o-1, attempt 1
	// acknowledged o-1 fresh
	// acknowledged o-1 duplicate
	// charge for o-2, attempt 1
	// acknowledged o-2 fresh
}
