package pipelinecmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	kafkakind "github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/internal/remotestore"
	"github.com/semel-dev/semel/pipeline"
)

// keyQuestion asks why a message with some key was dropped or passed.
type keyQuestion struct {
	*term.App
	file, storeName, scope string
	admin                  string // the admin server to ask, or ""
	window                 string // a time in the window, or ""
	ids                    []string
	choice                 keyrecord.KeyFlags

	keys     []semel.Key // what the ids may mean, without a scope
	digest   semel.Digest
	byDigest bool
}

func (q *keyQuestion) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&q.file, "config", "", "configuration `FILE` with the stores")
	flags.StringArrayVar(&q.ids, "key", nil, "`ID` of the message; repeat it for a composite key")
	flags.StringVar(&q.scope, "scope", "", "`SCOPE` of the key (default that of each pipeline; default with --store-name)")
	flags.StringVar(&q.storeName, "store-name", "", "read only the store `NAME`")
	flags.StringVar(&q.window, "window", "", "`TIME` in the windows of the key, as in RFC 3339: show these instead of the key's record")
	q.choice.Add(cmd)
	q.choice.AddDigest(cmd)
	open.AddAdmin(cmd, &q.admin)
	term.CompleteValues(cmd, "store-name", "window")
}

func (q *keyQuestion) asked(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{"config", "key", "scope", "store-name", "json-id", "digest", "admin", "window"}, cmd.Flags().Changed)
}

// keyPlace is a place that may have a record of the key.
type keyPlace struct {
	pipeline *config.Pipeline // nil if a store was named
	store    string
	scope    string
}

// KeyAnswer is the information about a key in one place.
type KeyAnswer struct {
	Pipeline string          `json:"pipeline,omitempty"`
	Store    string          `json:"store,omitempty"`
	Record   *keyrecord.Line `json:"record,omitempty"`
	// Origin is the first Kafka record of the key, if the keys live in Kafka.
	Origin *originLine `json:"origin,omitempty"`
	Next   string      `json:"next,omitempty"`
	// Elsewhere are the other scopes of the store that have the key, if this one lacks it.
	Elsewhere []string               `json:"elsewhere,omitempty"`
	Parked    []keyrecord.ParkedLine `json:"parked,omitempty"`
	// Journal is what the running process remembers of the deliveries of the key. It is
	// nil if no process could be asked.
	Journal *remotestore.Journal `json:"journal,omitempty"`
	// Unseen says why nothing can be known.
	Unseen string `json:"unseen,omitempty"`

	record   semel.Record
	unasked  bool // only a process that --admin names has a journal
	commands []keyrecord.Command
}

// originLine is the origin of a message.
type originLine struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// answer checks all places and prints the results. If one place cannot be read,
// it continues with the others.
func (q *keyQuestion) answer(cmd *cobra.Command, args []string, wrong term.Problems) error {
	switch {
	case len(args) == 1 && q.file == "":
		q.file = args[0]
	case len(args) > 0:
		wrong.Addf("unexpected argument %q: with --key this verb takes FILE and flags only", args[len(args)-1])
	}
	if cmd.Flags().Changed("window") {
		if q.file == "" {
			wrong.Addf("--config FILE is missing: name the configuration")
			return wrong.Err()
		}
		return q.windows(cmd.Context(), cmd.Flags().Changed, wrong)
	}
	if q.digest, q.byDigest = q.choice.Digest(q.ids, &wrong); q.byDigest {
		if cmd.Flags().Changed("scope") {
			wrong.Addf("--digest and --scope exclude each other: a digest is of a key with its scope")
		}
	} else if len(q.ids) == 0 {
		wrong.Addf("--key ID is missing: name the key")
	} else {
		q.keys = q.choice.Keys("", q.ids, &wrong)
	}
	var conf *config.File
	var places []keyPlace
	if q.file == "" {
		wrong.Addf("--config FILE is missing: name the configuration; for a store of semel dedup write semel keys show ID --store DIR")
	} else if q.admin != "" {
		conf = open.ConfigFor(q.App, q.file, open.NoStore, &wrong)
	} else if q.storeName != "" { // only the part of the configuration that this store needs
		conf = open.ConfigFor(q.App, q.file, open.OnlyStore(q.storeName), &wrong)
	} else {
		conf = open.Config(q.App, q.file, &wrong)
	}
	if conf != nil {
		if q.admin != "" {
			open.Admin(q.admin, conf, &wrong) // reports a wrong address once
		}
		places = q.places(cmd, conf, &wrong)
	}
	if err := wrong.Err(); err != nil {
		return err
	}
	if err := open.CheckProcess(cmd.Context(), q.admin, conf); err != nil {
		return err
	}
	var failures []error
	printed := 0
	for _, place := range places {
		if cmd.Context().Err() != nil {
			return context.Cause(cmd.Context())
		}
		answers, err := q.look(cmd.Context(), conf, place)
		if err != nil {
			failures = append(failures, err)
		}
		for _, answer := range answers {
			if err := q.print(&answer, printed > 0); err != nil {
				return err
			}
			printed++
		}
	}
	return errors.Join(failures...)
}

// places returns the stores to read.
func (q *keyQuestion) places(cmd *cobra.Command, conf *config.File, wrong *term.Problems) []keyPlace {
	if q.storeName != "" || len(conf.Pipelines) == 0 {
		s := open.ChooseStore(conf, q.storeName, wrong)
		if s == nil {
			return nil
		}
		scope := q.scope
		if !cmd.Flags().Changed("scope") {
			scope = keyrecord.DefaultScope
		}
		return []keyPlace{{store: s.Name, scope: scope}}
	}
	var list []keyPlace
	for _, p := range conf.Pipelines {
		if q.byDigest && p.Store.Name != "" { // a store has one record of a digest, whichever pipelines use it
			place := keyPlace{store: p.Store.Name}
			if !slices.Contains(list, place) {
				list = append(list, place)
			}
			continue
		}
		place := keyPlace{p, p.Store.Name, p.Key.Scope}
		if problem, lacks := conf.Lacks(p.Name, "key.scope"); lacks && !cmd.Flags().Changed("scope") {
			wrong.Addf("%s: or choose the scope with --scope", problem)
		}
		if cmd.Flags().Changed("scope") {
			place.scope = q.scope
		}
		list = append(list, place)
	}
	return list
}

// look reads one place. It returns an answer for each key found there, or one
// answer without a record.
func (q *keyQuestion) look(ctx context.Context, conf *config.File, place keyPlace) ([]KeyAnswer, error) {
	inScope := make([]semel.Key, len(q.keys))
	for i, key := range q.keys {
		inScope[i] = semel.Key{Scope: place.scope, ID: key.ID}
	}
	first := KeyAnswer{Store: place.store}
	var parked []keyrecord.ParkedLine
	var failed error
	if place.pipeline != nil {
		first.Pipeline = place.pipeline.Name
		if q.byDigest && conf.Mode(place.pipeline) == config.Direct {
			first.Unseen = first.Pipeline + " keeps no keys"
			return []KeyAnswer{first}, nil
		}
		if q.byDigest {
			first.Unseen = "the keys of " + first.Pipeline + " are in Kafka, which finds no key by its digest: name the key with --key"
			return []KeyAnswer{first}, nil
		}
		if parked, failed = q.parked(ctx, conf, place.pipeline, inScope); failed != nil {
			failed = fmt.Errorf("read the parked messages of pipeline %s: %w", place.pipeline.Name, term.InOneLine(failed))
		}
	}
	first.Parked = parked
	first.commands = q.retries(parked, first.Pipeline)
	if place.store == "" && conf.Mode(place.pipeline) == config.Direct {
		first.Unseen = place.pipeline.Name + " keeps no keys: it delivers every row of its outbox"
		return []KeyAnswer{first}, failed
	}
	if place.store == "" {
		answers, err := lookInKafka(ctx, conf, place.pipeline, inScope, first)
		return answers, errors.Join(failed, err)
	}
	var reasons term.Problems
	f := &open.StoreFlags{App: q.App, File: q.file, Conf: conf, Name: place.store, Admin: q.admin}
	f.Check(&reasons)
	if len(reasons) > 0 {
		first.Unseen = strings.Join(reasons, "; ")
		return []KeyAnswer{first}, failed
	}
	found, err := q.records(ctx, f, inScope, &first)
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	first.unasked = first.Journal == nil && !slices.ContainsFunc(conf.Stack(place.store), func(s *config.Store) bool { return s.Spec.About().Directory != "" })
	var answers []KeyAnswer
	for _, record := range found {
		answer := first.with(record, place.pipeline)
		answer.commands = append(keyrecord.Commands(&record, f.Flags()), answer.commands...)
		answers = append(answers, answer)
		first.Parked, first.Journal, first.commands, first.unasked = nil, nil, nil, false
	}
	return answers, failed
}

// retries returns the commands that process parked messages again.
func (q *keyQuestion) retries(parked []keyrecord.ParkedLine, pipeline string) []keyrecord.Command {
	var list []keyrecord.Command
	for _, m := range parked {
		words := []string{"semel", "parked", "retry", m.ID, "--config", q.file, "--pipeline", pipeline}
		if q.EnvFile != "" {
			words = append(words, "--env-file", q.EnvFile)
		}
		list = append(list, keyrecord.Command{
			Case: "to process the parked message " + m.ID + " again",
			Line: term.ShellLine(words...),
		})
	}
	return list
}

// records looks the keys up in a store, and adds what else it says about them to an
// answer. Without a record it returns an empty one.
func (q *keyQuestion) records(ctx context.Context, f *open.StoreFlags, keys []semel.Key, answer *KeyAnswer) ([]semel.Record, error) {
	var found []semel.Record
	err := f.WithStore(ctx, func(store semel.Store) (err error) {
		if q.byDigest {
			found, err = f.LookUpDigest(ctx, store, q.digest)
			return err
		}
		if found, err = f.LookUp(ctx, store, keys); err == nil {
			answer.Journal, err = journalOf(ctx, store, keys)
		}
		if err == nil && len(found) == 0 {
			answer.Elsewhere, err = elsewhere(ctx, f, store, keys)
		}
		return err
	})
	switch {
	case err != nil || len(found) > 0:
		return found, err
	case q.byDigest:
		return []semel.Record{{Digest: q.digest}}, nil
	}
	return []semel.Record{{Digest: q.digest, Key: keys[0]}}, nil
}

// elsewhere returns the scopes that have one of the keys, which their own scope lacks.
func elsewhere(ctx context.Context, f *open.StoreFlags, store semel.Store, keys []semel.Key) ([]string, error) {
	likely := []string{keyrecord.DefaultScope}
	for _, p := range f.Conf.PipelinesOn(f.Found.Name) {
		if _, lacks := f.Conf.Lacks(p.Name, "key.scope"); !lacks {
			likely = append(likely, p.Key.Scope)
		}
	}
	var ids []string
	for _, key := range keys {
		ids = append(ids, key.ID)
	}
	found, err := f.Elsewhere(ctx, store, ids, likely)
	return keyrecord.ScopesOf(found), err
}

// journalOf returns the journal of the keys from the process that has the store open, or
// nil if the store is open in this process.
func journalOf(ctx context.Context, store semel.Store, keys []semel.Key) (*remotestore.Journal, error) {
	running, ok := semel.As[*remotestore.Store](store)
	if !ok {
		return nil, nil
	}
	journal, err := running.Journal(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read the journal of the running process: %w", term.InOneLine(err))
	}
	return &journal, nil
}

// journalFacts describes a journal, a line for each entry.
func journalFacts(j *remotestore.Journal) (lines []string) {
	for _, e := range j.Entries {
		line := e.Event
		switch e.Event {
		case semel.Duplicate.String():
			line = "dropped as a duplicate"
		case pipeline.EventFiltered.String():
			line = "new, and filtered out"
		}
		if e.Reason != "" {
			line += " (" + e.Reason + ")"
		}
		line += " at " + term.DisplayTime(e.Time)
		if e.Times > 1 {
			line += fmt.Sprintf(", the last of %d times", e.Times)
		}
		if e.Source != "" {
			line += fmt.Sprintf(", %s/%d/%d", e.Source, e.Partition, e.Offset)
		}
		lines = append(lines, line+", by pipeline "+e.Pipeline)
	}
	since := "the journal has 200,000 entries and reaches back to "
	if j.Start {
		since = "the journal begins at the start of the process, "
	}
	if len(lines) == 0 {
		since = "no entry; " + since
	}
	return append(lines, since+term.DisplayTime(j.Since))
}

// with returns the answer for a record.
func (a KeyAnswer) with(record semel.Record, p *config.Pipeline) KeyAnswer {
	line := keyrecord.NewLine(&record)
	a.record, a.Record, a.Next = record, &line, keyrecord.NextDelivery(&record, p, time.Now())
	return a
}

// lookInKafka returns the changelog's records of the keys. The first answer starts
// with the fields of first.
func lookInKafka(ctx context.Context, conf *config.File, p *config.Pipeline, keys []semel.Key, first KeyAnswer) ([]KeyAnswer, error) {
	if keep := p.Key.Keep; keep != nil && keep.First == nil {
		first.Unseen = p.Name + " keeps the last or newest message of a key (key.keep), and remembers no first one. Its outputs are in the topic of the sink"
		return []KeyAnswer{first}, nil
	}
	known, err := kafkakind.Look(ctx, conf, p, keys)
	switch {
	case errors.Is(err, kafkatxn.ErrNoChangelog):
		first.Unseen = p.Name + " has never run: " + err.Error()
		return []KeyAnswer{first}, nil
	case err != nil:
		return nil, fmt.Errorf("read the changelog of %s: %w", p.Name, err)
	case len(known) == 0:
		known = []kafkatxn.KnownKey{{Key: keys[0]}}
	}
	var answers []KeyAnswer
	for _, k := range known {
		record := semel.Record{Key: k.Key}
		first.Origin = nil
		if k.Topic != "" {
			record = semel.Record{Key: k.Key, Digest: k.Digest, State: semel.Done, FirstSeen: k.FirstSeen, Expires: k.Expires}
			first.Origin = &originLine{k.Topic, k.Partition, k.Offset}
		}
		answers = append(answers, first.with(record, p))
		first.Parked, first.commands = nil, nil
	}
	return answers, nil
}

// parked lists the parked messages of a pipeline that have one of the keys. A
// missing directory counts as empty and is not created.
func (q *keyQuestion) parked(ctx context.Context, conf *config.File, p *config.Pipeline, keys []semel.Key) (list []keyrecord.ParkedLine, err error) {
	letters, ok, err := open.Parked(ctx, q.admin, conf, p)
	if err != nil || !ok {
		return nil, err
	}
	defer func() { err = errors.Join(err, letters.Close()) }()
	err = letters.List(ctx, p.Name, func(m *pipeline.Parked) bool {
		if slices.Contains(keys, m.Key) {
			list = append(list, keyrecord.NewParkedLine(m, q.Redact(m.Error)))
		}
		return true
	})
	return list, err
}

// facts returns a function that writes a line to text, unless its value is empty.
func (q *keyQuestion) facts(text *strings.Builder) func(name, value string) {
	return func(name, value string) {
		if value != "" {
			fmt.Fprintf(text, "%-12s %s\n", name, term.DisplayText(q.Redact(value)))
		}
	}
}

// print writes an answer.
func (q *keyQuestion) print(answer *KeyAnswer, further bool) error {
	if q.JSON {
		return q.PrintJSON(answer)
	}
	var text strings.Builder
	fact := q.facts(&text)
	if further {
		text.WriteString("\n")
	}
	fact("pipeline", answer.Pipeline)
	fact("store", answer.Store)
	fact("not seen", answer.Unseen)
	if answer.Record != nil {
		if err := keyrecord.Write(&text, &answer.record); err != nil {
			return err
		}
	}
	if scopes := answer.Elsewhere; len(scopes) > 0 {
		fact("elsewhere", "it is in "+keyrecord.InScopes(scopes)+": "+keyrecord.ChooseScope(scopes))
	}
	if o := answer.Origin; o != nil {
		fact("origin", fmt.Sprintf("%s %d/%d", o.Topic, o.Partition, o.Offset))
	}
	for _, m := range answer.Parked {
		fact("parked", fmt.Sprintf("%s, since %s, after %s: %s", m.ID, m.At, term.Plural(m.Attempts, "attempt"), m.Why()))
	}
	if answer.Journal != nil {
		for _, line := range journalFacts(answer.Journal) {
			fact("journal", line)
		}
	}
	if answer.unasked {
		fact("journal", "not asked: name the running process with --admin ADDRESS")
	}
	fact("next time", answer.Next)
	if err := keyrecord.WriteCommands(&text, answer.commands); err != nil {
		return err
	}
	_, err := q.Stdout.Write([]byte(text.String()))
	return err
}
