package keep

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state/statetest"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

// input is a record that was committed as held or superseded.
type input struct {
	id           string
	when, offset int64
	gone         bool // it or a record in its place took effect
	group        int  // with First, of records of which one takes effect
}

// model says which records take effect, from all that were added.
type model struct {
	rule      Rule
	watermark int64
	inputs    []input
	groupsOf  int // with First, how many there were
}

// add adds a record that is not late. With First, it joins the held record less than Apart before
// it, or replaces the records less than Apart behind it.
func (m *model) add(in input) {
	if m.rule.First {
		first := map[int]int64{} // the time of each group's held record
		for _, o := range m.inputs {
			if when, ok := first[o.group]; o.id == in.id && (!ok || o.when < when) {
				first[o.group] = o.when
			}
		}
		m.groupsOf++
		in.group = m.groupsOf
		for group, when := range first {
			if when <= in.when && in.when-when < m.rule.Apart {
				in.group = group
			}
		}
		if in.group == m.groupsOf {
			for i := range m.inputs {
				if when, ok := first[m.inputs[i].group]; ok && when > in.when && when-in.when < m.rule.Apart {
					m.inputs[i].group = in.group
				}
			}
		}
	}
	m.inputs = append(m.inputs, in)
}

func (m *model) clone() *model {
	c := *m
	c.inputs = slices.Clone(m.inputs)
	return &c
}

// groups returns the records among which one is kept, each with its deadline.
func (m *model) groups() (list [][]int, deadlines []int64) {
	byID := map[string][]int{}
	for i, in := range m.inputs {
		if !in.gone {
			id := fmt.Sprint(in.id, " ", in.group)
			byID[id] = append(byID[id], i)
		}
	}
	for _, all := range byID {
		if m.rule.First {
			least := slices.MinFunc(all, func(a, b int) int { return cmp.Compare(m.inputs[a].when, m.inputs[b].when) })
			list, deadlines = append(list, all), append(deadlines, m.inputs[least].when+1)
			continue
		}
		windows := map[int64][]int{}
		for _, i := range all {
			start := m.inputs[i].when / m.rule.Size
			windows[start] = append(windows[start], i)
		}
		for start, of := range windows {
			list, deadlines = append(list, of), append(deadlines, (start+1)*m.rule.Size)
		}
	}
	return list, deadlines
}

// advanceIdle moves the watermark by the clock, if something becomes due. It does not if something
// is due already.
func (m *model) advanceIdle(to int64) bool {
	_, deadlines := m.groups()
	if len(deadlines) == 0 || slices.Min(deadlines) <= m.watermark || slices.Min(deadlines) > to {
		return false
	}
	m.watermark = to
	return true
}

// due returns the records that take effect, in order, and removes them. They are those of an
// id, or of all.
func (m *model) due(id string, most int) (out []string) {
	list, deadlines := m.groups()
	var at []int
	for i := range list {
		if deadlines[i] <= m.watermark && (id == "" || m.inputs[list[i][0]].id == id) {
			at = append(at, i)
		}
	}
	kept := func(i int) input {
		return m.inputs[slices.MinFunc(list[i], func(a, b int) int {
			x, y := m.inputs[a], m.inputs[b]
			if m.rule.First {
				return cmp.Or(cmp.Compare(x.when, y.when), cmp.Compare(x.offset, y.offset))
			}
			return -cmp.Or(cmp.Compare(x.when, y.when), cmp.Compare(x.offset, y.offset))
		})]
	}
	slices.SortFunc(at, func(a, b int) int {
		return cmp.Or(cmp.Compare(deadlines[a], deadlines[b]), cmp.Compare(kept(a).id, kept(b).id))
	})
	for _, i := range at[:min(most, len(at))] {
		k := kept(i)
		out = append(out, fmt.Sprintf("%s at %d: %d", k.id, k.when, k.offset))
		for _, j := range list[i] {
			m.inputs[j].gone = true
		}
	}
	m.inputs = slices.DeleteFunc(m.inputs, func(in input) bool { return in.gone })
	return out
}

// testSlack is short, so that the changelogs of tests are rewritten.
const testSlack = 300

// changelog has the records of a state, perhaps with a copy on disk.
type changelog struct {
	*statetest.Changelog[*State]
	t *testing.T
	// state, longest and watermark are the greatest that commit has seen: the sizes of the
	// state and of a transaction.
	state, longest, watermark int64
}

// newChangelog returns an empty changelog. A state leaves all values in its copy on disk.
func newChangelog(t *testing.T, rule Rule, onDisk bool, random *rand.Rand) *changelog {
	t.Helper()
	opts := statetest.Options[*State]{Random: random, FileSize: 2000, Log: state.LogOptions{Input: state.ID{2}}}
	if onDisk {
		opts.Files = faultfs.New()
	}
	opts.New = func(d *state.Disk) *State {
		s := New(rule)
		s.Bind(state.Of{Definition: state.ID{1}, Topic: opts.Log.Input}, d, &statetest.Sources{}, testSlack)
		s.Inline = 0
		return s
	}
	return &changelog{Changelog: statetest.New(t, opts), t: t}
}

// commit commits the open transaction, whose records were written with a number of bytes. It
// checks that the changelog is short, and deletes records at random. A state that is restored
// from the records equals the live one, byte for byte. The watermark does not fall.
func (c *changelog) commit(written []byte) {
	c.t.Helper()
	c.Commit()
	c.state, c.longest = max(c.state, c.State.Bytes()), max(c.longest, int64(len(written)))
	if size := c.Bytes(); size > testSlack+4*c.state+4*c.longest {
		c.t.Fatalf("the changelog has %d bytes, the state had at most %d, and a transaction %d", size, c.state, c.longest)
	}
	c.DeleteLater()
	c.check()
}

// restart starts another process, whose state is the same.
func (c *changelog) restart() *State {
	c.t.Helper()
	c.Restart()
	c.check()
	return c.State
}

// check compares the live state with one that is restored from the records.
func (c *changelog) check() {
	c.t.Helper()
	if got, want := image(c.t, c.Restored()), image(c.t, c.State); !bytes.Equal(got, want) {
		c.t.Fatalf("restored %q, want %q", got, want)
	}
	if c.State.Watermark() < c.watermark {
		c.t.Fatalf("the watermark fell from %d to %d", c.watermark, c.State.Watermark())
	}
	c.watermark = c.State.Watermark()
}

// image is a state as bytes: its sizes, its progress, and the entries of each id in their
// order, which decides what sessions a record joins.
func image(t *testing.T, s *State) []byte {
	t.Helper()
	var ids []string
	for id := range s.open {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	s.Writer.Begin(state.Keep, state.ID{}, state.ID{}, &s.Present, math.MaxInt)
	for _, id := range ids {
		kafkatest.Must(t, s.write(id))
	}
	s.spots = s.spots[:0]
	return slices.Concat(fmt.Appendf(nil, "%d %d\n", s.Count, s.Bytes()), s.Writer.Records()[0])
}

// TestHeldRecordsMatchTheModel adds records out of order, drops transactions, takes
// what is due in parts, and builds the state again from its records after any commit. The
// same history again has the same outputs and the same bytes in the changelog. The properties
// that hold in each history are at hold.
func TestHeldRecordsMatchTheModel(t *testing.T) {
	t.Parallel()
	rules := []Rule{{First: true, Apart: math.MaxInt64}, {First: true, Grace: 30, Apart: math.MaxInt64}, {First: true, Grace: 60, Apart: 15}, {Size: 20}, {Size: 20, Grace: 30}}
	for i, rule := range slices.Repeat(rules, 2) {
		rule.MaxAhead = math.MaxInt32
		seed, onDisk := kafkatest.NewSeed(t), i >= len(rules)
		t.Run(fmt.Sprintf("%+v, on disk %t", rule, onDisk), func(t *testing.T) {
			t.Parallel()
			first, second := hold(t, rule, onDisk, seed), hold(t, rule, onDisk, seed)
			if !slices.Equal(first.outputs, second.outputs) || !bytes.Equal(first.changelog, second.changelog) {
				t.Error("a second run of the history differs")
			}
		})
	}
}

// history is what a run committed.
type history struct {
	outputs   []string
	changelog []byte
}

// hold runs a random history, and checks the state against the model at each step. Each
// record is held, superseded, late or took effect. A window of an id has one output: the last
// of all its records that were not late, as in a batch. The watermark never falls. After each
// commit, a state restored from the changelog equals the live one, byte for byte.
func hold(t *testing.T, rule Rule, onDisk bool, seed uint64) (h history) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	log := newChangelog(t, rule, onDisk, random)
	s, m := log.State, &model{rule: rule}
	batch := map[string]input{} // the last record of each window and id
	sources := ""               // as they are stored
	now, offset, superseded := int64(1000), int64(0), 0
	for range 1500 {
		trial, watermark, heldBefore, start := m.clone(), s.Watermark(), s.Open(), offset
		rises := func() {
			t.Helper()
			before := watermark
			if watermark = s.Watermark(); watermark < before {
				t.Fatalf("the watermark fell from %d to %d", before, watermark)
			}
		}
		gone := 0
		var held []input
		var got []string
		took := func(id string, when int64, value []byte) error {
			got = append(got, fmt.Sprintf("%s at %d: %s", id, when, value))
			return nil
		}
		for range random.IntN(10) {
			now += random.Int64N(5)
			in := input{id: string(rune('a' + random.IntN(5))), when: now - random.Int64N(2*rule.Grace+10), offset: offset}
			offset++
			s.See(in.when, now)
			rises()
			trial.watermark = max(trial.watermark, in.when-rule.Grace)
			switch random.IntN(20) {
			case 0, 1:
				continue // a duplicate
			case 2:
				if s.See(now+rule.MaxAhead+1, now) {
					t.Fatal("a record may be too far ahead of the clock")
				}
			}
			if rule.First && random.IntN(4) > 0 { // as a session does
				n := len(got)
				kafkatest.Must(t, s.EmitOf(in.id, took))
				if want := trial.due(in.id, math.MaxInt); !slices.Equal(got[n:], want) {
					t.Fatalf("got %q of %s, want %q at the watermark %d", got[n:], in.id, want, trial.watermark)
				}
			}
			v, replaced := s.Add(in.id, in.when, in.offset, strconv.AppendInt(nil, in.offset, 10))
			late := rule.First && in.when < trial.watermark || rule.Size > 0 && (in.when/rule.Size+1)*rule.Size <= trial.watermark
			if late != (v == Late) {
				t.Fatalf("%+v is %d at the watermark %d", in, v, trial.watermark)
			}
			if !late {
				held = append(held, in)
				trial.add(in)
				if gone += replaced; v == Superseded {
					gone++
				}
			}
		}
		if random.IntN(20) == 0 {
			now += 100
			if want := trial.advanceIdle(now - rule.Grace - 5); s.Quiet(now-5+stream.ClockMargin.Milliseconds()) != want || want && !s.Due() {
				t.Fatalf("Quiet does not report %t, or nothing is due", want)
			}
			rises()
		}
		if watermark != trial.watermark {
			t.Fatalf("the watermark is %d, want %d", watermark, trial.watermark)
		}
		most := random.IntN(12)
		early := len(got)
		n, err := s.Emit(most, took)
		if want := trial.due("", most); err != nil || n != len(want) || !slices.Equal(got[early:], want) {
			t.Fatalf("got %q, want %q at the watermark %d", got, want, trial.watermark)
		}
		if s.StoredSources() != sources {
			t.Fatalf("the sources are %q, want %q", s.StoredSources(), sources)
		}
		news := sources
		if random.IntN(2) == 0 {
			news = strings.Repeat("o", random.IntN(100))
			s.Sources.(*statetest.Sources).Set(news)
		}
		written := log.Write(100 + 4*len(news)) // small, and the sources, which each record has, are less than half of it
		if random.IntN(4) == 0 {
			log.Drop()
			offset = start
			if s.Watermark() != m.watermark || s.Open() != heldBefore {
				t.Fatalf("%d are held at %d after a transaction that was dropped, want %d at %d", s.Open(), s.Watermark(), heldBefore, m.watermark)
			}
			continue
		}
		log.commit(written)
		m, sources, superseded = trial, news, superseded+gone
		h.outputs, h.changelog = append(h.outputs, got...), append(h.changelog, written...)
		for _, in := range held {
			if rule.Size == 0 {
				continue
			}
			window := fmt.Sprint(in.id, " ", in.when/rule.Size)
			if last, ok := batch[window]; !ok || in.when >= last.when {
				batch[window] = in
			}
		}
		if s.Open() != heldBefore+len(held)-gone-len(got) {
			t.Fatalf("%d are held, of %d and %d new ones, %d superseded and %d that took effect", s.Open(), heldBefore, len(held), gone, len(got))
		}
		if random.IntN(10) == 0 {
			s = log.restart() // perhaps from the copy on disk
		}
		if most := 20 * (s.Open() + 20); len(s.queue) > most {
			t.Fatalf("the queue has %d timers of %d entries", len(s.queue), s.Open())
		}
	}
	if superseded < 100 || len(h.outputs) < 100 {
		t.Errorf("only %d superseded and %d kept", superseded, len(h.outputs))
	}
	if rule.Size == 0 {
		return h
	}
	var want []string
	for _, in := range batch {
		if !slices.ContainsFunc(m.inputs, func(open input) bool { return open.id == in.id && open.when/rule.Size == in.when/rule.Size }) {
			want = append(want, fmt.Sprintf("%s at %d: %d", in.id, in.when, in.offset))
		}
	}
	if got := slices.Sorted(slices.Values(h.outputs)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("%d outputs, want the %d of a batch", len(got), len(want))
	}
	return h
}

// TestTheNewestVersionNeverGoesBack compares versions with a map of all that were seen in
// the window. After each commit, a state restored from the changelog equals the live one, byte
// for byte.
func TestTheNewestVersionNeverGoesBack(t *testing.T) {
	t.Parallel()
	for _, window := range []int64{50, math.MaxInt64} {
		seed := kafkatest.NewSeed(t)
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			t.Parallel()
			type known struct{ version, when int64 }
			random := rand.New(rand.NewPCG(seed, 0))
			log := newChangelog(t, Rule{Window: window}, false, random) // versions are short
			s, m := log.State, map[string]known{}
			now, forgotten := int64(1000), 0
			for range 1500 {
				trial, at := maps.Clone(m), now
				for range random.IntN(6) {
					now += random.Int64N(8)
					s.See(now, now)
					id, n := string(rune('a'+random.IntN(8))), random.Int64N(1000)-500
					version, err := ParseVersion(strconv.AppendInt(nil, n, 10))
					kafkatest.Must(t, err)
					newer, err := Newer(version, s.Version(id))
					k, ok := trial[id]
					if ok && window < math.MaxInt64 && k.when+window <= now {
						ok = false
						forgotten++
					}
					if want := !ok || n > k.version; err != nil || newer != want {
						t.Fatalf("version %d of %s after %+v at %d: newer %t, %v", n, id, k, now, newer, err)
					}
					if newer {
						s.SetVersion(id, version, now)
						trial[id] = known{n, now}
					}
				}
				if s.Due() {
					t.Fatal("a version is due")
				}
				if random.IntN(4) == 0 {
					log.Drop()
					now = at
					continue
				}
				log.commit(log.Write(100))
				m = trial
				open := 0
				for _, k := range m {
					if window == math.MaxInt64 || k.when+window > s.Watermark() {
						open++
					}
				}
				if s.Open() != open {
					t.Fatalf("%d versions are open, want %d", s.Open(), open)
				}
				if random.IntN(10) == 0 {
					s = log.restart()
				}
				if len(s.queue) > 200 {
					t.Fatalf("the queue has %d timers of %d versions", len(s.queue), s.Open())
				}
			}
			if window < math.MaxInt64 && forgotten == 0 {
				t.Error("nothing was forgotten")
			}
		})
	}
}

// TestAChangelogIsBoundedWhileVersionsStay changes some of many versions again and again.
func TestAChangelogIsBoundedWhileVersionsStay(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
	log := newChangelog(t, Rule{Window: math.MaxInt64}, true, random)
	s, all, longest := log.State, 0, 0
	for i := range int64(3000) {
		ids := 100
		if i > 0 {
			ids = 3
		}
		for n := range ids {
			if i > 0 {
				n = random.IntN(10)
			}
			s.SetVersion(fmt.Sprint("key ", n), fmt.Append(nil, "version ", i), i)
		}
		size := len(log.Write(200))
		if i > 0 && random.IntN(5) == 0 {
			log.Drop()
			continue
		}
		log.Commit()
		all, longest = all+size, max(longest, size)
		log.DeleteLater()
		if most := testSlack + 4*s.Bytes() + 2*int64(longest); log.Bytes() > most {
			t.Fatalf("transaction %d: the changelog has %d bytes, and the state %d", i, log.Bytes(), s.Bytes())
		}
		if random.IntN(50) == 0 {
			s = log.restart()
		}
	}
	if int64(all) < 3*(testSlack+4*s.Bytes()) {
		t.Errorf("only %d bytes were written, and the state has %d", all, s.Bytes())
	}
}

func TestVersionsAreOrdered(t *testing.T) {
	t.Parallel()
	sorted := [][]string{
		{"-9223372036854775808", "-1", "0", "9", "10", "9223372036854775807"},
		{"2026-01-31T23:59:59+02:00", "2026-01-31T22:00:00Z", "2026-01-31T22:00:00.5Z"},
		{"a", "v1.10", "v1.9"},
	}
	for i, list := range sorted {
		for j, text := range list {
			version, err := ParseVersion([]byte(text))
			kafkatest.Must(t, err)
			for k, other := range list {
				than, _ := ParseVersion([]byte(other))
				if newer, err := Newer(version, than); err != nil || newer != (j > k) {
					t.Errorf("%s newer than %s: %t, %v", text, other, newer, err)
				}
			}
			than, _ := ParseVersion([]byte(sorted[(i+1)%3][0]))
			if _, err := Newer(version, than); err == nil {
				t.Errorf("%s was compared with %s", text, sorted[(i+1)%3][0])
			}
		}
	}
	if _, err := ParseVersion(bytes.Repeat([]byte("x"), MaxVersion+1)); err == nil {
		t.Error("a long text is a version")
	}
}

func FuzzParse(f *testing.F) {
	s := New(Rule{Size: 10})
	s.See(5, 5)
	s.Add("a", 5, 1, []byte("value"))
	records, err := s.Changes(1000)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(records[0].Value)
	f.Add(state.Barrier(state.Keep, state.ID{1}, state.ID{2}))
	f.Fuzz(func(t *testing.T, value []byte) {
		s := New(Rule{Size: 10})
		if _, err := s.Read(value); err == nil {
			s.Apply(0, state.Place{})
		}
	})
}
