package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/internal/config"
)

// Trace implements config.Source.
func (s *Source) Trace(ctx context.Context, p *config.Pipeline, t *config.Tracing) error {
	return s.trace(ctx, p, t, "in the input of "+p.Name, s.Stream, s.Subjects...)
}

// Trace implements config.Sink. It looks for a subject in all streams that may have it.
func (s *Sink) Trace(ctx context.Context, p *config.Pipeline, t *config.Tracing) error {
	subjects := append([]string{}, s.Subject.Names()...)
	if s.Subject.Route != nil {
		for _, prefix := range s.Subject.Route.Prefixes() {
			if prefix != "" && !strings.HasSuffix(prefix, ".") {
				t.Looked("subjects " + prefix + "*: not searched: only a prefix that ends with a dot can be")
				continue
			}
			subjects = append(subjects, prefix+">")
		}
	}
	streams := []string{s.Stream}
	if s.Stream == "" {
		client, err := s.options()
		if err != nil {
			return err
		}
		if streams, err = nats.Streams(ctx, s.url(), client, subjects...); err != nil {
			return err
		}
	}
	for _, stream := range streams {
		if err := s.trace(ctx, p, t, "published by "+p.Name, stream, subjects...); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) trace(ctx context.Context, p *config.Pipeline, t *config.Tracing, what, stream string, subjects ...string) error {
	client, err := c.options()
	if err != nil {
		return err
	}
	read := 0
	left, err := nats.ReadNewest(ctx, c.url(), client, stream, subjects, t.Since, t.Most, func(m *semel.Message) bool {
		read++
		if t.Has(p, m) {
			subject, _ := m.Header(nats.SubjectHeader)
			t.Found(config.Sighting{Time: m.Time, Place: fmt.Sprintf("stream %s, subject %s, sequence %d", stream, subject, m.Origin.Offset), What: what})
		}
		return true
	})
	looked := fmt.Sprintf("stream %s, messages since %s: %d", stream, t.Since.UTC().Format("2006-01-02 15:04:05 MST"), read)
	if left {
		looked += fmt.Sprintf(", only among the newest %d", t.Most)
	}
	if ended := context.Cause(ctx); ended != nil && errors.Is(err, ended) {
		looked, err = looked+", not to the end: the time was over", nil
	}
	t.Looked(looked)
	return err
}
