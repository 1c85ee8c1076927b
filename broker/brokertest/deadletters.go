package brokertest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// RunDeadLetters runs the suite for dead-letter stores. place prepares an empty place
// for one test. open opens the store of that place; a second call in the same test
// opens it again, as another process does.
func RunDeadLetters(t *testing.T, place func(tb testing.TB) (open func() pipeline.DeadLetterStore)) {
	t.Helper()
	for _, c := range deadLetterCases() {
		t.Run(c.name, func(t *testing.T) { watch(t, func(w *watched) { c.check(deadLetterEnv{w, place(w)}) }) })
	}
}

func deadLetterCases() []testCase[deadLetterEnv] {
	return []testCase[deadLetterEnv]{
		{"parked messages are kept unchanged", deadLetterEnv.keepsAll},
		{"lists are in order and stop at their limit", deadLetterEnv.lists},
		{"queued messages come oldest first until they are removed", deadLetterEnv.queues},
		{"a message parked again replaces its earlier entry", deadLetterEnv.replaces},
		{"an unknown message is reported as not parked", deadLetterEnv.misses},
		{"the audit log says how each message was settled", deadLetterEnv.audits},
		{"a line about a change is in the audit log before the change", deadLetterEnv.announces},
		{"settlements made at once are all in the audit log", deadLetterEnv.settlesAtOnce},
		{"each parked message has its own entry", deadLetterEnv.parksEach},
		{"many processes use the store at once", deadLetterEnv.shares},
	}
}

type deadLetterEnv struct {
	*watched
	open func() pipeline.DeadLetterStore
}

func (e deadLetterEnv) letters() pipeline.DeadLetterStore {
	letters := e.open()
	e.Cleanup(func() {
		if err := letters.Close(); err != nil {
			e.Errorf("close: %v", err)
		}
	})
	return letters
}

func (e deadLetterEnv) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// parkedMessage has everything that is hard to keep.
func parkedMessage(of string, n int) pipeline.Parked {
	return pipeline.Parked{
		ID: fmt.Sprintf("%024x", n), Pipeline: of, Key: semel.Key{Scope: "orders", ID: "k\x00\xff-" + fmt.Sprint(n)},
		Reason: "attempts", Error: "no \"luck\"\n\u0000", Attempts: 8, Redrives: 2,
		At: time.Date(2026, 1, 2, 3, 4, n, 123456000, time.UTC),
		Message: semel.Message{
			ID: "\xfe-id", RecordKey: []byte{}, Body: []byte("\x00\xff{\"a\":1}"), Time: time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC),
			Headers: []semel.Header{{Name: "h\xff", Value: []byte{0, 255}}, {Name: "empty", Value: []byte{}}, {Name: "null"}, {Name: "empty", Value: []byte("twice")}},
			Origin:  semel.Origin{Source: "to\xffpic", Identity: "2026-01-02/7", Partition: 3, Offset: 1 << 60, Delivery: 4},

			CaselessHeaders: n%2 == 1,
		},
	}
}

func (e deadLetterEnv) keepsAll() {
	letters := e.letters()
	p := parkedMessage("p", 1)
	e.must(letters.Park(e.Context(), []pipeline.Parked{p}))
	got, err := e.letters().Get(e.Context(), p.ID)
	e.must(err)
	if !reflect.DeepEqual(*got, p) {
		e.Errorf("kept:\n%+v\nparked:\n%+v", *got, p)
	}
	bare := pipeline.Parked{ID: fmt.Sprintf("%024x", 2), Pipeline: "p", Reason: "key-missing", At: p.At}
	e.must(letters.Park(e.Context(), []pipeline.Parked{bare}))
	got, err = letters.Get(e.Context(), bare.ID)
	e.must(err)
	if got.Message.Body != nil || got.Message.RecordKey != nil || got.Key.ID != "" {
		e.Errorf("a message of nothing is kept as %+v", *got)
	}
	for i, year := range []int{-44, 0, 10_000, 200_000} { // JSON cannot write them, and a message is parked whatever its time is
		strange := parkedMessage("p", 3+i)
		strange.Message.Time = time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		e.must(letters.Park(e.Context(), []pipeline.Parked{strange}))
		got, err = letters.Get(e.Context(), strange.ID)
		e.must(err)
		if strange.Message.Time = (time.Time{}); !reflect.DeepEqual(*got, strange) {
			e.Errorf("a message of the year %d is kept as %+v", year, *got)
		}
	}
}

// listed returns the ids that the dead-letter store lists, which must be as many as it counts.
func (e deadLetterEnv) listed(letters pipeline.DeadLetterStore, of string) (ids []string) {
	e.Helper()
	e.must(letters.List(e.Context(), of, func(p *pipeline.Parked) bool {
		ids = append(ids, p.ID)
		return true
	}))
	n, err := letters.Count(e.Context(), of)
	e.must(err)
	if n != int64(len(ids)) {
		e.Errorf("%q: %d are counted, and %d listed", of, n, len(ids))
	}
	return ids
}

func (e deadLetterEnv) lists() {
	letters := e.letters()
	pipelines := []string{"a", "a[b]*?", "ü b"}
	var want []string
	for n := range 9 {
		want = append(want, parkedMessage("", n).ID)
	}
	for _, n := range []int{4, 0, 8, 2, 6, 1, 7, 3, 5} {
		e.must(letters.Park(e.Context(), []pipeline.Parked{parkedMessage(pipelines[n%3], n)}))
	}
	if got := e.listed(letters, ""); !slices.Equal(got, want) {
		e.Errorf("all: %v, want %v", got, want)
	}
	for i, of := range pipelines {
		if got := e.listed(letters, of); !slices.Equal(got, []string{want[i], want[i+3], want[i+6]}) {
			e.Errorf("of %q: %v", of, got)
		}
	}
	if got := e.listed(letters, "nobody"); len(got) != 0 {
		e.Errorf("of a pipeline that parked nothing: %v", got)
	}
	n := 0
	e.must(letters.List(e.Context(), "", func(*pipeline.Parked) bool { n++; return n < 2 }))
	if n != 2 {
		e.Errorf("the list went on to %d, want 2", n)
	}
}

func (e deadLetterEnv) queued(letters pipeline.DeadLetterStore, of string, most int) (ids []string) {
	e.Helper()
	list, err := letters.Queued(e.Context(), of, most)
	e.must(err)
	for _, p := range list {
		if !p.Queued {
			e.Errorf("%s is not marked as queued", p.ID)
		}
		ids = append(ids, p.ID)
	}
	return ids
}

func (e deadLetterEnv) queues() {
	letters := e.letters()
	var ids []string
	for n := range 4 {
		p := parkedMessage("p", n)
		p.Queued = true // it is a word of the dead-letter store's alone
		ids = append(ids, p.ID)
		e.must(letters.Park(e.Context(), []pipeline.Parked{p}))
	}
	if got := e.queued(letters, "p", 10); len(got) != 0 {
		e.Errorf("queued before anybody asked: %v", got)
	}
	for _, n := range []int{2, 0, 3} {
		e.must(letters.Queue(e.Context(), []string{ids[n]}))
		_ = retry.Sleep(e.Context(), 20*time.Millisecond) // file systems have coarse clocks
	}
	e.must(letters.Queue(e.Context(), []string{ids[2]})) // keeps its turn
	if got := e.queued(letters, "p", 10); !slices.Equal(got, []string{ids[2], ids[0], ids[3]}) {
		e.Errorf("queued: %v", got)
	}
	if got := e.queued(letters, "p", 2); !slices.Equal(got, []string{ids[2], ids[0]}) {
		e.Errorf("the first two: %v", got)
	}
	if got := e.queued(letters, "q", 2); len(got) != 0 {
		e.Errorf("queued of another pipeline: %v", got)
	}
	e.must(letters.Settle(e.Context(), &pipeline.Parked{ID: ids[2]}, pipeline.Settlement{How: pipeline.HowRedriven, Actor: "me", Reason: "done"}))
	if got := e.queued(letters, "p", 10); !slices.Equal(got, []string{ids[0], ids[3]}) {
		e.Errorf("queued after one was taken out: %v", got)
	}
	if got := e.listed(letters, "p"); !slices.Equal(got, []string{ids[0], ids[1], ids[3]}) {
		e.Errorf("parked after one was taken out: %v", got)
	}
}

func (e deadLetterEnv) replaces() {
	letters := e.letters()
	p := parkedMessage("p", 1)
	e.must(letters.Park(e.Context(), []pipeline.Parked{p}))
	e.must(letters.Queue(e.Context(), []string{p.ID}))
	p.Redrives, p.Reason = 3, "permanent"
	e.must(letters.Park(e.Context(), []pipeline.Parked{p}))
	got, err := letters.Get(e.Context(), p.ID)
	e.must(err)
	if got.Redrives != 3 || got.Reason != "permanent" || got.Queued {
		e.Errorf("kept: %+v", *got)
	}
	if list := e.listed(letters, ""); len(list) != 1 {
		e.Errorf("parked: %v", list)
	}
}

func (e deadLetterEnv) misses() {
	letters := e.letters()
	e.must(letters.Park(e.Context(), []pipeline.Parked{parkedMessage("p", 1)}))
	for _, id := range []string{"", "*", "..", "../p/" + parkedMessage("p", 1).ID, "ffff"} {
		_, err := letters.Get(e.Context(), id)
		gone := letters.Settle(e.Context(), &pipeline.Parked{ID: id}, pipeline.Settlement{How: pipeline.HowDone, Actor: "me"})
		for verb, err := range map[string]error{"get": err, "queue": letters.Queue(e.Context(), []string{id}), "settle": gone} {
			if !errors.Is(err, pipeline.ErrNotParked) {
				e.Errorf("%s %q: %v, want that it is not parked", verb, id, err)
			}
		}
	}
	if list := e.listed(letters, ""); len(list) != 1 {
		e.Errorf("parked: %v", list)
	}
}

// settled returns the settlements that the audit log has behind a position.
func (e deadLetterEnv) settled(letters pipeline.DeadLetterStore, after int64) (list []pipeline.Settlement) {
	e.Helper()
	e.must(letters.Settled(e.Context(), after, func(s pipeline.Settlement) bool {
		list = append(list, s)
		return true
	}))
	return list
}

func (e deadLetterEnv) auditEnd(letters pipeline.DeadLetterStore) int64 {
	e.Helper()
	end, err := letters.AuditEnd(e.Context())
	e.must(err)
	return end
}

func (e deadLetterEnv) audits() {
	letters, other := e.letters(), e.letters()
	begin := e.auditEnd(letters)
	if list := e.settled(letters, begin); len(list) != 0 {
		e.Errorf("the log of an empty dead-letter store has %+v", list)
	}
	want := []pipeline.Settlement{
		{How: pipeline.HowSkipped, Actor: "ann", Reason: "\x00\n\"no\" order"},
		{How: pipeline.HowDone, Actor: "ann", Reason: "the bank has it"},
		{How: pipeline.HowRedriven, Actor: "host/1", Reason: "done", Delivered: true},
		{How: pipeline.HowRedriven, Actor: "host/1", Reason: "the key was done already"},
	}
	ends := []int64{begin}
	for n := range want {
		p := parkedMessage("p", n)
		want[n].ID = p.ID
		e.must(letters.Park(e.Context(), []pipeline.Parked{p}))
		e.must(letters.Settle(e.Context(), &p, want[n]))
		ends = append(ends, e.auditEnd(other))
	}
	for n, end := range ends {
		if got := e.settled(other, end); !slices.Equal(got, want[n:]) {
			e.Errorf("behind entry %d the log has\n%+v, want\n%+v", n, got, want[n:])
		}
	}
	n := 0
	e.must(letters.Settled(e.Context(), begin, func(pipeline.Settlement) bool { n++; return n < 2 }))
	if n != 2 {
		e.Errorf("the entries went on to %d, want 2", n)
	}

	// A message that is gone already: an effect is noted, and nothing else is.
	gone, end := parkedMessage("p", 0), e.auditEnd(letters)
	for _, how := range want {
		if err := letters.Settle(e.Context(), &gone, how); !errors.Is(err, pipeline.ErrNotParked) {
			e.Errorf("settle what is gone as %+v: %v, want that it is not parked", how, err)
		}
	}
	effect := want[2]
	effect.ID = gone.ID
	if got := e.settled(other, end); !slices.Equal(got, []pipeline.Settlement{effect}) {
		e.Errorf("of a message that was gone the log has %+v, want %+v", got, effect)
	}
}

// announces writes lines about changes that are still to come, as operators do.
func (e deadLetterEnv) announces() {
	letters, other := e.letters(), e.letters()
	begin := e.auditEnd(letters)
	p := parkedMessage("p", 1)
	e.must(letters.Park(e.Context(), []pipeline.Parked{p}))
	intended := pipeline.Settlement{ID: p.ID, How: pipeline.HowSkipped, Actor: "ann", Reason: "\x00\n\"no\" order"}
	line, err := intended.Line(&p)
	e.must(err)
	e.must(letters.Audit(e.Context(), line))
	if got := e.settled(other, begin); !slices.Equal(got, []pipeline.Settlement{intended}) {
		e.Errorf("when Audit has returned, another process reads %+v in the log, want %+v", got, intended)
	}
	if list := e.listed(other, "p"); len(list) != 1 {
		e.Errorf("Audit has changed what is parked: %v", list)
	}
	end := e.auditEnd(other)
	e.must(letters.Audit(e.Context(), []byte(`{"verb":"parked retry","actor":"ann","reason":"the bank is back"}`)))
	if got := e.settled(other, end); len(got) != 0 {
		e.Errorf("a line about another change is read as a settlement: %+v", got)
	}
	last := e.auditEnd(other)
	if last <= end {
		e.Errorf("the log ends at %d after a further line, and ended at %d before it", last, end)
	}
	for _, damaged := range []string{"", "ann", `{"actor":"ann"}` + "\n" + `{"actor":"bob"}`} {
		if err := letters.Audit(e.Context(), []byte(damaged)); err == nil {
			e.Errorf("Audit took %q, which is not one JSON object", damaged)
		}
	}
	if got := e.auditEnd(other); got != last {
		e.Errorf("refused lines moved the end of the log from %d to %d", last, got)
	}
	settled := pipeline.Settlement{ID: p.ID, How: pipeline.HowSkipped, Actor: "ann", Reason: "done"}
	e.must(letters.Settle(e.Context(), &p, settled))
	if got := e.settled(other, begin); !slices.Equal(got, []pipeline.Settlement{intended, settled}) {
		e.Errorf("after the change the log has %+v", got)
	}
}

// settlesAtOnce has processes settle the same messages. Each that succeeds is in
// the log, and so is one that delivered.
func (e deadLetterEnv) settlesAtOnce() {
	const processes, messages = 4, 10
	letters := e.letters()
	begin := e.auditEnd(letters)
	var all sync.WaitGroup
	var mu sync.Mutex
	noted := map[pipeline.Settlement]bool{}
	for n := range messages {
		e.must(letters.Park(e.Context(), []pipeline.Parked{parkedMessage("p", n)}))
	}
	for i := range processes {
		letters := e.letters()
		all.Go(func() {
			for n := range messages {
				p := parkedMessage("p", n)
				how := pipeline.Settlement{ID: p.ID, How: pipeline.HowSkipped, Actor: fmt.Sprint(i)}
				if (i+n)%2 == 0 {
					how.How, how.Delivered = pipeline.HowRedriven, true
				}
				err := letters.Settle(e.Context(), &p, how)
				if err != nil && !errors.Is(err, pipeline.ErrNotParked) {
					e.Errorf("settle: %v", err)
				}
				if err == nil || how.Delivered {
					mu.Lock()
					noted[how] = true
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	got := map[pipeline.Settlement]bool{}
	for _, s := range e.settled(letters, begin) {
		got[s] = true
	}
	for s := range noted {
		if !got[s] {
			e.Errorf("the log lacks %+v", s)
		}
	}
	if left := e.listed(letters, "p"); len(left) != 0 {
		e.Errorf("left: %v", left)
	}
}

// shares has processes park, queue, list and take out concurrently.
func (e deadLetterEnv) shares() {
	const processes, each = 4, 25
	var all sync.WaitGroup
	for range processes {
		letters := e.letters()
		all.Go(func() {
			for n := range each { // all park the same messages
				p := parkedMessage("p", n)
				if err := letters.Park(e.Context(), []pipeline.Parked{p}); err != nil {
					e.Errorf("park: %v", err)
				}
				if err := letters.Queue(e.Context(), []string{p.ID}); err != nil && !errors.Is(err, pipeline.ErrNotParked) {
					e.Errorf("queue: %v", err)
				}
				if _, err := letters.Queued(e.Context(), "p", 100); err != nil {
					e.Errorf("queued: %v", err)
				}
				if n%2 == 0 {
					if err := letters.Settle(e.Context(), &p, pipeline.Settlement{How: pipeline.HowRedriven, Actor: "me"}); err != nil && !errors.Is(err, pipeline.ErrNotParked) {
						e.Errorf("settle: %v", err)
					}
				}
				if err := letters.List(e.Context(), "", func(*pipeline.Parked) bool { return true }); err != nil {
					e.Errorf("list: %v", err)
				}
			}
		})
	}
	all.Wait()
	if list := e.listed(e.letters(), "p"); len(list) < each/2 {
		e.Errorf("%d messages are left, want at least those that were not taken out: %d", len(list), each/2)
	}
}
