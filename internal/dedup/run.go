package dedup

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/key"
)

// Run is one deduplication that was found possible. See [Prepare].
type Run struct {
	opts      Options
	inputs    []*input
	extract   *extraction
	committer *committer
	outputs   []*output
	from      position
	begun     time.Time
	progress  progress
}

// Prepare checks all that can be checked before anything is touched: options,
// inputs, their formats and headers, outputs, and what the store remembers of
// them. It may wait for the first bytes of an input that is a pipe. The error
// is a [*RefusedError], ctx's cause, or that of the store. A Run that was
// prepared must be ended by [Run.Do] or [Run.Close].
func Prepare(ctx context.Context, opts *Options) (*Run, error) {
	if opts == nil {
		opts = new(Options)
	}
	r := &Run{opts: opts.withDefaults(), begun: time.Now()}
	o := &r.opts
	var p problems
	o.check(&p)
	rules := parseRules(o.Keys, &p)
	var format Format
	r.inputs, format = findInputs(ctx, o, rules, &p)
	r.outputs = findOutputs(o, &p)
	checkPaths(r.inputs, r.outputs, &p)
	if ctx.Err() != nil {
		r.Close()
		return nil, context.Cause(ctx)
	}
	var names []string
	var header []byte
	if format.records() {
		names, header = readHeaders(ctx, r.inputs, format.comma(), &p)
	}
	checkRules(rules, format, &p)
	r.extract = &extraction{
		format: format, comma: format.comma(), rules: rules,
		prints:      !isContent(rules),
		hashMissing: o.OnMissing == MissingHash,
	}
	if len(names) > 0 {
		r.extract.columns = findColumns(names, rules, &p)
	}
	if err := p.err(); err != nil {
		r.Close()
		return nil, err
	}
	if err := r.prepareKeys(ctx, header); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// isContent reports whether lines of one key have one content, so that there
// is nothing to compare.
func isContent(rules []*key.Rule) bool {
	for _, r := range rules {
		if r.Form() == key.FormLine {
			return true
		}
		if r.Form() == key.FormHash {
			for _, path := range r.Paths() {
				if path.String() == "." {
					return true
				}
			}
		}
	}
	return false
}

// prepareKeys chooses where keys are remembered, and with it how to commit.
func (r *Run) prepareKeys(ctx context.Context, header []byte) error {
	secret := digest.NewSecret()
	r.extract.digester = digest.New(secret).Scope(r.opts.Scope)
	var seed [8]byte
	rand.Read(seed[:])
	r.extract.seed = binary.LittleEndian.Uint64(seed[:])
	set, err := newMemory(r.opts.Window, r.extract.prints)
	if err != nil {
		return err
	}
	r.committer = &committer{
		opts: &r.opts, inputs: r.inputs, comma: r.extract.comma, set: set, progress: &r.progress,
		out: r.outputs[0],
	}
	return nil
}

// Do reads, decides and writes until the inputs end. The report counts what was
// done also when the error is not nil: a [*LineError], ErrReaderGone, ctx's
// cause after it drained, or what kept a file from being written. It is called
// once.
func (r *Run) Do(ctx context.Context) (Report, error) {
	defer r.Close()
	err := r.do(ctx)
	report := Report{Counts: r.committer.counts, ElapsedSeconds: time.Since(r.begun).Seconds()}
	return report, err
}

func (r *Run) do(ctx context.Context) error {
	for _, o := range r.outputs {
		if err := o.open(&r.opts); err != nil {
			return err
		}
	}
	blocks := newPool(2*r.opts.Threads+3, r.opts.blockSize)
	work := make(chan *block, blocks.count)
	ordered := make(chan *block, blocks.count)
	wait, err := r.extract.work(r.opts.Threads, work)
	if err != nil {
		return fmt.Errorf("dedup: %w", err)
	}
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	reader := &reader{inputs: r.inputs, comma: r.extract.comma, blocks: blocks, work: work, ordered: ordered}
	read := make(chan struct{})
	go func() {
		defer close(read)
		reader.run(reading, r.from)
	}()
	err = r.committer.run(ctx, ordered, blocks)
	stop(errStopped)
	<-read
	wait()
	return errors.Join(err, r.closeOutputs())
}

// errStopped ends the reader when the committer has ended.
var errStopped = errors.New("dedup: the run has ended")

func (r *Run) closeOutputs() error {
	var errs []error
	for _, o := range r.outputs {
		errs = append(errs, o.close())
	}
	return errors.Join(errs...)
}

// Close gives up a run that was prepared and not done.
func (r *Run) Close() {
	for _, in := range r.inputs {
		if in.kept != nil {
			in.kept.close()
		}
	}
}
