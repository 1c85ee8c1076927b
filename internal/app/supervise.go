package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// waits reports whether a pipeline waits and is opened again after an error. It is the one
// rule for all kinds, at the start and later. A person at a server can repair what the
// server refuses or lacks: a password, a right, a queue, a certificate. So a kind that
// gives advice about an error knows that its server can be repaired. The other errors of
// servers pass or are repaired, too. What remains must end the pipeline:
//   - only the configuration can repair an invalid request;
//   - a message at which the pipeline stops, as configured, stays there;
//   - another process has the store, the position or the name, and may have it for years;
//   - a path on this machine cannot be used.
func waits(err error) bool {
	said, ok := errors.AsType[*diagnose.Error](err)
	_, held := diagnose.Holder(err)
	switch {
	case errors.Is(err, pipeline.ErrStopped), errors.Is(err, pipeline.ErrReplaced), held, errors.Is(err, semel.ErrStoreFailed):
		return false
	case ok && said.OfKind:
		return true
	}
	return semel.Classify(err) != semel.ClassPermanent && !ofThisMachine(err)
}

// ofThisMachine reports whether a path on this machine is the cause of an error that
// does not pass by itself, as a full disk does. A bare errno comes from a file, although
// it has the methods of a net.Error.
func ofThisMachine(err error) bool {
	number, ok := errors.AsType[syscall.Errno](err)
	passes := ok && (number.Temporary() || number == syscall.ENOSPC || number == syscall.EDQUOT || number == syscall.ENOMEM)
	if _, ofNetwork := errors.AsType[*net.OpError](err); ofNetwork || passes {
		return false
	}
	_, ofPath := errors.AsType[*fs.PathError](err)
	return ok || ofPath
}

// run runs one pipeline until its source has ended, ctx ends, or it cannot continue.
func (d *daemon) run(ctx context.Context, spec *config.Pipeline, s *state) error {
	log := d.log.With("pipeline", spec.Name)
	observer, finish, err := d.observer(spec, s, log)
	if err != nil {
		return err
	}
	defer finish()
	own, end := context.WithCancel(ctx)
	defer end()
	opts := &PipelineOptions{Observer: observer, Stdout: untilGone(d.opts.Stdout, end)}
	err = d.persist(own, s, log, "pipeline "+spec.Name+": ", s.readiness.ended, func(opened func()) error {
		p, err := OpenPipeline(own, d.file, spec, d.stores, opts)
		if err != nil {
			return err
		}
		s.set(func(s *state) { s.pipeline, s.waiting = p, nil })
		opened()
		defer s.stops()
		return d.work(own, spec, s, p, log)
	})
	s.set(func(s *state) {
		if s.ended = true; err != nil {
			s.failure = s.waiting
		}
	})
	if err != nil {
		s.open.Do(d.notifier.opened) // it opens no more
	}
	s.counters.over(err == nil && own.Err() == nil)
	now := s.status()
	if err != nil {
		log.Error("ended", append(attrs(&now), "error", err)...)
		return err
	}
	log.Info("ended", attrs(&now)...)
	return nil
}

// work runs an open pipeline.
func (d *daemon) work(ctx context.Context, spec *config.Pipeline, s *state, p *Pipeline, log *slog.Logger) error {
	d.maintain(ctx, spec.Store.Name)
	defer d.metrics.Watch(spec.Name, p.UnderWay)()
	defer d.poll(ctx, s, p, log)()
	s.readiness.first(ctx, p, log)
	defer s.readiness.watch(ctx, p, log)()
	log.Info("running", "source", spec.Source.Kind(), "store", spec.Store.Name, "sink", spec.Sink.Kind(), "mode", d.file.Mode(spec).String())
	if f, ok := d.filter(spec); ok {
		log.Warn("new messages are lost: a filter decides alone", "store", spec.Store.Name, "rate", f.Rate, "expect", f.Expect)
	}
	d.warnOfNewer(ctx, spec, log)
	d.warnOfUnbound(ctx, spec, log)
	return p.Run(ctx)
}

const (
	// backoffFrom and backoffTo bound the pauses before a pipeline is opened again.
	backoffFrom, backoffTo = 500 * time.Millisecond, 15 * time.Second
	// worked is how long a pipeline must have been open until the pauses start again.
	worked = time.Minute
)

// persist calls attempt until it succeeds, ctx ends, or it returns an error that
// the pipeline does not wait for. An attempt opens a pipeline or a service, calls opened, and works
// until the end. persist logs each new cause. An attempt that opens for long is reported
// too. said adds to an error what it means; shown is for clients of probes. Before it
// calls said, persist removes prefix from the text.
func (d *daemon) persist(ctx context.Context, s *state, log *slog.Logger, prefix string, said func(err error, opened bool) (logged, shown error), attempt func(opened func()) error) error {
	backoff := pipeline.Failure{From: backoffFrom, To: backoffTo}
	var last told
	var opening atomic.Bool
	var silent diagnose.Stall
	defer silent.Start(ctx, diagnose.Work{
		Look: func() (uint64, bool) { return 0, opening.Load() },
		Stalled: func(_ context.Context, still time.Duration) {
			s.set(func(s *state) {
				if s.waiting == nil { // the error of an earlier try says more
					s.waiting = fmt.Errorf("waits for %w", errOpening)
				}
			})
			log.Warn("stalled", "for", still.Round(time.Second).String(), "waiting_for", errOpening.Error())
		},
		Moves: func(time.Duration) {}, // the next line of the log says how it ended
	})()
	for n := 1; ; n++ {
		var since time.Time // when it was open
		opening.Store(true)
		err := attempt(func() {
			since = time.Now()
			opening.Store(false)
			s.open.Do(d.notifier.opened)
			s.begun()
		})
		opening.Store(false)
		if err == nil || ctx.Err() != nil && since.IsZero() {
			return nil
		}
		what := "cannot start yet, trying again"
		if !since.IsZero() {
			what = "ended with an error, starting again"
			if time.Since(since) > worked {
				n = 1
			}
		}
		logged, shown := said(err, !since.IsZero())
		s.set(func(s *state) { s.waiting, s.pipeline = shown, nil })
		if ctx.Err() != nil || !waits(logged) {
			return logged
		}
		s.begun()
		pause, text := backoff.Pause(n), strings.TrimPrefix(oneLine(logged), prefix)
		s.set(func(s *state) { s.next = time.Now().Add(pause) })
		if last.isNew(text, time.Now()) {
			log.Warn(what, "error", text, "attempt", n, "next", pause.Round(time.Millisecond))
		}
		if retry.Sleep(ctx, pause) != nil {
			return nil
		}
	}
}

// errOpening is why a pipeline waits whose servers neither answer nor refuse.
var errOpening = errors.New("the first answer of its servers: is each address right, and can this machine reach it?")

// begun notes that a pipeline is open, waits, or has ended: the first attempt to open it is
// over. It reports whether that was not noted before.
func (s *state) begun() bool { return !s.tried.Swap(true) }

// stops ends what metrics and status say of a pipeline that was open: it is not known
// yet whether the next attempt pauses or stalls, too.
func (s *state) stops() {
	for reason := range parts {
		s.gauges.ObservePipeline(pipeline.Event{Kind: pipeline.EventResumed, Pipeline: s.name, Reason: reason})
	}
	s.gauges.ObservePipeline(pipeline.Event{Kind: pipeline.EventMoves, Pipeline: s.name})
	s.counters.stops()
	s.readiness.restart()
}
