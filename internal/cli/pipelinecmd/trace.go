package pipelinecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/remotestore"
	"github.com/semel-dev/semel/internal/schema"
)

// traceQuestion asks for everything that is known of a key.
type traceQuestion struct {
	keyQuestion
	since, patience time.Duration
	most            int64

	events []traceEvent
	looked []string // where, with what was read there
	seen   map[string]bool
}

// traceEvent is one thing that happened to a key.
type traceEvent struct {
	Time  string `json:"time,omitempty"`
	Place string `json:"place"`
	What  string `json:"what"`

	at time.Time
}

// NewTrace returns the verb trace.
func NewTrace(a *term.App) *cobra.Command {
	q := &traceQuestion{keyQuestion: keyQuestion{App: a}, seen: map[string]bool{}}
	cmd := &cobra.Command{
		Use:   "trace --config FILE --key ID",
		Short: "Show what happened to a key, in the order of time",
		Example: `semel trace --config pipelines.yaml --key order-41
semel trace --config pipelines.yaml --key order-41 --since 7d --json`,
		Long: `Looks for a key in every store, outbox and topic of a configuration, and prints what
is known of it in the order of time: when it was first seen and by which pipeline,
its state and result, the row in the outbox and where it goes, the place in each topic
and stream, the parked messages, and what a running process remembers of dropped
deliveries. It changes nothing. The last lines say where it looked, and how far.

In a topic, and in a stream of NATS, it finds messages by their header semel-key, and
by the key rule of the pipeline. It reads the messages since --since, and the newest
--messages of each partition. A queue of RabbitMQ or SQS cannot be searched: its name,
or exchange and routing key, come from the row of the outbox and from the file.

With --caller, the ID is an Idempotency-Key that semel proxy, or a service with the
middleware, got from this caller. It also looks for it in the stores themselves.
Several --key are the parts of one composite key.`,
		Args: term.NoArguments,
		RunE: a.Checked(func(cmd *cobra.Command, _ []string, wrong term.Problems) error {
			return q.answer(cmd, wrong)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&q.file, "config", "", "configuration `FILE` with the pipelines")
	flags.StringArrayVar(&q.ids, "key", nil, "`ID` of the message; repeat it for a composite key")
	flags.StringVar(&q.scope, "scope", "", "`SCOPE` of the key (default that of each pipeline)")
	term.AddParsed(flags, &q.since, "since", "1d", "DUR", "how far back topics are read, as in 90m or 7d", schema.ParseDuration)
	term.AddParsed(flags, &q.patience, "timeout", "30s", "DUR", "how long the search of one topic or outbox may take", schema.ParseDuration)
	flags.Int64Var(&q.most, "messages", 1_000_000, "the newest messages that are read of each partition: `N`")
	q.choice.Add(cmd)
	q.choice.AddCaller(cmd)
	open.AddAdmin(cmd, &q.admin)
	return cmd
}

func (q *traceQuestion) answer(cmd *cobra.Command, wrong term.Problems) error {
	if len(q.ids) == 0 {
		wrong.Addf("--key ID is missing: name the key")
	} else {
		q.keys = q.choice.Keys("", q.ids, &wrong)
	}
	for name, n := range map[string]int64{"--messages": q.most, "--since": int64(q.since), "--timeout": int64(q.patience)} {
		if n < 1 {
			wrong.Addf("%s must be above 0", name)
		}
	}
	var conf *config.File
	switch {
	case q.file == "":
		wrong.Addf("--config FILE is missing: name the configuration with the pipelines")
	case q.admin != "":
		if conf = open.ConfigFor(q.App, q.file, open.NoStore, &wrong); conf != nil {
			open.Admin(q.admin, conf, &wrong) // reports a wrong address once
		}
	default:
		conf = open.Config(q.App, q.file, &wrong)
	}
	var places []keyPlace
	if conf != nil {
		places = q.places(cmd, conf, &wrong)
	}
	if err := wrong.Err(); err != nil {
		return err
	}
	if err := open.CheckProcess(cmd.Context(), q.admin, conf); err != nil {
		return err
	}
	failed := q.inStores(cmd.Context(), conf, places)
	since := time.Now().Add(-q.since) // for all pipelines, of which two may read one topic
	for _, p := range conf.Pipelines {
		if context.Cause(cmd.Context()) != nil {
			return context.Cause(cmd.Context())
		}
		failed = errors.Join(failed, q.inMessages(cmd.Context(), conf, p, since))
	}
	return errors.Join(q.print(), failed)
}

// places returns the places of every pipeline. The keys of requests belong to callers: with
// --caller, it also returns the places of the proxy, and of services that keep such keys in
// a store of the file.
func (q *traceQuestion) places(cmd *cobra.Command, conf *config.File, wrong *term.Problems) (list []keyPlace) {
	if len(conf.Pipelines) > 0 {
		list = q.keyQuestion.places(cmd, conf, wrong)
	}
	if !q.choice.OfCaller() {
		if conf.Proxy != nil {
			q.looked = append(q.looked, "store "+conf.Proxy.Store.Name+": not for requests of the proxy, whose keys belong to callers: add --caller NAME")
		}
		return list
	}
	scope := config.DefaultProxyScope
	if conf.Proxy != nil {
		scope = conf.Proxy.Scope
	}
	for _, s := range conf.Stores {
		if about := s.Spec.About(); about.NoRecords == "" && !slices.ContainsFunc(conf.Stores, func(upper *config.Store) bool {
			return slices.ContainsFunc(upper.Spec.About().Layers, func(l schema.Reference) bool { return l.Name == s.Name })
		}) {
			list = append(list, keyPlace{store: s.Name, scope: scope})
		}
	}
	return list
}

// inStores looks for the key in the stores and among the parked messages.
func (q *traceQuestion) inStores(ctx context.Context, conf *config.File, places []keyPlace) (failed error) {
	for _, place := range places {
		answers, err := q.look(ctx, conf, place)
		failed = errors.Join(failed, err)
		for i := range answers {
			q.take(&answers[i], place)
		}
	}
	return failed
}

// take notes the events of an answer.
func (q *traceQuestion) take(a *KeyAnswer, place keyPlace) {
	where := "store " + a.Store
	if a.Store == "" {
		where = "changelog of " + a.Pipeline
	}
	by := ""
	if a.Pipeline != "" {
		by = ", pipeline " + a.Pipeline
	}
	if a.Unseen != "" {
		q.looked = append(q.looked, "keys of "+cmp.Or(a.Pipeline, a.Store)+": not seen: "+a.Unseen)
	} else {
		q.looked = append(q.looked, fmt.Sprintf("%s: scope %s%s", where, place.scope, by))
	}
	if a.Record != nil && a.record.State != semel.Absent {
		q.add(a.record.FirstSeen, where+by, stateOf(&a.record, a.Origin))
	}
	for _, scope := range a.Elsewhere {
		q.add(time.Time{}, where, "the scope "+scope+" has the key: add --scope "+scope)
	}
	for _, m := range a.Parked {
		at, _ := time.Parse(time.RFC3339Nano, m.At) // it was formatted so
		q.add(at, "parked messages of "+a.Pipeline, fmt.Sprintf("parked as %s after %s: %s", m.ID, term.Plural(m.Attempts, "attempt"), m.Why()))
	}
	if a.Journal != nil {
		for _, e := range a.Journal.Entries {
			q.add(e.Time, "process of "+e.Pipeline, happened(&e))
		}
	}
}

// happened says what a journal remembers of one delivery.
func happened(e *remotestore.JournalEntry) string {
	said := e.Event
	if e.Event == semel.Duplicate.String() {
		said = "a delivery was dropped as a duplicate"
	}
	if e.Source != "" {
		said += fmt.Sprintf(", %s %d/%d", e.Source, e.Partition, e.Offset)
	}
	if e.Reason != "" {
		said += ": " + e.Reason
	}
	if e.Times > 1 {
		said += fmt.Sprintf(" (the last of %d times)", e.Times)
	}
	return said
}

// stateOf says what a record is.
func stateOf(r *semel.Record, origin *originLine) string {
	said := "first seen"
	switch {
	case origin != nil:
		said += fmt.Sprintf(" at %s %d/%d", origin.Topic, origin.Partition, origin.Offset)
	case r.Origin != "":
		said += " at " + r.Origin
	}
	said += "; now " + r.State.String()
	if r.Attempt > 1 {
		said += fmt.Sprintf(", attempt %d", r.Attempt)
	}
	if r.Holder != "" && r.State != semel.Done {
		said += ", held by " + r.Holder
	}
	if name := keyrecord.ResultName(r.Result.Kind); name != "" {
		said += ", result: " + name
		if r.Result.Kind == semel.Value {
			said += fmt.Sprintf(" of %d bytes", len(r.Result.Data))
		}
	}
	return said
}

// inMessages looks for the key in what source and sink of a pipeline keep since a time.
func (q *traceQuestion) inMessages(ctx context.Context, conf *config.File, p *config.Pipeline, since time.Time) (failed error) {
	t := &config.Tracing{
		File: conf, Since: since, Most: q.most,
		Found: func(s config.Sighting) { q.add(s.Time, s.Place, s.What) },
		Looked: func(text string) {
			if !slices.Contains(q.looked, text) { // two pipelines may use one topic
				q.looked = append(q.looked, text)
			}
		},
	}
	for _, k := range q.keys {
		t.IDs = append(t.IDs, k.ID)
	}
	for _, end := range []struct {
		what, name string
		kind       config.Kind
	}{{"source", p.Source.About(p).Name, p.Source}, {"sink", p.Sink.About().Name, p.Sink}} {
		traced, ok := end.kind.(config.Traced)
		if !ok {
			t.Unsearched(end.what, p.Name, end.name)
			continue
		}
		patient, cancel := context.WithTimeout(ctx, q.patience)
		err := traced.Trace(patient, p, t)
		cancel()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s of pipeline %s: %w", end.what, p.Name, term.InOneLine(conf.RedactError(err))))
		}
	}
	return failed
}

// add notes an event, once.
func (q *traceQuestion) add(at time.Time, place, what string) {
	e := traceEvent{term.JSONTime(at), place, what, at}
	if id := e.Time + e.Place + e.What; !q.seen[id] {
		q.seen[id] = true
		q.events = append(q.events, e)
	}
}

// print writes the events in the order of time. Those without a time come last.
func (q *traceQuestion) print() error {
	slices.SortStableFunc(q.events, func(a, b traceEvent) int {
		if a.at.IsZero() != b.at.IsZero() {
			return cmp.Compare(b.Time, a.Time)
		}
		return a.at.Compare(b.at)
	})
	if q.JSON {
		for i := range q.events {
			if err := q.PrintJSON(&q.events[i]); err != nil {
				return err
			}
		}
		return q.PrintJSON(map[string][]string{"looked": q.looked})
	}
	var text strings.Builder
	for _, e := range q.events {
		when := "(no time)"
		if !e.at.IsZero() {
			when = e.at.UTC().Format("2006-01-02 15:04:05.000 MST")
		}
		fmt.Fprintf(&text, "%-27s  %s: %s\n", when, term.DisplayText(e.Place), term.DisplayText(q.Redact(e.What)))
	}
	if len(q.events) == 0 {
		text.WriteString("nothing is known of this key\n")
	}
	text.WriteString("\nlooked in\n")
	for _, place := range q.looked {
		fmt.Fprintf(&text, "  %s\n", term.DisplayText(q.Redact(place)))
	}
	_, err := q.Stdout.Write([]byte(text.String()))
	return err
}
