package window

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state/statetest"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

// input is a message of the log that both read.
type input struct {
	id, value int
	key       string
	time      int64
}

// fate is what became of a message.
type fate string

const (
	added     fate = "added"
	late      fate = "late"
	ahead     fate = "ahead"
	duplicate fate = "duplicate"
)

// win is a window of a group key.
type win struct {
	key        string
	start, end int64
	n, s       int
	emitted    bool
}

// model says what windows must do, from the rules of time and all that was committed.
type model struct {
	over                 stream.Window
	grace, most, correct int64 // most is how far a message may be ahead
	watermark            int64
	seen                 map[int]bool
	wins                 []win
	revised              map[int]bool // of wins, in this transaction
	passed               int64        // the end of the last window without a result to write
}

func (m *model) clone() *model {
	c := *m
	c.seen, c.wins, c.revised = maps.Clone(m.seen), slices.Clone(m.wins), map[int]bool{}
	return &c
}

// read decides a message. A message too far ahead moves no watermark.
func (m *model) read(in input, clock int64) fate {
	tooFar := in.time > clock+m.most
	if !tooFar {
		m.watermark = max(m.watermark, in.time-m.grace)
	}
	if m.seen[in.id] {
		return duplicate
	}
	if tooFar {
		return ahead
	}
	join := m.toWindows
	if m.over.Gap() > 0 {
		join = m.toSession
	}
	if !join(in) {
		return late
	}
	m.seen[in.id] = true
	return added
}

// toWindows adds a message to each window that is open or can be corrected. With
// corrections, a result that is still to be written has all messages.
func (m *model) toWindows(in input) bool {
	size, every := m.over.Size().Milliseconds(), m.over.Every().Milliseconds()
	newest := in.time / every * every
	if newest+size+m.correct <= m.watermark {
		return false
	}
	for start := newest; start > in.time-size; start -= every {
		end := start + size
		i := slices.IndexFunc(m.wins, func(w win) bool { return w.key == in.key && w.end == end })
		if end+m.correct <= m.watermark && (m.correct == 0 || m.closedUpTo(end, in.key) && !m.revised[i]) {
			continue
		}
		if i < 0 {
			i = len(m.wins)
			m.wins = append(m.wins, win{key: in.key, start: start, end: end})
		}
		m.wins[i].n++
		m.wins[i].s += in.value
		if m.closedUpTo(end, in.key) {
			m.wins[i].emitted = true
			m.revised[i] = true
		}
	}
	return true
}

// closedUpTo reports whether a window's result was written, or would have been: the
// results of later windows, or of later keys of the same one, are.
func (m *model) closedUpTo(end int64, key string) bool {
	return end <= m.passed || slices.ContainsFunc(m.wins, func(w win) bool { return w.emitted && (w.end > end || w.end == end && w.key >= key) })
}

// toSession joins the open sessions that a message touches.
func (m *model) toSession(in input) bool {
	gap, most := m.over.Gap().Milliseconds(), m.over.Most().Milliseconds()
	joined := win{key: in.key, start: in.time, end: in.time + gap + 1, n: 1, s: in.value}
	touched := map[int]bool{}
	order := make([]int, len(m.wins))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(m.wins[a].start, m.wins[b].start) })
	for _, i := range order {
		w := m.wins[i]
		apart := w.start > in.time+gap || w.end-1-gap < in.time-gap
		start, end := min(w.start, joined.start), max(w.end, joined.end)
		if w.key != in.key || w.end <= m.watermark || apart || end-1-gap-start > most {
			continue
		}
		joined = win{key: in.key, start: start, end: end, n: joined.n + w.n, s: joined.s + w.s}
		touched[i] = true
	}
	if joined.end <= m.watermark {
		return false
	}
	var rest []win
	for i, w := range m.wins {
		if !touched[i] {
			rest = append(rest, w)
		}
	}
	m.wins = append(rest, joined)
	return true
}

// advanceIdle moves the watermark by the clock, if a window is then due.
func (m *model) advanceIdle(read int64) {
	to := read - m.grace - stream.ClockMargin.Milliseconds()
	for _, w := range m.wins {
		if !w.emitted && w.end <= to {
			m.watermark = max(m.watermark, to)
			return
		}
	}
}

// close returns the results of corrected windows, and of at most n closed ones.
func (m *model) close(n int) (results []string) {
	var due, again []int
	for i, w := range m.wins {
		if w.end <= m.watermark && !w.emitted {
			due = append(due, i)
		} else if m.revised[i] {
			again = append(again, i)
		}
	}
	order := func(a, b int) int {
		return cmp.Or(cmp.Compare(m.wins[a].end, m.wins[b].end), cmp.Compare(m.wins[a].key, m.wins[b].key))
	}
	slices.SortFunc(due, order)
	slices.SortFunc(again, order)
	for _, i := range slices.Concat(again, due[:min(n, len(due))]) {
		w := &m.wins[i]
		w.emitted = true
		end := w.end
		if gap := m.over.Gap().Milliseconds(); gap > 0 {
			end -= gap + 1
		}
		results = append(results, fmt.Sprintf("%s %d-%d n=%d s=%d", w.key, w.start, end, w.n, w.s))
	}
	for i, at := range due {
		if end := m.wins[at].end; i < n && (i+1 == len(due) || m.wins[due[i+1]].end > end) {
			m.passed = end
		}
	}
	return results
}

// sums is an Aggregator for tests whose results are short.
type sums struct{}

func (sums) String() string { return "sums" }

func (sums) Add(acc []byte, m *semel.Message) ([]byte, error) {
	n, s := 0, 0
	if len(acc) > 0 {
		fmt.Sscanf(string(acc), "n=%d s=%d", &n, &s)
	}
	v, err := strconv.Atoi(string(m.Body))
	if err != nil {
		acc[0] = '!' // a careless function: the state must not see it
		return nil, err
	}
	return fmt.Appendf(acc[:0], "n=%d s=%d", n+1, s+v), nil
}

func (sums) Result(c *stream.Closed) ([]byte, error) {
	text := fmt.Appendf(nil, "%s %d-%d %s", c.Key, c.Start.UnixMilli(), c.End.UnixMilli(), c.Acc)
	c.Acc[0] = '!' // careless too
	return text, nil
}

func (sums) Merge(a, b []byte) ([]byte, error) {
	var n, s, m, t int
	fmt.Sscanf(string(a), "n=%d s=%d", &n, &s)
	fmt.Sscanf(string(b), "n=%d s=%d", &m, &t)
	return fmt.Appendf(nil, "n=%d s=%d", n+m, s+t), nil
}

// side is the engine as a partition has it, with the keys that are known.
type side struct {
	state *State
	seen  map[int]bool // committed
	tx    map[int]bool // of the open transaction
}

func (s *side) read(in input, clock int64) fate {
	ok := s.state.See(in.time, clock)
	if s.seen[in.id] || s.tx[in.id] {
		return duplicate
	}
	if !ok {
		return ahead
	}
	v, err := s.state.Add(&semel.Message{Body: fmt.Append(nil, in.value), Time: time.UnixMilli(in.time)}, []byte(in.key), in.time, clock)
	switch {
	case err != nil:
		panic(err)
	case v == Late:
		return late
	case v == Ahead:
		return ahead
	}
	s.tx[in.id] = true
	return added
}

// testSlack is short, so that the changelogs of tests are rewritten.
const testSlack = 500

const testGrace, testSize, testAhead = 3000, 10_000, 20_000

var testTumbling = stream.Tumbling(testSize * time.Millisecond)

func testAggregate(t testing.TB, over stream.Window, correct time.Duration) *stream.Aggregate {
	t.Helper()
	rule, err := key.ParseRule(".k")
	if err != nil {
		t.Fatal(err)
	}
	a := &stream.Aggregate{By: rule, Over: over, Correct: correct, Func: sums{}, Grace: testGrace * time.Millisecond, MaxAhead: testAhead * time.Millisecond}
	if err := a.Validate(); err != nil {
		t.Fatal(err)
	}
	return a.WithDefaults()
}

// changelog has the records of a state, perhaps with a copy on disk.
type changelog = statetest.Changelog[*State]

// newChangelog returns an empty changelog of windows. Whether it has a copy on disk, and which
// accumulators are left there, is random.
func newChangelog(t *testing.T, agg *stream.Aggregate, random *rand.Rand) *changelog {
	t.Helper()
	opts := statetest.Options[*State]{Random: random, FileSize: 2000, Log: state.LogOptions{Input: state.ID{7}}}
	if random.IntN(4) > 0 {
		opts.Files = faultfs.New()
	}
	inline := random.IntN(10)
	opts.New = func(d *state.Disk) *State {
		s := New(agg)
		s.Bind(state.Of{Definition: state.Definition("d"), Topic: opts.Log.Input}, d, &statetest.Sources{}, testSlack)
		s.Inline = inline
		return s
	}
	return statetest.New(t, opts)
}

// accOf returns an accumulator.
func accOf(t *testing.T, s *State, p *pane) string {
	t.Helper()
	acc, err := s.load(p)
	kafkatest.Must(t, err)
	return string(acc)
}

// history is what a run committed.
type history struct {
	outputs   []string
	changelog []byte
	fates     map[fate]int
	messages  int // of the log
	open      int // messages in open windows
}

// run runs a random history, and checks the engine against the model at each step. The
// watermark never falls, neither in a transaction nor after a restart. After each commit, a
// state restored from the changelog equals the live one, byte for byte. Each further result
// of a window has a greater revision.
// Most is how many results one transaction emits; 0 is a random number.
func run(t *testing.T, agg *stream.Aggregate, seed uint64, rounds, most int, ordered bool) history {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	h := history{fates: map[fate]int{}}
	m := &model{over: agg.Over, grace: testGrace, most: testAhead, correct: agg.Correct.Milliseconds(), seen: map[int]bool{}}
	topic := newChangelog(t, agg, rand.New(rand.NewPCG(seed, 2)))
	live := &side{state: topic.State, seen: map[int]bool{}, tx: map[int]bool{}}
	var log []input
	revisions := map[string]uint64{} // the last one of each window and group key
	longest, most64 := 0, int64(0)   // of a transaction; of the state
	clock, at, newest := int64(1_000_000), 0, int64(0)
	sources := "" // as they are stored

	// transact reads messages up to a place in the log, and ends in one of four ways.
	transact := func(to int, quiet int64) {
		trial, fates, watermark := m.clone(), map[fate]int{}, m.watermark
		rises := func() {
			t.Helper()
			before := watermark
			if watermark = live.state.Watermark(); watermark < before {
				t.Fatalf("the watermark fell from %d to %d", before, watermark)
			}
		}
		rises() // since the last commit, perhaps of another process
		for _, in := range log[at:to] {
			want, got := trial.read(in, clock), live.read(in, clock)
			if want != got {
				t.Fatalf("%+v at watermark %d: %s, want %s", in, trial.watermark, got, want)
			}
			fates[got]++
			rises()
		}
		if quiet > 0 {
			trial.advanceIdle(quiet)
			live.state.Quiet(quiet)
			rises()
		}
		if watermark != trial.watermark {
			t.Fatalf("the watermark is %d, want %d", watermark, trial.watermark)
		}
		n := most
		if n == 0 {
			n = 1 + random.IntN(8)
		}
		var got []string
		revised := maps.Clone(revisions)
		_, err := live.state.Emit(n, func(c *stream.Closed) error {
			name := fmt.Sprint(c.Key, c.End.UnixMilli())
			if last, ok := revised[name]; ok && agg.Over.Gap() == 0 && c.Revision <= last {
				t.Errorf("a result of %s has revision %d after %d", c.Key, c.Revision, last)
			}
			revised[name] = c.Revision
			text, err := agg.Func.Result(c)
			got = append(got, string(text))
			return err
		})
		if want := trial.close(n); err != nil || !slices.Equal(got, want) {
			t.Fatalf("results %q (%v), want %q", got, err, want)
		}
		if got := live.state.StoredSources(); got != sources {
			t.Fatalf("the sources are %q, want %q", got, sources)
		}
		news := sources
		if random.IntN(3) == 0 && most == 0 {
			news = strings.Repeat("o", random.IntN(200))
			live.state.Sources.(*statetest.Sources).Set(news)
		}
		// Each record has the sources: where they are most of it, the state has no proportion to its changelog.
		written := topic.Write(state.Windows.HeaderSize() + 4*len(news) + random.IntN(400))
		end := random.IntN(8)
		if end == 0 || end == 1 { // aborted, and perhaps the process ends as well
			topic.Drop()
			if end == 1 {
				live.state = topic.Restart()
			}
			clear(live.tx)
			return
		}
		h.changelog = append(h.changelog, written...)
		longest = max(longest, len(written))
		m, at, sources, revisions = trial, to, news, revised
		maps.Copy(live.seen, live.tx)
		clear(live.tx)
		h.outputs = append(h.outputs, got...)
		for f, n := range fates {
			h.fates[f] += n
		}
		if end == 2 { // committed, and the process has not heard of it
			live.state = topic.Lose()
		} else {
			topic.Commit()
		}
		topic.DeleteLater()
		most64 = max(most64, live.state.Bytes())
		if size := topic.Bytes(); size > testSlack+4*most64+4*int64(longest) {
			t.Fatalf("the changelog has %d bytes, and the state has had at most %d", size, most64)
		}
		if restored := topic.Restored(); dump(t, restored) != dump(t, live.state) {
			t.Fatalf("restored:\n%s\nlive:\n%s", dump(t, restored), dump(t, live.state))
		}
	}
	for range rounds {
		clock += int64(random.IntN(3000))
		for range random.IntN(6) {
			in := input{id: len(log), value: random.IntN(100), key: string(rune('a' + random.IntN(6)))}
			switch back := random.IntN(20); {
			case ordered:
				newest = max(newest, clock-int64(random.IntN(500)))
				in.time = newest
			case back == 0 && len(log) > 0:
				in = log[random.IntN(len(log))] // delivered again, perhaps with a new time
				if random.IntN(2) == 0 {
					in.time = clock - int64(random.IntN(testGrace))
				}
			case back == 1:
				in.time = clock + int64(random.IntN(60_000))
			case back == 2:
				in.time = clock - int64(random.IntN(60_000))
			default:
				in.time = clock - int64(random.IntN(testGrace*2))
			}
			in.time -= in.time % 500 // often at the ends of windows
			log = append(log, in)
		}
		quiet := int64(0)
		to := min(at+random.IntN(8), len(log))
		if to == len(log) && !ordered && random.IntN(4) == 0 {
			clock += int64(random.IntN(30_000))
			quiet = clock
		}
		transact(to, quiet)
	}
	for at < len(log) || live.state.Due() {
		transact(len(log), 0)
	}
	h.messages = len(log)
	for g := range live.state.groups.all {
		for i := range g.panes {
			var n, s int
			fmt.Sscanf(accOf(t, live.state, &g.panes[i]), "n=%d s=%d", &n, &s)
			h.open += n
		}
	}
	if ordered {
		checkBatch(t, agg.Over, log, h.outputs, m.watermark)
	}
	return h
}

// checkBatch compares results with a grouping of the whole log, which is in order.
func checkBatch(t *testing.T, over stream.Window, log []input, outputs []string, watermark int64) {
	t.Helper()
	size, every, gap := over.Size().Milliseconds(), over.Every().Milliseconds(), over.Gap().Milliseconds()
	wins := map[string]*win{}
	last := map[string]*win{} // the session of a group key
	for _, in := range log {
		if gap > 0 {
			w := last[in.key]
			if w == nil || in.time > w.end+gap || in.time-w.start > over.Most().Milliseconds() {
				w = &win{key: in.key, start: in.time}
				last[in.key], wins[fmt.Sprint(in.key, in.time)] = w, w
			}
			w.end, w.n, w.s = in.time, w.n+1, w.s+in.value
			continue
		}
		for start := in.time / every * every; start > in.time-size; start -= every {
			name := fmt.Sprint(in.key, start)
			if wins[name] == nil {
				wins[name] = &win{key: in.key, start: start, end: start + size}
			}
			wins[name].n++
			wins[name].s += in.value
		}
	}
	var want []string
	for _, w := range wins {
		if gap > 0 && w.end+gap < watermark || gap == 0 && w.end <= watermark {
			want = append(want, fmt.Sprintf("%s %d-%d n=%d s=%d", w.key, w.start, w.end, w.n, w.s))
		}
	}
	got := slices.Clone(outputs)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("results %q, want %q", got, want)
	}
}

// dump returns all of a state as text: how far it has come, its sizes, and each pane with
// all bytes of its accumulator.
func dump(t *testing.T, s *State) string {
	t.Helper()
	lines := []string{fmt.Sprintf("%+v %d panes of %d groups, %d bytes", s.Committed, s.Open(), s.groups.n, s.Bytes())}
	for g := range s.groups.all {
		for i := range g.panes {
			p := &g.panes[i]
			lines = append(lines, fmt.Sprintf("%d %s %d %d %s", p.start, g.key, p.first, p.late, accOf(t, s, p)))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// overs are windows of each kind.
func overs() []stream.Window {
	return []stream.Window{
		testTumbling, stream.Hopping(10*time.Second, 2*time.Second), stream.Hopping(10*time.Second, 4*time.Second),
		stream.Session(2*time.Second, 7*time.Second), stream.Session(time.Second, time.Hour),
	}
}

// TestStateAnswersLikeAModelAfterCommitsAbortsAndRestarts compares random histories with the
// model, with messages that are late, ahead and delivered again, idle advances, aborts and restarts. The properties that
// hold in each history are at run and checkHistory.
func TestStateAnswersLikeAModelAfterCommitsAbortsAndRestarts(t *testing.T) {
	t.Parallel()
	for _, over := range overs() {
		for _, correct := range []time.Duration{0, 7 * time.Second} {
			if over.Gap() > 0 && correct > 0 {
				continue
			}
			agg := testAggregate(t, over, correct)
			t.Run(fmt.Sprint(over, " ", correct), func(t *testing.T) {
				t.Parallel()
				fates := map[fate]int{}
				for range 5 {
					for f, n := range checkHistory(t, agg) {
						fates[f] += n
					}
					if t.Failed() {
						return
					}
				}
				for _, f := range []fate{late, ahead, duplicate} {
					if fates[f] == 0 {
						t.Errorf("no message was %s in five histories", f)
					}
				}
			})
		}
	}
}

// checkHistory runs a random history and returns how many messages had each fate. Each window of a group key has one result. Each message
// that was read is in a result or an open window, late, ahead or a duplicate. The same
// history again has the same results and the same bytes in the changelog.
func checkHistory(t *testing.T, agg *stream.Aggregate) map[fate]int {
	t.Helper()
	seed := kafkatest.NewSeed(t)
	h := run(t, agg, seed, 200, 0, false)
	seen, counted := map[string]bool{}, 0
	for _, line := range h.outputs {
		key, rest, _ := strings.Cut(line, " ")
		window, rest, _ := strings.Cut(rest, " ")
		var n, s int
		fmt.Sscanf(rest, "n=%d s=%d", &n, &s)
		if name := key + window; seen[name] && agg.Correct == 0 {
			t.Errorf("two results for %s", name)
		} else {
			seen[name] = true
		}
		counted += n
	}
	sum := h.fates[late] + h.fates[ahead] + h.fates[duplicate] + h.fates[added]
	if sum != h.messages || agg.Correct == 0 && agg.Over.Size() == agg.Over.Every() && h.fates[added] != counted+h.open {
		t.Errorf("%d in results, %d in open windows, %v, of %d", counted, h.open, h.fates, h.messages)
	}
	again := run(t, agg, seed, 200, 0, false)
	if !slices.Equal(again.outputs, h.outputs) || !bytes.Equal(again.changelog, h.changelog) {
		t.Error("a second run of the history differs")
	}
	return h.fates
}

// TestWindowResultsEqualABatchGrouping has messages in order: the results are those of a grouping of
// all messages in one batch.
func TestWindowResultsEqualABatchGrouping(t *testing.T) {
	t.Parallel()
	for _, over := range overs() {
		for range 4 {
			run(t, testAggregate(t, over, 0), kafkatest.NewSeed(t), 200, 0, true)
		}
	}
}

// TestResultsDoNotDependOnTransactions emits few and many results in one transaction. They are the same,
// in the same order.
func TestResultsDoNotDependOnTransactions(t *testing.T) {
	t.Parallel()
	for _, over := range overs() {
		agg := testAggregate(t, over, 0)
		emit := func(most int) (list []string) {
			s := New(agg)
			for i := range 1000 {
				m := &semel.Message{Body: fmt.Append(nil, i)}
				at := int64(i) * 37
				s.See(at, at)
				_, err := s.Add(m, fmt.Append(nil, "k", i%91), at, at)
				kafkatest.Must(t, err)
			}
			s.See(1_000_000, 1_000_000)
			for s.Due() {
				_, err := s.Emit(most, func(c *stream.Closed) error {
					list = append(list, fmt.Sprintf("%s %d %s", c.Key, c.Start.UnixMilli(), c.Acc))
					return nil
				})
				kafkatest.Must(t, err)
				s.Commit(0, nil)
			}
			if s.Open() != 0 || s.groups.n != 0 {
				t.Errorf("%d windows are open, of %d groups", s.Open(), s.groups.n)
			}
			return list
		}
		whole := emit(1 << 30)
		for _, most := range []int{1, 7, 100} {
			if got := emit(most); !slices.Equal(got, whole) {
				t.Errorf("with %d results in a transaction: %d results, want %d", most, len(got), len(whole))
			}
		}
	}
}

func TestRefusedMessageDoesNotChangeTheWindowState(t *testing.T) {
	t.Parallel()
	s := New(testAggregate(t, testTumbling, 0))
	add := func(body string) error {
		_, err := s.Add(&semel.Message{Body: []byte(body)}, []byte("k"), 5000, 5000)
		return err
	}
	kafkatest.Must(t, add("1"))
	if err := add("x"); err == nil {
		t.Error("it was added")
	}
	kafkatest.Must(t, add("2"))
	s.Commit(0, nil)
	if got := string(s.groups.get([]byte("k")).panes[0].acc); got != "n=2 s=3" {
		t.Errorf("%s", got)
	}
}

func TestDamagedRecordsAreRefused(t *testing.T) {
	t.Parallel()
	s := New(testAggregate(t, testTumbling, 0))
	for i := range 20 {
		if _, err := s.Add(&semel.Message{Body: []byte("1")}, fmt.Append(nil, i), int64(i)*9000, 0); i == 0 && err != nil {
			t.Fatal(err)
		}
		s.Add(&semel.Message{Body: []byte("1")}, fmt.Append(nil, i), int64(i)*900, 0)
	}
	records, err := s.Changes(1 << 20)
	kafkatest.Must(t, err)
	whole := records[0].Value
	_, err = s.Read(whole)
	kafkatest.Must(t, err)
	for n := range whole {
		if _, err := s.Read(whole[:n]); err == nil {
			t.Errorf("%d bytes of %d are a record", n, len(whole))
		}
	}
	if h, err := s.Read(state.Barrier(state.Windows, state.ID{9}, state.ID{2})); err != nil || !h.Barrier || h.Nonce != (state.ID{9}) || h.Len != 0 {
		t.Errorf("a barrier: %+v, %v", h, err)
	}
}
