package wiring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/fileio"
	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/broker/pgsink"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/pgstore"
)

// Pipeline is a pipeline that can run.
type Pipeline interface {
	// Run moves messages until the source has no more or ctx ends, and then
	// drains: see pipeline.Runner.
	Run(ctx context.Context) error
	// Ready returns nil, or what keeps the pipeline from its work.
	Ready(ctx context.Context) error
}

// PipelineOptions are the options of OpenPipeline. The zero value is valid.
type PipelineOptions struct {
	// Observer is told what the pipeline does. Defaults to none.
	Observer pipeline.Observer
	// Stdout is where a sink of that name writes. Defaults to none.
	Stdout io.Writer
	// Redrive opens it only for what is queued in its lot: it ends when nothing
	// is left.
	Redrive bool
}

// OpenPipeline opens source, store, sink and lot of a pipeline. It blocks until
// their servers have answered. Its stores belong to stores, all else is closed
// when the pipeline has run.
func OpenPipeline(ctx context.Context, f *config.File, p *config.Pipeline, stores *Stores, opts *PipelineOptions) (Pipeline, error) {
	var o PipelineOptions
	if opts != nil {
		o = *opts
	}
	b := &building{file: f, spec: p, stores: stores, opts: o}
	built, err := b.pipeline(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("pipeline %s: %w", p.Name, err), b.close(ctx))
		return nil, f.RedactError(err)
	}
	return &redacted{built, f}, nil
}

// redacted hides secrets in what a pipeline reports.
type redacted struct {
	Pipeline
	file *config.File
}

func (r *redacted) Run(ctx context.Context) error {
	err := r.Pipeline.Run(ctx)
	if errors.Is(err, kafkaio.ErrFenced) {
		err = fmt.Errorf("%w: give each process a name of its own with source.kafka.instance", err)
	}
	return r.file.RedactError(err)
}

func (r *redacted) Ready(ctx context.Context) error { return r.file.RedactError(r.Pipeline.Ready(ctx)) }

// building is one call of OpenPipeline.
type building struct {
	file   *config.File
	spec   *config.Pipeline
	stores *Stores
	opts   PipelineOptions
	closes []func(context.Context) error // what is open, until a runner owns it
}

func (b *building) close(ctx context.Context) error {
	var errs []error
	for _, closing := range b.closes {
		errs = append(errs, closing(ctx))
	}
	return errors.Join(errs...)
}

// pipeline opens what the mode of the pipeline needs. Every mode is here.
func (b *building) pipeline(ctx context.Context) (Pipeline, error) {
	switch mode := b.file.Mode(b.spec); mode {
	case config.TwoPhase:
		return b.twoPhase(ctx)
	case config.SameTransaction:
		return b.sameTransaction(ctx)
	case config.Checkpointed:
		return b.checkpointed(ctx)
	case config.Lossy:
		return b.lossy(ctx)
	case config.SourceIsSink:
		return b.transactor()
	default:
		return nil, fmt.Errorf("this version cannot commit by %s: %w", mode, semel.ErrInvalidRequest)
	}
}

// twoPhase is claim, deliver, complete.
func (b *building) twoPhase(ctx context.Context) (Pipeline, error) {
	store, err := b.stores.Get(ctx, b.spec.Store.Name)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", b.spec.Store.Name, err)
	}
	sink, err := b.sink(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("sink: %w", err)
	}
	session, err := pipeline.NewTwoPhase(store, sink, &pipeline.TwoPhaseOptions{
		Guard: b.guard(), Pass: b.spec.OnStoreError == "pass", Observe: b.spec.Observe, Observer: b.opts.Observer,
	})
	if err != nil {
		return nil, err
	}
	return b.runner(ctx, session, nil)
}

// lossy is a filter that decides alone.
func (b *building) lossy(ctx context.Context) (Pipeline, error) {
	name := b.spec.Store.Name
	if !b.spec.Lossy {
		return nil, fmt.Errorf("store %s is a filter, which drops new messages at its rate: name an exact store, or write lossy: true if that loss is borne: %w", name, semel.ErrInvalidRequest)
	}
	filter, err := b.stores.Filter(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", name, err)
	}
	sink, err := b.sink(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("sink: %w", err)
	}
	session := pipeline.NewLossy(filter, sink, &pipeline.LossyOptions{
		Pass: b.spec.OnStoreError == "pass", Observe: b.spec.Observe, Observer: b.opts.Observer,
	})
	runner, err := b.runner(ctx, session, nil)
	if err != nil {
		return nil, err
	}
	return lossy{runner, filter}, nil
}

// checkpointed is keys, the length of the output and, where the source is files,
// positions in one record of an embedded store.
func (b *building) checkpointed(ctx context.Context) (Pipeline, error) {
	name := b.spec.Store.Name
	store, err := b.stores.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", name, err)
	}
	keys, ok := store.(*logstore.Store)
	if !ok {
		return nil, fmt.Errorf("store %s is not of the kind embedded: %w", name, semel.ErrInvalidRequest)
	}
	opts := &fileio.SessionOptions{Window: b.spec.Window}
	if b.spec.OnLate == "run" {
		opts.OnLate = semel.LateRun
	}
	var source pipeline.Source
	if files, ok := b.spec.Source.(*config.FileSource); ok && !b.opts.Redrive {
		if opts.Source, err = fileSource(files, ""); err != nil {
			return nil, fmt.Errorf("source: %w", err)
		}
		source = opts.Source
		b.closes = append(b.closes, source.Close)
	}
	session, err := fileio.OpenSession(ctx, keys, b.spec.Sink.(*config.FileSink).Path, opts)
	if err != nil {
		return nil, fmt.Errorf("sink: %w", err)
	}
	return b.runner(ctx, session, source)
}

// sameTransaction is keys and rows in one transaction of PostgreSQL.
func (b *building) sameTransaction(ctx context.Context) (Pipeline, error) {
	name := b.spec.Store.Name
	store, err := b.stores.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", name, err)
	}
	keys, ok := store.(*pgstore.Store)
	if !ok {
		return nil, fmt.Errorf("store %s is not of the kind postgres: %w", name, semel.ErrInvalidRequest)
	}
	opts := b.guard()
	guard, err := pgstore.NewGuard(keys, &opts)
	if err != nil {
		return nil, err
	}
	session, err := pgsink.NewSession(guard, postgresOptions(b.spec.Sink.(*config.PostgresSink)))
	if err != nil {
		return nil, fmt.Errorf("sink: %w", err)
	}
	return b.runner(ctx, session, nil)
}

// guard is the policy of the claims.
func (b *building) guard() semel.GuardOptions {
	g := semel.GuardOptions{Lease: b.spec.Lease, Window: b.spec.Window}
	if b.opts.Observer != nil {
		g.Observer = b.opts.Observer
	}
	if b.spec.OnLeaseExpired == "hold" {
		g.OnLeaseExpired = semel.Hold
	}
	if b.spec.OnLate == "run" {
		g.OnLate = semel.LateRun
	}
	return g
}

// runner puts a session behind the source, which is opened if it is nil.
func (b *building) runner(ctx context.Context, session pipeline.Session, source pipeline.Source) (*pipeline.Runner, error) {
	b.closes = append(b.closes, session.Close)
	opts := b.options()
	var lot pipeline.Lot
	var err error
	if b.spec.Parked.Topic != "" {
		parker, err := openParker(ctx, b.spec)
		if err != nil {
			return nil, fmt.Errorf("parked: %w", err)
		}
		b.closes = append(b.closes, func(context.Context) error { return parker.Close() })
		opts.Parker = parker
	} else {
		if lot, err = OpenLot(ctx, b.file, b.spec); err != nil {
			return nil, fmt.Errorf("parked: %w", err)
		}
		b.closes = append(b.closes, func(context.Context) error { return lot.Close() })
		opts.Parker = lot
	}
	switch {
	case b.opts.Redrive && lot == nil:
		return nil, fmt.Errorf("what is parked in a topic is redriven by a pipeline that reads it: %w", semel.ErrInvalidRequest)
	case b.opts.Redrive:
		source = pipeline.NewRedriven(lot, b.spec.Name, &pipeline.RedrivenOptions{Once: true})
	case source == nil:
		if source, err = b.source(ctx); err != nil {
			return nil, fmt.Errorf("source: %w", err)
		}
		b.closes = append(b.closes, source.Close)
	}
	return pipeline.New(source, session, opts)
}

func (b *building) options() *pipeline.Options {
	s := b.spec
	o := &pipeline.Options{
		Name: s.Name, Key: s.Key.Rule, Scope: s.Key.Scope, Fingerprint: s.Key.Fingerprint,
		Window: s.Window, EventTime: s.OnLate != "run",
		OnLate: then(s.OnLate), OnMismatch: then(s.OnMismatch),
		Failure: pipeline.Failure{
			Attempts: s.OnFailure.Attempts, From: s.OnFailure.Backoff.From, To: s.OnFailure.Backoff.To, Then: then(s.OnFailure.Then),
		},
		Workers: s.Parallel, Batch: int(s.Batch.Max), BatchBytes: s.Batch.Bytes, MaxItems: int(s.InFlight.Max), MaxBytes: s.InFlight.Bytes,
		Wait: s.Wait, Shutdown: b.file.Shutdown, Observer: b.opts.Observer,
	}
	if s.Order == "lane" {
		o.Order = pipeline.OrderLane
	}
	switch s.Key.OnMissing {
	case "fail":
		o.OnMissing = pipeline.MissingStop
	case "drop":
		o.OnMissing = pipeline.MissingDrop
	case "pass":
		o.OnMissing = pipeline.MissingPass
	case "hash":
		o.OnMissing = pipeline.MissingHash
	}
	if b.file.Mode(s) == config.Checkpointed {
		// A record of the store is a sync of the disk, so batches are large.
		o.Batch, o.MaxItems = cmp.Or(o.Batch, 4096), cmp.Or(o.MaxItems, 65536)
	}
	return o
}

// then reads a policy; what is none of its words is decided elsewhere.
func then(word string) pipeline.Then {
	switch word {
	case "drop":
		return pipeline.Drop
	case "stop":
		return pipeline.Stop
	}
	return pipeline.Park
}

// OpenLot opens where a pipeline puts messages aside.
func OpenLot(ctx context.Context, f *config.File, p *config.Pipeline) (pipeline.Lot, error) {
	switch name := p.Parked.Store.Name; {
	case p.Parked.Path != "":
		return pipeline.OpenDirLot(p.Parked.Path)
	case name != "":
		s, ok := f.Store(name)
		if !ok {
			return nil, fmt.Errorf("there is no store %q: %w", name, semel.ErrInvalidRequest)
		}
		spec, ok := s.Spec.(*config.Postgres)
		if !ok {
			return nil, fmt.Errorf("store %s is not of the kind postgres: %w", name, semel.ErrInvalidRequest)
		}
		lot, err := pgsink.OpenLot(ctx, spec.DSN.Reveal(), names(spec))
		if err != nil {
			return nil, err // not lot: a nil *Lot in an interface is no nil
		}
		return lot, nil
	}
	return nil, fmt.Errorf("no place to put messages aside: write parked: { path: … }: %w", semel.ErrInvalidRequest)
}
