package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// readinessEvery is how often a pipeline is asked whether it can work, at the start
	// and while it cannot. The longer it can, the rarer the question becomes, down to
	// readinessRarely: otherwise the database of an idle pipeline could never sleep.
	readinessEvery  = 2 * time.Second
	readinessRarely = 10 * time.Minute
	// readinessFor limits the time for one answer.
	readinessFor = 5 * time.Second
)

// readiness is whether a pipeline works and why it does not, with advice for each of its parts.
type readiness struct {
	file *config.File
	spec *config.Pipeline
	seen chan struct{} // has room for one: a probe got a bad answer

	asked admin.Inquiry

	mu    sync.Mutex                // guards the fields below
	since map[config.Part]time.Time // when a part began not to work
	told  told
}

// told is the cause that the log has last.
type told struct {
	cause string
	at    time.Time // when it was logged first
	lines int       // how often it was logged
}

// isNew reports whether a cause must be logged: it is another one, or it has lasted
// long enough for another line.
func (t *told) isNew(cause string, now time.Time) bool {
	switch {
	case cause != t.cause:
		*t = told{cause: cause, at: now}
	case now.Sub(t.at) < diagnose.StallAfter(t.lines):
		return false
	}
	t.lines++
	return true
}

func newReadiness(f *config.File, spec *config.Pipeline) *readiness {
	return &readiness{file: f, spec: spec, seen: make(chan struct{}, 1), since: map[config.Part]time.Time{}}
}

// parts maps the reasons of pauses to the part that does not work.
var parts = map[string]config.Part{
	"source": config.SourcePart, "acknowledging": config.SourcePart, "sink": config.SinkPart, "store": config.StorePart, "parking": config.ParkedPart,
}

// advised is an observer that gets errors with advice.
type advised struct {
	pipeline.Observer
	of *readiness
}

// ObservePipeline implements pipeline.Observer.
func (a advised) ObservePipeline(e pipeline.Event) {
	part := parts[e.Reason]
	switch e.Kind {
	case pipeline.EventPaused:
		e.Err = a.of.paused(part, e.Err)
	case pipeline.EventResumed:
		a.of.resumed(part)
	case pipeline.EventSourceChanged:
		e.Err = a.of.file.Advise(a.of.spec, config.SourcePart, e.Err)
	case pipeline.EventStalled:
		e.Err = a.of.stalled(e.Err)
	}
	a.Observer.ObservePipeline(e)
}

// paused notes that a part does not work. It returns the error with advice.
func (r *readiness) paused(part config.Part, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if part == "" || err == nil {
		return err
	}
	err = r.file.Advise(r.spec, part, err)
	if r.since[part].IsZero() {
		r.since[part] = time.Now()
	}
	r.told.isNew(err.Error(), time.Now())
	return err
}

// stalled returns the error behind which a pipeline waits, with advice.
func (r *readiness) stalled(err error) error {
	part := config.SinkPart
	if _, ok := errors.AsType[*pipeline.StoreError](err); ok {
		part = config.StorePart
	}
	return r.file.Advise(r.spec, part, err)
}

func (r *readiness) resumed(part config.Part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, part)
	r.told = told{}
}

// restart forgets the errors of a pipeline that is closed.
func (r *readiness) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.since)
	r.told = told{}
}

// explain says why a pipeline is not ready, in words that any client of a probe may
// see. It returns err itself if it has no such words.
func (r *readiness) explain(err error) error {
	if err == nil {
		return nil
	}
	var causes []error
	store, atStore := errors.AsType[*pipeline.StoreError](err)
	sink, atSink := errors.AsType[*pipeline.UnavailableError](err)
	add := func(part config.Part, err error) {
		said, ok := errors.AsType[*diagnose.Error](r.file.Advise(r.spec, part, err))
		if ok {
			said = said.ForAll()
		}
		switch {
		case part == config.SourcePart && (said == nil || !said.OfKind):
			return // the error may be one of the network behind a stall
		case said == nil && (errors.Is(err, semel.ErrStoreFull) || errors.Is(err, semel.ErrStoreFailed) || errors.Is(err, semel.ErrCorrupt)):
			return // no server is the cause
		case said == nil:
			said = &diagnose.Error{Cause: "it fails", Remedy: "is its server up, or going down or starting? The log has the error", Public: true}
			if cause := diagnose.PublicCause(err); cause != nil {
				said.Cause = cause.Error()
			}
		}
		where := string(part)
		r.mu.Lock()
		if since := r.since[part]; !since.IsZero() {
			where = fmt.Sprintf("the %s has not worked since %s", part, since.UTC().Format(time.RFC3339))
		}
		r.mu.Unlock()
		causes = append(causes, fmt.Errorf("%s: %w", where, said))
	}
	if atSink {
		add(config.SinkPart, sink)
	}
	if atStore {
		add(config.StorePart, store)
	}
	if !atSink && !atStore {
		add(config.SourcePart, err)
	}
	switch len(causes) {
	case 0:
		return err
	case 1:
		return causes[0]
	}
	return fmt.Errorf("%w; %w", causes[0], causes[1]) // a probe shows one line
}

// ended says why a pipeline cannot be opened or, after it was opened, why it ended. shown
// is for clients of probes. Before a pipeline is open, an error has no part of a message.
func (r *readiness) ended(err error, opened bool) (logged, shown error) {
	if !opened {
		return err, err
	}
	if _, stopped := errors.AsType[*pipeline.StoppedError](err); stopped {
		return err, fmt.Errorf("%w: the log has the error", pipeline.ErrStopped)
	}
	if _, bound := errors.AsType[*semel.ScopeError](err); bound {
		return err, err
	}
	part := config.SourcePart
	if _, ok := errors.AsType[*pipeline.StoreError](err); ok {
		part = config.StorePart
	} else if errors.Is(err, pipeline.ErrParkedUnread) {
		part = config.ParkedPart
	}
	advised := r.file.Advise(r.spec, part, err)
	said, ok := errors.AsType[*diagnose.Error](advised)
	switch {
	case ok && said.OfKind:
		logged = fmt.Errorf("%s: %w", part, said)
	case ok:
		logged = advised
	default:
		return err, inLog("it ended with an error", err)
	}
	if all := said.ForAll(); all != nil {
		return logged, fmt.Errorf("%s: %w", part, all)
	}
	return logged, inLog("it ended with an error", err)
}

// inLog says to clients of probes that the log has an error, with the part that clients may see.
func inLog(what string, err error) error {
	if cause := diagnose.PublicCause(err); cause != nil {
		what += ": " + cause.Error()
	}
	return errors.New(what + ": the log has the error")
}

// ask asks a pipeline whether it can work, and notes the answer unless it came too late.
func (r *readiness) ask(ctx context.Context, p config.Runnable) (err, explained error) {
	err = p.Ready(ctx)
	explained = r.explain(err)
	if ctx.Err() == nil {
		r.asked.Heard(explained)
	}
	return err, explained
}

// answer asks a pipeline for a probe whether it can work. A bad answer is also logged.
func (r *readiness) answer(ctx context.Context, p config.Runnable) error {
	_, err := r.ask(ctx, p)
	if err != nil {
		select {
		case r.seen <- struct{}{}:
		default:
		}
	}
	return err
}

// first logs before a pipeline begins what keeps its target or its store from working, such as a
// table that is missing. A source has nothing to say yet.
func (r *readiness) first(ctx context.Context, p config.Runnable, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, readinessFor)
	defer cancel()
	err, explained := r.ask(ctx, p)
	_, ofSink := errors.AsType[*pipeline.UnavailableError](err)
	_, ofStore := errors.AsType[*pipeline.StoreError](err)
	if ofSink || ofStore {
		r.tell(explained, log)
	}
}

// watch logs why a pipeline cannot work although nothing has failed: a topic may be
// missing, or a server may have ended while there is nothing to do. It runs until
// stop is called.
func (r *readiness) watch(ctx context.Context, p config.Runnable, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		works := time.Now() // since when it works
		for retry.SleepOrWake(ctx, min(max(time.Since(works)/8, readinessEvery), readinessRarely), r.seen) == nil {
			limited, cancel := context.WithTimeout(ctx, readinessFor)
			_, err := r.ask(limited, p)
			cancel()
			if err != nil {
				works = time.Now()
			}
			if ctx.Err() == nil {
				r.tell(err, log)
			}
		}
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// tell logs why a pipeline cannot work, if the log does not have it, or that it can
// work again.
func (r *readiness) tell(err error, log *slog.Logger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	said, ok := errors.AsType[*diagnose.Error](err)
	switch {
	case err == nil && r.told.cause != "" && len(r.since) == 0: // the end of a pause is logged elsewhere
		r.told = told{}
		log.Info("ready")
	case ok && (said.Error() != r.told.cause || len(r.since) == 0) && r.told.isNew(said.Error(), time.Now()): // a pause is logged again as a stall
		log.Warn("not ready", "error", oneLine(err))
	}
}

func oneLine(err error) string { return diagnose.Line(err.Error()) }
