// Package outside makes kinds of package connector, which come from other modules, those of a
// configuration.
package outside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Add adds kinds. It panics if two have one name, or a field is declared otherwise than
// connector.Field says: these are mistakes of the program.
func Add(to *config.Kinds, kinds connector.Kinds) {
	for _, empty := range kinds.Sources {
		to.Sources = append(to.Sources, func() config.Source { return &source{common: common[connector.Source]{empty()}} })
	}
	for _, empty := range kinds.Sinks {
		to.Sinks = append(to.Sinks, func() config.Sink { return &sink{common: common[connector.Sink]{empty()}} })
	}
	for _, empty := range kinds.Stores {
		to.Stores = append(to.Stores, func() config.StoreKind { return &store{common: common[connector.Store]{empty()}} })
	}
	unique("source", to.Sources)
	unique("sink", to.Sinks)
	unique("store", to.Stores)
}

// unique panics if two kinds have one name. It also makes the fields of each kind once.
func unique[T config.Kind](what string, kinds []func() T) {
	names := map[string]bool{}
	for _, empty := range kinds {
		kind := empty()
		kind.Fields()
		if name := kind.Kind(); !schema.IsName(name) || names[name] {
			panic(fmt.Sprintf("connector: a kind of %s has the name %q: it is taken, or has other characters than letters, digits, - and _", what, name))
		}
		names[kind.Kind()] = true
	}
}

// mapping declares the fields of a kind.
func mapping(of connector.Kind) schema.Mapping {
	doc, fields := of.Fields()
	m := schema.Mapping{Doc: doc}
	for i := range fields {
		if wrong := mistake(&fields[i], fields[:i]); wrong != "" {
			panic(fmt.Sprintf("connector: the field %q of %s %s", fields[i].Name, of.Kind(), wrong))
		}
		m.Fields = append(m.Fields, declare(of.Kind(), &fields[i]))
	}
	if checker, ok := of.(connector.Checker); ok {
		m.Check = func(v schema.Value, _ schema.Members) {
			if err := checker.Check(); err != nil {
				v.Wrong("%s", err)
			}
		}
	}
	return m
}

// mistake says what is wrong about a field behind others of its kind, or "".
func mistake(f *connector.Field, before []connector.Field) string {
	_, isText := f.Value.(*string)
	_, isNumber := f.Value.(*int)
	said := 0
	for _, is := range []bool{f.Required, f.Default != "", f.Absent != ""} {
		if is {
			said++
		}
	}
	switch {
	case !schema.IsName(f.Name):
		return "has a name with other characters than letters, digits, - and _"
	case slices.ContainsFunc(before, func(b connector.Field) bool { return b.Name == f.Name }):
		return "is declared twice"
	case said > 1:
		return "has more than one of Required, Default and Absent: each says what a file without it means"
	case isNumber && f.Least >= f.Most:
		return fmt.Sprintf("takes numbers from %d to %d: set Least and Most", f.Least, f.Most)
	case f.Words != nil && !isText:
		return fmt.Sprintf("has Words and a value of type %T: only a *string has them", f.Value)
	case f.Words != nil && f.Default != "" && !slices.Contains(f.Words, f.Default):
		return fmt.Sprintf("has the default %q, which is none of its Words", f.Default)
	}
	return ""
}

func declare(kind string, f *connector.Field) schema.Field {
	var declared schema.Field
	switch target := f.Value.(type) {
	case *string:
		if declared = schema.TextField(f.Name, target, f.Doc); f.Words != nil {
			declared = schema.ChoiceField(f.Name, target, f.Doc, f.Words...)
		}
	case *[]string:
		declared = schema.TextsField(f.Name, target, f.Doc)
	case *connector.Path:
		declared = schema.PathField(f.Name, (*string)(target), f.Doc)
	case *int:
		declared = schema.NumberField(f.Name, target, f.Least, f.Most, f.Doc)
	case *connector.Size:
		declared = schema.SizeField(f.Name, (*int64)(target), f.Doc)
	case *time.Duration:
		declared = schema.DurationField(f.Name, target, f.Doc)
	case *bool:
		declared = schema.TruthField(f.Name, target, f.Doc)
	case *connector.Secret:
		var read schema.Secret
		declared = schema.SecretField(f.Name, &read, f.Doc)
		into := declared.Read
		declared.Read = func(v schema.Value) {
			if into(v); !read.IsZero() {
				*target = connector.NewSecret(read.Reveal())
			}
		}
	default:
		panic(fmt.Sprintf("connector: the field %s of %s has a value of type %T, which connector.Field does not list", f.Name, kind, f.Value))
	}
	declared.Required, declared.Initial, declared.Shown = f.Required, f.Default, f.Absent
	return declared
}

// risk returns the risk of a finding.
func risk(f *connector.Finding) (r config.Risk) {
	if f.Loss {
		r |= config.Loss
	}
	if f.Repeat {
		r |= config.Repeat
	}
	return r
}

// lint adds the findings of a kind at a place of the configuration.
func lint(of connector.Kind, l *config.Linter, path string) {
	linter, ok := of.(connector.Linter)
	if !ok {
		return
	}
	for _, f := range linter.Lint() {
		at := path
		if f.Field != "" {
			at = schema.Within(path, f.Field)
		}
		l.Add(f.Severity, risk(&f), at, f.Found, f.Cost, f.Remedy)
	}
}

// examine adds what a kind finds out about its servers.
func examine(ctx context.Context, of connector.Kind, x *config.Examination, part config.Part, subject string) {
	examiner, ok := of.(connector.Examiner)
	if !ok {
		return
	}
	findings, err := examiner.Examine(ctx)
	for _, f := range findings {
		at := subject
		if f.Field != "" {
			at = schema.Within(subject, f.Field)
		}
		x.Add([]doctor.Finding{{Severity: f.Severity, Subject: at, Found: f.Found, Cost: f.Cost, Remedy: f.Remedy}})
	}
	x.Fail(string(part), err)
}

// common is what all kinds have.
type common[K connector.Kind] struct{ of K }

// Kind implements config.Kind.
func (c *common[K]) Kind() string { return c.of.Kind() }

// Fields implements config.Kind.
func (c *common[K]) Fields() schema.Mapping { return mapping(c.of) }

// Advise implements config.Kind.
func (c *common[K]) Advise(_ *config.File, _ *config.Pipeline, _ string, err error) *diagnose.Error {
	advisor, ok := any(c.of).(connector.Advisor)
	if !ok {
		return nil
	}
	cause, remedy := advisor.Advise(err)
	if cause == "" {
		return nil
	}
	return &diagnose.Error{Cause: cause, Remedy: remedy, Public: true, Err: err}
}

type source struct {
	config.SourceBase
	common[connector.Source]
}

// About implements config.Source.
func (s *source) About(*config.Pipeline) config.SourceAbout {
	a := s.of.About()
	after := config.ReadAgain()
	if a.Unacknowledged != "" {
		after.Unsure = a.Unacknowledged
	}
	return config.SourceAbout{
		Name: a.Name, Shared: a.Shared, Again: a.Again, AfterAck: after, Behind: a.Behind, TakesBack: a.TakesBack,
		NoPositions: a.NoPositions, Exceptions: a.Exceptions,
	}
}

// Lint implements config.Source.
func (s *source) Lint(l *config.Linter) { lint(s.of, l, l.At("source."+s.Kind())) }

// Examine implements config.Kind.
func (s *source) Examine(ctx context.Context, x *config.Examination) {
	examine(ctx, s.of, x, config.SourcePart, "source."+s.Kind())
}

// Open implements config.Source.
func (s *source) Open(ctx context.Context, env *config.Env) (pipeline.Source, error) {
	return s.of.Open(ctx, &connector.Env{Name: env.Pipeline.Name, Stdout: env.Stdout})
}

// Sample implements config.Source.
func (s *source) Sample(ctx context.Context, p *config.Pipeline, fn func(*semel.Message) bool) error {
	if sampler, ok := s.of.(connector.Sampler); ok {
		return sampler.Sample(ctx, fn)
	}
	return s.SourceBase.Sample(ctx, p, fn)
}

type sink struct {
	config.SinkBase
	common[connector.Sink]
}

// About implements config.Sink.
func (s *sink) About() config.SinkAbout {
	a := s.of.About()
	return config.SinkAbout{
		Name: a.Name, Stdout: a.Stdout, Place: a.Place, PlaceName: a.PlaceName, Handed: a.Handed, Answer: a.Answer, Exceptions: a.Exceptions,
	}
}

// Lint implements config.Sink.
func (s *sink) Lint(l *config.Linter) { lint(s.of, l, l.At("sink."+s.Kind())) }

// Examine implements config.Kind.
func (s *sink) Examine(ctx context.Context, x *config.Examination) {
	examine(ctx, s.of, x, config.SinkPart, "sink."+s.Kind())
}

// Open implements config.Sink.
func (s *sink) Open(ctx context.Context, env *config.Env) (pipeline.Sink, error) {
	return s.of.Open(ctx, &connector.Env{Name: env.Pipeline.Name, Stdout: env.Stdout})
}

type store struct {
	config.StoreBase
	common[connector.Store]
}

// About implements config.StoreKind.
func (s *store) About() config.StoreAbout {
	a := s.of.About()
	return config.StoreAbout{
		Upper: true, Unsettled: !a.Settles, Shared: a.Shared, Place: a.Place, PlaceName: a.PlaceName, Address: a.Address, ClaimsEnd: a.ClaimsEnd,
		BestEffort: a.BestEffort, Gaps: a.Gaps, Exceptions: a.Exceptions,
		Origins: true, // a store whose traits lack Origins ignores them
	}
}

// Lint implements config.StoreKind.
func (s *store) Lint(l *config.Linter, of *config.Store) {
	if l.Pipeline == nil {
		lint(s.of, l, schema.Within("stores."+of.Name, s.Kind()))
	}
}

// Examine implements config.Kind.
func (s *store) Examine(ctx context.Context, x *config.Examination) {
	examine(ctx, s.of, x, "", s.Kind())
}

// Open implements config.StoreKind.
func (s *store) Open(ctx context.Context, env *config.StoreEnv) (semel.Store, error) {
	opened, err := s.of.Open(ctx, &connector.Env{Name: env.Name, ReadOnly: env.ReadOnly})
	if env.ReadOnly && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", config.ErrNoStore, err)
	}
	if err != nil {
		return nil, err
	}
	if closer, ok := opened.(io.Closer); ok {
		env.OnClose(closer.Close)
	}
	_, resolves := semel.As[semel.Resolver](opened)
	_, inspects := semel.As[semel.Inspector](opened)
	if says := s.of.About().Settles; says != (resolves && inspects) {
		return nil, fmt.Errorf("the kind %s has Settles: %t in its StoreAbout; its store is a semel.Resolver: %t, and a semel.Inspector: %t", s.Kind(), says, resolves, inspects)
	}
	return withAudit(opened, filepath.Join(filepath.Dir(env.File.Name), "semel-audit-"+env.Name+".jsonl")), nil
}
