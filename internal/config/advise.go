package config

import (
	"errors"

	"github.com/semel-dev/semel/internal/diagnose"
)

// Part is a part of a pipeline that has servers of its own.
type Part string

const (
	SourcePart Part = "source"
	SinkPart   Part = "sink"
	StorePart  Part = "store"
	ParkedPart Part = "parked"
)

// Advise adds to an error of a pipeline's part what it means and what to do. The
// result is on one line, has no secrets and wraps err.
func (f *File) Advise(p *Pipeline, part Part, err error) error {
	switch part {
	case SourcePart:
		return f.advise(p, err, of{p.Source, "source." + p.Source.Kind()})
	case SinkPart:
		return f.advise(p, err, of{p.Sink, "sink." + p.Sink.Kind()})
	case StorePart:
		return f.AdviseStores(f.Stack(p.Store.Name), err)
	case ParkedPart:
		if name := p.Parked.Store.Name; name != "" {
			return f.AdviseStores(f.Stack(name), err)
		}
	}
	return f.advise(p, err, of{p.Sink, "sink." + p.Sink.Kind()}, of{p.Source, "source." + p.Source.Kind()})
}

// AdviseStores is Advise for an error of one of several stores.
func (f *File) AdviseStores(stores []*Store, err error) error {
	var kinds []of
	for _, s := range stores {
		kinds = append(kinds, of{s.Spec, "stores." + s.Name + "." + s.Spec.Kind()})
	}
	return f.advise(nil, err, kinds...)
}

// of is a kind at its place in the configuration.
type of struct {
	kind Kind
	path string
}

func (f *File) advise(p *Pipeline, err error, kinds ...of) error {
	if _, known := errors.AsType[*diagnose.Error](err); known || err == nil {
		return f.RedactError(err)
	}
	for _, k := range kinds {
		if said := k.kind.Advise(f, p, k.path, err); said != nil {
			said.Cause, said.OfKind, said.Err = f.Redact(said.Cause), true, err
			return said
		}
	}
	if said := diagnose.Network(err); said != nil {
		said.Cause = f.Redact(said.Cause)
		return said
	}
	if text := err.Error(); diagnose.Line(text) != text {
		return &diagnose.Error{Cause: f.Redact(diagnose.Line(text)), Err: err}
	}
	return f.RedactError(err)
}
