// Package otelobserve makes OpenTelemetry traces of guards and pipelines. README.md of
// package observe describes the spans. No attribute is made from the content of a message.
//
// Metrics are those of promobserve. A program that sends its metrics with OpenTelemetry
// reads them through go.opentelemetry.io/contrib/bridges/prometheus.
package otelobserve

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Tracer makes spans of the work of guards and pipelines. Pass it as the observer of
// both, alone or within observe.All. README.md of package observe describes the spans. It is
// safe for concurrent use.
type Tracer struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	source     []attribute.KeyValue // of spans that process a message
	process    string               // the name of these spans
	sink       []attribute.KeyValue // of spans that deliver
	send       string               // the name of these spans; empty without a sink
}

var _ pipeline.Tracer = (*Tracer)(nil)

// TracerOptions are the options of NewTracer. The zero value is valid.
type TracerOptions struct {
	// Propagator reads the trace context in the headers of a message, and replaces it
	// by that of the message's span. Defaults to propagation.TraceContext, with the
	// headers traceparent and tracestate.
	Propagator propagation.TextMapPropagator
	// Source is where a pipeline reads, and Sink where it sends. With a Source, spans of
	// messages have the attributes of OpenTelemetry's messaging conventions. With a
	// Sink, the effect of a pipeline is a span of the kind producer. Default to none.
	Source, Sink Endpoint
}

// Endpoint is a source or sink in the words of OpenTelemetry's messaging conventions.
type Endpoint struct {
	// System is the messaging.system, such as "kafka".
	System string
	// Destination is the messaging.destination.name, the topic or queue.
	Destination string
}

// attributes returns the attributes of spans for an operation, or nil without a system.
func (e *Endpoint) attributes(operation string) []attribute.KeyValue {
	if e.System == "" {
		return nil
	}
	list := []attribute.KeyValue{
		attribute.String("messaging.system", e.System),
		attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.operation.type", operation),
	}
	if e.Destination != "" {
		list = append(list, attribute.String("messaging.destination.name", e.Destination))
	}
	return list
}

// NewTracer returns a Tracer whose spans a tracer of the OpenTelemetry API makes. Nil
// options are the zero options.
func NewTracer(tracer trace.Tracer, opts *TracerOptions) *Tracer {
	var o TracerOptions
	if opts != nil {
		o = *opts
	}
	t := &Tracer{tracer: tracer, propagator: o.Propagator, process: "process", source: o.Source.attributes("process"), sink: o.Sink.attributes("send")}
	if t.propagator == nil {
		t.propagator = propagation.TraceContext{}
	}
	if o.Source.Destination != "" {
		t.process += " " + o.Source.Destination
	}
	if o.Sink.System != "" {
		t.send = strings.TrimSpace("send " + o.Sink.Destination)
	}
	return t
}

// Observe implements semel.Observer. It does nothing.
func (t *Tracer) Observe(semel.Event) {}

// ObservePipeline implements pipeline.Observer. It does nothing.
func (t *Tracer) ObservePipeline(pipeline.Event) {}

// message is the Trace of an item.
type message struct {
	span    trace.Span
	baggage baggage.Baggage
	headers []semel.Header // before Begin
}

// batch is the key of a context's links to the spans of several messages. A context of
// one message has none, and the message's span.
type batch struct{}

// Begin implements pipeline.Tracer. It starts a span for each message, below the span
// that its headers name.
func (t *Tracer) Begin(ctx context.Context, name string, items []*pipeline.Item) {
	// The context of Run may have a span, which must not be the parent of all messages.
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	for _, it := range items {
		headers := carrier{slices.Clone(it.Message.Headers)}
		parent := t.propagator.Extract(ctx, &headers)
		all := append(slices.Clip(t.source), attribute.String("dedup.pipeline", name))
		if t.source != nil {
			all = append(all, attribute.String("messaging.destination.partition.id", strconv.Itoa(int(it.Message.Origin.Partition))))
		}
		own, span := t.tracer.Start(parent, t.process, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(all...))
		t.propagator.Inject(own, &headers)
		it.Trace = &message{span, baggage.FromContext(own), it.Message.Headers}
		it.Message.Headers = headers.list
	}
}

// In implements pipeline.Tracer. The context of one message has its span. That of
// several has none, and the spans of their steps have links.
func (t *Tracer) In(ctx context.Context, items []*pipeline.Item) context.Context {
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	links := make([]trace.Link, 0, len(items))
	for _, it := range items {
		m, ok := it.Trace.(*message)
		switch {
		case !ok:
		case len(items) == 1:
			ctx = baggage.ContextWithBaggage(trace.ContextWithSpan(ctx, m.span), m.baggage)
		default:
			links = append(links, trace.Link{SpanContext: m.span.SpanContext()})
		}
	}
	return context.WithValue(ctx, batch{}, links)
}

// End implements pipeline.Tracer. It ends the spans of messages.
func (t *Tracer) End(items []*pipeline.Item) {
	for _, it := range items {
		m, ok := it.Trace.(*message)
		if !ok {
			continue
		}
		it.Trace, it.Message.Headers = nil, m.headers
		if !m.span.IsRecording() {
			m.span.End()
			continue
		}
		m.span.SetAttributes(attribute.String("dedup.decision", it.Decision.String()), attribute.Int("dedup.attempt", it.Attempt))
		if it.Parked != "" {
			m.span.SetAttributes(attribute.String("dedup.parked", string(it.Parked)))
		}
		fail(m.span, it.Err)
		m.span.End()
	}
}

// BeginStep implements semel.Tracer. The span of a step is below that of its context.
func (t *Tracer) BeginStep(ctx context.Context, step semel.Step, keys int) (context.Context, func(semel.Decision, error)) {
	name, kind := "semel "+step.String(), trace.SpanKindInternal
	all := []attribute.KeyValue{attribute.Int("dedup.keys", keys)}
	links, piped := ctx.Value(batch{}).([]trace.Link)
	if piped && step == semel.StepEffect && t.send != "" {
		name, kind, all = t.send, trace.SpanKindProducer, append(all, t.sink...)
		if keys > 1 {
			all = append(all, attribute.Int("messaging.batch.message_count", keys))
		}
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(all...), trace.WithLinks(links...))
	return ctx, func(decision semel.Decision, err error) {
		if step == semel.StepClaim && (decision != semel.Undecided || err == nil) {
			span.SetAttributes(attribute.String("dedup.decision", decision.String()))
			err = nil // the decision says it
		}
		fail(span, err)
		span.End()
	}
}

// fail marks a span as failed. It shows the class of the error only, because the text
// may quote a message. A message that waits for another has not failed.
func fail(span trace.Span, err error) {
	if err == nil || errors.Is(err, pipeline.ErrBehind) || errors.Is(err, semel.ErrInFlight) {
		return
	}
	class := semel.Classify(err).String()
	if errors.Is(err, semel.ErrPanic) {
		class = "panic"
	}
	span.SetAttributes(attribute.String("error.type", class))
	span.SetStatus(codes.Error, class)
}

// carrier gives the headers of a message to a propagator. Names are compared without
// case, because HTTP headers come in other spellings.
type carrier struct{ list []semel.Header }

// find returns the index of the last header with a name, or -1.
func (c *carrier) find(name string) int {
	for i := len(c.list) - 1; i >= 0; i-- {
		if strings.EqualFold(c.list[i].Name, name) {
			return i
		}
	}
	return -1
}

// Get implements propagation.TextMapCarrier.
func (c *carrier) Get(name string) string {
	if i := c.find(name); i >= 0 {
		return string(c.list[i].Value)
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c *carrier) Set(name, value string) {
	if i := c.find(name); i >= 0 {
		c.list[i].Value = []byte(value)
		return
	}
	c.list = append(c.list, semel.Header{Name: name, Value: []byte(value)})
}

// Keys implements propagation.TextMapCarrier.
func (c *carrier) Keys() []string {
	names := make([]string, len(c.list))
	for i := range c.list {
		names[i] = c.list[i].Name
	}
	return names
}
