package kafkatxn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
	"github.com/semel-dev/semel/internal/changes"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/kept"
	"github.com/semel-dev/semel/internal/localcopy"
	"github.com/semel-dev/semel/internal/windows"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// mostResults is how many results one transaction writes at most, or fewer if it would
// take long. The rest follows in further transactions.
const mostResults = 50_000

// windowState has the open windows of a partition, or the records that it holds, and the
// position in their changelog.
type windowState struct {
	windowed
	agg  *windows.State // nil without Aggregate
	kept *kept.State    // nil without Keep
	// position is the changelog offset up to which all records are applied. The record
	// before it has the checksum last.
	position int64
	last     uint32
	// verify means that the next record must have that checksum.
	verify bool
	// log is the copy of the changelog on disk, which has the long values; nil without a
	// directory. What is before the offset cut does not count.
	log    *localcopy.Log
	cut    int64
	places []localcopy.Place
	// mix is how far the origins have come, with a Repartition; or nil.
	mix *watermarks.Stored
}

// windowed is what windows and held records have in common.
type windowed interface {
	See(when, clock int64) bool
	Watermark() int64
	SetOrigins(text string)
	Origins() string
	Open() int
	Due() bool
	Changes(definition, topic changes.ID, most int) ([][]byte, error)
	Parse(value []byte) (changes.Record, error)
	Apply(r *changes.Record, at int64, place localcopy.Place)
	Commit(at int64, places []localcopy.Place)
	Drop()
	Stored(at int64, size int)
	Cut() (at int64, ok bool)
	Bytes() int64
	SetSlack(bytes int64)
	SetCopy(l *localcopy.Log)
	Detach() bool
}

// newWindows returns a state without windows or held records, with a copy on disk or nil.
func (t *Transactor) newWindows(log *localcopy.Log) *windowState {
	ws := &windowState{log: log}
	if t.opts.Aggregate != nil {
		ws.agg = windows.New(t.opts.Aggregate)
		ws.windowed = ws.agg
	} else {
		ws.kept = kept.New(kept.RuleOf(t.opts.Keep, t.opts.Window))
		ws.windowed = ws.kept
	}
	ws.SetCopy(log)
	if t.opts.mixes() {
		ws.mix = watermarks.NewStored(t.origins, ws, t.opts.maxAhead().Milliseconds())
	}
	if t.opts.slack > 0 {
		ws.SetSlack(t.opts.slack)
	}
	return ws
}

// hasState reports whether partitions have windows or hold records.
func (o *TransactorOptions) hasState() bool { return o.Aggregate != nil || o.Keep != nil }

// idle returns how long a partition has no new records before the clock moves its
// watermark.
func (o *TransactorOptions) idle() time.Duration {
	switch {
	case o.Aggregate != nil:
		return o.Aggregate.Idle
	case o.Keep != nil && o.Keep.Holds():
		return o.Keep.Idle
	}
	return semel.Forever
}

// stateText identifies what the changelog of windows or held records has.
func (o *TransactorOptions) stateText() string {
	if o.Keep != nil {
		return o.Keep.String()
	}
	return o.Aggregate.String()
}

func (o *TransactorOptions) validateAggregate(wrong *invalid.List) {
	wrong.Join(o.Aggregate.Validate())
	switch {
	case o.Repartition != nil && len(o.Tables) > 0:
		wrong.Add("Aggregate: with Repartition, a message is sent to the partition of its group key before it is joined with a row of Tables. Join messages with one pipeline, and aggregate its output with another")
	case o.Transform != nil:
		wrong.Add("Aggregate: it replaces the Transform. Transform messages with a pipeline before it")
	case o.Output.KeyHeaders:
		wrong.Add("Aggregate: a result has no key of a message, so Output.KeyHeaders cannot name it")
	}
}

// validateState refuses topics of windows or held records that are used otherwise.
func (o *TransactorOptions) validateState(wrong *invalid.List) {
	for _, topic := range o.reads() {
		name := o.windowsOf(topic)
		for _, other := range append([]string{o.Output.Topic, o.Parked, o.changelogOf(topic)}, o.Inputs...) {
			if name == other {
				wrong.Add("Group: the topic %s for windows and held records is another topic of the pipeline", name)
			}
		}
	}
}

// windowsOf returns the topic of the windows of a topic that is decided.
func (o *TransactorOptions) windowsOf(topic string) string {
	name := o.Group + "-state"
	if len(o.reads()) > 1 {
		name += "-" + topic
	}
	return name
}

// changelogsOf returns the topics of the keys and windows of a topic that is decided.
func (o *TransactorOptions) changelogsOf(topic string) []string {
	if !o.hasState() {
		return []string{o.changelogOf(topic)}
	}
	return []string{o.changelogOf(topic), o.windowsOf(topic)}
}

// aggregate adds a record to its window and reports true, or parks it.
func (w *worker) aggregate(ctx context.Context, p *part, r *kgo.Record, now int64) (bool, error) {
	agg := w.opts.Aggregate
	w.note(r)
	id, err := w.group, error(nil)
	if len(id) == 0 {
		id, err = w.groups.Of(&w.message)
	}
	if err != nil {
		return false, w.fail(ctx, r, 1, err)
	}
	if w.placer != nil && w.placer.Of(id) != p.id.Number { // where it would have a window of its own
		return false, w.fail(ctx, r, 1, semel.Permanent(fmt.Errorf("aggregate: the record was copied to the partition of another group key than %q: the filter or the map has changed since; redrive it", id)))
	}
	when := w.when
	if agg.Time != nil {
		w.message.Time = time.UnixMilli(when)
	}
	verdict, err := addTo(p.slot.windows.agg, &w.message, id, when, now)
	switch {
	case err != nil && p.slot.windows.log.Err() != nil:
		return false, err
	case err != nil:
		return false, w.fail(ctx, r, 1, err)
	case verdict == windows.Late:
		w.counts.fresh--
		w.counts.late++
		return false, w.park(ctx, r, agg.Late, pipeline.ReasonLate, 0, fmt.Errorf("the window of its time %s is closed, as all windows up to %s (grace %v): %w",
			text(when), text(p.slot.windows.Watermark()), agg.Grace, semel.ErrLate))
	case verdict == windows.Ahead:
		return false, w.park(ctx, r, pipeline.Park, pipeline.ReasonPermanent, 1, w.opts.aheadOf(when, now))
	}
	w.counts.delivered++
	return true, nil
}

// addTo turns a panic of an Aggregator into an error.
func addTo(st *windows.State, m *semel.Message, group []byte, when, now int64) (v windows.Verdict, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = semel.Permanent(fmt.Errorf("the aggregate panicked: %v", p))
		}
	}()
	return st.Add(m, group, when, now)
}

// due reports whether results can be written now. They wait for an offset of the group to
// commit again, which may be known later than the windows are.
func (s *session) due() bool {
	if !s.t.opts.hasState() {
		return false
	}
	early := s.early()
	var committed map[string]map[int32]kgo.EpochOffset
	return s.anyPart(func(p *part) bool {
		if !p.has(early) {
			return false
		}
		if committed == nil {
			committed = s.brokers.CommittedOffsets()
		}
		_, fenced := committedOffset(committed, p)
		return fenced
	})
}

// committedOffset returns the committed offset of a partition. It reports false if none exists,
// or it is not known yet.
func committedOffset(committed map[string]map[int32]kgo.EpochOffset, p *part) (kgo.EpochOffset, bool) {
	at, ok := committed[p.id.Topic][p.id.Number]
	return at, ok && at.Offset >= 0
}

// early reports whether it is time for early results.
func (s *session) early() bool {
	agg := s.t.opts.Aggregate
	return agg != nil && agg.Early > 0 && time.Since(s.previewed) >= agg.Early
}

// has reports whether the windows of a partition have results to write.
func (p *part) has(early bool) bool {
	return p.slot.windows.Due() || early && p.slot.windows.agg.Fresh()
}

// anyPart reports whether a partition that is up to date has a property.
func (s *session) anyPart(has func(p *part) bool) bool {
	for _, p := range s.parts {
		if p.ready && has(p) {
			return true
		}
	}
	return false
}

// patience returns how long to wait for records.
func (s *session) patience() time.Duration {
	if s.due() {
		return 0
	}
	left := s.nextLook() - s.t.now()
	return time.Duration(min(max(left, 0), time.Second.Milliseconds())) * time.Millisecond
}

// emit writes results of closed windows, as many as one transaction takes. A partition
// without records in it commits its present offset again, so that the brokers check
// whether this member still has it. The same records read in the same transactions give
// the same outputs in the same order.
func (w *worker) emit(ctx context.Context) error {
	if !w.opts.hasState() {
		return nil
	}
	w.emits = true
	defer func() { w.emits = false }()
	committed := w.s.brokers.CommittedOffsets()
	early := w.s.early()
	most := w.opts.results
	if w.rest != nil {
		most = 0 // the transaction takes too long already
	}
	w.results.Begin(most, w.opts.Limits.Interval, w.opts.FilterMap != nil && w.opts.Keep != nil)
	parts := slices.SortedFunc(maps.Values(w.s.parts), func(a, b *part) int {
		return cmp.Or(cmp.Compare(a.id.Topic, b.id.Topic), cmp.Compare(a.id.Number, b.id.Number))
	})
	for _, p := range parts {
		if !p.ready || !p.touched && (w.results.Left() == 0 || !p.has(early)) {
			continue
		}
		if at, fenced := committedOffset(committed, p); fenced {
			if w.recommits == nil {
				w.recommits = map[cluster.Partition]kgo.EpochOffset{}
			}
			w.recommits[p.id] = at
		} else if !p.touched {
			continue
		}
		w.touch(p)
		err := w.results.Write(func(most int) (int, error) { return w.release(ctx, p, most) })
		if err == nil && early {
			err = w.results.Preview(func(most int) (int, error) {
				return p.slot.windows.agg.Preview(most, func(c *stream.Closed) error { return w.result(ctx, p, c, false) })
			})
		}
		if err != nil {
			return err
		}
	}
	if early && w.results.Left() > 0 {
		w.s.previewed = time.Now()
	}
	return nil
}

// release writes at most a number of results of closed windows, or delivers records that
// were held, and returns how many.
func (w *worker) release(ctx context.Context, p *part, most int) (int, error) {
	if ws := p.slot.windows; ws.kept != nil {
		return ws.kept.Emit(most, func(id string, when int64, value []byte) error { return w.releaseHeld(ctx, p, id, when, value) })
	}
	return p.slot.windows.agg.Emit(most, func(c *stream.Closed) error { return w.result(ctx, p, c, true) })
}

// result writes the result of a window.
func (w *worker) result(ctx context.Context, p *part, c *stream.Closed, final bool) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("the aggregate panicked: %v", panicked)
		}
		if err != nil && !errors.Is(err, errAgain) {
			err = fmt.Errorf("kafka: %w at the result of %q in the window of %s/%d from %s: %w", pipeline.ErrStopped, c.Key, p.id.Topic, p.id.Number, c.Start.Format(time.RFC3339), err)
		}
	}()
	body, err := w.opts.Aggregate.Func.Result(c)
	if err != nil || body == nil {
		return err
	}
	out := w.outputs.New(w.opts.Aggregate, c, body, final)
	out.Topic = w.opts.Output.Topic
	// A window may end after the clock. Its result waits until brokers take that time.
	if err := w.s.t.raised(ctx, w.s.limits, &w.askedLimits, w.s.limits.Check(out.Topic, out)); err != nil {
		return err
	}
	if w.opts.Output.SamePartition {
		out.Partition = p.id.Number
	}
	w.produce(out)
	return nil
}

// writeWindows writes the changes of a partition's windows.
func (w *worker) writeWindows(p *part) error {
	t, name := w.s.t, w.opts.windowsOf(p.id.Topic)
	p.slot.windows.mix.Store()
	most := w.s.limits.Of(name) - cluster.BatchOverhead - 16 // numbers and lengths of the record
	values, err := p.slot.windows.Changes(t.definition, t.topics[p.id.Topic], most)
	for _, value := range values {
		r := &kgo.Record{Topic: name, Partition: p.id.Number, Value: value}
		p.windows = append(p.windows, r)
		w.produce(r)
	}
	return err
}

// windowsApplied applies the changes of a committed transaction.
func (t *Transactor) windowsApplied(p *part) error {
	ws := p.slot.windows
	at := int64(0)
	if len(p.windows) > 0 {
		at = p.windows[0].Offset
	}
	ws.places = ws.places[:0]
	for _, r := range p.windows {
		ws.places = append(ws.places, ws.add(r))
	}
	ws.Commit(at, ws.places)
	for _, r := range p.windows {
		ws.passed(r.Value, r.Offset+1)
	}
	ws.shorten()
	p.slot.measure()
	return t.writeWindowsLog(ws)
}

// add adds a record to the copy on disk.
func (ws *windowState) add(r *kgo.Record) localcopy.Place {
	if ws.log == nil {
		return localcopy.Place{}
	}
	return ws.log.Add(r.Value, r.Offset, r.Offset+1)
}

// shorten notes which records do not count any longer, and reports whether there are more
// of them. No transaction is open.
func (ws *windowState) shorten() bool {
	at, ok := ws.Cut()
	if ok {
		ws.cut = at
	}
	return ok
}

// writeWindowsLog writes the copy on disk. After an error, a state that has left values
// there must be built again. Others continue without a copy.
func (t *Transactor) writeWindowsLog(ws *windowState) error {
	if ws.log == nil {
		return nil
	}
	err := ws.log.Write()
	if err == nil {
		err = ws.log.Tidy(ws.cut-1, 0)
	}
	if err != nil && ws.Detach() {
		t.observe(pipeline.Event{Kind: pipeline.EventPaused, Reason: "state directory", Err: err})
		ws.log.Close()
		ws.log, err = nil, nil
	}
	return err
}

// measure notes the values of the gauges.
func (s *slot) measure() {
	s.open.Store(int64(s.windows.Open()))
	s.bytes.Store(s.windows.Bytes())
	s.watermark.Store(s.windows.Watermark())
}

// Gauges returns the gauges of pipeline.SourceTraits. It returns the number of open
// windows, or of held records or versions, of each partition that this process has, their
// bytes, and how far its watermark is behind the clock.
func (t *Transactor) Gauges(ctx context.Context) ([]pipeline.Gauge, error) {
	if !t.opts.hasState() && len(t.opts.Tables) == 0 {
		return nil, fmt.Errorf("kafka: there are no windows and tables: %w", errors.ErrUnsupported)
	}
	open := "dedup.windows.open"
	if t.opts.Keep != nil {
		open = "dedup.kept.open"
	}
	list := t.tableGauges(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, at := range t.slots {
		watermark := at.watermark.Load()
		if _, own := at.holder.(*session); !own || watermark == 0 {
			continue
		}
		labels := []string{id.Topic, strconv.Itoa(int(id.Number))}
		list = append(list, pipeline.Gauge{Name: open, Labels: labels, Value: float64(at.open.Load())},
			pipeline.Gauge{Name: "dedup.state.bytes", Labels: labels, Value: float64(at.bytes.Load())})
		if t.opts.Keep == nil || t.opts.Keep.Holds() {
			list = append(list, pipeline.Gauge{Name: "dedup.windows.lag", Labels: labels, Value: float64(t.now()-watermark) / 1000})
		}
	}
	return list, nil
}

// advanceIdle moves the watermark of a partition without new records, which have been read up to
// a time. It reports whether something is due; if not, it changes nothing.
func (ws *windowState) advanceIdle(read int64) (due bool) {
	if ws.kept != nil {
		return ws.kept.Quiet(read, stream.ClockMargin.Milliseconds())
	}
	return ws.agg.Quiet(read)
}

// passed notes that a changelog record is applied.
func (ws *windowState) passed(value []byte, position int64) {
	ws.Stored(position-1, len(value))
	ws.position, ws.last = position, crc32.Checksum(value, localcopy.Castagnoli)
}

// lookEvery is how often a session asks for the ends of its partitions, once a partition with
// open windows may be quiet.
const lookEvery = time.Second

// nextLook returns when the clock may move a watermark, in milliseconds: as soon as a
// partition has had no new records for long enough, and then every lookEvery.
func (s *session) nextLook() int64 {
	idle, next := s.t.opts.idle(), int64(math.MaxInt64)
	if idle >= semel.Forever {
		return next
	}
	for _, p := range s.parts {
		if !p.ready || p.slot.windows.Open() == 0 {
			continue
		}
		at := p.quiet + idle.Milliseconds()
		if p.quiet == 0 || at <= s.looked || p.slot.windows.mix != nil {
			at = s.looked + lookEvery.Milliseconds()
		}
		next = min(next, at)
	}
	return next
}

// look closes windows of partitions without new records. A partition is quiet at a time
// if everything that was in it then has been read, up to the end that its leader reports.
// Records of open transactions are before that end.
func (s *session) look(ctx context.Context) {
	asked := s.t.now() // before the request: a record that comes later is not older
	if asked < s.nextLook() {
		return
	}
	s.looked = asked
	ctx, cancel := context.WithTimeout(ctx, s.t.opts.Timeouts.Session/4)
	defer cancel()
	if s.t.opts.mixes() {
		s.lookAtOrigins(ctx, asked)
		return
	}
	ends, err := s.t.adm().ListEndOffsets(ctx, s.t.opts.reads()...)
	if err != nil {
		return // the next look may succeed
	}
	s.settleQuiet(asked, ends)
}

// settleQuiet moves the watermarks of partitions that are quiet, by their ends at a time.
func (s *session) settleQuiet(asked int64, ends kadm.ListedOffsets) {
	idle, committed := s.t.opts.idle(), s.brokers.CommittedOffsets()
	for _, p := range s.parts {
		end, ok := ends.Lookup(p.id.Topic, p.id.Number)
		at, has := committed[p.id.Topic][p.id.Number]
		switch {
		case !p.ready || !ok || end.Err != nil:
			// nothing is known of this moment
		case !has || at.Offset < end.Offset:
			p.quiet = 0
		case p.quiet == 0:
			p.quiet = asked
		case asked-p.quiet >= idle.Milliseconds():
			p.slot.windows.advanceIdle(asked - idle.Milliseconds())
		}
	}
}
