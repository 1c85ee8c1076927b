package windows

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/semel-dev/semel/internal/localcopy"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/faultfs"
)

// changelog has the records from an offset on, perhaps with a copy on disk.
type changelog struct {
	agg     *stream.Aggregate
	slack   int64
	first   int64
	records [][]byte
	random  *rand.Rand
	// disk has the copy, or is nil. Accumulators of more than inline bytes are left there.
	disk   *faultfs.FS
	copy   *localcopy.Log
	inline int
	// useless is the offset before which no record counts.
	useless int64
}

// newChangelog returns an empty changelog. Whether it has a copy is random.
func newChangelog(t *testing.T, agg *stream.Aggregate, slack int64, random *rand.Rand) *changelog {
	t.Helper()
	c := &changelog{agg: agg, slack: slack, random: random, inline: random.IntN(10)}
	if random.IntN(4) > 0 {
		c.disk = faultfs.New()
		t.Cleanup(func() { c.copy.Close() })
	}
	return c
}

// add appends the records of a transaction and returns the offset of the first.
func (c *changelog) add(values [][]byte) int64 {
	c.records = append(c.records, values...)
	return c.first + int64(len(c.records)-len(values))
}

// commit appends the records of a transaction and tells the state.
func (c *changelog) commit(t *testing.T, s *State, values [][]byte) {
	t.Helper()
	at := c.add(values)
	var places []localcopy.Place
	for i, value := range values {
		places = append(places, c.keep(value, at+int64(i)))
	}
	s.Commit(at, places)
	for i, value := range values {
		s.Stored(at+int64(i), len(value))
	}
	c.write(t, s)
}

// keep adds a record to the copy.
func (c *changelog) keep(value []byte, at int64) localcopy.Place {
	if c.copy == nil {
		return localcopy.Place{}
	}
	return c.copy.Add(value, at, at+1)
}

// write writes the copy, and removes what the state does not need.
func (c *changelog) write(t *testing.T, s *State) {
	t.Helper()
	if at, ok := s.Cut(); ok {
		c.useless = max(c.useless, at)
	}
	if c.copy == nil {
		return
	}
	if err := errors.Join(c.copy.Write(), c.copy.Tidy(c.useless-1, 0)); err != nil {
		t.Fatal(err)
	}
}

// deleteBefore deletes the records before an offset.
func (c *changelog) deleteBefore(at int64) { c.first, c.records = at, c.records[at-c.first:] }

// fresh returns an empty state.
func (c *changelog) fresh() *State {
	s := New(c.agg)
	s.SetSlack(c.slack)
	if c.copy != nil {
		s.SetCopy(c.copy)
		s.Inline = c.inline
	}
	return s
}

// restored builds a state from the records, in memory.
func (c *changelog) restored(t *testing.T) *State {
	t.Helper()
	without := *c
	without.copy, without.disk = nil, nil
	return without.restart(t)
}

// restart builds a state as a process does that starts: from the copy, and the rest from the
// records. The copy may be lost, or lack its beginning or its end.
func (c *changelog) restart(t *testing.T) *State {
	t.Helper()
	if c.disk != nil {
		if c.copy != nil {
			c.copy.Close()
			c.damage(t)
		}
		c.copy = localcopy.New(c.disk, "state", ".state", localcopy.ID{1})
		c.copy.SetFileSize(2000)
	}
	s, next := c.fresh(), int64(0)
	apply := func(value []byte, position int64, place localcopy.Place) (int64, error) {
		r, err := s.Parse(value)
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(&r, position-1, place)
		s.Stored(position-1, len(value))
		next = position
		return position - 1, nil
	}
	if c.copy != nil {
		if err := c.copy.Open(nil, apply); err != nil {
			t.Fatal(err)
		}
		if c.copy.From() > c.first || next <= c.first {
			if err := c.copy.Clear(); err != nil {
				t.Fatal(err)
			}
			s, next = c.fresh(), 0
		}
	}
	next = max(next, c.first)
	for _, value := range c.records[next-c.first:] {
		if _, err := apply(value, next+1, c.keep(value, next)); err != nil {
			t.Fatal(err)
		}
	}
	c.write(t, s)
	return s
}

// damage does to the copy what may happen to a disk between two processes.
func (c *changelog) damage(t *testing.T) {
	t.Helper()
	files := c.disk.Files()
	if len(files) == 0 {
		return
	}
	name, err := files[len(files)-1], error(nil)
	switch c.random.IntN(8) {
	case 0:
		c.disk = faultfs.New()
	case 1:
		err = c.disk.Remove(files[0])
	case 2:
		file, e := c.disk.Open(name)
		if e != nil {
			t.Fatal(e)
		}
		size, e := file.Size()
		err = errors.Join(e, file.Truncate(c.random.Int64N(size+1)), file.Close())
	case 3:
		err = c.disk.FlipBit(files[c.random.IntN(len(files))], c.random.Int64N(localcopy.HeaderSize), 3)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// accOf returns an accumulator.
func accOf(t *testing.T, s *State, p *pane) string {
	t.Helper()
	acc, err := s.load(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(acc)
}
