package observe

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/eventreason"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/pipeline"
)

// LogOptions are the options of [NewLog]. The zero value is valid.
type LogOptions struct {
	// Burst is the highest number of lines about the same thing in one
	// Interval. Further lines are counted, and the log gets their number at the
	// end of the interval. Defaults to 10. Must not be negative.
	Burst int
	// Interval is the length of an interval. Defaults to 10 s. Must not be
	// negative.
	Interval time.Duration
	// Redact removes secrets from the text of an error before it is shortened.
	// Defaults to nil: nothing is removed.
	Redact func(text string) string
	// Duplicates is the share of dropped duplicates, from 0 to 1, that get a line of their
	// own at level info. The others get one at level debug. Defaults to 0.
	Duplicates float64
	// First returns, for the keys of duplicates that get a line, where the message came
	// from that took effect: the origin in their records, or "". It is called once for a
	// batch, and the batch waits for it. Defaults to nil: not known.
	First func(keys []semel.Key) []string
}

// Log writes events of guards and pipelines to a log. They are about messages that were
// parked, dropped or let through, messages that wait long for a claimed key,
// lost leases, pauses, pipelines that stall, and changes of the source. At
// level debug it also writes retries, dropped duplicates, effects that failed or
// panicked, and failed store calls. Warnings and lines about duplicates contain the
// key of the message, and other lines do not. No line contains a body.
//
// Log is a pipeline.Observer and safe for concurrent use.
type Log struct {
	log  *slog.Logger
	opts LogOptions

	summing sync.Mutex // held while counts are written

	mu     sync.Mutex // guards the fields below; taken after summing
	lines  map[about]*tally
	timer  *time.Timer
	closed bool
	// differing says that a line told of duplicates that differ in content.
	differing bool
}

var _ pipeline.Observer = (*Log)(nil)

// about is what lines must have in common to count as alike.
type about struct{ what, reason string }

// mostAbout is the highest number of different abouts in an interval.
const mostAbout = 64

type tally struct {
	level          slog.Level
	written, count int // count is the number of messages in lines that were not written
}

// NewLog returns an observer that writes to a log. Nil options are the zero
// options. One error names all options that are out of bounds, and wraps
// semel.ErrInvalidRequest. The caller closes the Log.
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
	wrong := invalid.In("observe: ")
	if l.log == nil {
		wrong.Add("NewLog: the log is nil")
	}
	if l.opts.Burst < 0 {
		wrong.Add("LogOptions.Burst: %d is negative", l.opts.Burst)
	}
	if !(l.opts.Duplicates >= 0 && l.opts.Duplicates <= 1) {
		wrong.Add("LogOptions.Duplicates: %v is not between 0 and 1", l.opts.Duplicates)
	}
	if l.opts.Interval < 0 {
		wrong.Add("LogOptions.Interval: %v is negative", l.opts.Interval)
	}
	return wrong.Err()
}

// Close writes the counts of suppressed lines. Later events are written line by
// line. A second Close does nothing.
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
	case semel.EventLeaseLost, semel.EventCompletionRefused, semel.EventTookOver:
		l.line(slog.LevelWarn, e.Kind.String(), "", 1, func() []slog.Attr {
			attrs := named(e.Key)
			if e.Attempt > 0 {
				attrs = append(attrs, slog.Int("attempt", e.Attempt))
			}
			return attrs
		}, e.Err)
	case semel.EventReleased:
		if e.Err != nil {
			l.line(slog.LevelDebug, e.Kind.String(), "", 1, func() []slog.Attr { return []slog.Attr{slog.Int("attempt", e.Attempt)} }, e.Err)
		}
	case semel.EventStoreError:
		l.line(slog.LevelDebug, e.Kind.String(), "", 1, nil, e.Err)
	}
}

// ObservePipeline implements pipeline.Observer.
func (l *Log) ObservePipeline(e pipeline.Event) {
	level, reason := slog.LevelDebug, e.Reason
	switch e.Kind {
	case pipeline.EventParked, pipeline.EventDropped, pipeline.EventFailedOpen, pipeline.EventPaused:
		if e.Reason != string(pipeline.ReasonParkedBefore) { // a line told of it before
			level = slog.LevelWarn
		}
	case pipeline.EventResumed:
		level = slog.LevelInfo
	case pipeline.EventSourceChanged:
		level, reason = slog.LevelInfo, "" // the reason contains numbers, which would make every line different
		if e.Err != nil {
			level = slog.LevelWarn
		}
	case pipeline.EventStandby:
		reason = ""
	case pipeline.EventStalled:
		level, reason = slog.LevelWarn, "" // each reason is different
	case pipeline.EventMoves:
		level = slog.LevelInfo
	case pipeline.EventDiffering:
		l.mu.Lock()
		said := l.differing
		l.differing = true
		l.mu.Unlock()
		if said { // one line is enough
			return
		}
		level = slog.LevelWarn
	case pipeline.EventRetried:
		if e.Reason == eventreason.Held { // the holder of the key may hang
			level = slog.LevelWarn
		}
	case pipeline.EventReturned:
	case pipeline.EventFiltered:
		l.filtered(e.Items)
		return
	case pipeline.EventDecided:
		if e.Decision == semel.Duplicate {
			l.duplicates(e.Items)
		}
		return
	default:
		return // there is one such event for each batch
	}
	l.line(level, e.Kind.String(), reason, e.Count, func() []slog.Attr { return describe(&e, level) }, e.Err)
}

// duplicates writes a line for each dropped duplicate that is chosen, however many are
// alike: an operator who asks for them wants them all.
func (l *Log) duplicates(items []*pipeline.Item) {
	ctx := context.Background()
	all := l.log.Enabled(ctx, slog.LevelDebug)
	if !all && (l.opts.Duplicates == 0 || !l.log.Enabled(ctx, slog.LevelInfo)) {
		return
	}
	var keys []semel.Key
	var levels []slog.Level
	var chosen []*pipeline.Item
	for _, it := range items {
		level := slog.LevelDebug
		if rand.Float64() < l.opts.Duplicates {
			level = slog.LevelInfo
		}
		if all || level == slog.LevelInfo {
			keys, levels, chosen = append(keys, it.Call.Key), append(levels, level), append(chosen, it)
		}
	}
	var first []string
	if l.opts.First != nil && len(keys) > 0 {
		first = l.opts.First(keys)
	}
	for i, it := range chosen {
		attrs := append(named(it.Call.Key), origin("origin", &it.Message.Origin))
		if i < len(first) && first[i] != "" {
			attrs = append(attrs, slog.String("first", short(first[i])))
		}
		l.log.LogAttrs(ctx, levels[i], semel.Duplicate.String(), attrs...)
	}
}

// filtered writes a line for each message that was filtered out.
func (l *Log) filtered(items []*pipeline.Item) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	for _, it := range items {
		l.log.LogAttrs(ctx, slog.LevelDebug, pipeline.EventFiltered.String(), append(named(it.Call.Key), origin("origin", &it.Message.Origin))...)
	}
}

// origin returns the attribute that names the place of a delivery.
func origin(name string, o *semel.Origin) slog.Attr {
	return slog.Group(name, slog.String("source", short(o.Source)), slog.Int("partition", int(o.Partition)), slog.Int64("offset", o.Offset))
}

// describe returns the attributes of a line besides its error.
func describe(e *pipeline.Event, level slog.Level) []slog.Attr {
	var attrs []slog.Attr
	switch e.Kind {
	case pipeline.EventStalled:
		attrs = append(attrs, slog.String("for", seconds(e.Elapsed)), slog.Int("in_flight", e.Count))
		if it := e.Item; it != nil && it.Message.Origin.Source != "" {
			o := it.Message.Origin
			attrs = append(attrs, slog.String("oldest", fmt.Sprintf("%s/%d/%d", short(o.Source), o.Partition, o.Offset)))
		}
		return append(attrs, slog.String("waiting_for", e.Reason))
	case pipeline.EventMoves:
		return append(attrs, slog.String("stalled_for", seconds(e.Elapsed)))
	case pipeline.EventDiffering:
		attrs = append(attrs, slog.String("cause", "a duplicate differs in content from the message of its key that took effect: the key may be too coarse"))
	}
	if e.Count > 0 {
		attrs = append(attrs, slog.Int("count", e.Count))
	}
	if e.Reason != "" {
		attrs = append(attrs, slog.String("reason", e.Reason))
	}
	if e.Elapsed > 0 {
		attrs = append(attrs, slog.Duration("elapsed", e.Elapsed.Round(time.Millisecond)))
	}
	if e.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", e.Attempt))
	}
	if e.Next > 0 {
		attrs = append(attrs, slog.Duration("next", e.Next.Round(time.Millisecond)))
	}
	if it := e.Item; it != nil {
		if level >= slog.LevelWarn {
			attrs = append(attrs, named(it.Call.Key)...)
		}
		attrs = append(attrs, slog.Int("attempt", it.Attempt), origin("origin", &it.Message.Origin))
	}
	return attrs
}

// seconds formats a long duration.
func seconds(d time.Duration) string { return d.Round(time.Second).String() }

// named returns the attributes that name a key. An id that is not text is quoted.
func named(key semel.Key) []slog.Attr {
	id := key.ID
	if !utf8.ValidString(id) || strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) {
		id = strconv.Quote(id)
	}
	return []slog.Attr{slog.String("scope", key.Scope), slog.String("key", short(id))}
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
		list = append(list, slog.String("error", short(diagnose.Line(l.opts.Redact(err.Error())))))
	}
	l.log.LogAttrs(ctx, level, what, list...)
}

// admit reports whether a line is written, and counts it otherwise.
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

// sum ends an interval. It writes the counts, and permits lines again.
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

// longest is the highest number of bytes of an error in a line, because the
// answer of a server may quote the request.
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
