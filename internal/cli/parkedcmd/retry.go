package parkedcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// outcomeLine is the outcome of settling one message, in JSON.
type outcomeLine struct {
	Pipeline string `json:"pipeline"`
	ID       string `json:"id"`
	// Outcome is one of those of package facts, or with --dry-run the expected one.
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	Error   string `json:"error,omitempty"`
}

func newParkedRetryCommand(f *parkedFlags) *cobra.Command {
	q := retryRequest{parkedFlags: f}
	cmd := &cobra.Command{
		Use:   "retry (ID... | --all | filters) --config FILE",
		Short: "Process parked messages again",
		Example: `semel parked retry --all --config pipelines.yaml
semel parked retry --reason permanent --older 5m --dry-run --config pipelines.yaml`,
		Long: `Processes messages again through the same keys. A message whose key is done has
no second effect. The messages carry the header semel-redrive, so that a broker
or target with its own deduplication does not drop them.

While semel run has the pipeline, the messages are queued, and it takes them
within a second. If no process runs the pipeline, this program processes them. It
then waits for the outcomes and prints a line for each message: redriven, done
before (its key was done already), parked again, or queued (it was not settled
within --wait, and stays queued for the pipeline). The exit status is 0 if all are
settled, and otherwise 1.

A message that was parked longer ago than the window of its pipeline is not
redriven, because a copy may have had its effect and its key may be forgotten. If
keys expire by message time (transaction: { time: event }), the message's own
time counts too. --past-window redrives such messages, and the effect may repeat.

A message in a Kafka topic is written back to its original topic and partition.
The pipeline then reads it like any other record and decides. It is not redriven
if its origin is not known, if it would get another key there, or if no pipeline
would read it. The output gives the reason.

With --dry-run it prints what the next delivery of each message would get, and
changes nothing.`,
		RunE: f.Checked(func(cmd *cobra.Command, ids []string, wrong term.Problems) error {
			f.check(ids, true, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return f.withDeadLetters(cmd.Context(), func(stores []deadLetters) error {
				return q.run(cmd.Context(), stores, ids)
			})
		}),
	}
	f.addChoice(cmd, "reason")
	term.AddParsed(cmd.Flags(), &q.wait, "wait", "30s", "DUR", "how long to wait for the outcomes", schema.ParseDuration)
	cmd.Flags().BoolVar(&q.dry, "dry-run", false, "print the expected outcomes, and change nothing")
	cmd.Flags().BoolVar(&q.past, "past-window", false, "also redrive messages older than the window of their keys")
	return cmd
}

// retryRequest is what parked retry does to messages.
type retryRequest struct {
	*parkedFlags
	wait time.Duration
	dry  bool
	past bool // also messages that are older than the window of their keys
}

// run redrives the chosen messages of all pipelines.
func (q *retryRequest) run(ctx context.Context, stores []deadLetters, ids []string) error {
	ends, err := auditEnds(ctx, stores, q.dry)
	if err != nil {
		return err
	}
	list, err := q.chosenOn(ctx, stores, ids)
	if err != nil {
		return err
	}
	count := 0
	for i, s := range stores {
		if len(list[i]) == 0 {
			continue
		}
		count += len(list[i])
		r := &retry{parkedFlags: q.parkedFlags, deadLetters: s, list: list[i], wait: q.wait, auditEnd: ends[i]}
		err = errors.Join(err, q.redrive(ctx, r))
	}
	if count == 0 {
		q.Note("no message was chosen")
		q.noteStrangers(ctx, stores)
	}
	return err
}

// redrive redrives the messages of one pipeline, or with --dry-run says what would happen.
func (q *retryRequest) redrive(ctx context.Context, r *retry) (err error) {
	if !q.past {
		r.list, err = r.leave(time.Now(), q.dry)
	}
	topic, inTopic := r.letters.(facts.ParkedTopic)
	switch {
	case len(r.list) == 0:
	case q.dry:
		err = errors.Join(err, r.foretell(ctx))
	case inTopic:
		err = errors.Join(err, r.giveBack(ctx, topic))
	default:
		err = errors.Join(err, r.do(ctx))
	}
	return err
}

// retry redrives messages of one pipeline.
type retry struct {
	*parkedFlags
	deadLetters
	list []*pipeline.Parked
	wait time.Duration

	auditEnd int64 // end of the audit log before the messages were listed

	telling sync.Mutex // guards waits while a pipeline runs in this process
	waits   string     // why the pipeline does not take the messages, by the last report
}

// lookEvery is how often retry asks why the messages wait.
const lookEvery = 2 * time.Second

// why tells a person why the messages wait, if the process that runs the pipeline says so.
func (r *retry) why(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	if why, next, now := open.Waits(ctx, r.conf, r.spec.Name); why != "" {
		r.tellWhy(why, next, now)
	}
}

// tellWhy prints a reason why the messages wait, unless it was printed last.
func (r *retry) tellWhy(why string, next, now time.Time) {
	if why != r.waits {
		r.Note("waiting: %s", term.OneLine(r.Redact(term.Trouble(why, next, now))))
	}
	r.waits = why
}

// waiting is the observer of a pipeline in this process. It tells why the messages wait.
type waiting struct{ of *retry }

// Observe implements semel.Observer.
func (waiting) Observe(semel.Event) {}

// ObservePipeline implements pipeline.Observer.
func (w waiting) ObservePipeline(e pipeline.Event) {
	part, ok := map[string]config.Part{"sink": config.SinkPart, "store": config.StorePart, "parking": config.ParkedPart}[e.Reason]
	if e.Kind != pipeline.EventPaused || !ok || e.Err == nil {
		return
	}
	why := term.InOneLine(w.of.conf.Advise(w.of.spec, part, e.Err)).Error()
	now := time.Now()
	w.of.telling.Lock()
	defer w.of.telling.Unlock()
	w.of.tellWhy(fmt.Sprintf("the %s of %s does not work: %s", part, w.of.spec.Name, why), now.Add(e.Next), now)
}

// auditEnds returns the end of the audit log of each dead-letter store. Later
// entries belong to messages that are listed afterwards. A topic needs no such
// position: a message settled in it is never listed again.
func auditEnds(ctx context.Context, stores []deadLetters, dry bool) ([]int64, error) {
	ends := make([]int64, len(stores))
	for i, s := range stores {
		letters, ok := s.letters.(pipeline.DeadLetterStore)
		if !ok || dry {
			continue
		}
		var err error
		if ends[i], err = letters.AuditEnd(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w: retry needs the right to read it, to tell what becomes of messages", s.spec.Name, term.InOneLine(err))
		}
	}
	return ends, nil
}

// report prints the outcome of a message.
func (f *parkedFlags) report(out io.Writer, m *pipeline.Parked, outcome, reason, failure string) error {
	failure = f.failure(failure)
	if f.JSON {
		return term.WriteJSONLine(out, outcomeLine{m.Pipeline, m.ID, outcome, reason, failure})
	}
	text := fmt.Sprintf("%s  %s  %s: %s", m.ID, m.Pipeline, term.Shorten(displayKey(m), 100), outcome)
	for _, more := range []string{reason, failure} {
		if more != "" {
			text += ": " + more
		}
	}
	_, err := fmt.Fprintln(out, term.OneLine(text))
	return err
}

// foretell says what the next delivery of each message gets.
func (r *retry) foretell(ctx context.Context) error {
	records, unseen, err := r.look(ctx)
	if err != nil {
		return err
	}
	for i, m := range r.list {
		next := "its key is found again, with the current rule of the configuration"
		refused := r.refused(m)
		switch {
		case refused != nil:
			next = facts.NotRedriven + ": " + term.InOneLine(refused).Error()
		case isMissing(m):
		case unseen != "":
			next = "not known: " + unseen
		default:
			next = keyrecord.NextDelivery(&records[i], r.spec, time.Now())
		}
		if err := r.report(r.Stdout, m, next, "", ""); err != nil {
			return err
		}
	}
	return nil
}

// look returns the store's records of the messages' keys, or the reason why the
// store cannot be read from here.
func (r *retry) look(ctx context.Context) (records []semel.Record, unseen string, err error) {
	if r.conf.Mode(r.spec) == config.SourceIsSink {
		records, err = r.lookInSource(ctx)
		return records, "", err
	}
	f, reasons := open.StoreOf(r.App, r.file, r.conf, r.spec)
	if len(reasons) > 0 {
		return nil, reasons[0], nil
	}
	records = make([]semel.Record, len(r.list))
	err = f.WithStore(ctx, func(store semel.Store) error {
		looker, err := open.Able[semel.Inspector](f, store, "look keys up")
		if err != nil {
			return err
		}
		var keys []semel.Key
		var of []int
		for i, m := range r.list {
			if !isMissing(m) {
				keys, of = append(keys, m.Key), append(of, i)
			}
		}
		found := make([]semel.Record, len(keys))
		if err := looker.Look(ctx, keys, found); err != nil {
			return fmt.Errorf("look the keys up: %w", err)
		}
		for i, record := range found {
			records[of[i]] = record
		}
		return nil
	})
	if holder, held := diagnose.Holder(err); held {
		return nil, "the store " + f.Shown() + " is in use by " + holder, nil
	}
	return records, "", err
}

// do requests the redrive and reports the outcomes.
func (r *retry) do(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	var failed error
	stack := r.conf.Stack(r.spec.Store.Name)
	switch {
	case slices.ContainsFunc(stack, func(s *config.Store) bool { return s.Spec.About().Directory != "" }):
		// The process that has the directory open runs the pipeline, and no other
		// can.
		failed = r.here(limit, true)
		if holder, held := diagnose.Holder(failed); held {
			r.Note("%s: the store is in use by %s: waiting for it to redrive them", r.spec.Name, holder)
			if failed = r.queue(ctx); failed == nil {
				r.watch(limit)
			}
		}
	case len(stack) > 0 && !stack[len(stack)-1].Spec.About().Shared:
		// Only the process that runs the pipeline knows its keys.
		if failed = r.queue(ctx); failed == nil {
			r.watch(limit)
		}
	default:
		if failed = r.queue(ctx); failed != nil {
			break
		}
		first, cancel := context.WithTimeout(limit, min(r.wait, firstLook))
		waiting, processed := r.watch(first)
		cancel()
		switch {
		case !waiting || limit.Err() != nil:
		case processed:
			r.watch(limit)
		default:
			failed = r.here(limit, false)
		}
	}
	left, err := r.tell(context.WithoutCancel(ctx))
	switch {
	case ctx.Err() != nil && left > 0:
		err = errors.Join(err, context.Cause(ctx))
	case left > 0 && failed == nil && err == nil:
		err = fmt.Errorf("%s: not settled: %d of %s", r.spec.Name, left, term.Plural(len(r.list), "message"))
	}
	return errors.Join(failed, err)
}

// firstLook is how long a running pipeline has to take a message. After that,
// retry assumes that no process runs the pipeline.
const firstLook = 3 * time.Second

func (r *retry) queue(ctx context.Context) error {
	letters := r.letters.(pipeline.DeadLetterStore) // messages in a topic take another path
	for _, m := range r.list {
		err := letters.Queue(ctx, []string{m.ID})
		if err != nil && !errors.Is(err, pipeline.ErrNotParked) { // otherwise it is already settled
			return fmt.Errorf("%s: %w", r.spec.Name, term.InOneLine(err))
		}
	}
	return nil
}

// here redrives the messages in this process. If queue is set, they must be
// queued first.
func (r *retry) here(ctx context.Context, queue bool) (err error) {
	stores := app.NewStores(r.conf, nil)
	defer func() { err = errors.Join(err, stores.Close()) }()
	patient, cancel := context.WithTimeout(ctx, r.Patience)
	defer cancel()
	running, err := app.OpenPipeline(patient, r.conf, r.spec, stores, &app.PipelineOptions{Stdout: r.Stdout, Redrive: true, Observer: waiting{r}})
	if err != nil {
		return term.InOneLine(err)
	}
	if queue {
		err = r.queue(ctx)
	}
	if err != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return errors.Join(err, running.Run(ended)) // Run closes the pipeline
	}
	return term.InOneLine(running.Run(ctx))
}

// watch waits until every message is settled or ctx ends. It reports whether one
// is still waiting, and whether a pipeline has processed one.
func (r *retry) watch(ctx context.Context) (waiting, processed bool) {
	timer := time.NewTicker(200 * time.Millisecond)
	defer timer.Stop()
	var gone []*pipeline.Parked
	list := r.list
	asked := time.Now()
	for {
		var still []*pipeline.Parked
		for _, m := range list {
			switch now, err := r.letters.Get(ctx, m.ID); {
			case errors.Is(err, pipeline.ErrNotParked):
				gone = append(gone, m)
			case err == nil && !now.Queued:
				processed = true // and parked it again
			default:
				still = append(still, m)
			}
		}
		list = still
		if len(list) == 0 || ctx.Err() != nil {
			break
		}
		if time.Since(asked) >= lookEvery {
			r.why(ctx)
			asked = time.Now()
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	if !processed && len(gone) > 0 {
		// A message that an operator settled does not prove that the pipeline runs.
		fates, err := r.fates(context.WithoutCancel(ctx))
		processed = err == nil && slices.ContainsFunc(gone, func(m *pipeline.Parked) bool { return fates[m.ID].Redriven })
	}
	return len(list) > 0, processed
}

// out returns the writer for reports about messages.
func (r *retry) out() io.Writer {
	if r.spec.Sink.About().Stdout {
		return r.Stderr // stdout has the messages
	}
	return r.Stdout
}

// tell reports the outcome of each message and returns the number of unsettled
// ones.
func (r *retry) tell(ctx context.Context) (left int, err error) {
	// The log is read last: it has the entry of every message that is gone by then.
	found, missing := make([]*pipeline.Parked, len(r.list)), false
	for i, m := range r.list {
		found[i], err = r.letters.Get(ctx, m.ID)
		switch {
		case errors.Is(err, pipeline.ErrNotParked):
			found[i], missing = nil, true
		case err != nil:
			return len(r.list), fmt.Errorf("%s: %w", r.spec.Name, term.InOneLine(err))
		}
	}
	var fates map[string]facts.Fate
	if missing {
		if fates, err = r.fates(ctx); err != nil {
			return len(r.list), fmt.Errorf("%s: what became of the messages is not known: %w", r.spec.Name, term.InOneLine(err))
		}
	}
	out := r.out()
	for i, m := range r.list {
		outcome, reason, failure, settled := facts.Outcome(m, found[i], fates[m.ID], r.waits)
		if !settled {
			left++
		}
		if err := r.report(out, m, outcome, reason, failure); err != nil {
			return left, err
		}
	}
	return left, nil
}

// fates reads how messages were settled since the retry began.
func (r *retry) fates(ctx context.Context) (map[string]facts.Fate, error) {
	return facts.Fates(ctx, r.letters.(pipeline.DeadLetterStore), r.auditEnd)
}
