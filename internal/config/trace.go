package config

import (
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
)

// Tracing is a search for the messages of a key.
type Tracing struct {
	File *File
	// Keys are what the key may be, in the scope of the pipeline.
	Keys []semel.Key
	// Since limits how far back topics are read. Most limits the newest messages that
	// are read of each partition.
	Since time.Time
	Most  int64
	// Found is called for each message.
	Found func(Sighting)
	// Known is called once with the records of the keys, or with none, by a source that has
	// the keys of its pipeline.
	Known func(records []semel.Record)
	// Looked is called for each place, with the amount that was read, as in "topic orders,
	// 1200 messages since yesterday".
	Looked func(text string)
}

// Unsearched notes a source or sink that cannot be searched. name is that of its About.
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
	if id, ok := header.KeyOf(m); ok && t.names(id) {
		return true
	}
	if p.Key.Rule == nil {
		return false
	}
	k, _, err := p.KeyOf(m)
	return err == nil && t.names(k.ID)
}

// IDs returns the ids that the key may have.
func (t *Tracing) IDs() []string {
	var ids []string
	for _, k := range t.Keys {
		ids = append(ids, k.ID)
	}
	return ids
}

func (t *Tracing) names(id string) bool {
	return slices.ContainsFunc(t.Keys, func(k semel.Key) bool { return k.ID == id })
}
