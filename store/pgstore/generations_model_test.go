package pgstore

import (
	"fmt"
	"slices"
	"testing"
)

// This file explores a model of the form "generations": every interleaving of
// the steps of some writers, who hold their transactions open as long as they
// like, and of the rotator, on one key. A step is what PostgreSQL does at once:
// take the locks of a statement, take its snapshot, insert or lock one row,
// commit. The model is of the protocol, not of the code; its parts are named
// as in generations.go.

// The protocol, and what it must not be without.
type protocol struct {
	name string
	// noMark: while generations overlap, a new key is inserted above alone.
	noMark bool
	// blind: the lower table is not looked at.
	blind bool
	// noFence: the rotator truncates without the lock that waits for writers.
	noFence bool
	// lateLock: a statement takes its snapshot before it has its locks.
	lateLock bool
	// noCarry: what is still remembered is not carried out of a table first.
	noCarry bool
	// noMarkOnLift: a record is carried up without a mark in its place.
	noMarkOnLift bool
	// noGuard: a statement does not look whether its phase is over.
	noGuard bool
}

const (
	modelWriters = 3
	modelPhases  = 4 // the last phase
	modelLives   = 3 // the most records of the key, one after the other
)

// modelRow is the key's row in one table.
type modelRow struct {
	kind byte // 0 is none
	life int8 // which of the key's records it is
}

const (
	modelRecord = 'r'
	modelMark   = 'm'
)

// modelSlot is the place of the key in the unique index of one table.
type modelSlot struct {
	row  modelRow // as committed
	next modelRow // as the transaction by will leave it
	by   int8     // the writer whose transaction has the row, or -1
}

// modelShot is a snapshot.
type modelShot struct {
	phase int8
	rows  [ringTables]modelRow
}

// What a writer does next.
const (
	stepBegin   = iota // of a statement: lock the tables of the phase it believes in
	stepLook           // take the snapshot, and guard
	stepMark           // insert: the mark below, or look below
	stepInsert         // the record above
	stepRead           // read, and decide
	stepLift           // lift: lock and mark the record below
	stepRaise          // insert its copy above
	stepPut            // put: change the record above
	stepGranted        // commit or roll back
	stepEnd
)

type modelWriter struct {
	step  int8
	then  int8 // what the statement that begins is to do
	alone bool // each statement is a transaction of its own
	phase int8 // that it believes in
	locks byte // of tables, until the transaction ends
	shot  modelShot
	was   modelRow // the row it decided by
	life  int8     // that it was granted, or -1
}

type modelState struct {
	phase   int8
	slots   [ringTables]modelSlot
	writers [modelWriters]modelWriter
	lives   int8 // begun so far
	ended   byte // set of lives whose window is over
	granted byte // set of lives that a commit has made
	checked bool // nothing remembered was left in the table to be truncated
}

// explore visits every state that follows from start and returns how many
// there are, and the way to the first that is wrong.
func (p *protocol) explore(start modelState) (states int, way []string) {
	type edge struct {
		from modelState
		how  string
	}
	came := map[modelState]edge{start: {}}
	queue := []modelState{start}
	for len(queue) > 0 {
		s := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, n := range p.next(&s) {
			if _, seen := came[n.state]; seen {
				continue
			}
			came[n.state] = edge{s, n.how}
			if n.wrong != "" {
				way = append(way, n.wrong)
				for at := n.state; at != start; at = came[at].from {
					way = append(way, came[at].how)
				}
				slices.Reverse(way)
				return len(came), way
			}
			queue = append(queue, n.state)
		}
	}
	return len(came), nil
}

type modelNext struct {
	state modelState
	how   string
	wrong string
}

// next returns the states that one step leads to.
func (p *protocol) next(s *modelState) []modelNext {
	var all []modelNext
	for w := range s.writers {
		all = append(all, p.write(*s, int8(w))...)
	}
	for life := range s.lives {
		if bit := byte(1) << life; s.granted&bit != 0 && s.ended&bit == 0 {
			n := *s
			n.ended |= bit
			all = append(all, modelNext{state: n, how: fmt.Sprintf("the window of record %d ends", life)})
		}
	}
	return append(all, p.rotate(*s)...)
}

// live reports whether a row is a record whose window is not over.
func (s *modelState) live(r modelRow) bool {
	return r.kind == modelRecord && s.ended&(1<<r.life) == 0
}

// rotate returns what the rotator can do. Each of its transactions is short
// and holds no row, so that it is one step.
func (p *protocol) rotate(s modelState) []modelNext {
	if s.phase == modelPhases {
		return nil
	}
	t := phase(s.phase)
	old := &s.slots[t.retired()]
	if t.overlap() {
		for _, w := range s.writers {
			if !p.noFence && w.locks&(1<<t.retired()) != 0 {
				return nil // the lock is not had
			}
		}
		*old = modelSlot{by: -1}
		s.phase++
		s.checked = false
		return []modelNext{{state: s, how: "rotator truncates and begins the next generation"}}
	}
	upper := &s.slots[t.upper()]
	switch {
	case p.noCarry || s.checked:
		s.phase++
		return []modelNext{{state: s, how: "rotator lets generations overlap"}}
	case !s.live(old.row) || upper.row.kind != 0:
		s.checked = true
		return []modelNext{{state: s, how: "rotator finds nothing to carry"}}
	case upper.by < 0:
		upper.row = old.row
		return []modelNext{{state: s, how: "rotator carries the record up"}}
	}
	return nil // it waits for the writer
}

// take gives a row to a writer's transaction. It reports false if it has to
// wait for another.
func (s *modelState) take(table int, w int8, next modelRow) bool {
	slot := &s.slots[table]
	if slot.by >= 0 && slot.by != w {
		return false
	}
	slot.by, slot.next = w, next
	return true
}

// now is the row of a table as a writer's own transaction has it, which is
// also what a unique index goes by. It reports false if another transaction
// has the row.
func (s *modelState) now(table int, w int8) (modelRow, bool) {
	slot := &s.slots[table]
	switch slot.by {
	case -1:
		return slot.row, true
	case w:
		return slot.next, true
	}
	return modelRow{}, false
}

// shoot takes a snapshot: what is committed, and what the writer did itself.
func (s *modelState) shoot(w int8) modelShot {
	shot := modelShot{phase: s.phase}
	for i := range s.slots {
		shot.rows[i] = s.slots[i].row
		if s.slots[i].by == w {
			shot.rows[i] = s.slots[i].next
		}
	}
	return shot
}

// write returns what one writer can do.
func (p *protocol) write(s modelState, w int8) []modelNext {
	me := &s.writers[w]
	t := phase(me.phase)
	to := func(step int8, how string) []modelNext {
		switch step {
		case stepMark, stepRead, stepLift, stepPut:
			s.begin(w, step)
		default:
			me.step = step
		}
		if step != stepLook {
			me.shot = modelShot{} // states that differ in it alone are one
		}
		if step == stepRead || step == stepMark || step == stepGranted {
			me.was = modelRow{}
		}
		return []modelNext{{state: s, how: fmt.Sprintf("writer %d (phase %d) %s", w, t, how)}}
	}
	switch me.step {
	case stepBegin:
		me.step = stepLook
		if p.lateLock {
			me.shot = s.shoot(w)
			return to(stepLook, "looks")
		}
		me.locks |= t.tables()
		return to(stepLook, "locks its tables")
	case stepLook:
		if p.lateLock {
			me.locks |= t.tables()
		} else {
			me.shot = s.shoot(w)
		}
		if me.shot.phase != me.phase && !p.noGuard {
			me.phase = me.shot.phase
			return to(stepMark, fmt.Sprintf("learns of phase %d", me.phase))
		}
		me.step = me.then
		return []modelNext{{state: s, how: fmt.Sprintf("writer %d (phase %d) begins a statement", w, t)}}
	case stepMark:
		return p.mark(&s, w, to)
	case stepInsert:
		row, free := s.now(t.upper(), w)
		switch {
		case !free || s.lives == modelLives:
			return nil
		case row.kind != 0:
			return to(stepRead, "finds the key above")
		}
		s.grant(w)
		return to(stepGranted, fmt.Sprintf("inserts record %d", me.life))
	case stepRead:
		return p.read(&s, w, to)
	case stepLift, stepRaise:
		return p.lift(&s, w, to)
	case stepPut:
		row, free := s.now(t.upper(), w)
		switch {
		case !free || s.lives == modelLives:
			return nil
		case row != me.was:
			return to(stepRead, "finds the record changed")
		}
		s.grant(w)
		return to(stepGranted, fmt.Sprintf("makes it record %d", me.life))
	case stepGranted:
		return s.finish(w)
	}
	return nil
}

// tables are the tables that a statement locks, as a set.
func (t phase) tables() byte { return 1<<t.lower() | 1<<t.upper() }

// begin begins a statement, and ends the one before.
func (s *modelState) begin(w int8, then int8) {
	me := &s.writers[w]
	if me.alone {
		s.end(w, true)
	}
	me.step, me.then = stepBegin, then
}

// grant makes the upper row a new record, of the writer's.
func (s *modelState) grant(w int8) {
	me := &s.writers[w]
	me.life = s.lives
	s.lives++
	s.take(phase(me.phase).upper(), w, modelRow{modelRecord, me.life})
}

func (p *protocol) mark(s *modelState, w int8, to func(int8, string) []modelNext) []modelNext {
	t := phase(s.writers[w].phase)
	if !t.overlap() || p.noMark {
		if below := s.writers[w].shot.rows[t.lower()]; below.kind != 0 && !p.blind {
			return to(stepRead, "finds the key below")
		}
		return to(stepInsert, "does not find the key below")
	}
	row, free := s.now(t.lower(), w)
	switch {
	case !free:
		return nil
	case row.kind != 0:
		return to(stepRead, "finds the key below")
	}
	s.take(t.lower(), w, modelRow{kind: modelMark})
	return to(stepInsert, "marks the key below")
}

func (p *protocol) read(s *modelState, w int8, to func(int8, string) []modelNext) []modelNext {
	me := &s.writers[w]
	t := phase(me.phase)
	row, next := me.shot.rows[t.upper()], int8(stepPut)
	if below := me.shot.rows[t.lower()]; row.kind == 0 && below.kind == modelRecord && !p.blind {
		row, next = below, stepLift
	}
	me.was = row
	switch {
	case row.kind != modelRecord:
		return to(stepMark, "reads no record")
	case s.live(row):
		return to(stepGranted, fmt.Sprintf("reads record %d: duplicate", row.life))
	}
	return to(next, fmt.Sprintf("reads record %d: over", row.life))
}

func (p *protocol) lift(s *modelState, w int8, to func(int8, string) []modelNext) []modelNext {
	me := &s.writers[w]
	t := phase(me.phase)
	if me.step == stepLift {
		row, free := s.now(t.lower(), w)
		switch {
		case !t.overlap() || p.noMarkOnLift:
			return to(stepRaise, "goes to carry the record up")
		case !free:
			return nil
		case row != me.was:
			return to(stepRead, "finds the record below changed")
		}
		s.take(t.lower(), w, modelRow{kind: modelMark})
		return to(stepRaise, "marks the record below")
	}
	row, free := s.now(t.upper(), w)
	switch {
	case !free:
		return nil
	case row.kind != 0:
		return to(stepRead, "finds the key above")
	}
	s.take(t.upper(), w, me.was)
	return to(stepPut, "carries the record up")
}

// end ends a writer's transaction.
func (s *modelState) end(w int8, commit bool) {
	for i := range s.slots {
		if slot := &s.slots[i]; slot.by == w {
			if commit {
				slot.row = slot.next
			}
			slot.by, slot.next = -1, modelRow{}
		}
	}
	s.writers[w].locks = 0
}

// finish returns what follows from the end of a call, either way.
func (s *modelState) finish(w int8) []modelNext {
	finish := func(commit bool) modelNext {
		n := *s
		n.end(w, commit)
		next := modelNext{how: fmt.Sprintf("writer %d commits: %t", w, commit)}
		if life := n.writers[w].life; commit && life >= 0 {
			if before := n.granted &^ n.ended; before != 0 {
				next.wrong = fmt.Sprintf("record %d was granted while a record of %b is remembered", life, before)
			}
			n.granted |= 1 << life
		} else if life >= 0 {
			n.ended |= 1 << life
		}
		n.writers[w] = modelWriter{step: stepEnd, life: -1}
		next.state = n
		return next
	}
	return []modelNext{finish(true), finish(false)}
}

// starts returns the states that the exploration begins with: the key unknown,
// or remembered above or below.
func starts() []modelState {
	empty := modelState{}
	for i := range empty.slots {
		empty.slots[i].by = -1
	}
	for i := range empty.writers {
		empty.writers[i] = modelWriter{then: stepMark, life: -1, alone: i == 0}
	}
	all := []modelState{empty}
	for _, table := range []int{phase(0).upper(), phase(0).lower()} {
		s := empty
		s.slots[table].row = modelRow{modelRecord, 0}
		s.lives, s.granted = 1, 1
		// Two are enough here, and a tenth of the states.
		s.writers[modelWriters-1] = modelWriter{step: stepEnd, life: -1}
		all = append(all, s)
	}
	return all
}

func TestGenerationsModelForgetsNothing(t *testing.T) {
	t.Parallel()
	for i, start := range starts() {
		states, way := (&protocol{}).explore(start)
		t.Logf("start %d: %d states", i, states)
		for _, step := range way {
			t.Errorf("start %d: %s", i, step)
		}
	}
}

func TestGenerationsModelCatchesWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	for _, p := range []protocol{
		{name: "no mark below", noMark: true},
		{name: "lower table not read", blind: true},
		{name: "truncate without waiting for writers", noFence: true},
		{name: "snapshot before locks", lateLock: true},
		{name: "nothing carried up", noCarry: true},
		{name: "carried up without mark", noMarkOnLift: true},
		{name: "phase not guarded", noGuard: true},
	} {
		caught := false
		for _, start := range starts() {
			_, way := p.explore(start)
			caught = caught || way != nil
		}
		if !caught {
			t.Errorf("%s: the model does not notice", p.name)
		}
	}
}
