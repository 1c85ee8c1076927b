package otelobserve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/observe"
	"github.com/semel-dev/semel/observe/otelobserve"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// recorded has the spans of a test.
type recorded struct {
	*testing.T
	*tracetest.InMemoryExporter
	provider trace.TracerProvider
	tracer   trace.Tracer
}

func record(t *testing.T) *recorded {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	return &recorded{t, exporter, provider, provider.Tracer("semel")}
}

// named returns the spans with a name.
func (r *recorded) named(name string) (list []tracetest.SpanStub) {
	for _, s := range r.GetSpans() {
		if s.Name == name {
			list = append(list, s)
		}
	}
	return list
}

// one returns the span with a name, of which there is one below a parent.
func (r *recorded) one(name string, parent trace.SpanContext) tracetest.SpanStub {
	r.Helper()
	var found []tracetest.SpanStub
	for _, s := range r.named(name) {
		if s.Parent.SpanID() == parent.SpanID() && s.SpanContext.TraceID() == parent.TraceID() {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		r.Fatalf("%d spans %q are below %s/%s, among %v", len(found), name, parent.TraceID(), parent.SpanID(), r.names())
	}
	return found[0]
}

// panicked checks the span of an effect that panicked, at this place among the effects.
func (r *recorded) panicked(at int) {
	r.Helper()
	effects := r.named("semel effect")
	if len(effects) != at+1 {
		r.Fatalf("%d effects have a span, want %d", len(effects), at+1)
	}
	if s := &effects[at]; s.Status.Code != codes.Error || values(s) != "dedup.keys=1 error.type=panic" {
		r.Errorf("%+v %s", s.Status, values(s))
	}
}

func (r *recorded) names() (list []string) {
	for _, s := range r.GetSpans() {
		list = append(list, s.Name+" below "+s.Parent.SpanID().String())
	}
	return list
}

// values returns the attributes of a span as text.
func values(s *tracetest.SpanStub) string {
	var list []string
	for _, kv := range s.Attributes {
		list = append(list, string(kv.Key)+"="+kv.Value.String())
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// sent is a source of messages that a producer sent, each in a span of its own.
type sent struct {
	items    []*pipeline.Item
	producer []trace.SpanContext
}

func send(r *recorded, bodies ...string) *sent {
	s, partition := &sent{}, pipeline.NewPartition("orders")
	for _, body := range bodies {
		ctx, span := r.tracer.Start(context.Background(), "publish", trace.WithSpanKind(trace.SpanKindProducer))
		headers := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, headers)
		it := &pipeline.Item{Partition: partition}
		it.Message.Body, it.Message.Headers = []byte(body), []semel.Header{{Name: "Traceparent", Value: []byte(headers["traceparent"])}}
		s.items, s.producer = append(s.items, it), append(s.producer, span.SpanContext())
		span.End()
	}
	return s
}

func (s *sent) Read(context.Context) ([]*pipeline.Item, error)                { return s.items, io.EOF }
func (s *sent) Ack(context.Context, []*pipeline.Item) error                   { return nil }
func (s *sent) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }
func (s *sent) Traits() pipeline.SourceTraits                                 { return pipeline.SourceTraits{} }
func (s *sent) Close(context.Context) error                                   { return nil }

// parker keeps the trace contexts of parked messages.
type parker struct{ parents []string }

func (p *parker) Park(_ context.Context, list []pipeline.Parked) error {
	for i := range list {
		parent, _ := list[i].Message.Header("Traceparent")
		p.parents = append(p.parents, string(parent))
	}
	return nil
}

// run runs a pipeline from these messages to a sink.
func run(t *testing.T, source pipeline.Source, sink pipeline.Sink, tracer pipeline.Observer, letters pipeline.Parker) {
	t.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	session, err := pipeline.NewTwoPhase(store, sink, &pipeline.TwoPhaseOptions{Guard: semel.GuardOptions{Observer: tracer}})
	if err != nil {
		t.Fatal(err)
	}
	rule, err := key.ParseRule(".id")
	if err != nil {
		t.Fatal(err)
	}
	runner, err := pipeline.NewRunner(source, session, &pipeline.Options{
		Name: "orders", Key: rule, Order: pipeline.OrderPartition, Observer: tracer, DeadLetters: letters, Workers: 1,
		Failure: pipeline.Failure{Attempts: 2, From: time.Millisecond, To: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := runner.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestMessagesHaveTheTraceOfTheirProducer(t *testing.T) {
	t.Parallel()
	r := record(t)
	source := send(r, `{"id":"a","secret":1}`, `{"id":"a","secret":1}`, `{"id":"fails"}`, `{}`)
	original := source.items[0].Message.Headers
	var within []trace.SpanContext
	var carried []string
	handler := pipeline.NewHandler(func(ctx context.Context, d pipeline.Delivery) (semel.Result, error) {
		within = append(within, trace.SpanContextFromContext(ctx))
		header, _ := d.Header("Traceparent")
		carried = append(carried, string(header))
		if d.Key.ID == "fails" {
			return semel.Result{}, fmt.Errorf("a secret: %w", errors.New("no"))
		}
		return semel.Result{}, nil
	})
	var letters parker
	tracer := observe.All(otelobserve.NewTracer(r.tracer, &otelobserve.TracerOptions{Source: otelobserve.Endpoint{System: "kafka", Destination: "orders"}}))
	run(t, source, handler, tracer, &letters)

	first := r.one("process orders", source.producer[0])
	if want := "dedup.attempt=1 dedup.decision=fresh dedup.pipeline=orders messaging.destination.name=orders messaging.destination.partition.id=0 messaging.operation.name=process messaging.operation.type=process messaging.system=kafka"; values(&first) != want || first.SpanKind != trace.SpanKindConsumer || !first.Parent.IsRemote() {
		t.Errorf("%s %s, want %s", first.SpanKind, values(&first), want)
	}
	claim, effect, complete := r.one("semel claim", first.SpanContext), r.one("semel effect", first.SpanContext), r.one("semel complete", first.SpanContext)
	if values(&claim) != "dedup.decision=fresh dedup.keys=1" || values(&complete) != "dedup.keys=1" {
		t.Errorf("%s, %s", values(&claim), values(&complete))
	}
	if within[0].SpanID() != effect.SpanContext.SpanID() {
		t.Error("the handler does not run in the span of the effect")
	}
	if want := "00-" + first.SpanContext.TraceID().String() + "-" + first.SpanContext.SpanID().String() + "-01"; carried[0] != want {
		t.Errorf("the message carries %s, want %s", carried[0], want)
	}
	if headers := source.items[0].Message.Headers; &headers[0] != &original[0] || source.items[0].Trace != nil {
		t.Error("the item is not as its source made it")
	}

	second := r.one("process orders", source.producer[1])
	if !strings.Contains(values(&second), "dedup.decision=duplicate") {
		t.Errorf("%s", values(&second))
	}
	// Each attempt is a span below that of the producer.
	var tries []tracetest.SpanStub
	for _, s := range r.named("process orders") {
		if s.Parent.SpanID() == source.producer[2].SpanID() {
			tries = append(tries, s)
		}
	}
	if len(tries) != 2 || !strings.Contains(values(&tries[0]), "dedup.attempt=1") || !strings.Contains(values(&tries[1]), "dedup.attempt=2") ||
		!strings.Contains(values(&tries[1]), "dedup.parked=attempts") || tries[1].Status.Code != codes.Error {
		t.Fatalf("%+v", tries)
	}
	r.one("semel park", tries[1].SpanContext)
	missing := r.one("process orders", source.producer[3])
	r.one("semel park", missing.SpanContext)
	if len(letters.parents) != 2 || !strings.Contains(letters.parents[0], tries[1].SpanContext.SpanID().String()) {
		t.Errorf("parked with %q", letters.parents)
	}
	for _, s := range r.GetSpans() {
		if text := fmt.Sprint(s.Attributes, s.Status, s.Events); strings.Contains(text, "secret") || strings.Contains(text, "fails") {
			t.Errorf("%s has content: %s", s.Name, text)
		}
	}
}

// many is a sink that takes several messages in one call.
type many struct{ within trace.SpanContext }

func (m *many) Deliver(ctx context.Context, _ []*pipeline.Item) {
	m.within = trace.SpanContextFromContext(ctx)
}
func (m *many) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Ordered: true} }
func (m *many) Close(context.Context) error { return nil }

func TestStepsOfABatchAreLinkedToItsMessages(t *testing.T) {
	t.Parallel()
	r := record(t)
	source := send(r, `{"id":"a"}`, `{"id":"b"}`, `{"id":"c"}`)
	var sink many
	run(t, source, &sink, otelobserve.NewTracer(r.tracer, &otelobserve.TracerOptions{Sink: otelobserve.Endpoint{System: "kafka", Destination: "paid"}}), &parker{})
	var messages []trace.SpanID
	for _, producer := range source.producer {
		messages = append(messages, r.one("process", producer).SpanContext.SpanID())
	}
	for _, name := range []string{"semel claim", "send paid", "semel complete"} {
		step := r.one(name, trace.SpanContext{}.WithTraceID(r.named(name)[0].SpanContext.TraceID()))
		var linked []trace.SpanID
		for _, link := range step.Links {
			linked = append(linked, link.SpanContext.SpanID())
		}
		if !slices.Equal(linked, messages) {
			t.Errorf("%s is linked to %v, want %v", name, linked, messages)
		}
	}
	send := r.named("send paid")[0]
	if want := "dedup.keys=3 messaging.batch.message_count=3 messaging.destination.name=paid messaging.operation.name=send messaging.operation.type=send messaging.system=kafka"; values(&send) != want || send.SpanKind != trace.SpanKindProducer {
		t.Errorf("%s %s, want %s", send.SpanKind, values(&send), want)
	}
	if sink.within.SpanID() != send.SpanContext.SpanID() {
		t.Error("the sink does not run in the span of the delivery")
	}
}

func TestGuardsHaveSpansBelowTheirCaller(t *testing.T) {
	t.Parallel()
	r := record(t)
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Observer: otelobserve.NewTracer(r.tracer, nil)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, request := r.tracer.Start(t.Context(), "POST /charges")
	var within trace.SpanContext
	for range 2 {
		if _, err := guard.Do(ctx, semel.Key{ID: "k"}, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
			within = trace.SpanContextFromContext(ctx)
			return nil, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	effect := r.one("semel effect", request.SpanContext())
	r.one("semel complete", request.SpanContext())
	if within.SpanID() != effect.SpanContext.SpanID() {
		t.Error("the effect does not run in its span")
	}
	var decisions []string
	for _, s := range r.named("semel claim") {
		decisions = append(decisions, values(&s))
	}
	if want := []string{"dedup.decision=fresh dedup.keys=1", "dedup.decision=duplicate dedup.keys=1"}; !slices.Equal(decisions, want) {
		t.Errorf("claims: %q, want %q", decisions, want)
	}

	broken := fmt.Errorf("a secret: %w", semel.ErrOutcomeUnknown)
	if _, err := guard.Do(ctx, semel.Key{ID: "broken"}, func(context.Context, semel.Claim) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	failed := r.named("semel effect")[1]
	if failed.Status.Code != codes.Error || failed.Status.Description != "unknown outcome" || values(&failed) != "dedup.keys=1 error.type=unknown outcome" {
		t.Errorf("%+v %s", failed.Status, values(&failed))
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = guard.Do(ctx, semel.Key{ID: "panics"}, func(context.Context, semel.Claim) ([]byte, error) { panic("no") })
	}()
	r.panicked(2)
}

func TestTransactionsHaveSpans(t *testing.T) {
	t.Parallel()
	r := record(t)
	store, err := pgstore.Connect(t.Context(), servers.Database(t), &pgstore.Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	guard, err := pgstore.NewGuard(store, &semel.GuardOptions{Observer: otelobserve.NewTracer(r.tracer, nil)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, request := r.tracer.Start(t.Context(), "request")
	var within trace.SpanContext
	for range 2 {
		if _, err := guard.DoTx(ctx, semel.Key{ID: "k"}, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			within = trace.SpanContextFromContext(ctx)
			return nil, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if effect := r.one("semel effect", request.SpanContext()); within.SpanID() != effect.SpanContext.SpanID() {
		t.Error("the effect does not run in its span")
	}
	r.one("semel complete", request.SpanContext())
	if claims := r.named("semel claim"); len(claims) != 2 || !strings.Contains(values(&claims[1]), "dedup.decision=duplicate") {
		t.Errorf("%v", r.names())
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = guard.DoTx(ctx, semel.Key{ID: "panics"}, func(context.Context, pgx.Tx) ([]byte, error) { panic("no") })
	}()
	r.panicked(1)
}

func TestTracesPassThroughKafka(t *testing.T) {
	t.Parallel()
	r := record(t)
	brokers, from, to := servers.Kafka(t), servicestest.Topic(), servicestest.Topic()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumeTopics(to))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 1, 1, nil, from, to); err != nil {
		t.Fatal(err)
	}
	ctx, producer := r.tracer.Start(t.Context(), "publish")
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	record := &kgo.Record{Topic: from, Value: []byte(`{"id":"1"}`), Headers: []kgo.RecordHeader{{Key: "traceparent", Value: []byte(headers["traceparent"])}}}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		t.Fatal(err)
	}

	seeds := []kgo.Opt{kgo.SeedBrokers(brokers)}
	source, err := kafka.OpenSource(t.Context(), &kafka.SourceOptions{Client: seeds, Group: from, Topics: []string{from}})
	if err != nil {
		t.Fatal(err)
	}
	sink, err := kafka.OpenSink(t.Context(), &kafka.SinkOptions{Client: seeds, Topic: to})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	rule, err := key.ParseRule(".id")
	if err != nil {
		t.Fatal(err)
	}
	runner, err := traced(r.provider, source, sink, store, pipeline.Options{Key: rule, DeadLetters: &parker{}})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(running) }()
	fetches := client.PollFetches(t.Context())
	stop()
	if err := errors.Join(fetches.Err(), <-ended); err != nil || fetches.NumRecords() != 1 {
		t.Fatal(fetches.NumRecords(), err)
	}

	process := r.one("process orders", producer.SpanContext())
	r.one("send paid", process.SpanContext)
	got := propagation.MapCarrier{}
	for _, h := range fetches.Records()[0].Headers {
		if _, again := got[h.Key]; again {
			t.Errorf("the header %s is there twice", h.Key)
		}
		got[h.Key] = string(h.Value)
	}
	consumer := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(t.Context(), got))
	if consumer.TraceID() != producer.SpanContext().TraceID() || consumer.SpanID() != process.SpanContext.SpanID() {
		t.Errorf("the consumer's parent is %v, want the span %v", consumer, process.SpanContext)
	}
}
