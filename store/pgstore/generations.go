package pgstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Generations: keys live in three plain tables by turns. A new key is inserted
// into the upper table; the lower one has the keys of the generation before,
// and is only read; the third is empty. Rotation makes the upper table the
// lower one and the empty one the upper, and truncates what was the lower.
//
// Two claims of one key must meet in one unique index, also if one of them
// began before the rotation and commits long after. So generations overlap: in
// every second phase a claim inserts a new key into the old table, as a mark,
// and into the new one, as a record; it is new only if it went into both.
//
//	phase 2g    upper g,   lower g-1, which is frozen
//	phase 2g+1  upper g+1, lower g, which claims of phase 2g may still change;
//	            g-1 has nothing that counts any more, and is truncated
//	phase 2g+2  upper g+1, lower g, frozen now: no claim of phase 2g is left
//
// A key has at most one record that counts: the one in the upper table, or else
// the one in the lower. To change one that is in the lower table it is lifted
// first, a copy that changes nothing. While generations overlap, a mark takes
// its place there, by which claims of the phase before learn that it has gone.
//
// Each statement names both of its tables, and so has locks on them before it
// takes its snapshot; with that snapshot it looks whether its phase is still
// on, and does nothing if it is not. To truncate g-1 takes a lock that conflicts
// with those of all that work in phase 2g and of nobody else. The truncation
// and the step to phase 2g+2 are one transaction. This is all that keeps claims
// that are two phases apart from running at once; nobody waits for it but the
// rotator. The model in generations_model_test.go has every part of this.
//
// A row knows its own end, as in the other forms. How long a generation lasts
// is only a question of cost.

// ringTables is the number of tables between which generations rotate.
const ringTables = 3

// ringPhases is the number of phases after which the tables are as they were.
const ringPhases = 2 * ringTables

// phase counts what the rotator has done.
type phase int64

// overlap reports whether a new generation is being begun.
func (p phase) overlap() bool { return p%2 == 1 }

// upper is the table that new records go to.
func (p phase) upper() int { return int((p + 1) / 2 % ringTables) }

// lower is the table of records of the generation before.
func (p phase) lower() int { return (p.upper() + ringTables - 1) % ringTables }

// retired is the table that is truncated while generations overlap: the lower
// one of the phase before.
func (p phase) retired() int { return phase(p - p%2).lower() }

// ring is what a store in generations knows of its tables.
type ring struct {
	ask, duty, step string // of the rotator, and for the phase
	// believed is the last phase that this process has heard of.
	believed atomic.Int64
	texts    [ringPhases]statements
}

func (r *ring) phase() phase { return phase(r.believed.Load()) }

// heard notes a phase. It never goes back.
func (r *ring) heard(p phase) {
	for old := r.believed.Load(); int64(p) > old && !r.believed.CompareAndSwap(old, int64(p)); {
		old = r.believed.Load()
	}
}

// ringTable is the name of one of the tables.
func ringTable(i int) string { return "keys_" + strconv.Itoa(i) }

func newRing(n Names, ids bool) *ring {
	tables := make([]string, ringTables)
	for i := range tables {
		tables[i] = n.literal(ringTable(i))
	}
	names := strings.NewReplacer("{phase}", n.quoted("phase"), "{tables}", strings.Join(tables, ", "))
	r := &ring{ask: names.Replace(askSQL), duty: names.Replace(dutySQL), step: names.Replace(stepSQL)}
	for i := range phase(ringPhases) {
		r.texts[i] = ringStatements(n, ids, i)
	}
	return r
}

// ringStatements are the statements of one phase. Most are those on a single
// table, on the upper one, with the guard in their clock.
func ringStatements(n Names, ids bool, p phase) statements {
	names := strings.NewReplacer(
		"{keys}", n.quoted(ringTable(p.upper())), "{lower}", n.quoted(ringTable(p.lower())),
		"{phase}", n.quoted("phase"), "{mine}", strconv.Itoa(int(p%ringPhases)),
		"{tokens}", n.literal("tokens"), "{meta}", n.quoted("meta"),
	)
	plain := func(sql string) string { return names.Replace(withIDs(sql, ids)) }
	guarded := func(sql string) string { return plain(strings.Replace(sql, clock, guardedClock, 1)) }
	insert, lift, keep, remove := insertAboveSQL, liftSQL, keepSQL, removeSQL
	if p.overlap() {
		insert, lift, keep, remove = insertMarkedSQL, liftMarkedSQL, keepBothSQL, removeBothSQL
	}
	return statements{
		// hope stays empty: one statement cannot fail for a key in either table.
		insert: guarded(insert), read: guarded(readBothSQL), put: guarded(putSQL), lift: guarded(lift),
		carry: guarded(carrySQL), complete: guarded(completeSQL), release: guarded(releaseSQL), extend: guarded(extendSQL), resolve: guarded(resolveSQL),
		keep: plain(keep), held: plain(heldBothSQL), remove: plain(remove),
		list:  guarded(strings.Replace(listSQL, "{keys}", bothTables, 1)),
		count: guarded(strings.Replace(countSQL, "{keys} AS t TABLESAMPLE SYSTEM ($2)", bothSampled, 1)),
		turn:  plain(turnSQL), cleaned: plain(cleanedSQL),
	}
}

// learn asks for the phase.
func (s session) learn(ctx context.Context) error {
	found, err := collect(ctx, s, s.ring.ask, nil, pgx.RowTo[int64])
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%d rows say which generation it is: %w", len(found), ErrSchema)
	}
	if err != nil {
		return err
	}
	s.ring.heard(phase(found[0]))
	return nil
}

// lift makes sure that records of keys, as far as there are any, are in the
// upper table. It does nothing if the phase is over: who goes on must find out
// before believing what it sees.
func (s session) lift(ctx context.Context, keys pgtype.FlatArray[[16]byte]) error {
	if s.ring == nil {
		return nil
	}
	_, err := collect(ctx, s, s.sql().lift, []any{keys}, pgx.RowTo[[16]byte])
	return err
}

// steady calls f, again if the phase was over before it ended: what it has not
// found may have been elsewhere. With done it says that it needs no more calls.
func (s *Store) steady(ctx context.Context, f func(on session) (done bool, err error)) error {
	on := s.onPool()
	for {
		if s.ring == nil {
			_, err := f(on)
			return err
		}
		before := s.ring.phase()
		if done, err := f(on); done || err != nil {
			return err
		}
		if err := on.learn(ctx); err != nil || s.ring.phase() == before {
			return err
		}
	}
}

// statements returns those of the phase that is believed in.
func (r *ring) statements() *statements { return &r.texts[r.phase()%ringPhases] }

// liftChanged lifts the rows that are about to change.
func (s session) liftChanged(ctx context.Context, changes []change) error {
	if s.ring == nil {
		return nil
	}
	keys := make(pgtype.FlatArray[[16]byte], len(changes))
	for i := range changes {
		keys[i] = changes[i].was.key
	}
	return s.lift(ctx, keys)
}

// finishLifted decides requests whose tokens hold nothing in the upper table:
// their records may be in the lower one, or have been lifted just now.
func (s session) finishLifted(ctx context.Context, v verb, left []held) error {
	for {
		before := s.ring.phase()
		err := s.lift(ctx, keysOf(left))
		if err == nil {
			left, err = s.finishHeld(ctx, v, left)
		}
		if err != nil || len(left) == 0 {
			return err
		}
		rows, now, err := s.rows(ctx, keysOf(left))
		if err == nil {
			err = s.learn(ctx)
		}
		if err != nil {
			return err
		}
		if s.ring.phase() == before {
			// It was so all the time: what is not found is not there.
			explain(v, left, rows, now)
			return nil
		}
	}
}
