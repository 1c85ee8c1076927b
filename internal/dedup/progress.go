package dedup

import "sync/atomic"

// progress is what others may see of a run while it runs.
type progress struct {
	read, fresh, bytesIn atomic.Int64
}

// Progress is how far a run is.
type Progress struct {
	Read, Fresh, BytesIn int64
	// Total is the number of bytes to read, 0 if it is not known.
	Total int64
}

func (p *progress) set(c *Counts) {
	p.read.Store(c.Read)
	p.fresh.Store(c.Fresh)
	p.bytesIn.Store(c.BytesIn)
}

// Progress tells how far the run is. It is safe for concurrent use.
func (r *Run) Progress() Progress {
	return Progress{Read: r.progress.read.Load(), Fresh: r.progress.fresh.Load(), BytesIn: r.progress.bytesIn.Load()}
}
