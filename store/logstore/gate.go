package logstore

import (
	"context"
	"slices"
)

// gate admits to the log either one transaction or any number of other changes.
// When a transaction ends, the waiting changes run before the next transaction
// starts, so neither side starves. Store.mu guards it.
type gate struct {
	taken    bool            // by a transaction
	admitted int             // woken changes that have not run yet
	changes  []chan struct{} // waiting changes
	begins   []chan struct{} // waiting transactions
}

// pass waits until no transaction is open. It releases the lock while it waits
// and always returns with the lock held.
func (t *gate) pass(ctx context.Context, l *log) error {
	if t.taken {
		if err := t.wait(ctx, l, &t.changes); err != nil {
			return err
		}
		t.admitted--
		t.next()
	}
	return l.usable()
}

// take waits until the gate is free and takes it for a transaction.
func (t *gate) take(ctx context.Context, l *log) error {
	if t.taken || t.admitted > 0 || len(t.begins) > 0 {
		if err := t.wait(ctx, l, &t.begins); err != nil {
			return err
		}
	} else {
		t.taken = true
	}
	if err := l.usable(); err != nil {
		t.release()
		return err
	}
	return nil
}

// release ends a transaction.
func (t *gate) release() {
	t.taken = false
	t.admitted += len(t.changes)
	for _, c := range t.changes {
		close(c)
	}
	t.changes = nil
	t.next()
}

// next gives a free gate to a waiting transaction.
func (t *gate) next() {
	if !t.taken && t.admitted == 0 && len(t.begins) > 0 {
		t.taken = true
		close(t.begins[0])
		t.begins = t.begins[1:]
	}
}

func (t *gate) wait(ctx context.Context, l *log, queue *[]chan struct{}) error {
	turn := make(chan struct{})
	*queue = append(*queue, turn)
	l.mu.Unlock()
	var err error
	select {
	case <-turn:
	case <-ctx.Done():
		err = interrupted(ctx)
	}
	l.mu.Lock()
	if err == nil {
		return nil
	}
	if i := slices.Index(*queue, turn); i >= 0 {
		*queue = slices.Delete(*queue, i, i+1)
		return err
	}
	return nil // the turn came before the context's end
}
