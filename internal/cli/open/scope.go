package open

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

// ExamineScope adds the finding of ForeignScope to the examination of a pipeline. It
// reports whether run would refuse the scope.
func ExamineScope(ctx context.Context, a *term.App, file string, x *config.Examination) (foreign bool) {
	found, err := ForeignScope(ctx, a, file, x.File, x.Pipeline)
	for _, f := range found {
		x.Note(f.Severity, "key.scope", f.Found, f.Cost, f.Remedy)
		foreign = f.Severity == doctor.Broken
	}
	x.Fail("", err)
	return foreign
}

// ForeignScope returns a finding if the scope of a pipeline belongs to another key rule
// or pipeline, so that run would refuse its first key. It looks only into a store that is there,
// and changes nothing. If another process has the store open, it asks that process; if
// that does not answer, the finding is a notice. It blocks until the store has answered.
func ForeignScope(ctx context.Context, a *term.App, file string, conf *config.File, p *config.Pipeline) ([]config.Finding, error) {
	decider := conf.Decider(p.Store.Name)
	_, lacks := conf.Lacks(p.Name, "key.scope")
	if decider == nil || lacks || p.Key.SameScope {
		return nil, nil
	}
	var absent term.Problems
	s := &StoreFlags{App: a, File: file, Conf: conf, Name: decider.Name, ReadOnly: true}
	if s.Check(&absent); len(absent) > 0 {
		return nil, nil // its own check says so, or it keeps no rules
	}
	var finding config.Finding
	err := s.WithStore(ctx, func(store semel.Store) error {
		return semel.CheckScope(ctx, store, p.Key.Scope, p.ScopeOwner())
	})
	if foreign, ok := errors.AsType[*semel.ScopeError](err); ok {
		return []config.Finding{conf.ForeignScope(p, foreign)}, nil
	}
	if used, ok := errors.AsType[*InUseError](err); ok {
		finding.Severity, finding.Pipeline, finding.Found = doctor.Notice, p.Name, "not checked: "+used.Error()
		return []config.Finding{finding}, nil
	}
	if errors.Is(err, config.ErrNoStore) {
		return nil, nil
	}
	if err != nil {
		err = fmt.Errorf("key.scope: %w", err)
	}
	return nil, err
}
