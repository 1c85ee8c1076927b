package config

import "slices"

// Mode is how a pipeline commits. The pipeline's promise depends on it.
type Mode uint8

const (
	// TwoPhase: claim, deliver, complete, acknowledge. Any store and any sink.
	TwoPhase Mode = iota
	// SameTransaction: keys and rows commit in one PostgreSQL transaction.
	SameTransaction
	// Checkpointed: keys, output lines and, for file sources, positions become
	// durable together in an embedded store.
	Checkpointed
	// SourceIsSink: outputs, keys and offsets commit in one Kafka transaction.
	SourceIsSink
	// Lossy: a filter alone decides.
	Lossy
	// Direct: every message is delivered, without keys. Only an outbox can do without
	// them.
	Direct
)

// String returns the mode's name as used in listings.
func (m Mode) String() string {
	names := [...]string{"claim, deliver, complete", "one transaction in PostgreSQL", "one checkpoint on the disk", "one transaction in Kafka", "filter alone", "deliver, remove the row from the outbox"}
	if int(m) < len(names) {
		return names[m]
	}
	return "invalid"
}

// pairs are the kinds of store and sink whose keys and effects become durable
// together.
var pairs = [...]struct {
	store, sink string
	mode        Mode
}{
	{"postgres", "postgres", SameTransaction},
	{"embedded", "file", Checkpointed},
}

// Mode returns how a pipeline of the file commits. It is the only place that
// decides this.
func (f *File) Mode(p *Pipeline) Mode {
	if p.Store.Name == "" {
		if p.Source.About(p).Outbox.Name != "" {
			return Direct
		}
		return SourceIsSink
	}
	store, ok := f.Store(p.Store.Name)
	if !ok {
		return TwoPhase
	}
	if store.Spec.About().Filter != nil {
		return Lossy
	}
	if p.Observe {
		return TwoPhase
	}
	for _, pair := range pairs {
		sink := p.Sink.About().Store // if the sink names a store, it must be this one
		if pair.store == store.Spec.Kind() && pair.sink == p.Sink.Kind() && (sink.Name == store.Name || pair.mode != SameTransaction) {
			return pair.mode
		}
	}
	return TwoPhase
}

// Decider returns the store that every answer of a store depends on: the store
// itself, or the lowest layer of its stack. It returns nil if none exists.
func (f *File) Decider(name string) *Store {
	s, ok := f.Store(name)
	if !ok {
		return nil
	}
	if layers := s.Spec.About().Layers; len(layers) > 0 {
		return f.Decider(layers[len(layers)-1].Name)
	}
	return s
}

// KeepsIDs reports whether a store keeps readable ids. If they are kept only if needed, it
// does for keys whose outcome may become unknown: those of a proxy or of serve, and of a pipeline that holds
// them.
func (f *File) KeepsIDs(store StoreKind, ids IDs) bool {
	if ids != IDsIfNeeded || f == nil {
		return ids == IDsKept
	}
	decides := func(name string) bool {
		decider := f.Decider(name)
		return decider != nil && decider.Spec == store
	}
	if f.Proxy != nil && decides(f.Proxy.Store.Name) || f.Serve != nil && decides(f.Serve.Store.Name) {
		return true
	}
	return slices.ContainsFunc(f.Pipelines, func(p *Pipeline) bool { return p.OnLeaseExpired == "hold" && decides(p.Store.Name) })
}

// Pipeline returns the pipeline with this name.
func (f *File) Pipeline(name string) (*Pipeline, bool) {
	for _, p := range f.Pipelines {
		if p.Name == name {
			return p, true
		}
	}
	return nil, false
}

// PipelineNames returns the names of all pipelines, in the order of the file.
func (f *File) PipelineNames() []string {
	names := make([]string, len(f.Pipelines))
	for i, p := range f.Pipelines {
		names[i] = p.Name
	}
	return names
}
