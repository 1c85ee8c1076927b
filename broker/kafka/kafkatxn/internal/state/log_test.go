package state_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

// texts is a State that has a text of each record. A record is the first byte of its input's
// id, and the text. A barrier has "|" and its nonce.
type texts struct {
	has    []string // as text@offset, in the order in which they came
	open   []string
	read   string
	wrong  error // of Changes
	sizes  int   // of stored records
	cut    int64
	left   bool // a value was left in the copy on disk
	places []state.Place
}

var errText = errors.New("the text cannot be used")

func (s *texts) Changes(int) (records []*kgo.Record, err error) {
	for _, text := range s.open {
		records = append(records, &kgo.Record{Value: []byte("\x01" + text)})
	}
	return records, s.wrong
}

func (s *texts) Commit(at int64, places []state.Place) {
	for i, text := range s.open {
		s.has = append(s.has, fmt.Sprintf("%s@%d", text, at+int64(i)))
	}
	s.open, s.places = nil, append(s.places, places...)
}

func (s *texts) Drop()                         { s.open = nil }
func (s *texts) Barrier(nonce state.ID) []byte { return append([]byte("\x01|"), nonce[:]...) }

func (s *texts) Read(value []byte) (h state.Header, err error) {
	h.Topic[0] = value[0]
	if s.read = string(value[1:]); s.read == "wrong" {
		return h, errText
	}
	if h.Barrier = s.read[0] == '|'; h.Barrier {
		h.Nonce = state.ID(value[2:])
		return h, nil
	}
	h.Len = len(s.read)
	return h, nil
}

func (s *texts) Apply(at int64, place state.Place) {
	s.has, s.places = append(s.has, fmt.Sprintf("%s@%d", s.read, at)), append(s.places, place)
}

func (s *texts) Stored(_ int64, size int) (ends bool) {
	s.sizes += size
	return size == 2
}

func (s *texts) Cut() (at int64, ok bool) { return s.cut, s.cut > 0 }
func (s *texts) Expect(int64)             {}
func (s *texts) Detach() bool             { return !s.left }

// logged is a Log with its present state.
type logged struct {
	*state.Log
	*testing.T
	texts    *texts
	states   int   // how many there were
	detached error // what Detached has heard
}

// openLog opens a log of the input 1, perhaps with a copy on a disk. A file of it ends with a
// text of one letter.
func openLog(t *testing.T, disk *faultfs.FS, opts state.LogOptions) *logged {
	t.Helper()
	l := &logged{T: t}
	opts.Topic, opts.Partition, opts.Input = "changelog", 3, state.ID{1}
	opts.New = func(*state.Disk) state.State {
		l.texts, l.states = &texts{}, l.states+1
		return l.texts
	}
	opts.Detached = func(err error) { l.detached = err }
	if disk != nil {
		opts.Disk = state.NewDisk(disk, "state", ".state", changelog)
	}
	var err error
	l.Log, err = state.OpenLog(t.Context(), opts)
	kafkatest.Must(t, err)
	t.Cleanup(l.Close)
	return l
}

// record returns a record that the input 1 has made.
func record(at int64, text string) *kgo.Record {
	return &kgo.Record{Topic: "changelog", Partition: 3, Offset: at, Value: []byte("\x01" + text)}
}

// read reads records, of which none is a barrier.
func (l *logged) read(records ...*kgo.Record) error {
	_, _, err := l.Read(l.Context(), records, state.ID{})
	return err
}

// begin reads as many records as make a position.
func (l *logged) begin(position int64) {
	l.Helper()
	for at := range position {
		kafkatest.Must(l.T, l.read(record(at, "r")))
	}
}

// add writes texts in one transaction, the first at an offset.
func (l *logged) add(at int64, list ...string) error {
	l.texts.open = append(l.texts.open, list...)
	return l.Write(100, func(r *kgo.Record) {
		r.Offset = at
		at++
	})
}

// wantTexts checks what the present state has.
func (l *logged) wantTexts(want ...string) {
	l.Helper()
	if !slices.Equal(l.texts.has, want) {
		l.Errorf("the state has %q, want %q", l.texts.has, want)
	}
}

// TestALogStartsBehindWhatItHas has the topic of a log that has read five records or more.
func TestALogStartsBehindWhatItHas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		byTime                     bool
		position, start, live, end int64
		at                         int64
		verifies, dropped          bool
	}{
		"nothing is read":                         {false, 0, 3, 0, 9, 3, false, false},
		"it has read a part":                      {false, 5, 0, 0, 9, 4, true, false},
		"it has read all":                         {false, 5, 0, 0, 5, 4, true, false},
		"only the last record remains":            {false, 5, 4, 0, 9, 4, true, false},
		"the last record is gone":                 {false, 5, 5, 0, 9, 5, false, true},
		"records are gone that it lacks":          {false, 5, 7, 0, 9, 7, false, true},
		"the end of the topic is gone":            {false, 6, 1, 0, 5, 1, false, true},
		"by time, it has read a part":             {true, 5, 0, 0, 9, 4, true, false},
		"by time, the last record is gone":        {true, 5, 5, 0, 9, 5, false, false},
		"by time, records are gone that it lacks": {true, 5, 7, 0, 9, 7, false, false},
		"by time, the end of the topic is gone":   {true, 6, 1, 0, 5, 1, false, true},
		"only the next record counts":             {true, 5, 0, 5, 9, 5, false, true},
		"a record counts only later":              {true, 5, 0, 7, 9, 7, false, true},
		"a record counts that it has":             {true, 5, 0, 4, 9, 4, true, false},
		"no record counts":                        {true, 5, 0, 20, 9, 9, false, true},
		"nothing is read, and few records count":  {true, 0, 0, 7, 9, 7, false, false},
		"the end is gone, and few records count":  {true, 6, 1, 3, 5, 3, false, true},
	} {
		for _, disk := range []*faultfs.FS{nil, faultfs.New()} {
			l := openLog(t, disk, state.LogOptions{ByTime: c.byTime})
			l.begin(c.position)
			before := l.texts
			at, err := l.Start(c.start, c.live, c.end)
			dropped := c.position > 0 && l.texts != before
			if err != nil || at != c.at || dropped != c.dropped || dropped != (l.Position() == 0 && c.position > 0) {
				t.Errorf("%s: it starts at %d, and drops the state: %t; %v", name, at, dropped, err)
			}
			if err := l.read(record(at, "another")); c.verifies != errors.Is(err, state.ErrAgain) || !c.verifies && err != nil {
				t.Errorf("%s: another record than before: %v", name, err)
			}
		}
	}
}

// TestAStateThatTheTopicContradictsIsDropped has the last record with other bytes, and at
// another offset. The process then builds the state from the topic.
func TestAStateThatTheTopicContradictsIsDropped(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]*kgo.Record{"other bytes": record(1, "x"), "another offset": record(2, "b")} {
		for _, disk := range []*faultfs.FS{nil, faultfs.New()} {
			l := openLog(t, disk, state.LogOptions{})
			kafkatest.Must(t, l.add(0, "a", "b"))
			kafkatest.Must(t, l.Commit())
			at, err := l.Start(0, 0, 3)
			kafkatest.Must(t, err)
			if err := l.read(next); at != 1 || !errors.Is(err, state.ErrAgain) || !strings.Contains(err.Error(), fmt.Sprintf("changelog/3 at %d is another record", next.Offset)) {
				t.Errorf("%s: from %d on: %v", name, at, err)
			}
			l.wantTexts()
			if disk != nil {
				l.Close()
				l = openLog(t, disk, state.LogOptions{})
			}
			if at, err = l.Start(0, 0, 3); at != 0 || err != nil {
				t.Errorf("%s: it then starts at %d: %v", name, at, err)
			}
			kafkatest.Must(t, l.read(record(0, "a"), next))
			l.wantTexts("a@0", fmt.Sprintf("%s@%d", next.Value[1:], next.Offset))
		}
	}
}

// TestRecordsAreAppliedOnce reads overlapping parts of the topic: the last applied record, which
// shows that the topic is the same, and those before it.
func TestRecordsAreAppliedOnce(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	l := openLog(t, disk, state.LogOptions{})
	all := []*kgo.Record{record(0, "a"), record(1, "b"), record(3, "c"), record(4, "d")}
	kafkatest.Must(t, l.read(all[:2]...))
	kafkatest.Must(t, l.read(all[:3]...))
	at, err := l.Start(0, 0, 5)
	if err != nil || at != 3 || l.Position() != 4 {
		t.Errorf("it starts at %d of %d: %v", at, l.Position(), err)
	}
	kafkatest.Must(t, l.read(all[2:]...))
	l.wantTexts("a@0", "b@1", "c@3", "d@4")
	if want := 8; l.texts.sizes != want {
		t.Errorf("%d bytes are stored, want %d", l.texts.sizes, want)
	}
	l.Close()
	l = openLog(t, disk, state.LogOptions{})
	l.wantTexts("a@0", "b@1", "c@3", "d@4")
	if l.Position() != 5 {
		t.Errorf("the copy ends at %d", l.Position())
	}
}

// TestABarrierEndsTheReadingOfItsWriter has barriers of two members between records.
func TestABarrierEndsTheReadingOfItsWriter(t *testing.T) {
	t.Parallel()
	l := openLog(t, nil, state.LogOptions{})
	topic := []*kgo.Record{record(0, "a"), l.Barrier(state.ID{1}), record(2, "bb"), l.Barrier(state.ID{2}), record(4, "c")}
	for i, r := range topic {
		if r.Offset = int64(i); r.Topic != "changelog" || r.Partition != 3 {
			t.Errorf("record %d is of %s/%d", i, r.Topic, r.Partition)
		}
	}
	for _, c := range []struct {
		nonce   state.ID
		entries int
		reached bool
		want    []string
	}{
		{state.ID{1}, 1, true, []string{"a@0"}},
		{state.ID{2}, 2, true, []string{"a@0", "bb@2"}},
		{state.ID{3}, 1, false, []string{"a@0", "bb@2", "c@4"}},
		{state.ID{}, 0, false, []string{"a@0", "bb@2", "c@4"}},
	} {
		entries, reached, err := l.Read(t.Context(), topic, c.nonce)
		if err != nil || entries != c.entries || reached != c.reached {
			t.Errorf("%v: %d entries, reached: %t, %v", c.nonce[0], entries, reached, err)
		}
		l.wantTexts(c.want...)
	}
}

// TestACopyThatLacksTheFirstRecordsIsNotUsed removes the first of three files.
func TestACopyThatLacksTheFirstRecordsIsNotUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		byTime bool
		start  int64
	}{
		"the topic has them":                {false, 0},
		"the topic lacks them too":          {false, 1},
		"by time, the topic has them":       {true, 0},
		"by time, the topic lacks them too": {true, 1},
	} {
		disk := faultfs.New()
		l := openLog(t, disk, state.LogOptions{})
		l.begin(3)
		l.Close()
		kafkatest.Must(t, disk.Remove("state/00000001.state"))
		l = openLog(t, disk, state.LogOptions{ByTime: c.byTime})
		l.wantTexts()
		if at, err := l.Start(c.start, 0, 3); err != nil || at != c.start {
			t.Errorf("%s: it starts at %d with %q: %v", name, at, l.texts.has, err)
		}
	}
}

// TestALogWhoseCopyFails commits and reads with a disk that is full. Only a state that has
// left values on it needs it.
func TestALogWhoseCopyFails(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left")
	for _, left := range []bool{false, true} {
		for name, next := range map[string]func(l *logged) error{
			"Commit": func(l *logged) error { return errors.Join(l.add(2, "c"), l.Commit()) },
			"Read":   func(l *logged) error { return l.read(record(2, "c")) },
		} {
			disk := faultfs.New()
			l := openLog(t, disk, state.LogOptions{})
			l.begin(2)
			l.texts.left = left
			disk.SetHook(func(op faultfs.Op) error {
				if op.Kind == faultfs.Write {
					return full
				}
				return nil
			})
			err := next(l)
			if left != errors.Is(err, full) || left == errors.Is(l.detached, full) {
				t.Errorf("%s, a value is left: %t: %v; detached: %v", name, left, err, l.detached)
			}
			l.wantTexts("r@0", "r@1", "c@2")
			at, err := l.Start(0, 0, 3)
			if left != errors.Is(err, full) {
				t.Errorf("%s, a value is left: %t: start with the full disk: %v", name, left, err)
			}
			disk.SetHook(nil)
			want, from := []string{"r@0", "r@1", "c@2", "d@3"}, int64(2)
			if left {
				at, err = l.Start(0, 0, 3) // the state is built again
				from = 0
			}
			if at != from || err != nil {
				t.Errorf("%s, a value is left: %t: it starts at %d: %v", name, left, at, err)
			}
			kafkatest.Must(t, l.read([]*kgo.Record{record(0, "r"), record(1, "r"), record(2, "c"), record(3, "d")}[at:]...))
			l.wantTexts(want...)
			l.Close()
			if !left {
				want = want[:2] // the copy ends where it failed
			}
			openLog(t, disk, state.LogOptions{}).wantTexts(want...)
		}
	}
}

// TestRecordsOfAnotherInputNeedAnOwner has records of the input 2 in the topic and in the
// copy, and one of an input without id.
func TestRecordsOfAnotherInputNeedAnOwner(t *testing.T) {
	t.Parallel()
	other := fmt.Errorf("the records are of another input: %w", semel.ErrInvalidRequest)
	topic := []*kgo.Record{record(0, "a"), record(1, "b"), record(2, "c")}
	topic[0].Value[0], topic[1].Value[0] = 0, 2
	for _, refuses := range []bool{false, true} {
		disk, asked := faultfs.New(), 0
		opts := state.LogOptions{CheckOwner: func(context.Context, state.ID) error { return nil }}
		l := openLog(t, disk, opts)
		kafkatest.Must(t, l.read(topic...))
		l.Close()
		silent := errors.New("no broker answers")
		opts.CheckOwner = func(context.Context, state.ID) error { return silent }
		opts.Disk, opts.New = state.NewDisk(disk, "state", ".state", changelog), func(*state.Disk) state.State { return &texts{} }
		opts.Input = state.ID{1}
		if _, err := state.OpenLog(t.Context(), opts); !errors.Is(err, silent) {
			t.Errorf("without an answer about a record of the copy: %v", err)
		}
		opts.CheckOwner = func(_ context.Context, input state.ID) error {
			if asked++; input != (state.ID{2}) {
				t.Errorf("asked for %v", input)
			}
			if refuses {
				return other
			}
			return nil
		}
		l = openLog(t, disk, opts)
		if !refuses {
			l.wantTexts("a@0", "b@1", "c@2")
			continue
		}
		l.wantTexts("a@0")
		at, err := l.Start(0, 0, 3)
		kafkatest.Must(t, err)
		if err = l.read(topic...); at != 0 || !errors.Is(err, other) || !strings.Contains(err.Error(), "kafka: changelog/3 at 1: ") {
			t.Errorf("it reads from %d on: %v", at, err)
		}
		l.wantTexts("a@0")
		if asked != 2 {
			t.Errorf("%d records were refused", asked)
		}
	}
}

func TestARecordThatTheStateCannotUseEndsTheReading(t *testing.T) {
	t.Parallel()
	l := openLog(t, faultfs.New(), state.LogOptions{})
	if err := l.read(record(0, "a"), record(1, "wrong"), record(2, "c")); !errors.Is(err, errText) || !strings.Contains(err.Error(), "kafka: changelog/3 at 1: ") {
		t.Errorf("%v", err)
	}
	l.wantTexts("a@0")
	if l.Position() != 1 {
		t.Errorf("it is at %d", l.Position())
	}
}

// TestAnAbortedTransactionLeavesNothing drops a transaction, and one that could not be written.
// The next one has only its own records.
func TestAnAbortedTransactionLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, wrong := range []error{nil, errText} {
		disk := faultfs.New()
		l := openLog(t, disk, state.LogOptions{})
		l.begin(1)
		l.texts.wrong = wrong
		if err := l.add(1, "b", "c"); !errors.Is(err, wrong) || len(l.Written()) != 2 {
			t.Errorf("%d records are written, %v", len(l.Written()), err)
		}
		l.Drop()
		l.wantTexts("r@0")
		if l.texts.wrong = nil; len(l.Written()) > 0 || l.Position() != 1 {
			t.Errorf("%d records are written, and the position is %d", len(l.Written()), l.Position())
		}
		kafkatest.Must(t, l.add(4, "d"))
		if r := l.Written()[0]; r.Topic != "changelog" || r.Partition != 3 {
			t.Errorf("it writes to %s/%d", r.Topic, r.Partition)
		}
		kafkatest.Must(t, l.Commit())
		kafkatest.Must(t, l.Commit()) // without records
		l.wantTexts("r@0", "d@4")
		if l.Position() != 5 || len(l.Written()) > 0 {
			t.Errorf("%d records are written, and the position is %d", len(l.Written()), l.Position())
		}
		l.Close()
		openLog(t, disk, state.LogOptions{}).wantTexts("r@0", "d@4")
	}
}

// TestTheCopyHasTheFilesOfRecordsThatCount also has the places of its records.
func TestTheCopyHasTheFilesOfRecordsThatCount(t *testing.T) {
	t.Parallel()
	disk := faultfs.New()
	l := openLog(t, disk, state.LogOptions{})
	l.begin(3)
	kafkatest.Must(t, l.add(3, "d", "e"))
	l.texts.cut = 2
	kafkatest.Must(t, l.Commit())
	for at := int64(5); at < 8; at++ { // they share the last file
		kafkatest.Must(t, l.read(record(at, "long")))
	}
	if want := []string{"state/00000003.state", "state/00000004.state", "state/00000005.state"}; l.Cut() != 2 || !slices.Equal(disk.Files(), want) {
		t.Errorf("the cut is at %d, files %q", l.Cut(), disk.Files())
	}
	places := l.texts.places
	l.Close()
	l = openLog(t, disk, state.LogOptions{})
	l.wantTexts("r@2", "d@3", "e@4", "long@5", "long@6", "long@7")
	if !slices.Equal(l.texts.places, places[2:]) {
		t.Errorf("the records are at %v, want %v", l.texts.places, places[2:])
	}
	if at, err := l.Start(0, 0, 8); err != nil || at != 0 {
		t.Errorf("the topic has records that the copy lacks: it starts at %d, %v", at, err)
	}
}
