package otelobserve_test

import (
	"context"
	"fmt"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/observe/otelobserve"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// traced returns a pipeline whose spans go to a provider.
func traced(provider trace.TracerProvider, source pipeline.Source, sink pipeline.Sink, store semel.Store, opts pipeline.Options) (*pipeline.Runner, error) {
	tracer := otelobserve.NewTracer(provider.Tracer("orders"), &otelobserve.TracerOptions{
		Source: otelobserve.Endpoint{System: "kafka", Destination: "orders"},
		Sink:   otelobserve.Endpoint{System: "kafka", Destination: "paid"},
	})
	session, err := pipeline.NewTwoPhase(store, sink, &pipeline.TwoPhaseOptions{Guard: semel.GuardOptions{Observer: tracer}})
	if err != nil {
		return nil, err
	}
	opts.Observer = tracer
	return pipeline.New(source, session, &opts)
}

// The exporter keeps the spans in memory. A program uses one that sends them to a
// collector, such as otlptracehttp.
func ExampleNewTracer() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter))
	tracer := otelobserve.NewTracer(provider.Tracer("orders"), nil)

	store, err := memstore.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Observer: tracer})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		_, err := guard.Do(context.Background(), semel.Key{ID: "order-42"}, func(context.Context, semel.Claim) ([]byte, error) {
			return []byte("receipt"), nil
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name)
	}
	// Output:
	// semel claim
	// semel effect
	// semel complete
	// semel claim
}
