package keys

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state/statetest"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

func testDigest(n int) semel.Digest {
	return digest.New(digest.Secret{1}).Scope("").String(fmt.Sprint(n))
}

func testWindowing(t *testing.T, window, grace time.Duration, eventTime bool) *Windowing {
	t.Helper()
	w, err := NewWindowing(window, eventTime, grace)
	kafkatest.Must(t, err)
	return &w
}

// model says what a state must answer, from all that was committed. It rounds
// the end of a window up to a tick, as the state does.
type model struct {
	w          *Windowing
	first      map[int]int64
	streamTime int64
}

func (m *model) clone() *model {
	c := &model{w: m.w, first: map[int]int64{}, streamTime: m.streamTime}
	for k, v := range m.first {
		c.first[k] = v
	}
	return c
}

func (m *model) decide(key int, when int64) Verdict {
	m.streamTime = max(m.streamTime, when)
	return m.decideAt(key, when)
}

// decideAt is decide with a stream time that was set.
func (m *model) decideAt(key int, when int64) Verdict {
	if t, ok := m.first[key]; ok {
		expiry := m.w.expiry(t)
		if m.w.tick(m.streamTime) < expiry && nanos(when) < m.w.scale.Time(expiry)-int64(m.w.Grace) {
			return Duplicate
		}
	}
	if m.w.EventTime && when < m.streamTime-m.w.Grace.Milliseconds() {
		return Late
	}
	m.first[key] = when
	return Fresh
}

// testChangelog returns the changelog of a State, perhaps with a copy on disk.
// With spill, keys leave memory when there are so many.
func testChangelog(t *testing.T, w *Windowing, now *int64, files *faultfs.FS, random *rand.Rand, spill int64) *statetest.Changelog[*State] {
	t.Helper()
	opts := statetest.Options[*State]{Random: random, Log: state.LogOptions{Input: state.ID{7}, ByTime: true}, FileSize: spill * EntrySize}
	if files != nil {
		opts.Files = files
	}
	opts.New = func(*state.Disk) *State {
		return New(&Options{Windowing: w, Topic: state.ID{7}, Now: func() int64 { return *now }, Spill: spill})
	}
	return statetest.New(t, opts)
}

// TestStateAnswersLikeAModelAfterCommitsAbortsAndRestarts commits and aborts at random,
// restarts from the changelog with and without the copy on disk, and compares each answer.
func TestStateAnswersLikeAModelAfterCommitsAbortsAndRestarts(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		eventTime, spill := i%2 == 1, int64(i/2*60)
		seed := kafkatest.NewSeed(t)
		t.Run(fmt.Sprintf("event time %v, spill %d", eventTime, spill), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 0))
			w := testWindowing(t, 10*time.Second, 2*time.Second, eventTime)
			m := &model{w: w, first: map[int]int64{}}
			disk, now, offset := faultfs.New(), int64(1_000_000), int64(0)
			log := testChangelog(t, w, &now, disk, random, spill)
			st := log.State
			st.Begin()
			for range 1500 {
				trial := m.clone()
				from := offset
				for range random.IntN(30) {
					now += int64(random.IntN(40))
					when := now
					if eventTime {
						when -= int64(random.IntN(5000))
					}
					key := random.IntN(500)
					d := testDigest(key)
					want, got := trial.decide(key, when), st.Decide(&d, when, when, offset)
					if got != want {
						t.Fatalf("key %d at %d of stream time %d: got %d, want %d", key, when, trial.streamTime, got, want)
					}
					if got == Fresh {
						st.Learn(&d, when, offset)
					}
					offset++
				}
				if random.IntN(4) == 0 {
					log.Drop()
					offset = from
					continue
				}
				m = trial
				if log.Write(0); len(log.Written()) > 1 {
					t.Fatalf("%d records for %d entries", len(log.Written()), st.overlay.count)
				}
				if random.IntN(3) == 0 { // it ends between the commit and the answer
					st = log.Lose()
				} else if log.Commit(); random.IntN(50) == 0 {
					st = log.Restart()
				}
				st.Begin()
			}
			if n := len(disk.Files()); n > cutsOf+4 && spill == 0 || n > 60 {
				t.Errorf("%d files are kept, though most of their keys expired", n)
			}
		})
	}
}

// TestChangelogRecordsAreFilledToTheirLimit also uses the memory of an overlay again,
// and looks for every entry in it.
func TestChangelogRecordsAreFilledToTheirLimit(t *testing.T) {
	t.Parallel()
	far := int64(1) << 33
	many := make([]Entry, 3*MaxEntries/2)
	for i := range many {
		many[i] = Entry{testDigest(i), int64(i % 7), int64(i)}
	}
	var o overlay
	for _, c := range []struct {
		name    string
		most    int
		list    []Entry
		records int
	}{
		{"none", 10, nil, 0},
		{"one", 10, many[:1], 1},
		{"older after", 10, []Entry{{testDigest(1), far, 6}, {testDigest(2), far - 1000, 7}}, 1},
		{"from the beginning", 10, []Entry{{testDigest(1), 0, 0}, {testDigest(2), 1 << 31, 7}}, 1},
		{"far apart", 10, []Entry{{testDigest(1), far, 6}, {testDigest(2), 5, 7}, {testDigest(3), far, 8}}, 3},
		{"far offsets", 10, []Entry{{testDigest(1), 5, 6}, {testDigest(2), 5, 6 + far}}, 2},
		{"many", MaxEntries, many, 2},
		{"few in each", 100, many[:950], 10},
		{"one in each", 1, many[:5], 5},
		{"many again", MaxEntries, many, 2},
	} {
		for i := range c.list {
			o.add(&c.list[i], c.most)
		}
		var got []Entry
		for i := range o.records {
			r, err := Parse(o.records[i].finish(&Header{Kind: KindEntries, StreamTime: 11}))
			if err != nil || r.Len() > c.most || r.StreamTime != 11 {
				t.Fatalf("%s: %d entries, %v", c.name, r.Len(), err)
			}
			for j := range r.Len() {
				var e Entry
				r.At(j, &e)
				got = append(got, e)
			}
		}
		if len(o.records) != c.records || !slices.Equal(got, c.list) {
			t.Errorf("%s: %d entries in %d records, want %d in %d, or they are others", c.name, len(got), len(o.records), len(c.list), c.records)
		}
		for i := range c.list {
			if time, ok := o.find(&c.list[i].Digest); !ok || time != c.list[i].Time {
				t.Fatalf("%s: entry %d is of %d, %v; want %d", c.name, i, time, ok, c.list[i].Time)
			}
		}
		unknown := testDigest(-1)
		if _, ok := o.find(&unknown); ok {
			t.Errorf("%s: it has an extra key", c.name)
		}
		o.reset()
		if _, ok := o.find(&many[0].Digest); ok {
			t.Errorf("%s: it has something when it is empty", c.name)
		}
	}
}

func FuzzChangelog(f *testing.F) {
	whole := Encode(&Header{Kind: KindEntries}, Entry{testDigest(1), 5, 6}, Entry{testDigest(2), 7, 8})
	f.Add(whole)
	f.Add(whole[:70])
	f.Fuzz(func(t *testing.T, value []byte) {
		c, err := Parse(value)
		if err != nil {
			return
		}
		var list []Entry
		for i := range c.Len() {
			var e Entry
			c.At(i, &e)
			list = append(list, e)
		}
		if want := int(binary.LittleEndian.Uint16(value[4:])); want != len(list) {
			t.Errorf("%d entries, want %d", len(list), want)
		}
	})
}
