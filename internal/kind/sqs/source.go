package sqs

import (
	"context"
	"strings"

	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Source reads a queue.
type Source struct {
	config.SourceBase
	Queue
}

// NewSource returns an empty Source.
func NewSource() config.Source { return &Source{} }

// Kind implements config.Kind.
func (*Source) Kind() string { return "sqs" }

// Fields implements config.Kind.
func (s *Source) Fields() schema.Mapping {
	return schema.Mapping{
		Doc:   "Messages of a queue of Amazon SQS, standard or FIFO. A message is deleted when its outcome is durable; until then the pipeline keeps it invisible to others. Attributes are headers, and the message group is the record key.",
		Check: func(v schema.Value, _ schema.Members) { checkURL(v, "queue", s.URL) },
		Fields: []schema.Field{
			schema.TextField("queue", &s.URL, "URL of the queue, as `aws sqs get-queue-url` prints it. It also decides the region and the server.").Need(),
			s.profile(),
		},
	}
}

// About implements config.Source.
func (s *Source) About(*config.Pipeline) config.SourceAbout {
	about := config.SourceAbout{
		Name: "sqs " + s.name(), Shared: true,
		Again:     "SQS delivers the message again when its visibility timeout of 30 seconds has passed",
		AfterAck:  config.AfterAck{Unsure: "SQS may not have deleted the message", Again: "a message that is delivered again", Gets: "is acknowledged without effect"},
		TakesBack: "SQS delivers it again after %s",
		Exceptions: []string{
			"SQS deletes a message that is older than the queue's retention (four days by default), settled or not",
			"a message that came almost as often as maxReceiveCount of the queue permits is parked without an attempt, with the reason deliveries: each end of a process that has it counts, also in an outage of the target. If the credentials do not permit sqs:GetQueueAttributes, SQS moves it to the dead-letter queue instead",
		},
	}
	if s.fifo() {
		about.Drops = fifoDrops
		about.Exceptions = append(about.Exceptions, "SQS itself recognises a message that a producer repeats within five minutes; the store of the keys recognises it for the whole window, even when it is redriven from a dead-letter queue")
	}
	return about
}

// Lint implements config.Source.
func (s *Source) Lint(l *config.Linter) {
	path := l.At("key.id")
	for _, r := range rules(l.Pipeline.Key.Rule) {
		switch {
		case r.Form() == key.FormMessageID && s.fifo():
			l.Add(doctor.Warning, config.Repeat, path, r.String()+", the MessageDeduplicationId", "SQS replaces it when it moves a message to a dead-letter queue: there the message has no id, and after a redrive another one", "use an id in the body or in an attribute, such as .event_id or header:semel-key")
		case r.Form() == key.FormMessageID:
			l.Add(doctor.Broken, config.Loss, path, r.String(), "a standard queue has no id that the producer gave: no message has a key", "use an id in the body or in an attribute, such as .event_id")
		case r.Form() == key.FormHeader && strings.EqualFold(strings.NewReplacer("-", "", "_", "").Replace(r.String()), "header:messageid"):
			l.Notice(path, r.String(), "if it is a copy of the MessageId of SQS, a message that the producer repeats has another one", "nothing if the producer sets the attribute itself and repeats it")
		}
	}
	if l.Pipeline.Order == "partition" && !s.fifo() {
		l.Notice(l.At("order"), "partition", "a standard queue has no order, and all messages wait for each other", "leave it out")
	}
	for _, p := range l.File.Pipelines {
		if p == l.Pipeline {
			return
		}
		if other, ok := p.Source.(*Source); ok && other.URL == s.URL {
			l.Add(doctor.Warning, config.Loss, l.At("source.sqs.queue"), s.name()+", which pipeline "+p.Name+" reads too", "each of the two gets only a part of the messages", "give each pipeline a queue of its own, for example behind an SNS topic")
		}
	}
}

// rules returns a rule, and those that it is made of.
func rules(r *key.Rule) []*key.Rule {
	list := []*key.Rule{r}
	for _, part := range r.Rules() {
		list = append(list, rules(part)...)
	}
	return list
}

// Check implements config.Source.
func (s *Source) Check(c *config.Checker, p *config.Pipeline) {
	if sink, ok := p.Sink.(*Sink); ok && sink.has(s.URL) {
		c.Report(p.At, "pipelines."+p.Name+".sink.sqs.queue", "the pipeline would read its own output: use another queue")
	}
}

// Open implements config.Source.
func (s *Source) Open(ctx context.Context, _ *config.Env) (pipeline.Source, error) {
	client, err := s.client(ctx, s.URL)
	if err != nil {
		return nil, err
	}
	return config.AsSource(sqs.OpenSource(ctx, &sqs.SourceOptions{Client: client, Queue: s.URL}))
}

// Examine implements config.Kind.
func (s *Source) Examine(ctx context.Context, x *config.Examination) {
	s.examine(ctx, x, s.URL, true, false)
}

// Advise implements config.Kind.
func (s *Source) Advise(_ *config.File, _ *config.Pipeline, path string, err error) *diagnose.Error {
	return advise(s.name(), path, toRead, err)
}
