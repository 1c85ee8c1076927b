package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// PipelineOptions are the options of OpenPipeline. The zero value is valid.
type PipelineOptions struct {
	// Observer receives the events of the pipeline. Defaults to none.
	Observer pipeline.Observer
	// Stdout is where a stdout sink writes. Defaults to none.
	Stdout io.Writer
	// Redrive opens the pipeline only for the messages queued for a redrive in its
	// dead-letter store. It ends when none are left.
	Redrive bool
}

// OpenPipeline opens the source, store, sink and dead-letter store of a pipeline.
// It blocks until their servers have answered. The stores belong to stores.
// Everything else is closed when the pipeline has run.
func OpenPipeline(ctx context.Context, f *config.File, p *config.Pipeline, stores *Stores, opts *PipelineOptions) (*Pipeline, error) {
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
	return &Pipeline{built, f, p}, nil
}

// Pipeline is an open pipeline. It hides the secrets of the configuration in its
// errors.
type Pipeline struct {
	config.Runnable
	file *config.File
	spec *config.Pipeline
}

// Run runs the pipeline; see config.Runnable.
func (p *Pipeline) Run(ctx context.Context) error {
	err := p.Runnable.Run(ctx)
	if stopped, ok := errors.AsType[*pipeline.StoppedError](err); ok {
		err = fmt.Errorf("%w, or write %s", err, parkInstead(p.spec, stopped.Reason))
	}
	if _, ok := errors.AsType[*semel.ScopeError](err); ok {
		err = fmt.Errorf("%w%s", err, config.TwoWaysOut)
	}
	return p.file.RedactError(err)
}

// parkInstead returns the setting that parks the messages at which a pipeline
// stops.
func parkInstead(p *config.Pipeline, reason pipeline.Reason) string {
	switch reason {
	case pipeline.ReasonKeyMissing, pipeline.ReasonKeyInvalid, pipeline.ReasonUnreadable:
		return "on_missing: park"
	case pipeline.ReasonLate:
		switch {
		case p.Aggregate != nil:
			return "aggregate.late: park"
		case p.Holds():
			return "key.keep.late: park"
		}
		return "on_late: park"
	case pipeline.ReasonMismatch:
		return "on_mismatch: park"
	}
	return "then: park"
}

// Ready reports why the pipeline cannot work; see config.Runnable.
func (p *Pipeline) Ready(ctx context.Context) error { return p.file.RedactError(p.Runnable.Ready(ctx)) }

// UnderWay returns the amount that the pipeline has under way. It is 0 if the
// pipeline does not know.
func (p *Pipeline) UnderWay() (count int, bytes int64) {
	if of, ok := p.Runnable.(interface {
		UnderWay() (count int, bytes int64)
	}); ok {
		return of.UnderWay()
	}
	return 0, 0
}

// Progress returns where the messages of UnderWay are. A pipeline that does not tell processes
// all of them.
func (p *Pipeline) Progress() pipeline.Progress {
	if of, ok := p.Runnable.(interface{ Progress() pipeline.Progress }); ok {
		return of.Progress()
	}
	count, _ := p.UnderWay()
	return pipeline.Progress{Working: count}
}

// isIdle reports whether no message is in progress, also none that waits for its next try. It
// returns false if the pipeline does not tell them apart.
func (p *Pipeline) isIdle() bool {
	of, ok := p.Runnable.(interface{ Progress() pipeline.Progress })
	return ok && of.Progress() == pipeline.Progress{}
}

// KeyProgress returns where messages of some keys are; see pipeline.Runner. It returns none if
// the pipeline does not tell.
func (p *Pipeline) KeyProgress(keys ...semel.Key) []pipeline.KeyProgress {
	if of, ok := p.Runnable.(interface {
		KeyProgress(keys ...semel.Key) []pipeline.KeyProgress
	}); ok {
		return of.KeyProgress(keys...)
	}
	return nil
}

// Workers returns how many batches or transactions are processed at a time.
func (p *Pipeline) Workers() int {
	if of, ok := p.Runnable.(interface{ Workers() int }); ok {
		return of.Workers()
	}
	return 1
}

// NextAttempt returns when a pipeline that is paused tries again, or the zero time.
func (p *Pipeline) NextAttempt() time.Time {
	if of, ok := p.Runnable.(interface{ NextAttempt() time.Time }); ok {
		return of.NextAttempt()
	}
	return time.Time{}
}

// Lag returns the lag of the source; see config.Runnable.
func (p *Pipeline) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	lags, err := p.Runnable.Lag(ctx)
	return lags, p.file.RedactError(err)
}

// Gauges returns the source's own gauges; see config.Runnable.
func (p *Pipeline) Gauges(ctx context.Context) ([]pipeline.Gauge, error) {
	gauges, err := p.Runnable.Gauges(ctx)
	return gauges, p.file.RedactError(err)
}

// Waiting returns the number of parked messages; see pipeline.Runner. If the number
// is not known, the error wraps errors.ErrUnsupported.
func (p *Pipeline) Waiting(ctx context.Context) (int64, error) {
	of, ok := p.Runnable.(interface {
		Waiting(ctx context.Context) (int64, error)
	})
	if !ok {
		return 0, errors.ErrUnsupported
	}
	n, err := of.Waiting(ctx)
	return n, p.file.RedactError(err)
}

// Loss returns a function that reports the share of new messages that the pipeline
// drops now; see filter.KeyFilter. It returns nil if the pipeline drops none.
func (p *Pipeline) Loss() (ratio func() float64) {
	if of, ok := p.Runnable.(lossy); ok {
		return of.filter.Rate
	}
	return nil
}

// lossy is a pipeline whose filter decides alone.
type lossy struct {
	*pipeline.Runner
	filter filter.KeyFilter
}

// building is one call of OpenPipeline.
type building struct {
	file   *config.File
	spec   *config.Pipeline
	stores *Stores
	opts   PipelineOptions
	closes []func(context.Context) error // open resources, until a runner owns them
}

func (b *building) close(ctx context.Context) error {
	var errs []error
	for _, closing := range b.closes {
		errs = append(errs, closing(ctx))
	}
	return errors.Join(errs...)
}

// pipeline opens what the pipeline's mode needs. It lists every mode.
func (b *building) pipeline(ctx context.Context) (config.Runnable, error) {
	switch mode := b.file.Mode(b.spec); mode {
	case config.TwoPhase:
		return b.twoPhase(ctx)
	case config.SameTransaction, config.Checkpointed:
		return b.together(ctx)
	case config.Lossy:
		return b.lossy(ctx)
	case config.Direct:
		sink, err := b.spec.Sink.Open(ctx, b.env(nil))
		if err != nil {
			return nil, fmt.Errorf("sink: %w", b.advise(config.SinkPart, err))
		}
		return b.runner(ctx, pipeline.NewDirect(sink, &pipeline.DirectOptions{FilterMap: b.spec.FilterMap}), nil)
	case config.SourceIsSink:
		source, ok := b.spec.Source.(config.TransactionalSource)
		if !ok {
			return nil, fmt.Errorf("source %s has no transactions: %w", b.spec.Source.Kind(), semel.ErrInvalidRequest)
		}
		return source.OpenTransaction(b.env(nil))
	default:
		return nil, fmt.Errorf("this version cannot commit by %s: %w", mode, semel.ErrInvalidRequest)
	}
}

// twoPhase opens a pipeline that claims, delivers and completes.
func (b *building) twoPhase(ctx context.Context) (config.Runnable, error) {
	store, err := b.stores.Get(ctx, b.spec.Store.Name)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", b.spec.Store.Name, b.advise(config.StorePart, err))
	}
	if err := b.ownsScope(ctx, store); err != nil {
		return nil, err
	}
	sink, err := b.spec.Sink.Open(ctx, b.env(store))
	if err != nil {
		return nil, fmt.Errorf("sink: %w", b.advise(config.SinkPart, err))
	}
	session, err := pipeline.NewTwoPhase(store, sink, &pipeline.TwoPhaseOptions{
		Guard: b.env(nil).Guard(), FilterMap: b.spec.FilterMap, Pass: b.spec.OnStoreError == "pass", Observe: b.spec.Observe, Observer: b.opts.Observer,
	})
	if err != nil {
		return nil, err
	}
	return b.runner(ctx, session, nil)
}

// lossy opens a pipeline whose filter decides alone.
func (b *building) lossy(ctx context.Context) (config.Runnable, error) {
	name := b.spec.Store.Name
	if !b.spec.Lossy {
		return nil, fmt.Errorf("store %s is a filter, which drops new messages at its rate: name an exact store, or write lossy: true to accept the loss: %w", name, semel.ErrInvalidRequest)
	}
	filter, err := b.stores.Filter(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", name, b.advise(config.StorePart, err))
	}
	sink, err := b.spec.Sink.Open(ctx, b.env(nil))
	if err != nil {
		return nil, fmt.Errorf("sink: %w", b.advise(config.SinkPart, err))
	}
	session := pipeline.NewLossy(filter, sink, &pipeline.LossyOptions{
		FilterMap: b.spec.FilterMap, Pass: b.spec.OnStoreError == "pass", Observe: b.spec.Observe, Observer: b.opts.Observer,
	})
	runner, err := b.runner(ctx, session, nil)
	if err != nil {
		return nil, err
	}
	return lossy{runner, filter}, nil
}

// together opens a session of the sink in which keys and effects become durable
// at the same moment.
func (b *building) together(ctx context.Context) (config.Runnable, error) {
	name := b.spec.Store.Name
	store, err := b.stores.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", name, b.advise(config.StorePart, err))
	}
	if err := b.ownsScope(ctx, store); err != nil {
		return nil, err
	}
	sink, ok := b.spec.Sink.(config.SessionSink)
	if !ok {
		return nil, fmt.Errorf("sink %s cannot commit with a store: %w", b.spec.Sink.Kind(), semel.ErrInvalidRequest)
	}
	session, source, err := sink.OpenSession(ctx, b.env(store))
	if source != nil {
		b.closes = append(b.closes, source.Close)
	}
	if err != nil {
		return nil, err
	}
	return b.runner(ctx, session, source)
}

// ownsScope returns an error if another rule or pipeline has filled the scope. The first message
// binds the scope, and would find that too late.
func (b *building) ownsScope(ctx context.Context, store semel.Store) error {
	if b.spec.Key.Rule == nil || b.spec.Key.SameScope {
		return nil
	}
	err := semel.CheckScope(ctx, store, b.spec.Key.Scope, b.spec.ScopeOwner())
	if _, foreign := errors.AsType[*semel.ScopeError](err); foreign {
		return fmt.Errorf("%w%s", err, config.TwoWaysOut)
	}
	return nil // a store that fails now fails for the pipeline too
}

// advise adds to an error of a part what it means.
func (b *building) advise(part config.Part, err error) error {
	return b.file.Advise(b.spec, part, err)
}

// env returns the environment in which a kind opens.
func (b *building) env(keys semel.Store) *config.Env {
	return &config.Env{
		File: b.file, Pipeline: b.spec, Keys: keys, Observer: b.opts.Observer, Stdout: b.opts.Stdout, Redrive: b.opts.Redrive,
	}
}

// runner connects a session to the source. It opens the source if it is nil.
func (b *building) runner(ctx context.Context, session pipeline.Session, source pipeline.Source) (*pipeline.Runner, error) {
	b.closes = append(b.closes, session.Close)
	opts := b.file.Options(b.spec, b.opts.Observer)
	var letters pipeline.DeadLetterStore
	var err error
	if b.spec.Parked.Topic != "" {
		end, err := topicsOf(b.spec)
		if err != nil {
			return nil, fmt.Errorf("parked: %w", b.advise(config.ParkedPart, err))
		}
		parker, err := end.OpenParker(ctx, b.spec)
		if err != nil {
			return nil, fmt.Errorf("parked: %w", b.advise(config.ParkedPart, err))
		}
		b.closes = append(b.closes, func(context.Context) error { return parker.Close() })
		opts.DeadLetters = redactedParker{parker, b.file}
	} else {
		if letters, err = OpenDeadLetters(ctx, b.file, b.spec); err != nil {
			return nil, fmt.Errorf("parked: %w", b.advise(config.ParkedPart, err))
		}
		b.closes = append(b.closes, func(context.Context) error { return letters.Close() })
		opts.DeadLetters = redactedStore{letters, b.file}
	}
	switch {
	case b.opts.Redrive && letters == nil:
		return nil, fmt.Errorf("messages in a topic are redriven by a pipeline that reads the topic: %w", semel.ErrInvalidRequest)
	case b.opts.Redrive:
		source = pipeline.NewRedriven(letters, b.spec.Name)
	case source == nil:
		if source, err = b.spec.Source.Open(ctx, b.env(nil)); err != nil {
			return nil, fmt.Errorf("source: %w", b.advise(config.SourcePart, err))
		}
		b.closes = append(b.closes, source.Close)
	}
	return pipeline.NewRunner(source, session, opts)
}

// redactedParker parks messages without the secrets of the configuration in their
// errors: a target may quote what it received.
type redactedParker struct {
	pipeline.Parker
	file *config.File
}

func (p redactedParker) Park(ctx context.Context, list []pipeline.Parked) error {
	for i := range list {
		list[i].Error = p.file.Redact(list[i].Error)
	}
	return p.Parker.Park(ctx, list)
}

// redactedStore is a redactedParker for a store whose messages can be redriven.
type redactedStore struct {
	pipeline.DeadLetterStore
	file *config.File
}

func (s redactedStore) Park(ctx context.Context, list []pipeline.Parked) error {
	return redactedParker{s.DeadLetterStore, s.file}.Park(ctx, list)
}

// OpenDeadLetters opens the dead-letter store of a pipeline.
func OpenDeadLetters(ctx context.Context, f *config.File, p *config.Pipeline) (pipeline.DeadLetterStore, error) {
	switch name := p.Parked.Store.Name; {
	case p.Parked.Path != "":
		return pipeline.OpenDeadLetterDir(p.Parked.Path)
	case name != "":
		s, ok := f.Store(name)
		if !ok {
			return nil, fmt.Errorf("there is no store %q: %w", name, semel.ErrInvalidRequest)
		}
		database, ok := s.Spec.(config.Database)
		if !ok {
			return nil, fmt.Errorf("store %s is not of the kind postgres: %w", name, semel.ErrInvalidRequest)
		}
		return database.OpenDeadLetters(ctx)
	}
	return nil, fmt.Errorf("no place for parked messages: write parked: { path: … }: %w", semel.ErrInvalidRequest)
}

// topicsOf returns the sink or source of a pipeline whose server can hold parked
// messages.
func topicsOf(p *config.Pipeline) (config.Topics, error) {
	if end, ok := p.Sink.(config.Topics); ok {
		return end, nil
	}
	if end, ok := p.Source.(config.Topics); ok {
		return end, nil
	}
	return nil, fmt.Errorf("a topic needs a source or sink in Kafka: %w", semel.ErrInvalidRequest)
}

// ExistingDeadLetters opens the parked messages of a pipeline for inspection and
// settling. It creates no directory and no topic, and reports whether one exists.
// The result is a pipeline.DeadLetterStore if messages can be queued for a
// redrive.
func ExistingDeadLetters(ctx context.Context, f *config.File, p *config.Pipeline) (pipeline.DeadLetters, bool, error) {
	switch {
	case p.Parked.Topic != "":
		end, err := topicsOf(p)
		if err != nil {
			return nil, false, err
		}
		letters, err := end.OpenParked(ctx, f, p)
		if errors.Is(err, config.ErrNoTopic) {
			return nil, false, nil
		}
		return letters, err == nil, f.RedactError(err)
	case p.Parked.Path != "":
		if _, err := os.Stat(p.Parked.Path); errors.Is(err, fs.ErrNotExist) {
			return nil, false, nil
		}
	}
	letters, err := OpenDeadLetters(ctx, f, p)
	return letters, err == nil, f.RedactError(err)
}

// Sample hands the messages in a pipeline's source to fn; see config.Source. A
// source to which messages are pushed cannot be sampled. The error then wraps
// semel.ErrInvalidRequest.
func Sample(ctx context.Context, f *config.File, p *config.Pipeline, fn func(*semel.Message) bool) error {
	err := p.Source.Sample(ctx, p, fn)
	if errors.Is(err, config.ErrNoSample) {
		return fmt.Errorf("a source of the kind %s %w", p.Source.Kind(), err)
	}
	return f.Advise(p, config.SourcePart, err)
}
