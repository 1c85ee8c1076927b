package kafkatxn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/vfs"
)

func testDigest(n int) semel.Digest {
	return digest.New(digest.Secret{1}).Scope("").String(fmt.Sprint(n))
}

func testWindowing(t *testing.T, window, grace time.Duration, eventTime bool) *windowing {
	t.Helper()
	w, err := newWindowing(window, map[bool]*EventTime{true: {Grace: grace}}[eventTime])
	kafkatest.Must(t, err)
	return &w
}

// model says what a state must answer, from all that was committed. It rounds
// the end of a window up to a tick, as the state does.
type model struct {
	w          *windowing
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

func (m *model) decide(key int, when int64) verdict {
	m.streamTime = max(m.streamTime, when)
	if t, ok := m.first[key]; ok {
		expiry := m.w.expiry(t)
		if m.w.tick(m.streamTime) < expiry && nanos(when) < m.w.scale.Time(expiry)-int64(m.w.grace) {
			return duplicate
		}
	}
	if m.w.eventTime && when < m.streamTime-m.w.grace.Milliseconds() {
		return late
	}
	m.first[key] = when
	return fresh
}

// TestAStateIsItsModel commits and aborts at random, restarts from the changelog
// with and without the local copy, and compares each answer.
func TestAStateIsItsModel(t *testing.T) {
	t.Parallel()
	for _, eventTime := range []bool{false, true} {
		seed := newSeed(t)
		t.Run(fmt.Sprintf("event time %v", eventTime), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 0))
			w := testWindowing(t, 10*time.Second, 2*time.Second, eventTime)
			m := &model{w: w, first: map[int]int64{}}
			dir := t.TempDir()
			var changelog [][]byte
			now := int64(1_000_000)
			load := func() *state {
				st := newState(cluster.Partition{Topic: "in", Number: 0}, topicID{7}, w)
				st.secure(digest.Secret{1}, "", keyMaker{})
				apply := func(value []byte, position int64) error {
					c, err := parseChangelog(value)
					kafkatest.Must(t, err)
					st.apply(&c, now)
					st.passed(value, position)
					return nil
				}
				var err error
				st.log, err = openStateLog(vfs.OS{}, dir, topicID{9}, st.expect, apply)
				kafkatest.Must(t, err)
				for i := st.position; i < int64(len(changelog)); i++ {
					kafkatest.Must(t, apply(changelog[i], i+1))
					c, err := parseChangelog(changelog[i])
					kafkatest.Must(t, err)
					st.log.add(changelog[i], &c, i+1)
				}
				kafkatest.Must(t, st.log.write())
				return st
			}
			st := load()
			offset := int64(0)
			for range 3000 {
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
					want, got := trial.decide(key, when), st.decide(&d, when, offset)
					if got != want {
						t.Fatalf("key %d at %d of stream time %d: got %d, want %d", key, when, trial.streamTime, got, want)
					}
					if got == fresh {
						st.learn(&d, when, offset)
					}
					offset++
				}
				if random.IntN(4) == 0 {
					st.drop()
					offset = from
					continue
				}
				m = trial
				values := st.records()
				if len(values) > 1 {
					t.Fatalf("%d records for %d entries", len(values), st.overlay.count)
				}
				if len(values) == 0 {
					st.commit()
					continue
				}
				value := bytes.Clone(values[0])
				changelog = append(changelog, value)
				position := int64(len(changelog))
				if random.IntN(3) > 0 { // else it ends between the commit and this
					c, err := parseChangelog(value)
					kafkatest.Must(t, err)
					st.log.add(value, &c, position)
					st.passed(value, position)
					st.commit()
					kafkatest.Must(t, st.log.write())
					kafkatest.Must(t, st.log.tidy(st.committedTime-w.retention().Milliseconds(), w.retention().Milliseconds()))
				} else {
					kafkatest.Must(t, st.log.Close())
					st = load()
				}
				if random.IntN(50) == 0 {
					kafkatest.Must(t, st.log.Close())
					if random.IntN(2) == 0 {
						kafkatest.Must(t, os.RemoveAll(dir))
					}
					st = load()
				}
			}
			kafkatest.Must(t, st.log.Close())
			names, err := filepath.Glob(filepath.Join(dir, "*.keys"))
			kafkatest.Must(t, err)
			if len(names) > 12 {
				t.Errorf("%d files are kept, though most of their keys expired", len(names))
			}
		})
	}
}

// encodeEntries returns a record of a changelog with some entries.
func encodeEntries(h changelogHeader, entries ...entry) []byte {
	var d changelogDraft
	d.begin(0)
	for i := range entries {
		if !d.add(&entries[i]) {
			panic("they are too far apart")
		}
	}
	return d.finish(&h)
}

// TestRecordsOfTheChangelogTakeWhatFits also uses the memory of an overlay again,
// and looks for every entry in it.
func TestRecordsOfTheChangelogTakeWhatFits(t *testing.T) {
	t.Parallel()
	far := int64(1) << 33
	many := make([]entry, 3*maxChangelogEntries/2)
	for i := range many {
		many[i] = entry{testDigest(i), int64(i % 7), int64(i)}
	}
	var o overlay
	for _, c := range []struct {
		name    string
		most    int
		list    []entry
		records int
	}{
		{"none", 10, nil, 0},
		{"one", 10, many[:1], 1},
		{"older after", 10, []entry{{testDigest(1), far, 6}, {testDigest(2), far - 1000, 7}}, 1},
		{"from the beginning", 10, []entry{{testDigest(1), 0, 0}, {testDigest(2), 1 << 31, 7}}, 1},
		{"far apart", 10, []entry{{testDigest(1), far, 6}, {testDigest(2), 5, 7}, {testDigest(3), far, 8}}, 3},
		{"far offsets", 10, []entry{{testDigest(1), 5, 6}, {testDigest(2), 5, 6 + far}}, 2},
		{"many", maxChangelogEntries, many, 2},
		{"few in each", 100, many[:950], 10},
		{"one in each", 1, many[:5], 5},
		{"many again", maxChangelogEntries, many, 2},
	} {
		for i := range c.list {
			o.add(&c.list[i], c.most)
		}
		var got []entry
		for i := range o.records {
			r, err := parseChangelog(o.records[i].finish(&changelogHeader{kind: kindEntries, streamTime: 11}))
			if err != nil || r.len() > c.most || r.streamTime != 11 {
				t.Fatalf("%s: %d entries, %v", c.name, r.len(), err)
			}
			for j := range r.len() {
				var e entry
				r.at(j, &e)
				got = append(got, e)
			}
		}
		if len(o.records) != c.records || !slices.Equal(got, c.list) {
			t.Errorf("%s: %d entries in %d records, want %d in %d, or they are others", c.name, len(got), len(o.records), len(c.list), c.records)
		}
		for i := range c.list {
			if time, ok := o.find(&c.list[i].digest); !ok || time != c.list[i].time {
				t.Fatalf("%s: entry %d is of %d, %v; want %d", c.name, i, time, ok, c.list[i].time)
			}
		}
		unknown := testDigest(-1)
		if _, ok := o.find(&unknown); ok {
			t.Errorf("%s: it has an extra key", c.name)
		}
		o.reset()
		if _, ok := o.find(&many[0].digest); ok {
			t.Errorf("%s: it has something when it is empty", c.name)
		}
	}
}

func FuzzChangelog(f *testing.F) {
	whole := encodeEntries(changelogHeader{kind: kindEntries}, entry{testDigest(1), 5, 6}, entry{testDigest(2), 7, 8})
	f.Add(whole)
	f.Add(whole[:70])
	f.Fuzz(func(t *testing.T, value []byte) {
		c, err := parseChangelog(value)
		if err != nil {
			return
		}
		var list []entry
		for i := range c.len() {
			var e entry
			c.at(i, &e)
			list = append(list, e)
		}
		if want := int(binary.LittleEndian.Uint16(value[4:])); want != len(list) {
			t.Errorf("%d entries, want %d", len(list), want)
		}
	})
}

// TestALogThatIsCutAnywhereIsABeginningOfItself cuts and spoils a log at every
// byte.
func TestALogThatIsCutAnywhereIsABeginningOfItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := openStateLog(vfs.OS{}, dir, topicID{1}, func(int64) {}, nil)
	kafkatest.Must(t, err)
	var values [][]byte
	for i := range 5 {
		value := encodeEntries(changelogHeader{kind: kindEntries}, entry{testDigest(i), 5, 6})
		values = append(values, value)
		c, err := parseChangelog(value)
		kafkatest.Must(t, err)
		l.add(value, &c, int64(10*i+1))
		kafkatest.Must(t, l.write())
	}
	kafkatest.Must(t, l.Close())
	whole, err := os.ReadFile(filepath.Join(dir, logName(1)))
	kafkatest.Must(t, err)
	check := func(what string, data []byte, at int) {
		other := t.TempDir()
		kafkatest.Must(t, os.WriteFile(filepath.Join(other, logName(1)), data, 0o600))
		n := 0
		l, err := openStateLog(vfs.OS{}, other, topicID{1}, func(int64) {}, func(value []byte, position int64) error {
			if n >= len(values) || !bytes.Equal(value, values[n]) || position != int64(10*n+1) {
				t.Errorf("%s at %d: record %d is another", what, at, n)
			}
			n++
			return nil
		})
		kafkatest.Must(t, err)
		if want := max(0, at-logHeaderSize) / (logFrameSize + len(values[0])); n != want {
			t.Errorf("%s at %d: %d records, want %d", what, at, n, want)
		}
		kafkatest.Must(t, l.Close())
	}
	for at := range whole {
		if at%7 == 0 || at < logHeaderSize {
			check("cut", whole[:at], at)
			spoiled := bytes.Clone(whole)
			spoiled[at] ^= 0x40
			if at < 28 || at >= logHeaderSize {
				check("spoiled", spoiled, at)
			}
		}
	}
}
