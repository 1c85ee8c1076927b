package wiring

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/store/redisstore"
)

// Report is what an examination of one store, or of the Kafka of one pipeline,
// found.
type Report struct {
	// Store or Pipeline is what was examined; the other is nil.
	Store    *config.Store
	Pipeline *config.Pipeline
	Findings []semel.Finding
	// Err says why it could not be looked at, or not in full. Its secrets are
	// hidden.
	Err error
}

// Name returns the name of what was examined.
func (r *Report) Name() string {
	if r.Pipeline != nil {
		return r.Pipeline.Name
	}
	return r.Store.Name
}

// Kind returns what kind of thing was examined.
func (r *Report) Kind() string {
	if r.Pipeline != nil {
		return "pipeline"
	}
	return r.Store.Spec.Kind()
}

// Examine looks at one store of a configuration: whether it can be reached, and
// whether it is set up to keep its promise. What it stands on is examined by
// itself. It blocks until the store's server has answered.
func Examine(ctx context.Context, f *config.File, s *config.Store) Report {
	r := Report{Store: s}
	var err error
	switch spec := s.Spec.(type) {
	case *config.Memory:
		r.note(semel.Notice, "memory", "keys live in this process", "its end forgets every key", "name a store that lasts, unless that is what you want")
	case *config.Embedded:
		err = r.embedded(ctx, f, spec)
	case *config.Redis:
		r.tls(spec.TLS)
		err = r.redis(ctx, f, spec)
	case *config.Postgres:
		err = r.server(ctx, f)
	case *config.Tiered:
		r.tiered(spec)
	case *config.Filter:
		err = r.filter(ctx, f, spec)
	}
	if semel.Classify(err) == semel.ClassPermanent {
		r.refused(f, err)
		err = nil
	}
	if above, ok := f.LayerOf(s.Name); ok {
		r.relieve(above.Name)
	}
	if spec, ok := s.Spec.(*config.Filter); ok {
		r.decides(f, spec)
	}
	r.Err = f.RedactError(err)
	return r
}

// decides says what a filter costs that decides alone.
func (r *Report) decides(f *config.File, spec *config.Filter) {
	for _, p := range f.Pipelines {
		if p.Store.Name != r.Store.Name {
			continue
		}
		severity, remedy := semel.Warning, "an exact store; or nothing, where that loss is borne"
		if !p.Lossy {
			severity, remedy = semel.Broken, "an exact store; or lossy: true, where some loss is borne"
		}
		r.note(severity, "pipelines."+p.Name, "the filter decides alone", fmt.Sprintf("about %g of the new messages are dropped", spec.Rate), remedy)
	}
}

// refused makes a finding of an error that will not pass by itself: the store
// was looked at, and cannot work as it is set up.
func (r *Report) refused(f *config.File, err error) {
	remedy := "what it says; until then the store cannot be opened"
	if errors.Is(err, pgstore.ErrSchema) {
		remedy = "semel migrate up --config " + f.Name + " --store-name " + r.Store.Name
	}
	r.note(semel.Broken, "open", f.Redact(err.Error()), "nothing is processed", remedy)
}

func (r *Report) note(severity semel.Severity, subject, found, cost, remedy string) {
	r.Findings = append(r.Findings, semel.Finding{Severity: severity, Subject: subject, Found: found, Cost: cost, Remedy: remedy})
}

// redis has the servers of a store examined without opening it: that would
// write down on what terms their prefix is used, and not be possible on a
// replica or a full server.
func (r *Report) redis(ctx context.Context, f *config.File, spec *config.Redis) error {
	opts, err := redisOptions(spec)
	if err != nil {
		return err
	}
	client, err := connectRedis(ctx, spec)
	if err != nil {
		return err
	}
	defer client.Close()
	findings, err := redisstore.Examine(ctx, client, opts)
	r.add(f, findings)
	return err
}

func (r *Report) add(f *config.File, findings []semel.Finding) {
	for i := range findings {
		findings[i].Found = f.Redact(findings[i].Found)
	}
	r.Findings = append(r.Findings, findings...)
}

// server opens a store and has it examine its server.
func (r *Report) server(ctx context.Context, f *config.File) (err error) {
	opened, err := Open(ctx, f, r.Store.Name, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	doctor, ok := semel.Ability[semel.Doctor](opened.Store)
	if !ok {
		r.note(semel.Fine, "reachable", "the server answered", "", "")
		return nil
	}
	findings, err := doctor.Examine(ctx)
	r.add(f, findings)
	return err
}

func (r *Report) tls(t *config.TLS) {
	if t != nil && t.InsecureSkipVerify {
		r.note(semel.Warning, "tls", "insecure_skip_verify", "whoever stands between can read the password and answer for the server", "name the authority with ca, and take insecure_skip_verify out")
	}
}

// embedded opens the directory, which checks every record in it. A store that
// is not there yet is not made.
func (r *Report) embedded(ctx context.Context, f *config.File, spec *config.Embedded) error {
	switch spec.Fsync {
	case "always":
		r.note(semel.Fine, "fsync", spec.Fsync, "", "")
	default:
		r.note(semel.Warning, "fsync", spec.Fsync, "loss of power forgets what was answered since the last sync: those messages take effect again", "fsync: always")
	}
	exists, err := EmbeddedExists(spec.Path)
	switch {
	case err != nil:
		return err
	case !exists:
		if err := logstore.CheckNew(spec.Path); err != nil {
			return err
		}
		r.note(semel.Notice, "directory", spec.Path+" holds no store yet", "", "none: the first run makes it")
		return nil
	}
	opened, err := Open(ctx, f, r.Store.Name, nil)
	if holder, ok := Holder(err); ok {
		r.note(semel.Notice, "directory", "in use by "+holder, "", "none: it was not opened for this")
		return nil
	}
	if err != nil {
		return err
	}
	r.note(semel.Fine, "directory", spec.Path+" was read, every record of it", "", "")
	return opened.Close()
}

func (r *Report) tiered(spec *config.Tiered) {
	decides := spec.Layers[len(spec.Layers)-1].Name
	if spec.OnStoreError == "pass" {
		r.note(semel.Warning, "on_store_error", spec.OnStoreError, "while "+decides+" does not answer, effects happen and are not remembered: every repeat has its effect again",
			"on_store_error: stop, or wait")
		return
	}
	r.note(semel.Fine, "on_store_error", spec.OnStoreError, "", "")
}

// filter has a filter in Redis examined without making it.
func (r *Report) filter(ctx context.Context, f *config.File, spec *config.Filter) error {
	if spec.Redis.Name == "" {
		_, err := memoryFilter(spec)
		if err == nil {
			r.note(semel.Fine, "rate", fmt.Sprintf("%g", spec.Rate), "", "")
		}
		return err
	}
	server, err := filterServer(f, spec)
	if err != nil {
		return err
	}
	client, err := connectRedis(ctx, server)
	if err != nil {
		return err
	}
	defer client.Close()
	findings, err := redisstore.ExamineFilter(ctx, client, filterOptions(r.Store.Name, spec, server))
	r.add(f, findings)
	return err
}

// relieve says what findings about a layer cost: what decides stands below it.
func (r *Report) relieve(stack string) {
	for i := range r.Findings {
		finding := &r.Findings[i]
		if finding.Severity > semel.Notice {
			finding.Severity = semel.Notice
			finding.Cost = "as a layer of " + stack + " it costs speed, not the promise; alone: " + finding.Cost
		}
	}
}
