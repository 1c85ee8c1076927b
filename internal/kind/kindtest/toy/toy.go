// Package toy is a kind of source that counts and a kind of sink that prints: the
// minimum that a kind must implement. Tests show with it that a kind is a package and a line in a
// list.
package toy

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Source delivers the numbers from 1 to a maximum, each twice.
type Source struct {
	config.SourceBase
	Last int
}

// NewSource returns an empty Source.
func NewSource() config.Source { return &Source{} }

// Kind implements config.Kind.
func (*Source) Kind() string { return "toy" }

// Fields implements config.Kind.
func (s *Source) Fields() schema.Mapping {
	return schema.Mapping{Doc: "Numbers, each twice.", Fields: []schema.Field{
		schema.NumberField("last", &s.Last, 1, 1000, "The last number.").Or("3"),
	}}
}

// About implements config.Source.
func (s *Source) About(*config.Pipeline) config.SourceAbout {
	return config.SourceAbout{
		Name: "toy up to " + strconv.Itoa(s.Last), Again: "the source counts from the beginning again",
		AfterAck: config.ReadAgain(), Behind: "nothing behind it is counted",
	}
}

// Lint implements config.Source.
func (s *Source) Lint(l *config.Linter) {
	if s.Last > 100 {
		l.Notice(l.At("source.toy.last"), strconv.Itoa(s.Last), "it takes long", "last: 100")
	}
}

// Examine implements config.Kind.
func (s *Source) Examine(_ context.Context, x *config.Examination) {
	x.Note(doctor.Fine, "source.toy", "it can count", "", "")
}

// Sample implements config.Source.
func (s *Source) Sample(_ context.Context, _ *config.Pipeline, fn func(*semel.Message) bool) error {
	for n := range 2 * s.Last {
		if m := message(n); !fn(&m) {
			return nil
		}
	}
	return nil
}

// message returns the n-th message.
func message(n int) semel.Message {
	return semel.Message{
		Body:   fmt.Appendf(nil, `{"id":%d}`, n/2+1),
		Origin: semel.Origin{Source: "toy", Offset: int64(n)},
	}
}

// Open implements config.Source.
func (s *Source) Open(context.Context, *config.Env) (pipeline.Source, error) {
	return &counter{partition: pipeline.NewPartition("toy"), last: 2 * s.Last}, nil
}

// counter counts once, as one partition in order.
type counter struct {
	partition *pipeline.Partition
	n, last   int
}

// Traits implements pipeline.Source.
func (*counter) Traits() pipeline.SourceTraits { return pipeline.SourceTraits{} }

// Read implements pipeline.Source.
func (c *counter) Read(context.Context) ([]*pipeline.Item, error) {
	if c.n == c.last {
		return nil, io.EOF
	}
	it := &pipeline.Item{Partition: c.partition}
	it.Message = message(c.n)
	c.n++
	return []*pipeline.Item{it}, nil
}

// Ack implements pipeline.Source.
func (*counter) Ack(context.Context, []*pipeline.Item) error { return nil }

// Return implements pipeline.Source. Messages that are not settled are counted
// again after a restart.
func (*counter) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }

// Close implements pipeline.Source.
func (*counter) Close(context.Context) error { return nil }

// Sink prints bodies.
type Sink struct {
	config.SinkBase
	Before string
}

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "toy" }

// Fields implements config.Kind.
func (s *Sink) Fields() schema.Mapping {
	return schema.Mapping{Doc: "Bodies with a word before them.", Fields: []schema.Field{
		schema.TextField("before", &s.Before, "The word.").Or("toy"),
	}}
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout { return config.SinkAbout{Name: "toy", Stdout: true} }

// Open implements config.Sink.
func (s *Sink) Open(_ context.Context, env *config.Env) (pipeline.Sink, error) {
	return &printer{s.Before, env.Stdout}, nil
}

type printer struct {
	before string
	to     io.Writer
}

// Traits implements pipeline.Sink.
func (*printer) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Ordered: true} }

// Deliver implements pipeline.Sink.
func (p *printer) Deliver(_ context.Context, items []*pipeline.Item) {
	for _, it := range items {
		_, it.Err = fmt.Fprintf(p.to, "%s %s\n", p.before, it.Message.Body)
	}
}

// Close implements pipeline.Sink.
func (*printer) Close(context.Context) error { return nil }
