package dedup

import "sync/atomic"

// progress is the part of the state that others may read during a run.
type progress struct {
	read, fresh, done atomic.Int64
	// readBefore and doneBefore are of an earlier pass over the inputs. Do changes
	// them between two passes.
	readBefore, doneBefore int64
}

// Progress is the progress of a run.
type Progress struct {
	// Read and Fresh are as in Counts, except that Read counts each line twice
	// if the inputs are read twice.
	Read, Fresh int64
	// Done and Total count the bytes of the inputs on disk, compressed or not.
	// Total is 0 if an input is not a file.
	Done, Total int64
}

// Progress returns the progress of the run. It may be called while Do runs.
func (r *Run) Progress() Progress {
	p := Progress{Read: r.progress.read.Load(), Fresh: r.progress.fresh.Load(), Done: r.progress.done.Load()}
	for _, in := range r.inputs {
		if !in.regular() {
			return Progress{Read: p.Read, Fresh: p.Fresh}
		}
		p.Total += in.info.Size() - in.done()
		if r.opts.twice() {
			p.Total += in.info.Size()
		}
	}
	return p
}

// begin sets the progress to that of the attempts that a run continues. How much of a
// compressed input they read is not known.
func (p *progress) begin(r *Run, at positionState) {
	var done int64
	for _, in := range r.inputs[:at.Input] {
		done += in.info.Size() - in.done()
	}
	if in := r.inputs[at.Input]; !in.compressed {
		done += at.Offset
	}
	p.read.Store(at.Counts.Read)
	p.fresh.Store(at.Counts.Fresh)
	p.done.Store(done)
}

// tell updates the progress after a block.
func (c *committer) tell(b *block) {
	done := b.raw - c.inputs[b.input].done()
	for _, in := range c.inputs[:b.input] {
		if in.regular() {
			done += in.info.Size() - in.done()
		}
	}
	c.progress.read.Store(c.counts.Read + c.progress.readBefore)
	c.progress.fresh.Store(c.counts.Fresh)
	c.progress.done.Store(done + c.progress.doneBefore)
}
