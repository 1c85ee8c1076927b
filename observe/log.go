package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// LogOptions are the options of NewLog. The zero value is valid.
type LogOptions struct {
	// Burst is how many lines about the same are written in one Interval. Those
	// beyond are counted, and the count is written when the interval is over.
	// Defaults to 10. Must not be negative.
	Burst int
	// Interval defaults to 10 s. Must not be negative.
	Interval time.Duration
	// Redact hides in an error what must not be logged, before it is shortened.
	// Defaults to hiding nothing.
	Redact func(text string) string
}

// Log writes to a log what people should know of guards and pipelines: what was
// parked, dropped or let through, what waits long for a key that another holds,
// leases that were lost, pauses, a source that comes and goes. At the level debug
// also what is tried again. Warnings have the key of the message, other lines have
// not, and none has a body.
//
// It is a pipeline.Observer and safe for concurrent use.
type Log struct {
	log  *slog.Logger
	opts LogOptions

	summing sync.Mutex // held while counts are written

	mu     sync.Mutex // guards the fields below; taken after summing
	lines  map[about]*tally
	timer  *time.Timer
	closed bool
}

var _ pipeline.Observer = (*Log)(nil)

// about is what lines are alike in.
type about struct{ what, reason string }

// mostAbout is how many of them are told apart in an interval.
const mostAbout = 64

type tally struct {
	level          slog.Level
	written, count int // count is of messages in lines that were not written
}

// NewLog returns an observer that writes to a log. Nil options are the zero
// options. All that are out of bounds are named in one error, which wraps
// semel.ErrInvalidRequest. The caller closes it.
func NewLog(log *slog.Logger, opts *LogOptions) (*Log, error) {
	l := &Log{log: log, lines: map[about]*tally{}}
	if opts != nil {
		l.opts = *opts
	}
	if l.opts.Burst == 0 {
		l.opts.Burst = 10
	}
	if l.opts.Interval == 0 {
		l.opts.Interval = 10 * time.Second
	}
	if l.opts.Redact == nil {
		l.opts.Redact = strings.Clone
	}
	if err := l.validate(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Log) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("observe: "+format+": %w", append(args, semel.ErrInvalidRequest)...))
	}
	if l.log == nil {
		bad("NewLog: the log is nil")
	}
	if l.opts.Burst < 0 {
		bad("LogOptions.Burst: %d is negative", l.opts.Burst)
	}
	if l.opts.Interval < 0 {
		bad("LogOptions.Interval: %v is negative", l.opts.Interval)
	}
	return errors.Join(errs...)
}

// Close writes the counts of what was not written. What is observed afterwards
// is written line by line. Closing twice is legal.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.sum()
}

// Observe implements semel.Observer.
func (l *Log) Observe(e semel.Event) {
	switch e.Kind {
	case semel.LeaseLost, semel.CompletionRefused, semel.TookOver:
		l.line(slog.LevelWarn, e.Kind.String(), "", 1, func() []slog.Attr {
			attrs := []slog.Attr{slog.String("key", e.Key.String())}
			if e.Attempt > 0 {
				attrs = append(attrs, slog.Int("attempt", e.Attempt))
			}
			return attrs
		}, e.Err)
	case semel.StoreError:
		l.line(slog.LevelDebug, e.Kind.String(), "", 1, nil, e.Err)
	}
}

// ObserveMany implements semel.ManyObserver. What it is told of is not written.
func (l *Log) ObserveMany(e semel.Event, n int) {
	switch e.Kind {
	case semel.Decided, semel.Completed:
	default:
		for range n {
			l.Observe(e)
		}
	}
}

// ObservePipeline implements pipeline.Observer.
func (l *Log) ObservePipeline(e pipeline.Event) {
	level, reason := slog.LevelDebug, e.Reason
	switch e.Kind {
	case pipeline.EventParked, pipeline.EventDropped, pipeline.EventFailedOpen, pipeline.EventPaused:
		level = slog.LevelWarn
	case pipeline.EventResumed:
		level = slog.LevelInfo
	case pipeline.EventSourceChanged:
		level, reason = slog.LevelInfo, "" // it holds numbers, which would make each line another
		if e.Err != nil {
			level = slog.LevelWarn
		}
	case pipeline.EventStandby:
		reason = ""
	case pipeline.EventRetried:
		if e.Reason == pipeline.HeldReason { // its holder may hang
			level = slog.LevelWarn
		}
	case pipeline.EventReturned:
	default:
		return // there is one for each batch
	}
	l.line(level, e.Kind.String(), reason, e.Count, func() []slog.Attr { return describe(&e, level) }, e.Err)
}

// describe returns what a line says beside its error.
func describe(e *pipeline.Event, level slog.Level) []slog.Attr {
	var attrs []slog.Attr
	if e.Count > 0 {
		attrs = append(attrs, slog.Int("count", e.Count))
	}
	if e.Reason != "" {
		attrs = append(attrs, slog.String("reason", e.Reason))
	}
	if e.Elapsed > 0 {
		attrs = append(attrs, slog.Duration("elapsed", e.Elapsed))
	}
	if it := e.Item; it != nil {
		o := it.Message.Origin
		if level >= slog.LevelWarn {
			attrs = append(attrs, slog.String("key", it.Call.Key.String()))
		}
		attrs = append(attrs, slog.Int("attempt", it.Attempt), slog.Group("origin",
			slog.String("source", short(o.Source)), slog.Int("partition", int(o.Partition)), slog.Int64("offset", o.Offset)))
	}
	return attrs
}

// line writes a line, or counts it if there were many alike.
func (l *Log) line(level slog.Level, what, reason string, count int, attrs func() []slog.Attr, err error) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) || !l.admit(about{what, reason}, level, max(count, 1)) {
		return
	}
	var list []slog.Attr
	if attrs != nil {
		list = attrs()
	}
	if err != nil {
		list = append(list, slog.String("error", short(l.opts.Redact(err.Error()))))
	}
	l.log.LogAttrs(ctx, level, what, list...)
}

// admit reports whether a line is to be written, and counts it if not.
func (l *Log) admit(a about, level slog.Level, count int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return true
	}
	t := l.lines[a]
	if t == nil && len(l.lines) >= mostAbout {
		a.reason = ""
		t = l.lines[a]
	}
	if t == nil {
		t = &tally{level: level}
		l.lines[a] = t
		if len(l.lines) == 1 {
			l.timer = time.AfterFunc(l.opts.Interval, l.sum)
		}
	}
	if t.written < l.opts.Burst {
		t.written++
		return true
	}
	t.count += count
	return false
}

// sum ends an interval: it writes what was counted, and lines are written again.
func (l *Log) sum() {
	l.summing.Lock()
	defer l.summing.Unlock()
	l.mu.Lock()
	lines := l.lines
	l.lines = map[about]*tally{}
	l.mu.Unlock()
	for a, t := range lines {
		if t.count == 0 {
			continue
		}
		attrs := []slog.Attr{slog.Int("count", t.count), slog.Bool("summed", true)}
		if a.reason != "" {
			attrs = append(attrs, slog.String("reason", a.reason))
		}
		l.log.LogAttrs(context.Background(), t.level, a.what, attrs...)
	}
}

// longest is the most bytes of an error that are written: the answer of a server
// may quote what it was sent.
const longest = 512

func short(text string) string {
	if len(text) <= longest {
		return text
	}
	n := longest
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return strings.Clone(text[:n]) + "…"
}
