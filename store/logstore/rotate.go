package logstore

import (
	"context"
)

// slack is the space that every segment keeps free after a record: the end of
// the open record, the start of another, the empty record of a close, and the
// seal.
const slack = 3*recordExtra + sealRecord

// enter begins a change. It waits until no transaction is open and takes the
// lock.
func (c *committer) enter(ctx context.Context) error {
	c.log.mu.Lock()
	if err := c.gate.pass(ctx, c.log); err != nil {
		c.log.mu.Unlock()
		return err
	}
	return nil
}

// reserve reserves room for n bytes of entries at the end of the log, in a new
// segment if necessary. The blocks of a segment are allocated when it is
// created. A full disk therefore refuses a change here, before anything was
// changed. moved reports whether reserve released the lock in between. The
// caller must then pass the gate again.
func (c *committer) reserve(n int) (moved bool, err error) {
	if n == noRoom {
		return false, nil
	}
	g := c.log.active
	need := n + slack
	if g.next+need <= g.limit && !c.worn(g) {
		return false, nil
	}
	if c.log.spare != nil && headerSize+need <= c.log.spare.limit {
		c.rotate()
		return false, nil
	}
	c.log.mu.Unlock()
	defer c.log.mu.Lock()
	return true, c.log.prepareSpare(headerSize + need)
}

// reserveTx reserves room for a transaction of TxBytes.
func (c *committer) reserveTx() error {
	for {
		room := 0
		if c.log.active.next > TxBytes {
			room = TxBytes // not enough left: start a new segment
		}
		if moved, err := c.reserve(room); !moved || err != nil {
			return err
		}
	}
}

// worn reports whether a segment is so old that more entries in it would keep
// its first entries far beyond their windows.
func (c *committer) worn(g *segment) bool {
	const minute = int64(60e9)
	if g.window == 0 || g.next < int(min(1<<20, c.log.opts.SegmentSize/4)) {
		return false
	}
	return c.log.clock.Nanos()-g.summary.first > max(g.window*tickNanos/8, minute)
}

// rotate continues in the spare segment. The writer seals the full segment
// before it writes into the next.
func (c *committer) rotate() {
	if c.open != nil {
		c.closeBatch(c.open)
	}
	c.seq++
	c.log.active.sealSeq = c.seq
	c.log.active, c.log.spare = c.log.spare, nil
	c.log.segments.ring[c.log.active.num%ringSize] = c.log.active
	c.log.wakeMaintenance()
}
