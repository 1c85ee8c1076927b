package whycmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// question asks for everything that is known of a key.
type question struct {
	*term.App
	file, pipeline, storeName string
	scope                     string
	admin                     string // the admin server to ask, or ""
	message                   string // a file with a message, or ""
	headers                   []string
	choice                    keyrecord.KeyFlags
	since, patience           time.Duration
	most                      int64

	conf     *config.File
	ids      []string // readings of the KEY
	digest   semel.Digest
	byDigest bool

	findings
}

// place is one that may have a record of the key.
type place struct {
	pipeline *config.Pipeline // nil for a store without one
	store    string           // "" if the pipeline keeps its keys elsewhere, or none
	scope    string
	answer   *Answer // the first one, once it was asked
}

// answer asks all places and prints the answer. If a place cannot be asked, it continues
// with the others.
func (q *question) answer(ctx context.Context, places []place) error {
	if err := open.CheckProcess(ctx, q.admin, q.conf); err != nil {
		return err
	}
	var failed error
	for i := range places {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		failed = errors.Join(failed, q.askPlace(ctx, &places[i]))
	}
	since := time.Now().Add(-q.since) // for all pipelines, of which two may read one topic
	for i := range places {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if places[i].pipeline != nil && !q.byDigest {
			failed = errors.Join(failed, q.searchMessages(ctx, &places[i], since))
		}
	}
	return errors.Join(q.print(q.App, q.ids, failed != nil), failed)
}

// String names a place for people.
func (at *place) String() string {
	switch {
	case at.pipeline == nil:
		return "store " + at.store
	case at.store == "":
		return "keys of " + at.pipeline.Name
	}
	return "store " + at.store + ", pipeline " + at.pipeline.Name
}

// askPlace adds an answer for each key that is found in a place, or one without a record.
func (q *question) askPlace(ctx context.Context, at *place) (failed error) {
	keys := open.InEach([]string{at.scope}, q.ids)
	first := &Answer{Store: at.store}
	if at.pipeline != nil {
		first.Pipeline = at.pipeline.Name
		if at.store == "" && q.byDigest {
			q.note("%s: not seen: they have no digest there: name the KEY", at)
			return nil
		}
		if failed = q.findParked(ctx, at.pipeline, keys, first); failed != nil {
			failed = fmt.Errorf("read the parked messages of pipeline %s: %w", first.Pipeline, term.InOneLine(failed))
		}
	}
	at.answer, q.answers = first, append(q.answers, first)
	if at.store == "" { // the source reports the records, if it has them
		if q.conf.Mode(at.pipeline) == config.Direct {
			q.note("%s: not seen: %s keeps no keys: it delivers every row of its outbox", at, first.Pipeline)
		}
		return failed
	}
	var reasons term.Problems
	f := &open.StoreFlags{App: q.App, File: q.file, Conf: q.conf, Name: at.store, Admin: q.admin}
	if f.Check(&reasons); len(reasons) > 0 {
		q.note("%s: not seen: %s", at, strings.Join(reasons, "; "))
		return failed
	}
	found, err := q.records(ctx, f, at, keys, first)
	if err != nil {
		q.note("%s: it could not be asked", at)
		return errors.Join(failed, err)
	}
	q.take(at, found, f.Flags())
	return failed
}

// take adds the records that a place has of the keys. store are the flags that name its
// store, or nil if it has none.
func (q *question) take(at *place, found []semel.Record, store []string) {
	for i := range found {
		answer := at.answer
		if i > 0 {
			answer = &Answer{Pipeline: answer.Pipeline, Store: answer.Store}
			q.answers = append(q.answers, answer)
		}
		r := &found[i]
		line := keyrecord.NewLine(r)
		answer.record, answer.Record, answer.Next = *r, &line, keyrecord.NextDelivery(r, at.pipeline, time.Now())
		if store != nil {
			answer.commands = keyrecord.Commands(r, store)
		}
		if r.State != semel.Absent {
			q.add(r.FirstSeen, at.String(), stateOf(r))
		}
	}
}

// records looks the keys up in a store, and adds what else it says about them to an
// answer. Without a record it returns an empty one.
func (q *question) records(ctx context.Context, f *open.StoreFlags, at *place, keys []semel.Key, answer *Answer) ([]semel.Record, error) {
	var found []semel.Record
	err := f.WithStore(ctx, func(store semel.Store) (err error) {
		if q.byDigest {
			if found, err = f.LookUpDigest(ctx, store, q.digest); err == nil {
				q.note("%s: by the digest", at)
			}
			return err
		}
		if found, err = f.LookUp(ctx, store, keys); err == nil {
			q.note("%s: scope %s", at, keyrecord.DisplayScope(at.scope))
			err = q.journal(ctx, store, at, keys)
		}
		if err == nil && len(found) == 0 {
			likely := []string{keyrecord.DefaultScope}
			for _, p := range q.conf.PipelinesOn(at.store) {
				if _, lacks := q.conf.Lacks(p.Name, "key.scope"); !lacks {
					likely = append(likely, p.Key.Scope)
				}
			}
			var elsewhere []semel.Record
			elsewhere, err = f.Elsewhere(ctx, store, q.ids, likely)
			answer.Elsewhere = keyrecord.ScopesOf(elsewhere)
		}
		return err
	})
	if err == nil && len(found) == 0 {
		found = []semel.Record{{Digest: q.digest}}
		if !q.byDigest {
			found[0].Key = keys[0]
		}
	}
	return found, err
}

// journal adds what the process that has the store open remembers of deliveries.
func (q *question) journal(ctx context.Context, store semel.Store, at *place, keys []semel.Key) error {
	running, ok := semel.As[*admin.Store](store)
	if !ok {
		if !slices.ContainsFunc(q.conf.Stack(at.store), func(s *config.Store) bool { return s.Spec.About().Directory != "" }) {
			q.note("journal of store %s: not asked: name the running process with --admin ADDRESS", at.store)
		}
		return nil
	}
	journal, err := running.Journal(ctx, keys)
	if err != nil {
		return fmt.Errorf("read the journal of the running process: %w", term.InOneLine(err))
	}
	for _, e := range journal.Entries {
		q.add(e.Time, "process of "+e.Pipeline, happened(&e))
	}
	since := "the journal has 200,000 entries and reaches back to "
	if journal.Start {
		since = "the journal begins at the start of the process, "
	}
	if len(journal.Entries) == 0 {
		since = "no entry; " + since
	}
	q.note("journal of store %s, scope %s: %s%s", at.store, keyrecord.DisplayScope(at.scope), since, term.DisplayTime(journal.Since))
	return nil
}

// happened says what a journal remembers of one delivery.
func happened(e *admin.JournalEntry) string {
	said := e.Event
	switch e.Event {
	case semel.Duplicate.String():
		said = "dropped as a duplicate"
	case pipeline.EventFiltered.String():
		said = "new, and filtered out"
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
func stateOf(r *semel.Record) string {
	said := "first seen"
	if r.Origin != "" {
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
			said += fmt.Sprintf(" of %d bytes", r.ResultSize)
		}
	}
	return said
}

// findParked adds the parked messages of a pipeline that have one of the keys. A missing
// directory counts as empty and is not created.
func (q *question) findParked(ctx context.Context, p *config.Pipeline, keys []semel.Key, answer *Answer) (err error) {
	letters, ok, err := open.Parked(ctx, q.admin, q.conf, p)
	if err != nil || !ok {
		return err
	}
	defer func() { err = errors.Join(err, letters.Close()) }()
	where := "parked messages of " + p.Name
	return letters.List(ctx, p.Name, func(m *pipeline.Parked) bool {
		if !slices.Contains(keys, m.Key) {
			return true
		}
		line := Parked{m.ID, string(m.Reason), where, term.JSONTime(m.At), q.Redact(m.Error), m.Attempts, m.Queued, p.Name}
		q.parked, answer.parked = append(q.parked, line), true
		q.add(m.At, where, fmt.Sprintf("parked as %s after %s: %s", m.ID, term.Plural(m.Attempts, "attempt"), line.why()))
		words := []string{"semel", "parked", "retry", m.ID, "--config", q.file, "--pipeline", p.Name}
		if q.EnvFile != "" {
			words = append(words, "--env-file", q.EnvFile)
		}
		q.retries = append(q.retries, keyrecord.Command{
			Case: "to process the parked message " + m.ID + " again",
			Line: term.ShellLine(words...),
		})
		return true
	})
}

// searchMessages looks for the key in what source and sink of a pipeline keep since a time.
func (q *question) searchMessages(ctx context.Context, at *place, since time.Time) (failed error) {
	p, keys := at.pipeline, open.InEach([]string{at.scope}, q.ids)
	if q.conf.LacksAny(p.Name) { // so --admin was given
		q.note("source and sink of %s: not searched: %s has values that this machine lacks", p.Name, q.conf.Name)
		return nil
	}
	t := &config.Tracing{
		File: q.conf, Since: since, Most: q.most, Keys: keys,
		Found:  func(s config.Sighting) { q.add(s.Time, s.Place, s.What) },
		Looked: func(text string) { q.note("%s", text) },
		Known: func(records []semel.Record) {
			if len(records) == 0 {
				records = []semel.Record{{Key: keys[0]}}
			}
			q.note("%s: scope %s", at, keyrecord.DisplayScope(at.scope))
			q.take(at, records, nil)
		},
	}
	for _, end := range []struct {
		what, name string
		trace      func(context.Context, *config.Pipeline, *config.Tracing) error
	}{{"source", p.Source.About(p).Name, p.Source.Trace}, {"sink", p.Sink.About().Name, p.Sink.Trace}} {
		patient, cancel := context.WithTimeout(ctx, q.patience)
		err := end.trace(patient, p, t)
		if patient.Err() != nil && ctx.Err() == nil && err != nil {
			err = fmt.Errorf("no end in %s: choose a longer --timeout: %w", term.FormatElapsed(q.patience), err)
		}
		cancel()
		if errors.Is(err, config.ErrUnsearched) {
			t.Unsearched(end.what, p.Name, end.name)
			continue
		}
		if err != nil {
			q.note("%s of %s: it could not be searched", end.what, p.Name)
			failed = errors.Join(failed, fmt.Errorf("%s of pipeline %s: %w", end.what, p.Name, term.InOneLine(q.conf.RedactError(err))))
		}
	}
	return failed
}
