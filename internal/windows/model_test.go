package windows

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
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

// window names a window of a group key.
type window struct {
	end int64
	key string
}

// model says what windows must do, from the rules of time and all that was committed.
type model struct {
	size, grace, most int64 // most is how far a message may be ahead
	watermark         int64
	seen              map[int]bool
	count, sum        map[window]int
	emitted           map[window]bool
}

func (m *model) clone() *model {
	c := *m
	c.seen, c.count, c.sum, c.emitted = maps.Clone(m.seen), maps.Clone(m.count), maps.Clone(m.sum), maps.Clone(m.emitted)
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
	w := window{in.time/m.size*m.size + m.size, in.key}
	if w.end <= m.watermark {
		return late
	}
	m.seen[in.id] = true
	m.count[w]++
	m.sum[w] += in.value
	return added
}

// quiet moves the watermark by the clock, if that closes a window.
func (m *model) quiet(read int64) {
	to := read - m.grace - stream.ClockMargin.Milliseconds()
	for w := range m.count {
		if !m.emitted[w] && w.end > m.watermark && w.end <= to {
			m.watermark = to
			return
		}
	}
}

// close returns the results of at most n closed windows.
func (m *model) close(n int) (results []string) {
	var due []window
	for w := range m.count {
		if w.end <= m.watermark && !m.emitted[w] {
			due = append(due, w)
		}
	}
	slices.SortFunc(due, func(a, b window) int { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.key, b.key)) })
	for _, w := range due[:min(n, len(due))] {
		m.emitted[w] = true
		results = append(results, fmt.Sprintf("%s %d n=%d s=%d", w.key, w.end, m.count[w], m.sum[w]))
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
	return fmt.Appendf(nil, "%s %d %s", c.Key, c.End.UnixMilli(), c.Acc), nil
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
	v, err := s.state.Add(&semel.Message{Body: fmt.Append(nil, in.value), Time: time.UnixMilli(in.time)}, in.key, in.time, clock)
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

const testGrace, testSize, testAhead = 3000, 10_000, 20_000

func testAggregate(t testing.TB) *stream.Aggregate {
	t.Helper()
	rule, err := key.ParseRule(".k")
	if err != nil {
		t.Fatal(err)
	}
	a := &stream.Aggregate{By: rule, Over: stream.Tumbling(testSize * time.Millisecond), Func: sums{}, Grace: testGrace * time.Millisecond, MaxAhead: testAhead * time.Millisecond}
	if err := a.Validate(); err != nil {
		t.Fatal(err)
	}
	return a.WithDefaults()
}

func newSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("SEMEL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SEMEL_SEED=%d", seed)
	return seed
}

// history is what a run committed.
type history struct {
	outputs   []string
	changelog []byte
	fates     map[fate]int
	read      int
	open      int
}

// run runs a random history, and checks the engine against the model at each step.
// Most is how many results one transaction emits; 0 is a random number.
func run(t *testing.T, seed uint64, rounds, most int, ordered bool) history {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	h := history{fates: map[fate]int{}}
	m := &model{size: testSize, grace: testGrace, most: testAhead, seen: map[int]bool{}, count: map[window]int{}, sum: map[window]int{}, emitted: map[window]bool{}}
	agg, definition, topic := testAggregate(t), Definition("d"), ID{7}
	live := &side{state: New(agg), seen: map[int]bool{}, tx: map[int]bool{}}
	var log []input
	var records [][]byte
	clock, at, newest := int64(1_000_000), 0, int64(0)

	restore := func() *State {
		s := New(agg)
		for _, value := range records {
			r, err := Parse(value)
			if err != nil {
				t.Fatal(err)
			}
			s.Apply(&r)
		}
		return s
	}
	// transact reads messages up to a place in the log, and ends in one of four ways.
	transact := func(to int, quiet int64) {
		trial, fates := m.clone(), map[fate]int{}
		for _, in := range log[at:to] {
			want, got := trial.read(in, clock), live.read(in, clock)
			if want != got {
				t.Fatalf("%+v at watermark %d: %s, want %s", in, trial.watermark, got, want)
			}
			fates[got]++
		}
		if quiet > 0 {
			trial.quiet(quiet)
			live.state.Quiet(quiet)
		}
		if got := live.state.Watermark(); got != trial.watermark || got < m.watermark {
			t.Fatalf("the watermark is %d, want %d, and it was %d", got, trial.watermark, m.watermark)
		}
		n := most
		if n == 0 {
			n = 1 + random.IntN(8)
		}
		var got []string
		_, err := live.state.Emit(n, func(c *stream.Closed) error {
			text, err := agg.Func.Result(c)
			got = append(got, string(text))
			return err
		})
		if want := trial.close(n); err != nil || !slices.Equal(got, want) {
			t.Fatalf("results %q (%v), want %q", got, err, want)
		}
		changes := live.state.Changes(definition, topic, HeaderSize+random.IntN(400))
		end := random.IntN(8)
		if end == 0 || end == 1 { // aborted, and perhaps the process ends as well
			live.state.Drop()
			if end == 1 {
				live.state = restore()
			}
			clear(live.tx)
			return
		}
		records = append(records, changes...)
		m, at = trial, to
		maps.Copy(live.seen, live.tx)
		clear(live.tx)
		h.outputs = append(h.outputs, got...)
		for f, n := range fates {
			h.fates[f] += n
			h.read += n
		}
		if end == 2 { // committed, and the process has not heard of it
			live.state = restore()
		} else {
			live.state.Commit()
		}
		if restored := restore(); dump(restored) != dump(live.state) || restored.Open() != live.state.Open() {
			t.Fatalf("restored:\n%s\nlive:\n%s", dump(restored), dump(live.state))
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
				in = log[random.IntN(len(log))] // delivered again
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
	for _, value := range records {
		h.changelog = append(h.changelog, value...)
	}
	for _, of := range live.state.open {
		for _, acc := range of {
			var n, s int
			fmt.Sscanf(string(acc), "n=%d s=%d", &n, &s)
			h.open += n
		}
	}
	if ordered {
		checkBatch(t, log, h.outputs, m.watermark)
	}
	return h
}

// checkBatch compares results with a grouping of the whole log (P3).
func checkBatch(t *testing.T, log []input, outputs []string, watermark int64) {
	t.Helper()
	count, sum := map[window]int{}, map[window]int{}
	for _, in := range log {
		w := window{in.time/testSize*testSize + testSize, in.key}
		count[w]++
		sum[w] += in.value
	}
	var want []string
	for w := range count {
		if w.end <= watermark {
			want = append(want, fmt.Sprintf("%s %d n=%d s=%d", w.key, w.end, count[w], sum[w]))
		}
	}
	got := slices.Clone(outputs)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("results %q, want %q", got, want)
	}
}

// dump returns all of a state as text.
func dump(s *State) string {
	lines := []string{fmt.Sprintf("%+v", s.committed)}
	for start, of := range s.open {
		for key, acc := range of {
			lines = append(lines, fmt.Sprintf("%d %s %s", start, key, acc))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestAStateIsItsModel compares random histories with the model, with messages that are
// late, ahead and delivered again, idle advances, aborts and restarts.
func TestAStateIsItsModel(t *testing.T) {
	t.Parallel()
	for range 20 {
		seed := newSeed(t)
		h := run(t, seed, 300, 0, false)
		// P1: one result for each group key and window.
		seen, counted := map[string]bool{}, 0
		for _, line := range h.outputs {
			var key string
			var end, n, s int
			fmt.Sscanf(line, "%s %d n=%d s=%d", &key, &end, &n, &s)
			if name := fmt.Sprint(key, end); seen[name] {
				t.Errorf("two results for %s", name)
			} else {
				seen[name] = true
			}
			counted += n
		}
		// P2: everything that was read is somewhere.
		if sum := counted + h.open + h.fates[late] + h.fates[ahead] + h.fates[duplicate]; sum != h.read || h.fates[added] != counted+h.open {
			t.Errorf("%d in results, %d in open windows, %v, of %d", counted, h.open, h.fates, h.read)
		}
		for _, f := range []fate{late, ahead, duplicate} {
			if h.fates[f] == 0 {
				t.Errorf("no message was %s", f)
			}
		}
		// P7: the same history has the same bytes.
		again := run(t, seed, 300, 0, false)
		if !slices.Equal(again.outputs, h.outputs) || !bytes.Equal(again.changelog, h.changelog) {
			t.Error("a second run of the history differs")
		}
		if t.Failed() {
			return
		}
	}
}

// TestAStateGroupsLikeABatch has messages in order (P3).
func TestAStateGroupsLikeABatch(t *testing.T) {
	t.Parallel()
	for range 10 {
		run(t, newSeed(t), 300, 0, true)
	}
}

// TestResultsDoNotDependOnTransactions emits few and many results at once (P5).
func TestResultsDoNotDependOnTransactions(t *testing.T) {
	t.Parallel()
	agg := testAggregate(t)
	emit := func(most int) (list []string) {
		s := New(agg)
		for i := range 1000 {
			m := &semel.Message{Body: fmt.Append(nil, i)}
			at := int64(i) * 37
			s.See(at, at)
			if _, err := s.Add(m, fmt.Sprint("k", i%91), at, at); err != nil {
				t.Fatal(err)
			}
		}
		s.See(1_000_000, 1_000_000)
		for s.Due() {
			if _, err := s.Emit(most, func(c *stream.Closed) error {
				list = append(list, fmt.Sprintf("%s %d %s", c.Key, c.Start.UnixMilli(), c.Acc))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			s.Commit()
		}
		if s.Open() != 0 {
			t.Errorf("%d windows are open", s.Open())
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

func TestARefusedMessageChangesNothing(t *testing.T) {
	t.Parallel()
	s := New(testAggregate(t))
	add := func(body string) error {
		_, err := s.Add(&semel.Message{Body: []byte(body)}, "k", 5000, 5000)
		return err
	}
	if err := add("1"); err != nil {
		t.Fatal(err)
	}
	if err := add("x"); err == nil {
		t.Error("it was added")
	}
	if err := add("2"); err != nil {
		t.Fatal(err)
	}
	s.Commit()
	if got := string(s.open[0]["k"]); got != "n=2 s=3" {
		t.Errorf("%s", got)
	}
}

func TestOtherBytesAreNoRecord(t *testing.T) {
	t.Parallel()
	s := New(testAggregate(t))
	for i := range 20 {
		if _, err := s.Add(&semel.Message{Body: []byte("1")}, fmt.Sprint(i), int64(i)*9000, 0); i == 0 && err != nil {
			t.Fatal(err)
		}
		s.Add(&semel.Message{Body: []byte("1")}, fmt.Sprint(i), int64(i)*900, 0)
	}
	whole := s.Changes(ID{1}, ID{2}, 1<<20)[0]
	if _, err := Parse(whole); err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if _, err := Parse(whole[:n]); err == nil {
			t.Errorf("%d bytes of %d are a record", n, len(whole))
		}
	}
	if r, err := Parse(Barrier(ID{9}, ID{2})); err != nil || r.Nonce != (ID{9}) || r.Len() != 0 {
		t.Errorf("a barrier: %+v, %v", r, err)
	}
}
