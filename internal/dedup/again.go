package dedup

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

// An input of a finished run is remembered in the record that ends the run. A later run
// of the same command reads only what is new. The command is the same if all but the
// list of its inputs is: each input is remembered on its own, so a new one joins.

// facts are the properties of a file that its file system knows without reading it. Equal
// facts that are not zero prove that the content is the same, unless the clock went back or
// a program wrote to the disk below the file system.
type facts struct {
	Size int64 `json:"size"`
	// Changed and Status are the times of the last change of the content and of the
	// last change at all. No program can set the second one.
	Changed int64  `json:"changed,omitempty"`
	Status  int64  `json:"status,omitempty"`
	Inode   uint64 `json:"inode,omitempty"`
	Device  string `json:"device,omitempty"`
}

// finishedState is what the store knows of an input that a finished run read.
type finishedState struct {
	facts
	readState
	// Keys is the value of knownKeys when the input was read. Another value means that
	// keys of the store were removed since.
	Keys string `json:"keys"`
}

// knownKeys names a value that the store removes when a key is removed by hand. Until
// then, all keys of the inputs that were read with it are known.
const knownKeys = logstore.KnownPrefix + "dedup"

// recollection is what a store remembers of the inputs of a run.
type recollection struct {
	opts    *Options
	inputs  []*input
	outputs []*output
	// settings name the command without its inputs.
	settings string
	// keys is the value of knownKeys.
	keys string
	// repeats is set if the same command has finished, and its outputs are as it left
	// them.
	repeats bool
	// anew is set if the run reads all inputs because lines that only their inputs have
	// are no longer in an output.
	anew bool
	// doubted is how many of the first inputs are not remembered, because a key was
	// removed after an unfinished run had read them.
	doubted int
	// lines counts lines that are not read, because a finished run read them.
	lines int64
}

// inputName names the value of an input.
func inputName(settings, path string) string { return inputValue + settings + ":" + path }

// remembered returns what finished runs know of an input.
func (r *recollection) remembered(v values, in *input) (was finishedState, known bool, err error) {
	if !in.regular() {
		return was, false, nil
	}
	known, err = v.read(inputName(r.settings, in.path), &was)
	return was, known && was.Keys != "", err
}

// skips reports whether the run need not read what a finished run read. A window forgets
// keys, and lines of forgotten keys are fresh again.
func (r *recollection) skips() bool {
	return !r.opts.Again && !r.anew && r.opts.Window == semel.Forever
}

// recall finds out how much of the inputs from the first one on was read by finished
// runs, and returns whether all of them are unchanged.
func (r *recollection) recall(ctx context.Context, v values, first int) (n notes, unchanged bool, err error) {
	keys, _ := v(knownKeys)
	r.keys = string(keys)
	unchanged = true
	for i, in := range r.inputs {
		in.past, in.skipped = nil, false
		if i < first {
			continue
		}
		was, known, err := r.remembered(v, in)
		if err != nil {
			return n, false, err
		}
		valid := known && r.skips() && was.Keys == r.keys
		if !valid && !(known && r.repeats) {
			unchanged = false
			continue
		}
		now, err := in.compare(ctx, &was)
		if ctx.Err() != nil {
			return n, false, context.Cause(ctx)
		}
		unchanged = unchanged && err == nil && now.why == "" && now.read == nil
		switch {
		case !valid:
		case err != nil:
			n.changed(in, reason(err))
		case now.why != "":
			n.changed(in, now.why)
		case now.read == nil:
			in.past, in.skipped = &was.readState, true
			in.doubtful = now.compared
			n.skip(in)
		case was.Offset == 0: // it was empty
		default:
			in.past = now.read
			n.grew(in)
		}
	}
	r.lines = n.lines
	return n, unchanged, nil
}

// comparison says how an input is in comparison with what a finished run read.
type comparison struct {
	// why says what changed. It is "" if all that was read is as it was.
	why string
	// read is the part that need not be read again, of an input that grew.
	read *readState
	// compared is set if the content was compared.
	compared bool
}

var errDiffers = errors.New("dedup: the content differs")

// compare compares an input with its state when it was read. It reads the input only if
// the facts leave a doubt.
func (in *input) compare(ctx context.Context, was *finishedState) (c comparison, err error) {
	if now := factsOf(in.info, in.found); now != (facts{}) && now == was.facts {
		return c, nil
	}
	if was.Offset > 0 && was.Start != in.start {
		c.why = "its header or byte order mark differs"
		return c, nil
	}
	if size := in.info.Size(); !in.compressed && size < was.Offset {
		c.why = fmt.Sprintf("it shrank from %d to %d bytes", was.Offset, size)
		return c, nil
	}
	c.compared = true
	s, err := in.stream(ctx, 0)
	if err != nil {
		return c, err
	}
	defer s.close()
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var print, beforeLast fingerprint
	var rest []byte // behind the start of the last line, if that had no end
	err = s.skip(reading, was.Offset, func(data []byte) {
		if start := was.Last - print.Length; was.Ended && start >= 0 && start <= int64(len(data)) {
			print.add(data[:start])
			beforeLast, rest, data = print.clone(), nil, data[start:]
		}
		if was.Ended && print.Length >= was.Last {
			rest = append(rest, data...)
		}
		print.add(data)
		if _, ok := print.differs(&was.Content); ok {
			stop(errDiffers)
		}
	})
	at, differs := print.differs(&was.Content)
	switch {
	case ctx.Err() != nil:
		return c, context.Cause(ctx)
	case differs:
	case err == io.ErrUnexpectedEOF:
		c.why = fmt.Sprintf("its content shrank from %d to %d bytes", was.Offset, print.Length)
		return c, nil
	case err != nil:
		return c, err
	case !print.same(&was.Content):
		at, differs = blockStart(len(print.Blocks)), true
	}
	if differs {
		c.why = "lines that it had then differ now"
		if end := min(blockEnd(at), was.Offset); at > 0 || end < was.Offset {
			c.why += fmt.Sprintf(", between byte %d and byte %d", at, end)
		}
		return c, nil
	}
	next, err := s.plain.Peek(1)
	switch {
	case err == io.EOF:
		return c, nil
	case len(next) == 0:
		return c, s.explain(err)
	}
	c.read = &readState{position: position{Offset: was.Offset, Line: was.Line}, Start: was.Start, Content: print}
	if was.Ended {
		c.read.endLastLine(was, s, rest, beforeLast)
	}
	return c, nil
}

// endLastLine moves a state to the start of the next line of an input whose last line had
// no end when it was read, with the content rest. Either only its end came, or the line
// continues and is another line.
func (r *readState) endLastLine(was *finishedState, s *stream, rest []byte, beforeLast fingerprint) {
	end := []byte("\r\n")
	if next, _ := s.plain.Peek(len(end)); !bytes.HasPrefix(next, end) {
		end = end[1:]
	}
	if next, _ := s.plain.Peek(len(end)); !was.Open && bytes.Equal(next, end) {
		r.Content.add(end)
		r.Offset += int64(len(end))
		return
	}
	r.Offset, r.Content = was.Last, beforeLast
	r.Line -= int64(bytes.Count(rest, []byte{'\n'}))
	if !bytes.HasSuffix(rest, []byte{'\n'}) {
		r.Line--
	}
}

// done returns how many bytes of the file need not be read.
func (in *input) done() int64 {
	switch {
	case in.skipped:
		return in.info.Size()
	case in.past != nil && !in.compressed:
		return in.past.Offset
	}
	return 0
}

// watch makes the store tell whether a key is removed from now on.
func (r *recollection) watch(j *journal) {
	if r.keys == "" {
		r.keys = rand.Text()
		j.tx.Set(knownKeys, []byte(r.keys))
	}
}

// remember records the inputs with the end of the run.
func (r *recollection) remember(j *journal, found runState) error {
	for i, in := range r.inputs {
		read := found.Inputs[i].Read
		if read == nil || i < r.doubted || in.skipped && !in.doubtful {
			continue
		}
		state := finishedState{readState: *read, Keys: r.keys}
		state.Input = 0
		info, err := os.Stat(in.path)
		if before := found.Inputs[i].facts; err == nil && factsOf(info, time.Now()) == before {
			state.facts = before
		}
		if err := j.set(inputName(r.settings, in.path), state); err != nil {
			return err
		}
	}
	return nil
}

// nothingToDo reports whether a run would read no input and change no output. It asks the
// store without opening it, because that reads all of its keys.
func (r *recollection) nothingToDo(id string) (bool, error) {
	stored, err := logstore.Peek(r.opts.Store)
	if err != nil || stored == nil || !r.skips() {
		return false, nil // opening the store reports what is wrong with it
	}
	v := values(func(name string) ([]byte, bool) { data, ok := stored[name]; return data, ok })
	known := new(resumption)
	if id != "" {
		if known, err = readResumption(v, id); err != nil || known.unfinished() {
			return false, err
		}
	}
	if len(findOthers(stored, v, id)) > 0 {
		return false, nil
	}
	for _, o := range r.outputs {
		if !untouched(o, v) {
			return false, nil
		}
	}
	keys, _ := v(knownKeys)
	var n notes
	for _, in := range r.inputs {
		was, known, err := r.remembered(v, in)
		now := facts{}
		if known {
			now = factsOf(in.info, in.found)
		}
		if err != nil || now == (facts{}) || now != was.facts || was.Keys != string(keys) {
			return false, err
		}
		in.past = &was.readState
		n.skip(in)
	}
	n.write(r.opts.Note)
	r.lines = n.lines
	return true, nil
}

// untouched reports whether an output is as a finished run left it, as far as size and
// time tell.
func untouched(o *output, v values) bool {
	if o.path == "" {
		return true
	}
	var was outputState
	known, err := v.read(outputValue+o.path, &was)
	if err != nil || !known || was.Open != closed || was.Changed == 0 {
		return false
	}
	info, err := os.Stat(o.path)
	return err == nil && info.Size() == was.Length && info.ModTime().UnixNano() == was.Changed
}

// notes collects what the store knows of the inputs.
type notes struct {
	skips, grown, changes []string
	lines                 int64 // that are not read
	skippedLines          int64 // of inputs that are skipped
}

// mostNotes is how many inputs of a kind are named.
const mostNotes = 3

func (n *notes) skip(in *input) {
	lines := in.past.Line - in.headerLines()
	n.lines += lines
	n.skippedLines += lines
	n.skips = append(n.skips, fmt.Sprintf("%s is unchanged since an earlier run read its %s: skipped; --again reads it", in.name, countLines(lines)))
}

func (n *notes) grew(in *input) {
	n.lines += in.past.Line - in.headerLines()
	n.grown = append(n.grown, fmt.Sprintf("%s grew since an earlier run: reading from line %d", in.name, in.past.Line+1))
}

func (n *notes) changed(in *input, why string) {
	n.changes = append(n.changes, fmt.Sprintf("%s changed since an earlier run: %s: reading all of it; lines with known keys are duplicates", in.name, why))
}

// write passes the notes on.
func (n *notes) write(note func(string)) {
	if len(n.skips) > mostNotes {
		n.skips = []string{fmt.Sprintf("%d inputs are unchanged since an earlier run read their %s: skipped; --again reads them", len(n.skips), countLines(n.skippedLines))}
	}
	for _, kind := range [][]string{n.skips, n.grown, n.changes} {
		for i, text := range kind {
			if i == mostNotes {
				note(fmt.Sprintf("%d more inputs grew or changed since an earlier run", len(kind)-i))
				break
			}
			note(text)
		}
	}
}
