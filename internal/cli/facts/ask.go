package facts

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

// Question asks for everything that is known of a key. NewQuestion makes one.
type Question struct {
	*term.App
	// File is the name of the configuration in command lines.
	File string
	Conf *config.File
	// Admin is the admin server to ask, or "". Process is this process, if it is the one that
	// has the stores open, or nil.
	Admin   string
	Process *admin.Process
	// Quick: walk over no store to find the key in another scope.
	Quick bool
	// Down returns why a store is not asked. Defaults to asking each.
	Down func(store string) error
	// Status returns the status of the pipelines. Defaults to the answer of the running process.
	Status func(ctx context.Context) *admin.Status
	// ParkedOf lists the parked messages of a pipeline. Defaults to all of its place.
	ParkedOf func(ctx context.Context, p *config.Pipeline, fn func(*pipeline.Parked) bool) error
	// IDs are readings of the KEY. If ByDigest is set, the key is that of Digest instead.
	IDs      []string
	Digest   semel.Digest
	ByDigest bool
	// Caller and Key are the caller and the value of an Idempotency-Key, if IDs are its ids.
	Caller, Key string
	// AnyCaller: without a Caller, look for the Idempotency-Key of any caller of the proxy.
	AnyCaller bool
	// Searches: look for messages of the key in sources and sinks too. Since, Patience and Most
	// limit the search: how far back it reads, for how long, and how many messages of each
	// partition.
	Searches        bool
	Since, Patience time.Duration
	Most            int64

	// late are the pipelines that remember a late delivery of the key, and filtered says when one
	// last filtered a delivery out.
	late     map[string]bool
	filtered map[string]time.Time

	findings
}

// NewQuestion returns a question about no key yet.
func NewQuestion(a *term.App) *Question {
	return &Question{App: a, late: map[string]bool{}, filtered: map[string]time.Time{}, findings: findings{seen: map[Event]bool{}}}
}

// Place is one that may have a record of the key.
type Place struct {
	Pipeline *config.Pipeline // nil for a store without one
	Store    string           // "" if the pipeline keeps its keys elsewhere, or none
	Scope    string
	answer   *Answer // the first one, once it was asked
}

// Ask asks all places. If a place cannot be asked, it continues with the others, and returns
// the answer with the error.
func (q *Question) Ask(ctx context.Context, places []Place) (*Answer, error) {
	if err := open.CheckProcess(ctx, q.Admin, q.Conf); err != nil {
		return nil, err
	}
	var failed error
	for i := range places {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		failed = errors.Join(failed, q.askPlace(ctx, &places[i]))
	}
	if now := q.status(ctx); now != nil {
		for _, at := range places {
			if at.answer != nil && at.Pipeline != nil {
				at.answer.trouble = TroubleOf(now, at.Pipeline.Name)
			}
		}
	}
	since := time.Now().Add(-q.Since) // for all pipelines, of which two may read one topic
	for i := range places {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if q.Searches && places[i].Pipeline != nil && !q.ByDigest {
			failed = errors.Join(failed, q.searchMessages(ctx, &places[i], since))
		}
	}
	return q.whole(q.App, q.IDs, failed != nil), failed
}

// statusFor limits the question what the running process does.
const statusFor = 2 * time.Second

// status returns the status of the pipelines, or nil if no process answers.
func (q *Question) status(ctx context.Context) *admin.Status {
	if q.Status != nil {
		return q.Status(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, statusFor)
	defer cancel()
	now, err := open.StatusOf(ctx, q.Conf, q.Admin)
	if err != nil {
		return nil
	}
	return now
}

// String names a place for people.
func (at *Place) String() string {
	switch {
	case at.Pipeline == nil:
		return "store " + at.Store
	case at.Store == "":
		return "keys of " + at.Pipeline.Name
	}
	return "store " + at.Store + ", pipeline " + at.Pipeline.Name
}

// askPlace adds an answer for each key that is found in a place, or one without a record.
func (q *Question) askPlace(ctx context.Context, at *Place) (failed error) {
	keys := open.InEach([]string{at.Scope}, q.IDs)
	first := &Answer{Store: at.Store}
	if at.Pipeline != nil {
		first.Pipeline = at.Pipeline.Name
		if at.Store == "" && q.ByDigest {
			q.Remark("%s: not seen: they have no digest there: name the KEY", at)
			return nil
		}
		if failed = q.findParked(ctx, at.Pipeline, keys, first); failed != nil {
			failed = fmt.Errorf("read the parked messages of pipeline %s: %w", first.Pipeline, term.InOneLine(failed))
		}
	}
	at.answer, q.answers = first, append(q.answers, first)
	if at.Store == "" { // the source reports the records, if it has them
		if q.Conf.Mode(at.Pipeline) == config.Direct {
			q.Remark("%s: not seen: %s keeps no keys: it delivers every row of its outbox", at, first.Pipeline)
		}
		return failed
	}
	if q.Down != nil {
		if err := q.Down(at.Store); err != nil {
			q.Remark("%s: not asked", at)
			return errors.Join(failed, err)
		}
	}
	var reasons term.Problems
	f := &open.StoreFlags{App: q.App, File: q.File, Conf: q.Conf, Name: at.Store, Admin: q.Admin, Process: q.Process, Quick: q.Quick, ReadOnly: true}
	if f.Check(&reasons); len(reasons) > 0 {
		q.Remark("%s: not seen: %s", at, strings.Join(reasons, "; "))
		return failed
	}
	found, err := q.records(ctx, f, at, keys, first)
	if err != nil {
		q.Remark("%s: it could not be asked", at)
		return errors.Join(failed, err)
	}
	q.take(at, found, f.Flags())
	return failed
}

// take adds the records that a place has of the keys. store are the flags that name its
// store, or nil if it has none.
func (q *Question) take(at *Place, found []semel.Record, store []string) {
	for i := range found {
		answer := at.answer
		if i > 0 {
			answer = &Answer{Pipeline: answer.Pipeline, Store: answer.Store}
			q.answers = append(q.answers, answer)
		}
		r := &found[i]
		line := keyrecord.NewLine(r)
		answer.record, answer.Record, answer.Next = *r, &line, keyrecord.NextDelivery(r, at.Pipeline, time.Now())
		answer.filtered = r.State == semel.Done && at.Pipeline != nil && q.filtered[at.Pipeline.Name].After(r.FirstSeen)
		if p := at.Pipeline; r.State == semel.Absent && p != nil && q.late[p.Name] && p.OnLate != "run" {
			answer.Next = keyrecord.LateAgain(p)
		}
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
func (q *Question) records(ctx context.Context, f *open.StoreFlags, at *Place, keys []semel.Key, answer *Answer) ([]semel.Record, error) {
	var found []semel.Record
	err := f.WithStore(ctx, func(store semel.Store) (err error) {
		if q.ByDigest {
			if found, err = f.LookUpDigest(ctx, store, q.Digest); err == nil {
				q.Remark("%s: by the digest", at)
				q.changedInStore(ctx, store, at, nil)
			}
			return err
		}
		if found, err = f.LookUp(ctx, store, keys); err == nil {
			q.Remark("%s: scope %s", at, keyrecord.DisplayScope(at.Scope))
			if len(found) == 0 {
				found = q.ofUser(ctx, store, at)
			}
			for i := range found {
				if !slices.Contains(keys, found[i].Key) {
					keys = append(keys, found[i].Key)
				}
			}
			err = q.journal(ctx, store, at, keys)
			q.changedInStore(ctx, store, at, keys)
		}
		if err == nil && len(found) == 0 {
			likely := []string{keyrecord.DefaultScope}
			for _, p := range q.Conf.PipelinesOn(at.Store) {
				if _, lacks := q.Conf.Lacks(p.Name, "key.scope"); !lacks {
					likely = append(likely, p.Key.Scope)
				}
			}
			var elsewhere []semel.Record
			elsewhere, err = f.Elsewhere(ctx, store, q.IDs, likely)
			answer.Elsewhere = keyrecord.ScopesOf(elsewhere)
		}
		return err
	})
	if err == nil && len(found) == 0 {
		found = []semel.Record{{Digest: q.Digest}}
		if !q.ByDigest {
			found[0].Key = keys[0]
		}
	}
	return found, err
}

// ofUser returns the records of an Idempotency-Key of any caller, or of one who is a user of
// HTTP Basic authentication. The name of the latter has a digest of the password, which the
// person who asks does not have.
func (q *Question) ofUser(ctx context.Context, store semel.Store, at *Place) []semel.Record {
	p := q.Conf.Proxy
	switch {
	case p == nil || at.Store != p.Store.Name || at.Scope != p.Scope:
		return nil
	case q.Caller == "" && q.AnyCaller && len(q.IDs) > 0:
		found, _ := keyrecord.OfCallers(ctx, store, at.Scope, q.IDs[0], func(string) bool { return true })
		q.Remark("%s: the Idempotency-Key of any caller: %s, of the ids that the store keeps", at, term.Plural(len(found), "key"))
		return found
	case q.Caller == "" || p.Caller.Kind != "basic":
		return nil
	}
	found, _ := keyrecord.OfCallers(ctx, store, at.Scope, q.Key, keyrecord.AnyPassword(q.Caller))
	q.Remark("%s: the user %s with any password: %s, of the ids that the store keeps", at, q.Caller, term.Plural(len(found), "key"))
	return found
}

// journal adds what the process that has the store open remembers of deliveries.
func (q *Question) journal(ctx context.Context, store semel.Store, at *Place, keys []semel.Key) error {
	var journal admin.KeyJournal
	running, ok := semel.As[*admin.Store](store)
	switch {
	case q.Process != nil && q.Process.Journal != nil:
		journal = q.Process.Journal.Of(keys...)
	case !ok:
		if !slices.ContainsFunc(q.Conf.Stack(at.Store), func(s *config.Store) bool { return s.Spec.About().Directory != "" }) {
			q.Remark("journal of store %s: not asked: name the running process with --admin ADDRESS", at.Store)
		}
		return nil
	default:
		var err error
		if journal, err = running.Journal(ctx, keys); err != nil {
			return fmt.Errorf("read the journal of the running process: %w", term.InOneLine(err))
		}
	}
	for _, at := range journal.Now {
		if !slices.Contains(q.now, at) { // the process answers for all its stores
			q.now = append(q.now, at)
		}
	}
	for _, e := range journal.Entries {
		switch e.Event {
		case semel.Late.String():
			q.late[e.Pipeline] = true
		case pipeline.EventFiltered.String():
			q.filtered[e.Pipeline] = e.Time
		}
		q.add(e.Time, "process of "+e.Pipeline, happened(&e))
	}
	since := "the journal has 200,000 entries and reaches back to "
	if journal.Start {
		since = "the journal begins at the start of the process, "
	}
	if len(journal.Entries) == 0 {
		since = "no entry; " + since
	}
	q.Remark("journal of store %s, scope %s: %s%s", at.Store, keyrecord.DisplayScope(at.Scope), since, term.DisplayTime(journal.Since))
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
	case semel.InFlight.String():
		said = "another delivery held the key"
	case pipeline.EventDiffering.String():
		said = "a duplicate whose content differs from that of the first message"
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
func (q *Question) findParked(ctx context.Context, p *config.Pipeline, keys []semel.Key, answer *Answer) (failed error) {
	list := q.ParkedOf
	if list == nil {
		letters, ok, err := open.Parked(ctx, q.Admin, q.Conf, p)
		if err != nil || !ok {
			return err
		}
		defer func() { failed = errors.Join(failed, letters.Close()) }()
		q.ParkedByHand(ctx, letters, p)
		list = func(ctx context.Context, p *config.Pipeline, fn func(*pipeline.Parked) bool) error {
			return letters.List(ctx, p.Name, fn)
		}
	}
	where := "parked messages of " + p.Name
	return list(ctx, p, func(m *pipeline.Parked) bool {
		if !slices.Contains(keys, m.Key) {
			return true
		}
		line := Parked{m.ID, string(m.Reason), where, term.JSONTime(m.At), q.Redact(m.Error), m.Attempts, m.Queued, p.Name}
		q.parked, answer.parked = append(q.parked, line), true
		q.add(m.At, where, fmt.Sprintf("parked as %s after %s: %s", m.ID, term.Plural(m.Attempts, "attempt"), line.Why()))
		words := []string{"semel", "parked", "retry", m.ID, "--config", q.File, "--pipeline", p.Name}
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
func (q *Question) searchMessages(ctx context.Context, at *Place, since time.Time) (failed error) {
	p, keys := at.Pipeline, open.InEach([]string{at.Scope}, q.IDs)
	if q.Conf.LacksAny(p.Name) { // so --admin was given
		q.Remark("source and sink of %s: not searched: %s has values that this machine lacks", p.Name, q.Conf.Name)
		return nil
	}
	t := &config.Tracing{
		File: q.Conf, Since: since, Most: q.Most, Keys: keys,
		Found:  func(s config.Sighting) { q.add(s.Time, s.Place, s.What) },
		Looked: func(text string) { q.Remark("%s", text) },
		Known: func(records []semel.Record) {
			if len(records) == 0 {
				records = []semel.Record{{Key: keys[0]}}
			}
			q.Remark("%s: scope %s", at, keyrecord.DisplayScope(at.Scope))
			q.take(at, records, nil)
		},
	}
	for _, end := range []struct {
		what, name string
		trace      func(context.Context, *config.Pipeline, *config.Tracing) error
	}{{"source", p.Source.About(p).Name, p.Source.Trace}, {"sink", p.Sink.About().Name, p.Sink.Trace}} {
		patient, cancel := context.WithTimeout(ctx, q.Patience)
		err := end.trace(patient, p, t)
		if patient.Err() != nil && ctx.Err() == nil && err != nil {
			err = fmt.Errorf("no end in %s: choose a longer --timeout: %w", term.FormatElapsed(q.Patience), err)
		}
		cancel()
		if errors.Is(err, config.ErrUnsearched) {
			t.Unsearched(end.what, p.Name, end.name)
			continue
		}
		if err != nil {
			q.Remark("%s of %s: it could not be searched", end.what, p.Name)
			failed = errors.Join(failed, fmt.Errorf("%s of pipeline %s: %w", end.what, p.Name, term.InOneLine(q.Conf.RedactError(err))))
		}
	}
	return failed
}

// IDOf returns the id that the key rule of a pipeline, which has one, finds in a message. A line
// end after the body does not count.
func IDOf(p *config.Pipeline, headers []semel.Header, body []byte) (string, error) {
	m := &semel.Message{CaselessHeaders: p.Source.About(p).CaselessHeaders, Headers: slices.Clone(headers)}
	for i := range m.Headers {
		if m.CaselessHeaders {
			m.Headers[i].Name = strings.ToLower(m.Headers[i].Name)
		}
	}
	text, _ := strings.CutSuffix(string(body), "\n") // as programs end a line of text
	m.Body = []byte(strings.TrimSuffix(text, "\r"))
	key, inner, err := p.KeyOf(m)
	if inner != nil {
		if id := p.Key.IDWithout(err, inner.Body); id != nil {
			key.ID, err = string(id), nil
		}
	}
	return key.ID, err
}
