package dedup

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/store/logstore"
)

// Run is a deduplication that passed all checks. See [Prepare].
type Run struct {
	opts    Options
	inputs  []*input
	outputs []*output
	header  []byte // the CSV header, for empty outputs
	extract *extraction
	store   *logstore.Store // nil without one
	// committer holds the state of a running run.
	committer *committer
	from      position
	resumed   bool
	past      *recollection // nil without a store
	// idle is set if there is nothing to do. The store is then not open.
	idle     bool
	begun    time.Time
	progress progress
}

// Prepare checks the options, the inputs with their formats and headers, the
// outputs, and the state that the store has of them, before it touches anything. It may
// wait for the first bytes of a pipe. The error is a [*RefusedError], the cause
// of ctx, or an error of the store. Call [Run.Do] or [Run.Close] on a prepared
// Run.
func Prepare(ctx context.Context, opts *Options) (*Run, error) {
	if opts == nil {
		opts = new(Options)
	}
	r := &Run{opts: opts.withDefaults(), begun: time.Now()}
	if err := r.prepare(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Run) prepare(ctx context.Context) error {
	o := &r.opts
	p := problems(slices.Clone(o.Problems))
	o.check(&p)
	if len(p) > 0 {
		o.Stdin = strings.NewReader("") // there is nothing to wait for
	}
	rules := parseRules(o.Keys, &p)
	var format Format
	r.inputs, format = findInputs(ctx, o, rules, &p)
	r.outputs = findOutputs(o, &p)
	checkPaths(r.inputs, r.outputs, o.Report, &p)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, in := range r.inputs {
		if o.twice() && !in.regular() && in.info != nil {
			p.addf("--keep %s reads its inputs twice, and %s is not a regular file: copy it to one first", o.Keep, in.name)
		}
		if o.Why && o.Keep == KeepLast && in.compressed {
			p.addf("--why and --keep last: %s is compressed, so a line in it cannot be looked up: decompress it first", in.name)
		}
	}
	checkRules(rules, format, &p)
	when := o.timeRule(format, &p)
	if o.NoHeader && !format.records() {
		p.addf("--no-header is for CSV and TSV, and the format is %s: leave it out, or add --format csv", format)
	}
	r.extract = &extraction{
		format: format, comma: o.comma(format), noHeader: o.NoHeader, rules: rules,
		prints: o.Lossy == 0 && o.Keep != KeepNone && !isContent(rules), when: when,
		hashMissing: o.OnMissing == MissingHash,
	}
	switch {
	case format.records() && o.NoHeader:
		r.extract.findFields(nil, &p)
	case format.records():
		var names []string
		names, r.header = readHeaders(ctx, r.inputs, r.extract.comma, &p)
		if len(names) > 0 {
			r.extract.findFields(names, &p)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if len(p) > 0 {
		return p.err()
	}
	r.committer = &committer{
		opts: o, inputs: r.inputs, extract: r.extract, comma: r.extract.comma,
		outputs: r.outputs, progress: &r.progress,
	}
	for _, out := range r.outputs {
		switch out.flag {
		case "--output":
			r.committer.out = out
		case "--duplicates":
			r.committer.dups = out
		case "--rejected":
			r.committer.rejected = out
		}
		out.explains = o.Why && out.flag == "--duplicates"
		if r.header == nil && len(r.inputs) > 0 && !out.explains {
			out.mark = r.inputs[0].mark
		}
	}
	if o.Why {
		r.committer.why = newPlaces(r.inputs, r.extract)
	}
	if o.Store != "" {
		return r.prepareStore(ctx)
	}
	return r.prepareMemory(ctx)
}

// isContent reports whether lines with the same key have the same content, so
// that there is nothing to compare.
func isContent(rules []*key.Rule) bool {
	for _, r := range rules {
		if r.Form() == key.FormLine {
			return true
		}
		for _, path := range r.Paths() {
			if r.Form() == key.FormHash && path.String() == "." {
				return true
			}
		}
	}
	return false
}

// prepareMemory keeps keys in memory for the run.
func (r *Run) prepareMemory(ctx context.Context) error {
	var p problems
	nothing := values(func(string) ([]byte, bool) { return nil, false })
	for _, o := range r.outputs {
		if err := o.plan(nothing, &r.opts, r.committer.comma, false, &p); err != nil {
			return err
		}
	}
	if err := p.err(); err != nil {
		return err
	}
	r.extract.digester = digest.New(digest.NewSecret()).Scope(r.opts.Scope)
	var seed [8]byte
	rand.Read(seed[:]) // never fails: crypto/rand ends the process instead
	r.extract.seed = binary.LittleEndian.Uint64(seed[:])
	var err error
	if r.opts.Lossy > 0 {
		r.committer.set, err = newLossy(&r.opts)
		return err
	}
	if r.opts.twice() {
		r.committer.set = newLatest(r.opts.Keep, r.extract.prints, newForecast(r.Progress().Total/2, &r.progress.done))
		return nil
	}
	if r.extract.when != nil {
		r.committer.set = &timed{window: int64(r.opts.Window), digester: r.extract.digester, forecast: newForecast(r.Progress().Total, &r.progress.done)}
		return nil
	}
	if r.opts.Memory > 0 {
		r.committer.set = newSpilled(r.opts.Memory, r.extract.prints, r.opts.Note)
		return nil
	}
	r.committer.set, err = newMemory(r.opts.Window, r.extract.prints, newForecast(r.Progress().Total, &r.progress.done))
	return err
}

// prepareStore keeps keys in a store, and looks the run up in it.
func (r *Run) prepareStore(ctx context.Context) error {
	j := &journal{window: r.opts.Window, mode: piped, failAt: r.opts.failAt, begun: r.begun}
	own := r.command()
	r.past = &recollection{opts: &r.opts, inputs: r.inputs, outputs: r.outputs, settings: r.settings()}
	r.committer.past = r.past
	if r.seekable() {
		j.mode, j.id = checkpointed, own.identity()
	}
	if err := r.checkCompressedOutputs(j.mode); err != nil {
		return err
	}
	if !isStore(r.opts.Store) {
		// A refused run must not create a store.
		nothing := values(func(string) ([]byte, bool) { return nil, false })
		if err := r.plan(ctx, j, nothing); err != nil {
			return err
		}
	}
	var err error
	if r.idle, err = r.past.nothingToDo(j.id); err != nil || r.idle {
		return err
	}
	if r.store, err = openStore(r.opts.Store); err != nil {
		return err
	}
	j.store = r.store
	if err := r.plan(ctx, j, r.store.Value); err != nil {
		return err
	}
	if err := r.checkScope(ctx, j); err != nil {
		return err
	}
	r.committer.others = findOthers(r.store.Values(positionValue), r.store.Value, j.id)
	r.noteOthers(&own)
	r.extract.digester, r.extract.seed = r.store.Digester(r.opts.Scope), r.store.Seed()
	j.forecast = newForecast(r.Progress().Total, &r.progress.done)
	r.committer.set, r.committer.journal = j, j
	return nil
}

// checkScope refuses a scope that was filled with another key rule. Ids of two rules
// may be equal by chance. The first key binds the scope, not this check: a rule that
// finds no key, such as one with a typing error, must not keep the right one out.
func (r *Run) checkScope(ctx context.Context, j *journal) error {
	rule, err := key.All(r.extract.rules...)
	if err != nil {
		return err
	}
	j.scope, j.rule = r.opts.Scope, rule.String()
	owner := semel.ScopeOwner{Rule: j.rule}
	if owner.Validate() != nil { // it is not empty
		return &RefusedError{Problems: []string{fmt.Sprintf("--key: the rule has %d bytes, which is too long: choose fewer or shorter keys", len(j.rule))}}
	}
	tx, err := r.store.Begin(ctx)
	if err != nil {
		return &storeError{r.opts.Store, err}
	}
	defer tx.Abort()
	switch unbound, err := r.store.KeysWithoutRule(ctx); {
	case err != nil:
		return &storeError{r.opts.Store, err}
	case unbound && !r.opts.SameScope:
		r.opts.Note(fmt.Sprintf("warning: %s has keys from a version that did not keep key rules; this run binds scope %s to %s: if another rule filled it, stop and write --scope and another name", r.opts.Store, j.scope, j.rule))
	}
	var bound semel.ScopeOwner
	if bound.Parse(tx.BindScope(j.scope, j.rule)); !bound.Shares(owner) && !r.opts.SameScope {
		return &RefusedError{Problems: []string{fmt.Sprintf(
			"--key: scope %s of %s was filled with the key rule %s, and ids found by %s could be equal to those by chance: write --scope and another name, or --same-scope if both rules find the same ids",
			j.scope, r.opts.Store, bound.Rule, j.rule)}}
	}
	return nil
}

// checkCompressedOutputs refuses compressed outputs of a run without
// checkpoints. After a crash it would have to keep the lines of a frame that
// has no end.
func (r *Run) checkCompressedOutputs(mode openMode) error {
	var p problems
	for _, o := range r.outputs {
		if mode == piped && o.compression != "" {
			p.addf("%s %s: with --store, compressed files need inputs and an --output that are files: name them, or write to a file that is not compressed", o.flag, o.name)
		}
	}
	return p.err()
}

// seekable reports whether the run can return to a position in all inputs and
// in the output.
func (r *Run) seekable() bool {
	for _, in := range r.inputs {
		if !in.regular() {
			return false
		}
	}
	return r.committer.out.path != ""
}

// plan decides where inputs and outputs continue, from the state in the store.
func (r *Run) plan(ctx context.Context, j *journal, v values) error {
	var p problems
	known := new(resumption)
	if j.id != "" {
		var err error
		if known, err = readResumption(v, j.id); err != nil {
			return err
		}
	}
	r.past.anew = known.run.Anew
	if known.unfinished() {
		var changed problems
		known.checkInputs(ctx, r.inputs, &changed)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if len(changed) > 0 && (r.opts.Force || known.decidedNothing()) {
			known = new(resumption)
		} else {
			p = append(p, changed...)
		}
	}
	intact := true
	for _, o := range r.outputs {
		o.track = o.path != ""
		if err := o.plan(v, &r.opts, r.committer.comma, known.unfinished(), &p); err != nil {
			return err
		}
		intact = intact && (o.path == "" || o.intact)
		r.past.anew = r.past.anew || !known.unfinished() && o.lacks(&r.opts)
	}
	if err := p.err(); err != nil {
		return err
	}
	first := 0
	if known.unfinished() {
		first = known.at.Input + 1
	}
	r.past.repeats = known.known && known.at.Finished && intact
	recalled, unchanged, err := r.past.recall(ctx, v, first)
	if err != nil {
		return err
	}
	recalled.write(r.opts.Note)
	r.noteLost()
	if known.unfinished() && known.run.Keys != r.past.keys {
		r.past.doubted = first
	}
	if known.unfinished() {
		r.resume(known, j)
		if !known.at.Failed {
			return nil
		}
	}
	found, err := describeInputs(r.inputs)
	found.Anew = r.past.anew
	r.committer.found = found
	if err == nil && known.unfinished() {
		known.carry(&found)
	}
	if !known.unfinished() {
		r.committer.replay = r.past.repeats && unchanged
	}
	return err
}

// noteLost notes that lines are no longer in any file. Their keys are known, or an
// unfinished run is past them. Whoever removed the file may have the lines, so the
// run does not write them again.
func (r *Run) noteLost() {
	for _, o := range r.outputs {
		if o.lost > 0 && o != r.committer.out && r.past.lines > 0 {
			r.opts.Note(fmt.Sprintf("%s %s: it had %s of earlier runs, which are not written again, because their inputs are not read again; --again reads them", o.name, o.gone, countLines(o.lost)))
		}
	}
	if out := r.committer.out; out.lost > 0 {
		unless := ""
		if r.past.anew {
			unless = " (those that --on-missing or --on-mismatch lets pass are)"
		}
		r.opts.Note(fmt.Sprintf("%s %s: it had %s of earlier runs, which are not written again, because the store remembers the keys%s. If you have nothing of it elsewhere, --scope NAME with another name, or another --store, writes all lines of the inputs", out.name, out.gone, countLines(out.lost), unless))
	}
}

// countLines returns a number of lines in words.
func countLines(n int64) string {
	if n == 1 {
		return "1 line"
	}
	text := fmt.Sprint(n, " lines")
	for end := len(text) - len("000 lines"); end > 0; end -= 3 {
		text = text[:end] + "," + text[end:]
	}
	return text
}

// resume continues an unfinished run.
func (r *Run) resume(known *resumption, j *journal) {
	r.resumed = known.at.Offset > 0 || known.at.Input > 0
	r.from = known.at.position
	c := r.committer
	c.found, c.pos, c.content = known.run, known.at.position, known.at.Content
	c.counts, c.written, c.replay = known.at.Counts, known.at.Counts.BytesOut, known.at.Replay
	j.elapsed = time.Duration(known.at.ElapsedSeconds * float64(time.Second))
	j.bytesIn = c.counts.BytesIn
	r.progress.begin(r, known.at)
	if r.resumed {
		r.opts.Note(fmt.Sprintf("continuing at %s:%d, where the last run stopped", r.inputs[r.from.Input].name, r.from.Line+1))
	}
}

// Do reads, decides and writes until the inputs end. The report is also valid
// if the error is not nil. The error is a [*LineError], the cause of ctx after
// Do has drained, or the reason why a file or the store could not be written.
// Call Do once.
func (r *Run) Do(ctx context.Context) (Report, error) {
	err := r.do(ctx)
	if err != nil && r.committer.journal == nil {
		for _, o := range r.outputs {
			o.trim(r.committer.comma)
		}
	}
	err = errors.Join(err, closeOutputs(r.outputs), r.committer.why.close(), r.Close())
	if set, ok := r.committer.set.(interface{ close() error }); ok {
		err = errors.Join(err, set.close())
	}
	report := Report{Counts: r.committer.counts, ElapsedSeconds: time.Since(r.begun).Seconds(), Resumed: r.resumed}
	if r.past != nil {
		report.Skipped = r.past.lines
	}
	if r.committer.journal != nil {
		report.ElapsedSeconds += r.committer.journal.elapsed.Seconds()
	}
	if r.opts.Report != "" {
		err = errors.Join(err, report.write(r.opts.Report))
	}
	return report, err
}

func (r *Run) do(ctx context.Context) error {
	if r.idle {
		return r.writeHeader()
	}
	last, keepLast := r.committer.set.(*latest)
	if keepLast {
		if err := r.learn(ctx, last); err != nil {
			return err
		}
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	err := r.read(ctx, r.committer, r.from)
	if err == nil && keepLast {
		return last.check()
	}
	return err
}

// writeHeader writes the header to the outputs that are no files.
func (r *Run) writeHeader() error {
	for _, o := range r.outputs {
		if o.path != "" {
			continue
		}
		if err := o.open(); err != nil {
			return err
		}
		if err := o.begin(r.header); err != nil {
			return err
		}
	}
	r.committer.countOut()
	return nil
}

// begin opens the outputs. It records in the store that the outputs are about to be written, and
// then touches them. So after a crash the store can tell what the files hold.
func (r *Run) begin(ctx context.Context) error {
	for _, o := range r.outputs {
		if err := o.open(); err != nil {
			return err
		}
		o.length = o.base
	}
	if r.committer.pos == (position{}) {
		r.committer.goTo(0)
		if r.inputs[0].past == nil {
			r.committer.counts.BytesIn = r.inputs[0].start
		}
		r.from = r.committer.pos
	}
	if r.committer.journal != nil {
		if err := r.announce(ctx); err != nil {
			r.committer.journal.abort()
			return err
		}
	}
	for _, o := range r.outputs {
		header := r.header
		if o.explains {
			header = nil
		}
		if err := o.begin(header); err != nil {
			if r.committer.journal != nil {
				r.committer.journal.abort()
			}
			return err
		}
	}
	return nil
}

func (r *Run) announce(ctx context.Context) error {
	for _, o := range r.outputs {
		if err := o.syncDir(); err != nil {
			return err
		}
	}
	j := r.committer.journal
	if err := j.begin(ctx); err != nil {
		return err
	}
	r.past.watch(j)
	if j.id != "" {
		if !r.resumed && r.past.doubted == 0 {
			r.committer.found.Keys = r.past.keys
		}
		r.committer.found.Command = r.command().named(r.outputs)
		if err := j.set(runValue+j.id, r.committer.found); err != nil {
			return err
		}
	}
	if err := r.committer.checkpoint(ctx); err != nil {
		return err
	}
	return j.settled()
}

// Close gives up a prepared run. After Do it does nothing.
func (r *Run) Close() error {
	for _, in := range r.inputs {
		if in.kept != nil {
			in.kept.close()
		}
	}
	if r.store == nil {
		return nil
	}
	err := r.store.Close()
	r.store = nil
	return err
}
