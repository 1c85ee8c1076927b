package config

// Mode is how a pipeline commits, on which its promise rests.
type Mode uint8

const (
	// TwoPhase: claim, deliver, complete, acknowledge. Any store and any sink.
	TwoPhase Mode = iota
	// SameTransaction: keys and rows are one transaction of PostgreSQL.
	SameTransaction
	// Checkpointed: keys, lines of the output and, where the source is files,
	// positions become durable together in an embedded store.
	Checkpointed
	// SourceIsSink: outputs, keys and offsets are one transaction of Kafka.
	SourceIsSink
	// Lossy: a filter alone decides.
	Lossy
)

// String returns the mode's name as listings have it.
func (m Mode) String() string {
	names := [...]string{"claim, deliver, complete", "one transaction in PostgreSQL", "one checkpoint on the disk", "one transaction in Kafka", "filter alone"}
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

// Mode says how a pipeline of the file commits. It is the one place that
// decides it.
func (f *File) Mode(p *Pipeline) Mode {
	if p.Store.Name == "" {
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
		sink := p.Sink.About().Store // a sink that names a store must name this one
		if pair.store == store.Spec.Kind() && pair.sink == p.Sink.Kind() && (sink.Name == store.Name || pair.mode != SameTransaction) {
			return pair.mode
		}
	}
	return TwoPhase
}

// Decider returns the store on which every answer of a store rests: itself, or
// the lowest of its stack; nil if there is none.
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

// Pipeline returns the pipeline of this name.
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
