package dedup

import (
	"context"
	"slices"
	"time"
)

// checkpoint starts a commit that makes keys, position and outputs durable
// together. It does not wait for the commit.
func (c *committer) checkpoint(ctx context.Context) error {
	if err := c.note(underway); err != nil {
		return err
	}
	return c.journal.seal(ctx, c.files(), c.counts.BytesIn)
}

// stage is the progress of a run at a checkpoint.
type stage uint8

const (
	underway stage = iota
	stopped        // by the caller
	failed         // at a line
	finished       // at the end of the inputs
)

// finish makes the last checkpoint. It waits until everything is durable.
func (c *committer) finish(ctx context.Context, at stage) error {
	if last := len(c.inputs) - 1; at == finished {
		if c.pos.Input < last {
			c.enter(last)
		}
		c.leave()
	}
	for _, o := range c.outputs {
		if err := o.finish(); err != nil {
			return err
		}
	}
	if c.journal == nil {
		return nil
	}
	if err := c.note(at); err != nil {
		return err
	}
	if err := c.journal.seal(ctx, c.files(), c.counts.BytesIn); err != nil {
		return err
	}
	c.journal.tx.Abort() // the next transaction is not needed
	c.journal.tx = nil
	return c.journal.settled()
}

// note sets the named values of the next commit.
func (c *committer) note(at stage) error {
	j := c.journal
	c.countOut()
	for _, o := range c.outputs {
		if err := o.seal(); err != nil {
			return err
		}
		if o.path == "" {
			continue
		}
		state := outputState{Length: o.length, CRC: o.crc, Lines: o.lines, Open: j.mode}
		if o.compression != "" {
			state.Content = o.content + o.added
		}
		if at != underway {
			state.Open = closed
			info, err := o.file.Stat()
			if err != nil {
				return err
			}
			if since := time.Since(info.ModTime()); at == finished && since >= 0 && since < settledFor {
				time.Sleep(settledFor - since) // so that the time proves something to the next run
			}
			state.Changed = changedTime(info, time.Now())
		}
		if err := j.set(outputValue+o.path, state); err != nil {
			return err
		}
	}
	if at == finished {
		if err := c.past.remember(j, c.found); err != nil {
			return err
		}
	}
	if j.id == "" {
		return nil
	}
	if c.foundMore {
		c.foundMore = false
		if err := j.set(runValue+j.id, c.found); err != nil {
			return err
		}
	}
	if at == finished {
		j.tx.Set(runValue+j.id, nil)
		for _, o := range c.others {
			if !c.found.Command.covers(o.run.Command) {
				continue
			}
			o.at.Covered = true
			if err := j.set(positionValue+o.id, o.at); err != nil {
				return err
			}
		}
	}
	return j.set(positionValue+j.id, positionState{
		position: c.pos, Content: c.content, Counts: c.counts, Finished: at == finished, Failed: at == failed, Replay: c.replay,
		ElapsedSeconds: (j.elapsed + time.Since(j.begun)).Seconds(),
	})
}

// files returns the outputs that must be synced before a commit.
func (c *committer) files() []*output {
	return slices.DeleteFunc(slices.Clone(c.outputs), func(o *output) bool { return o.path == "" })
}

// follow adds bytes that were read to the checksum that identifies the input.
func (c *committer) follow(data []byte) {
	if c.journal != nil && c.inputs[c.pos.Input].regular() {
		c.content.add(data)
	}
}

// enter moves the position to the start of an input, and skips inputs before it
// that have no lines.
func (c *committer) enter(index int) {
	for i := c.pos.Input + 1; i <= index; i++ {
		c.leave()
		if c.inputs[i].past == nil {
			c.counts.BytesIn += c.inputs[i].start
		}
		c.goTo(i)
	}
}

// leave records the content of an input that was read to its end.
func (c *committer) leave() {
	if in := c.inputs[c.pos.Input]; c.journal != nil && in.regular() {
		c.found.Inputs[c.pos.Input].Read = &readState{position: c.pos, Start: in.start, Content: c.content.clone()}
		c.foundMore = true
	}
}

// goTo sets the position to the start of an input, or behind the part that need not be
// read again.
func (c *committer) goTo(index int) {
	in := c.inputs[index]
	if in.past != nil {
		c.pos, c.content = in.past.position, in.past.Content.clone()
		c.pos.Input = index
		return
	}
	c.pos = position{Input: index, Offset: in.start, Line: in.headerLines()}
	c.content = fingerprint{}
	c.content.add(in.lead)
}
