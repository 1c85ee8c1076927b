package config

import (
	"context"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/header"
)

// Traced is a source or sink whose server keeps messages that can be searched without
// taking them. `semel trace` calls it.
type Traced interface {
	// Trace reports the messages of a key to t, and where it looked. It changes nothing.
	// It blocks until it has looked, or ctx ends.
	Trace(ctx context.Context, p *Pipeline, t *Tracing) error
}

// Addressed is a sink that knows where it writes a message without its server. `semel trace`
// asks it about the rows of an outbox.
type Addressed interface {
	// Address describes where a message is written, as in "exchange orders, routing key
	// paid". It is "" if the message names no target that is allowed.
	Address(m *semel.Message) string
}

// Tracing is a search for the messages of a key.
type Tracing struct {
	File *File
	// IDs are what the key's id may be.
	IDs []string
	// Since limits how far back topics are read. Most limits the newest messages that
	// are read of each partition.
	Since time.Time
	Most  int64
	// Found is called for each message.
	Found func(Sighting)
	// Looked is called for each place, with what was read there, as in "topic orders,
	// 1200 messages since yesterday".
	Looked func(text string)
}

// Unsearched notes a source or sink into which nobody can look. name is that of its About.
func (t *Tracing) Unsearched(end, pipeline, name string) {
	t.Looked(end + " of " + pipeline + " (" + name + "): it cannot be searched")
}

// Sighting is a message of a key in some place.
type Sighting struct {
	Time time.Time
	// Place is where, as in "topic orders 2/17". What says what that means, as in "published".
	Place, What string
}

// Has reports whether a message has the key: by the header of an output, or by the rule of
// the pipeline.
func (t *Tracing) Has(p *Pipeline, m *semel.Message) bool {
	if id, ok := header.KeyOf(m); ok && slices.Contains(t.IDs, id) {
		return true
	}
	if p.Key.Rule == nil {
		return false
	}
	k, err := p.Key.Rule.Key("", m)
	return err == nil && slices.Contains(t.IDs, k.ID)
}
