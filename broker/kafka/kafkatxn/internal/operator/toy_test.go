package operator

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state/statetest"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

// This file is the example of DESIGN.md for a new operator: its kind, the operator, its state, and
// the test of all of them.

// hundredths counts the records of each record key, and passes each hundredth on with its number.
var hundredths = Kind{
	On:    func(*Options) bool { return true },
	State: func(*Options) Store { return newCounts() },
	Text:  func(*Options) string { return "each hundredth record of a record key" },
	New:   func(p *Partition, next Operator) Operator { return &counter{p, p.Store.(*counts), next} },
}

type counter struct {
	*Partition
	counts *counts
	next   Operator
}

// Process implements Operator. It counts a record once the next operator has decided it.
func (c *counter) Process(ctx context.Context, r *Record) (Outcome, error) {
	id := string(r.Record.Key)
	n := c.counts.of(id) + 1
	if n%100 > 0 {
		c.counts.set(id, n)
		return Done, nil
	}
	r.Value = strconv.AppendUint(nil, n, 10)
	outcome, err := c.next.Process(ctx, r)
	if err == nil && (outcome == Done || outcome == Aside) {
		c.counts.set(id, n)
	}
	return outcome, err
}

// counts is the state: the number of records by id. An entry of a changelog record has the length of
// the id (uvarint), the id, and the number (8 bytes).
type counts struct {
	state.Base[string]
	committed map[string]count
	changed   map[string]uint64 // by the open transaction
	written   []string          // the ids in its records
}

type count struct {
	n  uint64
	at int64 // where the changelog has it
}

var _ Store = (*counts)(nil)

func newCounts() *counts {
	s := &counts{committed: map[string]count{}, changed: map[string]uint64{}}
	s.Init(state.Further, splitCount, func(id string, at int64) bool {
		_, changed := s.changed[id]
		return s.committed[id].at == at && !changed
	})
	return s
}

func (s *counts) of(id string) uint64 {
	if n, ok := s.changed[id]; ok {
		return n
	}
	return s.committed[id].n
}

func (s *counts) set(id string, n uint64) { s.changed[id] = n }

// store makes a number the committed one, which the changelog has at an offset.
func (s *counts) store(id string, n uint64, at int64) {
	if _, ok := s.committed[id]; !ok {
		s.Count++
		s.Size += int64(len(id) + 2)
	}
	s.committed[id] = count{n, at}
	s.Put(id, at)
}

// Changes implements state.State.
func (s *counts) Changes(most int) ([]*kgo.Record, error) {
	if !s.Begin(len(s.changed) > 0, most) {
		return nil, nil
	}
	s.written = slices.Sorted(maps.Keys(s.changed)) // the same transaction has the same bytes
	for _, id := range s.written {
		s.add(id)
	}
	err := s.Rewrite(func(id string, _ int64) error {
		s.written = append(s.written, id)
		s.add(id)
		return nil
	})
	return s.Records(), err
}

func (s *counts) add(id string) {
	entry := append(binary.AppendUvarint(nil, uint64(len(id))), id...)
	s.Writer.Add(binary.LittleEndian.AppendUint64(entry, s.of(id)))
}

// cutCount cuts an entry off the start of bytes.
func cutCount(b []byte) (id []byte, n uint64, rest []byte, ok bool) {
	length, size := binary.Uvarint(b)
	if b = b[max(size, 0):]; size <= 0 || length > uint64(len(b)) || len(b)-int(length) < 8 {
		return nil, 0, nil, false
	}
	return b[:length], binary.LittleEndian.Uint64(b[length:]), b[length+8:], true
}

func splitCount(b []byte) (id, rest []byte, ok bool) {
	id, _, rest, ok = cutCount(b)
	return id, rest, ok
}

// Commit implements state.State.
func (s *counts) Commit(at int64, _ []state.Place) {
	for _, id := range s.written {
		s.store(id, s.of(id), at)
	}
	s.Settle(s.Present)
	s.end()
}

// Drop implements state.State.
func (s *counts) Drop() {
	s.Forget()
	s.end()
}

func (s *counts) end() {
	clear(s.changed)
	s.written = nil
}

// Apply implements state.State.
func (s *counts) Apply(at int64, _ state.Place) {
	for rest := s.Last.Entries; len(rest) > 0; {
		var id []byte
		var n uint64
		id, n, rest, _ = cutCount(rest) // Read has checked them
		s.store(string(id), n, at)
	}
	s.Applied()
}

// toySession decides the records of one partition as a session does: a transaction has outputs, the
// changelog and the position, or nothing.
type toySession struct {
	*statetest.Changelog[Store]
	t      *testing.T
	random *rand.Rand
	plan   *Plan
	chain  Chain
	input  []string // the record keys
	// position and outputs are committed, and written are the outputs of the open transaction.
	position         int
	outputs, written []string
}

func newToySession(t *testing.T, onDisk bool, random *rand.Rand) *toySession {
	t.Helper()
	s := &toySession{t: t, random: random}
	o := &Options{Rule: kafkatest.RecordKey(t), OnMissing: pipeline.MissingPass, Output: "out", Most: time.Minute}
	s.plan = choose(o, slices.Insert(slices.Clone(kinds), len(kinds)-3, hundredths)) // before those that write
	opts := statetest.Options[Store]{Random: random, FileSize: 2000, Log: state.LogOptions{Input: state.ID{2}}}
	if onDisk {
		opts.Files = faultfs.New()
	}
	opts.New = func(d *state.Disk) Store {
		store := s.plan.NewStore()
		store.Bind(state.Of{Definition: state.Definition(s.plan.Text()), Text: s.plan.Text(), Topic: opts.Log.Input}, d, state.NoSources{}, 300)
		return store
	}
	s.Changelog = statetest.New(t, opts)
	s.begin()
	return s
}

// begin makes the operators of a process.
func (s *toySession) begin() {
	e := NewEnv(s.plan.Options)
	e.Budget = s.plan.NewBudget(time.Second)
	e.Produce = func(r *kgo.Record) { s.written = append(s.written, fmt.Sprintf("%s %s", r.Key, r.Value)) }
	e.Raised = func(_ context.Context, err error) (_, restart error) {
		if s.random.IntN(10) == 0 {
			return nil, state.ErrAgain // the record is not decided
		}
		return err, nil
	}
	s.chain = Chain{Partition: Partition{Store: s.State}}
	s.chain.Begin(s.plan, e)
}

// restart ends the process. Another one, or another member, continues.
func (s *toySession) restart() {
	s.Restart()
	s.begin()
}

// transact decides records, and commits them, aborts, or dies before or after the commit.
func (s *toySession) transact() {
	s.t.Helper()
	s.chain.Reset()
	s.written = nil
	next := min(len(s.input), s.position+s.random.IntN(60))
	for _, key := range s.input[s.position:next] {
		r := &Record{Record: &kgo.Record{Key: []byte(key)}, Key: KeyPass}
		if outcome, err := s.chain.Process(s.t.Context(), r); err != nil {
			s.Drop()
			return
		} else if outcome != Done {
			s.t.Fatalf("outcome %d", outcome)
		}
	}
	s.Write(100 + s.random.IntN(200))
	switch s.random.IntN(6) {
	case 0:
		s.Drop()
		return
	case 1:
		s.restart() // the brokers abort the transaction
		return
	case 2:
		s.Lose()
		s.begin()
	default:
		s.Commit()
		s.DeleteLater()
	}
	s.position, s.outputs = next, append(s.outputs, s.written...)
}

// check compares outputs and state with those of a model, which has only what was committed.
func (s *toySession) check() {
	s.t.Helper()
	model, outputs := map[string]uint64{}, []string(nil)
	for _, key := range s.input[:s.position] {
		if model[key]++; model[key]%100 == 0 {
			outputs = append(outputs, fmt.Sprintf("%s %d", key, model[key]))
		}
	}
	if !slices.Equal(s.outputs, outputs) {
		s.t.Fatalf("outputs %q, want %q", s.outputs, outputs)
	}
	for _, store := range []Store{s.State, s.Restored()} {
		of := store.(*counts)
		got := map[string]uint64{}
		for id, c := range of.committed {
			got[id] = c.n
		}
		if !maps.Equal(got, model) || len(of.changed) > 0 || store.Open() != len(model) {
			s.t.Fatalf("state %v with changes %v, want %v", got, of.changed, model)
		}
	}
}

func TestToyOperatorEmitsEachHundredthRecordOnce(t *testing.T) {
	t.Parallel()
	for _, onDisk := range []bool{false, true} {
		t.Run(fmt.Sprintf("on disk %t", onDisk), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
			s := newToySession(t, onDisk, random)
			for range 5000 {
				s.input = append(s.input, strconv.Itoa(int(random.ExpFloat64()*4)))
			}
			for s.position < len(s.input) {
				s.transact()
				s.check()
			}
			if len(s.outputs) < 20 || s.Begin == 0 {
				t.Errorf("%d outputs, and the changelog was deleted up to %d", len(s.outputs), s.Begin)
			}
		})
	}
}

// TestToyOperatorCountsARecordOnceItIsDecided has a hundredth record whose row is missing at first.
func TestToyOperatorCountsARecordOnceItIsDecided(t *testing.T) {
	t.Parallel()
	store := newCounts()
	store.set("k", 99)
	next := &rowless{}
	c := hundredths.New(&Partition{Store: store}, next)
	for _, want := range []Outcome{NoRow, Done} {
		if outcome, err := c.Process(t.Context(), &Record{Record: &kgo.Record{Key: []byte("k")}}); err != nil || outcome != want {
			t.Fatalf("outcome %d, %v; want %d", outcome, err, want)
		}
	}
	if got := store.of("k"); got != 100 || next.calls != 2 {
		t.Errorf("%d records, %d calls", got, next.calls)
	}
}

// rowless has a row from its second call on.
type rowless struct{ calls int }

// Process implements Operator.
func (o *rowless) Process(context.Context, *Record) (Outcome, error) {
	if o.calls++; o.calls == 1 {
		return NoRow, nil
	}
	return Done, nil
}
