package keep

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// visit is a session of the model, with all of its records.
type visit struct {
	id      string
	records []input
}

func (v *visit) span() (first, last int64) {
	byTime := func(a, b input) int { return cmp.Compare(a.when, b.when) }
	return slices.MinFunc(v.records, byTime).when, slices.MaxFunc(v.records, byTime).when
}

func (v *visit) deadline(rule Rule) int64 {
	_, last := v.span()
	return last + rule.Gap + 1
}

// kept is the record that takes effect: the last record by time, and among equal times the one
// read last.
func (v *visit) kept() input {
	return slices.MaxFunc(v.records, func(a, b input) int {
		return cmp.Or(cmp.Compare(a.when, b.when), cmp.Compare(a.offset, b.offset))
	})
}

// visits are the sessions that did not take effect yet.
type visits []visit

// add joins a record and the open sessions that are at most a gap away, the earlier ones
// first, as long as the session is not longer than the greatest length. It reports whether the
// record is late.
func (vs *visits) add(rule Rule, watermark int64, in input) (late bool) {
	joined := visit{in.id, []input{in}}
	var others visits
	slices.SortFunc(*vs, func(a, b visit) int {
		x, _ := a.span()
		y, _ := b.span()
		return cmp.Compare(x, y)
	})
	for _, v := range *vs {
		first, last := v.span()
		both := visit{in.id, slices.Concat(joined.records, v.records)}
		from, to := both.span()
		near := first <= in.when+rule.Gap && last >= in.when-rule.Gap
		if v.id == in.id && near && v.deadline(rule) > watermark && to-from <= rule.Most {
			joined = both
		} else {
			others = append(others, v)
		}
	}
	if joined.deadline(rule) <= watermark {
		return true
	}
	*vs = append(others, joined)
	return false
}

// due removes at most a number of sessions that take effect, and returns them in order.
func (vs *visits) due(rule Rule, watermark int64, most int) (out []string) {
	slices.SortFunc(*vs, func(a, b visit) int {
		x, _ := a.span()
		y, _ := b.span()
		return cmp.Or(cmp.Compare(a.deadline(rule), b.deadline(rule)), cmp.Compare(a.id, b.id), cmp.Compare(x, y))
	})
	for len(*vs) > 0 && len(out) < most && (*vs)[0].deadline(rule) <= watermark {
		k := (*vs)[0].kept()
		out = append(out, fmt.Sprintf("%s at %d: %d", k.id, k.when, k.offset))
		*vs = (*vs)[1:]
	}
	return out
}

// TestLastRecordsOfSessionsMatchTheModel adds records out of order, drops
// transactions, takes the due records in parts, and builds the state again from its records.
// After each commit, a state restored from the changelog equals the live one, byte for byte,
// and the watermark has not fallen.
func TestLastRecordsOfSessionsMatchTheModel(t *testing.T) {
	t.Parallel()
	rules := []Rule{{Gap: 10, Most: 1000}, {Gap: 10, Most: 25, Grace: 40}, {Gap: 5, Most: 12}, {Gap: 20, Most: 10, Grace: 30}}
	for i, rule := range slices.Repeat(rules, 2) {
		rule.MaxAhead = math.MaxInt32
		seed, onDisk := kafkatest.NewSeed(t), i >= len(rules)
		t.Run(fmt.Sprintf("%+v, on disk %t", rule, onDisk), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 0))
			log := newChangelog(t, rule, onDisk, random)
			s, m := log.State, visits{}
			now, offset, watermark, lates, emitted, long := int64(1000), int64(0), int64(0), 0, 0, 0
			for range 1500 {
				trial, from, at, mark := slices.Clone(m), offset, now, watermark
				held, superseded := s.Open(), 0
				for range random.IntN(6) {
					now += random.Int64N(4)
					if random.IntN(30) == 0 {
						now += 30
					}
					in := input{id: string(rune('a' + random.IntN(3))), when: now - random.Int64N(rule.Grace+2*rule.Gap+2), offset: offset}
					s.See(in.when, now)
					mark = max(mark, in.when-rule.Grace)
					before := len(trial)
					late := trial.add(rule, mark, in)
					v, replaced := s.Add(in.id, in.when, offset, strconv.AppendInt(nil, offset, 10))
					if late != (v == Late) {
						t.Fatalf("%+v is %d at the watermark %d", in, v, mark)
					}
					if late {
						lates++
					} else {
						gone := replaced
						if v == Superseded {
							gone++
						}
						if want := before + 1 - len(trial); gone != want {
							t.Fatalf("%+v superseded %d, want %d", in, gone, want)
						}
						superseded += gone - 1
					}
					offset++
				}
				if random.IntN(20) == 0 {
					now += 100
					if quiet := now - rule.Grace - 5; s.Quiet(now - 5 + stream.ClockMargin.Milliseconds()) {
						mark = quiet
					}
				}
				most := random.IntN(8)
				var got []string
				n, err := s.Emit(most, func(id string, when int64, value []byte) error {
					got = append(got, fmt.Sprintf("%s at %d: %s", id, when, value))
					return nil
				})
				if want := trial.due(rule, mark, most); err != nil || n != len(want) || !slices.Equal(got, want) {
					t.Fatalf("got %q, want %q at the watermark %d", got, want, mark)
				}
				written := log.Write(100)
				if random.IntN(4) == 0 {
					log.Drop()
					offset, now = from, at
					if s.Open() != held || s.Watermark() != watermark {
						t.Fatalf("%d are held at %d after a transaction that was dropped, want %d at %d", s.Open(), s.Watermark(), held, watermark)
					}
					continue
				}
				log.commit(written)
				m, watermark, emitted = trial, mark, emitted+n
				if s.Open() != len(m) || s.Watermark() != watermark {
					t.Fatalf("%d are held at %d, want %d at %d", s.Open(), s.Watermark(), len(m), watermark)
				}
				for _, v := range m {
					if first, last := v.span(); last-first > rule.Gap {
						long++
					}
				}
				if random.IntN(10) == 0 {
					s = log.restart() // perhaps from the copy on disk
				}
			}
			if lates < 20 || emitted < 100 || long == 0 && rule.Most > rule.Gap {
				t.Errorf("only %d late, %d kept, %d longer than a gap", lates, emitted, long)
			}
		})
	}
}

// TestRecordJoinsTheSameSessionAfterARestart has a record between two sessions that
// can join only one of them.
func TestRecordJoinsTheSameSessionAfterARestart(t *testing.T) {
	t.Parallel()
	rule := Rule{Gap: 10, Most: 30, Grace: 100, MaxAhead: math.MaxInt32}
	var results []string
	for _, restart := range []bool{false, true} {
		log := newChangelog(t, rule, false, rand.New(rand.NewPCG(0, 0)))
		s := log.State
		for i, when := range []int64{125, 140 - 5, 100, 110} {
			s.See(when, when)
			s.Add("a", when, int64(i), []byte{byte('0' + i)})
		}
		if log.commit(log.Write(1000)); restart {
			s = log.restart()
		}
		s.Add("a", 118, 4, []byte("4"))
		s.See(1000, 1000)
		got := ""
		_, err := s.Emit(10, func(_ string, _ int64, value []byte) error { got += string(value); return nil })
		kafkatest.Must(t, err)
		results = append(results, got)
	}
	if results[0] != results[1] {
		t.Errorf("without a restart %s take effect, with one %s", results[0], results[1])
	}
}

// TestSessionStartingAtTheTimeOfAClosedOneDoesNotReplaceIt has a record at the time of a closed
// session, which still has to take effect. The record joins a later one.
func TestSessionStartingAtTheTimeOfAClosedOneDoesNotReplaceIt(t *testing.T) {
	t.Parallel()
	rule := Rule{Gap: 10, Most: 1000, MaxAhead: math.MaxInt32}
	for _, restart := range []bool{false, true} {
		log := newChangelog(t, rule, false, rand.New(rand.NewPCG(0, 0)))
		s := log.State
		s.See(100, 100)
		s.Add("a", 100, 0, []byte("0"))
		s.See(112, 112) // the session is closed
		for i, when := range []int64{107, 100} {
			if v, _ := s.Add("a", when, int64(i+1), []byte{byte('1' + i)}); v == Late {
				t.Fatalf("the record at %d is late", when)
			}
		}
		if log.commit(log.Write(1000)); restart {
			s = log.restart()
		}
		for _, c := range []struct {
			now  int64
			want string
		}{{112, "0"}, {117, ""}, {118, "1"}, {1000, ""}} {
			got := ""
			s.See(c.now, c.now)
			if _, err := s.Emit(10, func(_ string, _ int64, value []byte) error { got += string(value); return nil }); err != nil || got != c.want {
				t.Errorf("at %d %q takes effect, want %q (%v)", c.now, got, c.want, err)
			}
			log.commit(log.Write(1000))
		}
	}
}
