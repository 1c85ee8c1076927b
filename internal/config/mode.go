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
	if _, ok := store.Spec.(*Filter); ok {
		return Lossy
	}
	if p.Observe {
		return TwoPhase
	}
	switch store.Spec.(type) {
	case *Postgres:
		if sink, ok := p.Sink.(*PostgresSink); ok && sink.Store.Name == store.Name {
			return SameTransaction
		}
	case *Embedded:
		if _, ok := p.Sink.(*FileSink); ok {
			return Checkpointed
		}
	}
	return TwoPhase
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
