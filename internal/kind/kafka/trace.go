package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/internal/config"
)

// logAppendTime is the type of a timestamp that the broker set when it stored the record.
const logAppendTime = 1

// Trace implements config.Source.
func (s *Source) Trace(ctx context.Context, p *config.Pipeline, t *config.Tracing) error {
	topics, err := s.topicsNow(ctx)
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		t.Looked("input of " + p.Name + ": there is no topic that matches " + s.Pattern.String() + " yet")
		return nil
	}
	return errors.Join(s.traceKeys(ctx, p, t),
		s.trace(ctx, p, t, "in the input of "+p.Name, "the time that its producer gave", topics...))
}

// traceKeys reports the records of the keys, if a transaction commits them.
func (s *Source) traceKeys(ctx context.Context, p *config.Pipeline, t *config.Tracing) error {
	if t.File.Mode(p) != config.SourceIsSink {
		return nil
	}
	if keep := p.Key.Keep; keep != nil && keep.First == nil {
		t.Looked("keys of " + p.Name + ": not seen: " + p.Name + " keeps the last or newest message of a key (key.keep), and remembers no first one. Its outputs are in the topic of the sink")
		return nil
	}
	known, err := s.look(ctx, t.File, p, t.Keys)
	switch {
	case errors.Is(err, kafkatxn.ErrNoChangelog):
		t.Looked("keys of " + p.Name + ": not seen: " + p.Name + " has never run: " + err.Error())
		return nil
	case err != nil:
		return fmt.Errorf("read the changelog of %s: %w", p.Name, err)
	}
	var records []semel.Record
	for _, k := range known {
		records = append(records, recordOf(&k))
	}
	t.Known(records)
	return nil
}

// Trace implements config.Sink.
func (s *Sink) Trace(ctx context.Context, p *config.Pipeline, t *config.Tracing) error {
	topics := s.Topic.Names()
	if s.Topic.Route != nil {
		opts, err := s.options()
		if err == nil {
			topics, err = kafka.RoutedTopics(ctx, opts, s.Topic.Route)
		}
		if err != nil || len(topics) == 0 {
			return err
		}
	}
	return s.trace(ctx, p, t, "published by "+p.Name, "the time of the message, not of its publication", topics...)
}

// trace looks for a key in topics. What a record is, and what its time is unless the broker
// set it, are for people.
func (c *Client) trace(ctx context.Context, p *config.Pipeline, t *config.Tracing, what, timed string, topics ...string) error {
	opts, ids, err := c.identify(ctx, p, topics)
	if err != nil {
		return err
	}
	read := 0
	left, err := kafka.ReadNewest(ctx, opts, topics, t.Since, t.Most, func(r *kgo.Record) bool {
		read++
		if m := messageOf(r, ids); t.Has(p, m) {
			said := what
			if r.Attrs.TimestampType() != logAppendTime {
				said += " (" + timed + ")"
			}
			t.Found(config.Sighting{Time: r.Timestamp, Place: fmt.Sprintf("topic %s %d/%d", r.Topic, r.Partition, r.Offset), What: said})
		}
		return true
	})
	if len(topics) == 1 && errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Looked("topic " + topics[0] + ": there is no such topic yet")
		return nil
	}
	looked := fmt.Sprintf("topic %s, messages since %s: %d", strings.Join(topics, ", "), t.Since.UTC().Format("2006-01-02 15:04:05 MST"), read)
	if left {
		looked += fmt.Sprintf(", only the newest %d of each partition", t.Most)
	}
	if ended := context.Cause(ctx); ended != nil && errors.Is(err, ended) {
		looked, err = looked+", not to the end: the time was over", nil
	}
	t.Looked(looked)
	return err
}
