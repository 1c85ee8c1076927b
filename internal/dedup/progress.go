package dedup

import "sync/atomic"

// progress is what others may see of a run while it runs.
type progress struct {
	read, fresh, done atomic.Int64
}

// Progress is how far a run is.
type Progress struct {
	// Read and Fresh are those of Counts.
	Read, Fresh int64
	// Done and Total count the bytes of the inputs as they lie on the disk,
	// compressed or not. Total is 0 if an input is not a file.
	Done, Total int64
}

// Progress tells how far the run is. It may be called while Do runs.
func (r *Run) Progress() Progress {
	p := Progress{Read: r.progress.read.Load(), Fresh: r.progress.fresh.Load(), Done: r.progress.done.Load()}
	for _, in := range r.inputs {
		if !in.regular() {
			return Progress{Read: p.Read, Fresh: p.Fresh}
		}
		p.Total += in.info.Size()
	}
	return p
}

// tell updates what others see, after a block.
func (c *committer) tell(b *block) {
	done := b.raw
	for _, in := range c.inputs[:b.input] {
		if in.regular() {
			done += in.info.Size()
		}
	}
	c.progress.read.Store(c.counts.Read)
	c.progress.fresh.Store(c.counts.Fresh)
	c.progress.done.Store(done)
}
