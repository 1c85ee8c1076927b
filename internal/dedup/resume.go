package dedup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// resumption is what the store knows of an earlier run of the same command.
type resumption struct {
	run   runState
	at    positionState
	known bool
}

// unfinished reports whether there is a position at which to continue.
func (r *resumption) unfinished() bool { return r.known && !r.at.Finished }

// decidedNothing reports whether to continue is the same as to begin.
func (r *resumption) decidedNothing() bool { return r.at.Counts.Read+r.at.Counts.Blank == 0 }

func readResumption(v values, id string) (*resumption, error) {
	var r resumption
	known, err := v.read(positionValue+id, &r.at)
	if err == nil && known && !r.at.Finished {
		known, err = v.read(runValue+id, &r.run)
	}
	r.known = known && err == nil
	return &r, err
}

// checkInputs finds inputs that changed after the unfinished run started. The
// part that was not yet read may have grown. After the line at which a run
// failed, anything may have changed.
func (r *resumption) checkInputs(ctx context.Context, inputs []*input, p *problems) {
	for i, was := range r.run.Inputs {
		in := inputs[i]
		if was.Size > 0 && was.Length == 0 {
			p.addf("an older version of semel began the unfinished run, and this version cannot continue it: finish it with the older one, or read all inputs from the start with --force (known keys stay known)")
			return
		}
		if now := factsOf(in.info, in.found); now != (facts{}) && now == was.facts || r.at.Failed && i > r.at.Input {
			continue
		}
		why, err := r.whatChanged(ctx, in, i)
		if err != nil {
			p.addf("%s: %s", in.name, reason(err))
		} else if why != "" {
			p.addf("%s %s during an unfinished run, so the run cannot continue: restore the file, or read all inputs from the start with --force (known keys stay known)", in.name, why)
		}
	}
}

func (r *resumption) whatChanged(ctx context.Context, in *input, i int) (why string, err error) {
	was := r.run.Inputs[i]
	done := i < r.at.Input
	switch {
	case r.at.Failed && !done:
	case in.info.Size() < was.Length:
		return fmt.Sprintf("shrank from %d to %d bytes", was.Length, in.info.Size()), nil
	default:
		is, err := recognise(in.path, was.Length)
		if err != nil {
			return "", err
		}
		if is.Sample != was.Sample {
			return "changed", nil
		}
	}
	switch {
	case done && was.Read == nil:
		return "changed", nil
	case done:
		return compareRead(ctx, in, *was.Read, "grew after it was read to its end")
	case i > r.at.Input:
		return "", nil
	}
	grew := ""
	if r.at.Ended {
		grew = "grew after its last line, which had no line end and was taken as complete,"
	}
	return compareRead(ctx, in, readState{position: r.at.position, Content: r.at.Content}, grew)
}

// compareRead compares an input with its read state. If the input
// continues after that, the result is grew, unless grew is "".
func compareRead(ctx context.Context, in *input, was readState, grew string) (why string, err error) {
	s, err := in.stream(ctx, 0)
	if err != nil {
		return "", err
	}
	defer s.close()
	var content fingerprint
	err = s.skip(ctx, was.Offset, content.add)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil || !content.same(&was.Content):
		return "changed", nil
	case grew == "":
		return "", nil
	}
	switch _, err := s.plain.Peek(1); err {
	case io.EOF:
		return "", nil
	case nil:
		return grew, nil
	default:
		return "", s.explain(err)
	}
}

// carry keeps the records of the inputs that were read to their ends.
func (r *resumption) carry(found *runState) {
	found.Keys = r.run.Keys
	for i := range r.at.Input {
		found.Inputs[i].Read = r.run.Inputs[i].Read
	}
}

// describeInputs returns the runState of a new run.
func describeInputs(inputs []*input) (runState, error) {
	var r runState
	for _, in := range inputs {
		if !in.regular() {
			r.Inputs = append(r.Inputs, inputState{Path: in.path})
			continue
		}
		s, err := recognise(in.path, in.info.Size())
		if err != nil {
			return r, fmt.Errorf("%s: %s", in.name, reason(err))
		}
		s.facts = factsOf(in.info, in.found)
		r.Inputs = append(r.Inputs, s)
	}
	return r, nil
}

// plan decides where an output continues: at o.base, where the checksum is
// o.crc. It touches nothing. If unfinished is set, lines that are in the output
// will not be read again.
func (o *output) plan(v values, opts *Options, comma byte, unfinished bool, p *problems) error {
	if o.path == "" {
		return nil
	}
	size := int64(0)
	info, err := os.Stat(o.path)
	switch {
	case err == nil:
		size = info.Size()
	case !errors.Is(err, os.ErrNotExist):
		p.addf("%s %s: %s", o.flag, o.name, reason(err))
		return nil
	}
	var was outputState
	known, err := v.read(outputValue+o.path, &was)
	if err != nil {
		return err
	}
	fits := known && size >= was.Length && (size == was.Length || was.Open != closed)
	if fits && (was.Changed == 0 || size != was.Length || info == nil || info.ModTime().UnixNano() != was.Changed) {
		crc, err := checksum(o.path, was.Length)
		fits = err == nil && crc == was.CRC || was.Length == 0
	}
	switch {
	case fits:
		o.base, o.crc, o.lines, o.intact = was.Length, was.CRC, was.Lines, was.Open == closed
		if o.compression != "" {
			o.content = was.Content
			return o.checkCompressed(false, p)
		}
		if was.Open == piped {
			if err := o.keepWhole(size, comma); err != nil {
				return err
			}
		}
		// A run that continued after foreign text may have ended before it
		// wrote the missing line end of that text.
		return o.lookForEnd()
	case info == nil && unfinished && was.Length > 0 && !opts.Force:
		p.addf("%s %s was removed: it had %s that this run does not write again. Put the file back, or start over with another --store; with --force the lines stay missing", o.flag, o.name, countLines(was.Lines))
	case (size == 0 || !known && o.holdsNothing(size)) && !(unfinished && known && was.Length > 0), opts.Force:
		o.base, o.crc = 0, 0
		o.lost, o.gone = was.Lines, "was removed"
		if info != nil {
			o.gone = "was emptied"
		}
		if size > 0 {
			o.gone = "is replaced"
		}
	case opts.Append:
		o.base, o.lost, o.gone = size, was.Lines, "was changed"
		if err := o.checkCompressed(true, p); err != nil {
			return err
		}
		return o.continueAfter()
	case !known && opts.Store == "":
		p.addf("%s %s holds %d bytes: add --force to overwrite the file, also if they are from an interrupted run without --store, or --append to continue after other content", o.flag, o.name, size)
	case !known:
		p.addf("%s %s holds %d bytes that this run did not write: add --append to continue after them, or --force to overwrite the file", o.flag, o.name, size)
	default:
		change := fmt.Sprintf("it had %d bytes, now %d", was.Length, size)
		if size == was.Length {
			change = fmt.Sprintf("it still has %d bytes, but other content", size)
		}
		p.addf("%s %s was changed since it was written (%s): add --append to continue after its content, or --force to overwrite the file", o.flag, o.name, change)
	}
	return nil
}

// keepWhole moves the base after the whole lines that were written since the
// last commit of a run that read from a pipe. These lines may not come again.
func (o *output) keepWhole(size int64, comma byte) error {
	file, err := os.Open(o.path)
	if err != nil {
		return fmt.Errorf("%s: %s", o.name, reason(err))
	}
	defer file.Close()
	rest := make([]byte, size-o.base)
	if _, err := file.ReadAt(rest, o.base); err != nil {
		return fmt.Errorf("%s: %s", o.name, reason(err))
	}
	cut := cutter{comma: comma}
	whole := rest[:cut.end(rest)]
	o.base += int64(len(whole))
	o.crc = crc32.Update(o.crc, castagnoli, whole)
	o.lines += int64(bytes.Count(whole, []byte{'\n'}))
	return nil
}

// continueAfter keeps the content as it is and notes a missing last line end.
func (o *output) continueAfter() error {
	var err error
	if o.crc, err = checksum(o.path, o.base); err != nil {
		return fmt.Errorf("%s: %s", o.name, reason(err))
	}
	return o.lookForEnd()
}

// lookForEnd finds out whether a line end is missing before the base.
func (o *output) lookForEnd() error {
	if o.base == 0 || o.compression != "" {
		return nil
	}
	file, err := os.Open(o.path)
	if err != nil {
		return fmt.Errorf("%s: %s", o.name, reason(err))
	}
	defer file.Close()
	last := make([]byte, 1)
	if _, err := file.ReadAt(last, o.base-1); err != nil {
		return fmt.Errorf("%s: %s", o.name, reason(err))
	}
	o.unended = last[0] != '\n'
	return nil
}

// lacks reports whether an output has lost lines that the store's keys do not stand for.
func (o *output) lacks(opts *Options) bool {
	switch {
	case o.lost == 0:
		return false
	case o.flag == "--output":
		return opts.OnMissing == MissingPass || opts.OnMismatch == MismatchPass
	case o.flag == "--rejected":
		return opts.OnMissing == MissingReject || opts.OnMismatch == MismatchReject
	}
	return false
}
