package otelobserve_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/observe/otelobserve"
	"github.com/semel-dev/semel/observe/promobserve"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// counted returns a guard whose decisions Prometheus collects.
func counted(store semel.Store) (*semel.Guard, error) {
	m := promobserve.New() // one for all guards of the program
	prometheus.MustRegister(m)
	return semel.NewGuard(store, &semel.GuardOptions{Observer: m.Guard("orders")})
}

// followed returns a guard that makes spans below those of its callers.
func followed(provider trace.TracerProvider, store semel.Store) (*semel.Guard, error) {
	tracer := otelobserve.NewTracer(provider.Tracer("orders"), nil)
	return semel.NewGuard(store, &semel.GuardOptions{Observer: tracer})
}

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
	return pipeline.NewRunner(source, session, &opts)
}

// The exporter keeps the spans in memory. A program uses one that sends them to a
// collector, such as otlptracehttp.
func ExampleNewTracer() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter))
	store, err := memstore.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	guard, err := followed(provider, store)
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

func TestDocumentedGuardIsCounted(t *testing.T) {
	registerer, gatherer := prometheus.DefaultRegisterer, prometheus.DefaultGatherer
	t.Cleanup(func() { prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registerer, gatherer })
	registry := prometheus.NewRegistry()
	prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registry, registry
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := counted(store)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guard.Do(t.Context(), semel.Key{ID: "a"}, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "dedup_decisions_total" {
			return
		}
	}
	t.Error("the decision of the guard is not collected")
}
