package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/embedded"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/wiring"
	"github.com/semel-dev/semel/pipeline"
)

// outcomeLine is the outcome of settling one message, in JSON.
type outcomeLine struct {
	Pipeline string `json:"pipeline"`
	ID       string `json:"id"`
	// Outcome is one of the constants below, or with --dry-run the expected one.
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Outcomes of a message.
const (
	outcomeRedriven = "redriven"
	outcomeBefore   = "done before"
	outcomeAgain    = "parked again"
	outcomeQueued   = "queued"
	outcomeOther    = "settled by another"
	outcomeLeft     = "not redriven"
	outcomeSkipped  = pipeline.HowSkipped
	outcomeDone     = pipeline.HowDone
)

func newParkedRetryCommand(f *parkedFlags) *cobra.Command {
	var wait time.Duration
	var dry, past bool
	cmd := &cobra.Command{
		Use:   "retry (ID... | --all | filters) --config FILE",
		Short: "Process messages again that were put aside",
		Example: `semel parked retry --all --config pipelines.yaml
semel parked retry --reason permanent --older 5m --dry-run --config pipelines.yaml`,
		Long: `Processes messages again, through the same keys: one whose key is done has no second
effect. They carry the header semel-redrive, so that the dedup of a broker or a
target does not take them for repetitions.

While semel run has the pipeline they are queued, and it takes them within a second.
If nobody runs it, they are processed by this program. Either way it waits for what
becomes of them and says it, a line each: redriven, done before (its key was done
already), parked again, or queued (it was not settled within --wait, and stays queued
for whoever runs the pipeline). The exit status is 0 if all are settled, and else 1.

A message that was put aside longer ago than the window of its pipeline is not
redriven: a copy may have had its effect and be forgotten. Where keys expire by the
times of messages (transaction: { time: event }) its own time counts too.
--past-window redrives it all the same, and the effect may be a second one.

Those in a topic of Kafka are written back to the topic and partition from which they
came, and redriven says so: whoever runs the pipeline reads them like any other, and
decides. One that does not say where it came from is not redriven, nor one that would
get another key there or that nobody would read: the reason is said.

With --dry-run it says what the next delivery of each would get, and does nothing.`,
		RunE: f.checked(func(cmd *cobra.Command, ids []string, wrong problems) error {
			f.check(ids, true, &wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			return f.withDeadLetters(cmd.Context(), func(stores []deadLetters) error {
				ends, err := auditEnds(cmd.Context(), stores, dry)
				if err != nil {
					return err
				}
				list, err := f.chosenOn(cmd.Context(), stores, ids)
				if err != nil {
					return err
				}
				count := 0
				for i, s := range stores {
					if len(list[i]) == 0 {
						continue
					}
					count += len(list[i])
					r := &retry{parkedFlags: f, deadLetters: s, list: list[i], wait: wait, auditEnd: ends[i]}
					if !past {
						var left error
						r.list, left = r.leave(time.Now(), dry)
						err = errors.Join(err, left)
					}
					topic, inTopic := s.letters.(*kafkaio.DeadLetterTopic)
					switch {
					case len(r.list) == 0:
					case dry:
						err = errors.Join(err, r.foretell(cmd.Context()))
					case inTopic:
						err = errors.Join(err, r.giveBack(cmd.Context(), topic))
					default:
						err = errors.Join(err, r.do(cmd.Context()))
					}
				}
				if count == 0 {
					f.note("no message was chosen")
					f.noteStrangers(cmd.Context(), stores)
				}
				return err
			})
		}),
	}
	f.addChoice(cmd, "reason")
	addParsed(cmd.Flags(), &wait, "wait", "30s", "DUR", "how long to wait for what becomes of them", schema.ParseDuration)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would become of them, and do nothing")
	cmd.Flags().BoolVar(&past, "past-window", false, "redrive also what is of longer ago than keys are remembered")
	return cmd
}

// retry redrives messages of one pipeline.
type retry struct {
	*parkedFlags
	deadLetters
	list []*pipeline.Parked
	wait time.Duration

	auditEnd int64 // end of the audit log before the messages were listed
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
			return nil, fmt.Errorf("%s: %w: retry needs the right to read it, to tell what becomes of messages", s.spec.Name, inOneLine(err))
		}
	}
	return ends, nil
}

// report prints the outcome of a message.
func (f *parkedFlags) report(out io.Writer, m *pipeline.Parked, outcome, reason, failure string) error {
	failure = f.failure(failure)
	if f.asJSON {
		return writeJSONLine(out, outcomeLine{m.Pipeline, m.ID, outcome, reason, failure})
	}
	text := fmt.Sprintf("%s  %s  %s: %s", m.ID, m.Pipeline, displayKey(m), outcome)
	for _, more := range []string{reason, failure} {
		if more != "" {
			text += ": " + more
		}
	}
	_, err := fmt.Fprintln(out, oneLine(text))
	return err
}

// foretell says what the next delivery of each message gets.
func (r *retry) foretell(ctx context.Context) error {
	records, unseen, err := r.look(ctx)
	if err != nil {
		return err
	}
	for i, m := range r.list {
		next := "its key is looked for anew, with the rule that the configuration has now"
		refused := r.refused(m)
		switch {
		case refused != nil:
			next = outcomeLeft + ": " + inOneLine(refused).Error()
		case isMissing(m):
		case unseen != "":
			next = "not known: " + unseen
		default:
			next = nextDelivery(&records[i], r.spec, time.Now())
		}
		if err := r.report(r.stdout, m, next, "", ""); err != nil {
			return err
		}
	}
	return nil
}

// look returns the store's records of the messages' keys, or the reason why the
// store cannot be read from here.
func (r *retry) look(ctx context.Context) (records []semel.Record, unseen string, err error) {
	if r.spec.Store.Name == "" {
		records, err = r.lookInKafka(ctx)
		return records, "", err
	}
	f, reasons := r.storeOf(r.spec)
	if len(reasons) > 0 {
		return nil, reasons[0], nil
	}
	records = make([]semel.Record, len(r.list))
	err = f.withStore(ctx, r.app, func(store semel.Store) error {
		looker, err := able[semel.Looker](f, store, "look keys up")
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
	if holder, held := embedded.Holder(err); held {
		return nil, "the store " + f.shown() + " is in use by " + holder, nil
	}
	return records, "", err
}

// storeOf returns the store of a pipeline's keys, or the reason why it cannot be
// read.
func (f *parkedFlags) storeOf(p *config.Pipeline) (*storeFlags, problems) {
	var reasons problems
	if p.Store.Name == "" {
		reasons.addf("the keys of %s live in Kafka, in the state of who runs it", p.Name)
		return nil, reasons
	}
	s := &storeFlags{file: f.file, conf: f.conf, name: p.Store.Name}
	s.check(f.app, &reasons)
	return s, reasons
}

// do requests the redrive and reports the outcomes.
func (r *retry) do(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	var failed error
	switch kind := r.kind(); kind {
	case "embedded":
		// The process that has the directory open runs the pipeline, and no other
		// can.
		failed = r.here(limit, true)
		if holder, held := embedded.Holder(failed); held {
			r.note("%s: the store is in use by %s: waiting for it to redrive them", r.spec.Name, holder)
			if failed = r.queue(ctx); failed == nil {
				r.watch(limit)
			}
		}
	case "memory":
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
		err = fmt.Errorf("%s: not settled: %d of %s", r.spec.Name, left, plural(len(r.list), "message"))
	}
	return errors.Join(failed, err)
}

// firstLook is how long a running pipeline has to take a message. After that,
// retry assumes that no process runs the pipeline.
const firstLook = 3 * time.Second

// kind returns the kind of the store that decides for the pipeline.
func (r *retry) kind() string {
	kind := ""
	for _, s := range r.conf.Stack(r.spec.Store.Name) {
		kind = s.Spec.Kind()
		if kind == "embedded" {
			break
		}
	}
	return kind
}

func (r *retry) queue(ctx context.Context) error {
	letters := r.letters.(pipeline.DeadLetterStore) // messages in a topic take another path
	for _, m := range r.list {
		err := letters.Queue(ctx, []string{m.ID})
		if err != nil && !errors.Is(err, pipeline.ErrNotParked) { // otherwise it is already settled
			return fmt.Errorf("%s: %w", r.spec.Name, inOneLine(err))
		}
	}
	return nil
}

// here redrives the messages in this process. If queue is set, they must be
// queued first.
func (r *retry) here(ctx context.Context, queue bool) (err error) {
	stores := wiring.NewStores(r.conf, nil)
	defer func() { err = errors.Join(err, stores.Close()) }()
	patient, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	running, err := wiring.OpenPipeline(patient, r.conf, r.spec, stores, &wiring.PipelineOptions{Stdout: r.stdout, Redrive: true})
	if err != nil {
		return advised(ctx, r.conf.Stack(r.spec.Store.Name), inOneLine(err))
	}
	if queue {
		err = r.queue(ctx)
	}
	if err != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return errors.Join(err, running.Run(ended)) // Run closes the pipeline
	}
	return inOneLineOrNil(running.Run(ctx))
}

func inOneLineOrNil(err error) error {
	if err == nil {
		return nil
	}
	return inOneLine(err)
}

// watch waits until every message is settled or ctx ends. It reports whether one
// is still waiting, and whether a pipeline has processed one.
func (r *retry) watch(ctx context.Context) (waiting, processed bool) {
	timer := time.NewTicker(200 * time.Millisecond)
	defer timer.Stop()
	var gone []*pipeline.Parked
	list := r.list
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
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	if !processed && len(gone) > 0 {
		// A message that an operator settled does not prove that the pipeline runs.
		fates, err := r.fates(context.WithoutCancel(ctx))
		processed = err == nil && slices.ContainsFunc(gone, func(m *pipeline.Parked) bool { return fates[m.ID].redriven })
	}
	return len(list) > 0, processed
}

// out returns the writer for reports about messages.
func (r *retry) out() io.Writer {
	if r.spec.Sink.About().Stdout {
		return r.stderr // stdout has the messages
	}
	return r.stdout
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
			return len(r.list), fmt.Errorf("%s: %w", r.spec.Name, inOneLine(err))
		}
	}
	var fates map[string]fate
	if missing {
		if fates, err = r.fates(ctx); err != nil {
			return len(r.list), fmt.Errorf("%s: what became of the messages is not known: %w", r.spec.Name, inOneLine(err))
		}
	}
	out := r.out()
	for i, m := range r.list {
		outcome, reason, failure := "", "", ""
		switch now := found[i]; {
		case now == nil:
			outcome, reason = fates[m.ID].outcome()
		case now.Redrives > m.Redrives || now.At.After(m.At):
			outcome, reason, failure = outcomeAgain, string(now.Reason), now.Error
			left++
		case now.Queued:
			outcome, reason = outcomeQueued, "whoever runs the pipeline redrives it"
			left++
		default:
			outcome = outcomeLeft
			left++
		}
		if err := r.report(out, m, outcome, reason, failure); err != nil {
			return left, err
		}
	}
	return left, nil
}

// fate is what the audit log says about one message since the retry began.
type fate struct {
	redriven  bool                // a pipeline processed it
	delivered bool                // and its effect happened
	by        pipeline.Settlement // the last settlement by an operator, or zero
}

// byHand says how an operator settled a message, and names the operator.
func byHand(s pipeline.Settlement) string { return s.How + " by " + s.Actor }

// outcome returns the outcome of a message that is gone. Only a redrive entry
// with a delivery proves that the effect happened.
func (f fate) outcome() (outcome, reason string) {
	switch {
	case f.delivered && f.by.How != "":
		return outcomeRedriven, byHand(f.by) + " meanwhile"
	case f.delivered:
		return outcomeRedriven, ""
	case f.by.How != "":
		return outcomeOther, byHand(f.by)
	case f.redriven:
		return outcomeBefore, ""
	default:
		return outcomeOther, "the audit log does not say by whom"
	}
}

// fates reads how messages were settled since the retry began.
func (r *retry) fates(ctx context.Context) (map[string]fate, error) {
	list := map[string]fate{}
	err := r.letters.(pipeline.DeadLetterStore).Settled(ctx, r.auditEnd, func(s pipeline.Settlement) bool {
		f := list[s.ID]
		if s.How == pipeline.HowRedriven {
			f.redriven, f.delivered = true, f.delivered || s.Delivered
		} else {
			f.by = s
		}
		list[s.ID] = f
		return true
	})
	return list, err
}
