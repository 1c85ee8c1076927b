package page

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// changeFor limits the time for the change of one key.
	changeFor = 20 * time.Second
	// searchFor limits the search of sources and sinks, and searchMost their messages.
	searchFor  = 10 * time.Second
	searchMost = 100_000
	searchBack = 24 * time.Hour
	// mostReadings limits the readings of one key in a form.
	mostReadings = 16
)

// keyForm is what the form for the search has. Its values are those of the last search.
type keyForm struct {
	Pipelines []string
	Proxy     bool
	Pipeline  string
	ID        string
	JSON      bool
	Caller    string
	Headers   string
	Message   string
	Wrong     string
}

// keyData is what the page about a key shows.
type keyData struct {
	Form keyForm
	// Said says what was done to the key.
	Said     string
	Warnings []string
	// Waiting are the parked messages of a key that was changed.
	Waiting []notice
	// Found: a key was searched for.
	Found   bool
	Nothing bool
	// Next says what the next delivery of a key gets of which nothing is known, or "".
	Next   string
	Failed string
	// Now says where messages of the key are that were read and are not settled, and Troubles
	// why pipelines deliver nothing now.
	Now, Troubles []string
	Answers       []answerView
	Events        []facts.Event
	Picture       *timeline
	Looked        []string
	status        int
	// Refs are the readings of the key, for a search of sources and sinks.
	Refs []string
}

// answerView is what a place says of the key.
type answerView struct {
	Pipeline, Store string
	Facts           []keyrecord.Fact
	Next            string
	Parked          []facts.Parked
	Elsewhere       string
	Commands        []keyrecord.Command
	Change          *changeForm // nil if this person cannot change it now
}

// changeForm changes a key.
type changeForm struct {
	Store, Ref, Expect string
	// Unknown: the key is settled. Otherwise it is released.
	Unknown bool
	// Filtered: the latest delivery of a done key had no effect, because the filter dropped it.
	Filtered bool
}

// refOf names the key of a record in a form.
func refOf(r *semel.Record) string {
	if r.Key.ID == "" {
		return "d." + r.Digest.String()
	}
	return "k." + base64.RawURLEncoding.EncodeToString([]byte(r.Key.Scope)) + "." + base64.RawURLEncoding.EncodeToString([]byte(r.Key.ID))
}

// parseRef returns a record with the key that refOf names.
func parseRef(text string) (*semel.Record, error) {
	kind, rest, _ := strings.Cut(text, ".")
	switch kind {
	case "d":
		if d, ok := keyrecord.ParseDigest(rest); ok {
			return &semel.Record{Digest: d}, nil
		}
	case "k":
		scope, id, _ := strings.Cut(rest, ".")
		s, wrong := base64.RawURLEncoding.DecodeString(scope)
		i, err := base64.RawURLEncoding.DecodeString(id)
		if cmp.Or(wrong, err) == nil && len(i) > 0 {
			return &semel.Record{Key: semel.Key{Scope: string(s), ID: string(i)}}, nil
		}
	}
	return nil, refuse(http.StatusBadRequest, "the form does not name a key: open the page again")
}

// keyFormOf returns the form for a search, with the values of the request.
func keyFormOf(v *visit) keyForm {
	get := v.r.PostForm.Get
	f := keyForm{Proxy: v.Conf.Proxy != nil, Pipeline: get("pipeline"), ID: get("id"), JSON: get("json") != "", Caller: get("caller"), Headers: get("headers"), Message: get("message")}
	for _, p := range v.pipelines() {
		f.Pipelines = append(f.Pipelines, p.Name)
	}
	return f
}

// keyPage shows the key that a link names, or the form for the search. A link has a digest, or a
// parkedPage message, so that no id is in a URL.
func keyPage(v *visit) error {
	query := v.r.URL.Query()
	switch {
	case query.Get("digest") != "":
		d, ok := keyrecord.ParseDigest(query.Get("digest"))
		if !ok {
			return refuse(http.StatusBadRequest, "this is no digest of a key")
		}
		return keyOfRecord(v, query.Get("store"), &semel.Record{Digest: d}, &keyData{})
	case query.Get("message") != "":
		p, err := v.pipelineOf(query.Get("pipeline"))
		if err != nil {
			return err
		}
		m, err := messageOf(v, p, query.Get("message"))
		if err != nil {
			return err
		}
		if m.Key.ID == "" {
			return refuse(http.StatusNotFound, "the parked message %s has no key", m.ID)
		}
		return answerKey(v, placesOf(v, p, nil), []string{m.Key.ID}, false, &keyData{})
	}
	return v.show(http.StatusOK, "key", "Key", &keyData{Form: keyFormOf(v)})
}

// keyOfRecord shows the key of a record in a store.
func keyOfRecord(v *visit, store string, r *semel.Record, d *keyData) error {
	if _, ok := v.Conf.Store(store); !ok {
		return refuse(http.StatusNotFound, "there is no store %q", store)
	}
	if r.Key.ID == "" { // it may be known
		if now, err := recordOf(v, store, r); err == nil && now.Key.ID != "" {
			r = now
		}
	}
	if r.Key.ID == "" {
		q := questionOf(v)
		q.Digest, q.ByDigest = r.Digest, true
		return askAll(v, q, []facts.Place{{Store: store}}, d)
	}
	var places []facts.Place
	for _, p := range v.pipelines() {
		if p.Store.Name == store && p.Key.Scope == r.Key.Scope {
			places = append(places, facts.Place{Pipeline: p, Store: store, Scope: r.Key.Scope})
		}
	}
	if places == nil {
		places = []facts.Place{{Store: store, Scope: r.Key.Scope}}
	}
	return answerKey(v, places, []string{r.Key.ID}, false, d)
}

// recordOf looks at a record in a store.
func recordOf(v *visit, store string, r *semel.Record) (now *semel.Record, err error) {
	err = v.onStore(store, func(by *facts.Hands) error {
		now, err = by.Again(v.r.Context(), r)
		return err
	})
	return now, err
}

// questionOf returns a question to this process.
func questionOf(v *visit) *facts.Question {
	q := facts.NewQuestion(v.App)
	q.File, q.Conf, q.Process, q.Quick = v.File, v.Conf, v.Process, true
	q.Since, q.Patience, q.Most = searchBack, searchFor, searchMost
	q.Down = v.silent
	q.Status = func(ctx context.Context) *admin.Status { return v.now(ctx) }
	q.ParkedOf = func(ctx context.Context, p *config.Pipeline, fn func(*pipeline.Parked) bool) error {
		list, err := parkedOf(v, ctx, p)
		if err == nil && p.Parked.Path != "" { // a table is in the audit log of its store
			err = withLetters(v, ctx, p, func(letters pipeline.DeadLetters) error {
				q.ParkedByHand(ctx, letters, p)
				return nil
			})
		}
		if err == nil {
			for _, m := range list.messages {
				if !v.operates() {
					m.Error = v.failure(m.Error)
				}
				if !fn(&m) {
					break
				}
			}
		}
		return err
	}
	return q
}

// placesOf returns where the key of one pipeline, or of all and of the proxy if it is nil, may be.
// each gets the pipelines.
func placesOf(v *visit, only *config.Pipeline, each func(*config.Pipeline)) (places []facts.Place) {
	for _, p := range v.pipelines() {
		if only == nil || p == only {
			places = append(places, facts.Place{Pipeline: p, Store: p.Store.Name, Scope: p.Key.Scope})
			if each != nil {
				each(p)
			}
		}
	}
	if p := v.Conf.Proxy; p != nil && only == nil {
		places = append(places, facts.Place{Store: p.Store.Name, Scope: p.Scope})
	}
	return places
}

// findKey searches for the key that the form describes.
func findKey(v *visit) error {
	form := keyFormOf(v)
	wrong := func(err error) error {
		form.Wrong = v.App.Redact(term.PlainText(err.Error()))
		return v.show(http.StatusUnprocessableEntity, "key", "Key", &keyData{Form: form})
	}
	var only *config.Pipeline
	if form.Pipeline != "" {
		p, err := v.pipelineOf(form.Pipeline)
		if err != nil {
			return wrong(err)
		}
		only = p
	}
	var ids []string
	switch refs := v.r.PostForm["ref"]; {
	case len(refs) > 0: // a search of sources and sinks for a key that was found before
		switch {
		case !v.operates():
			return refuse(http.StatusForbidden, "only an operator searches sources and sinks, which gives their servers work")
		case len(refs) > mostReadings:
			return refuse(http.StatusBadRequest, "the form has more than %d readings of a key: open the page again", mostReadings)
		}
		end, err := alone(v.r.Context(), v.searching, "search")
		if err != nil {
			return err
		}
		defer end()
		for _, ref := range refs {
			r, err := parseRef(ref)
			if err != nil {
				return err
			}
			if r.Key.ID != "" && !slices.Contains(ids, r.Key.ID) {
				ids = append(ids, r.Key.ID)
			}
		}
		return answerKey(v, placesOf(v, only, nil), ids, true, &keyData{Form: form})
	case form.Caller != "":
		p := v.Conf.Proxy
		if p == nil || form.ID == "" {
			return wrong(errors.New("a caller needs an Idempotency-Key as the ID, and a process that is a proxy"))
		}
		q := questionOf(v)
		q.IDs, q.Caller, q.Key = keyrecord.IDsOfCaller(form.Caller, form.ID), form.Caller, form.ID
		return askAll(v, q, []facts.Place{{Store: p.Store.Name, Scope: p.Scope}}, &keyData{Form: form})
	case form.Message != "" || strings.TrimSpace(form.Headers) != "":
		id, err := idOfMessage(v, only, &form)
		if err != nil {
			return wrong(err)
		}
		return answerKey(v, placesOf(v, only, nil), []string{id}, false, &keyData{Form: form})
	case form.ID == "":
		return wrong(errors.New("write the ID of a key, or paste a message"))
	case form.JSON:
		id, err := jsonid.NewParser().ID([]byte(form.ID))
		if err != nil {
			return wrong(fmt.Errorf("ID: %w", err))
		}
		ids = []string{id}
	default:
		var err error
		if ids, err = keyrecord.IDReadings([]string{form.ID}); err != nil {
			return wrong(err)
		}
		if form.ID[0] == '"' || form.ID[0] == '[' { // as the lists show some keys
			if id, err := jsonid.NewParser().ID([]byte(form.ID)); err == nil {
				ids = append(ids, id)
			}
		}
	}
	places := placesOf(v, only, func(p *config.Pipeline) {
		for _, id := range keyrecord.Shaped(p.Key.Rule, ids) {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	})
	return answerKey(v, places, ids, false, &keyData{Form: form})
}

// idOfMessage returns the id of a pasted message.
func idOfMessage(v *visit, p *config.Pipeline, form *keyForm) (string, error) {
	if p == nil {
		switch len(form.Pipelines) {
		case 0:
			return "", errors.New("no pipeline is here, whose key rule would find the key in the message: write the ID")
		case 1:
		default:
			return "", errors.New("choose the pipeline whose key rule finds the key in the message")
		}
		p, _ = v.Conf.Pipeline(form.Pipelines[0])
	}
	if p.Key.Rule == nil {
		return "", fmt.Errorf("the key rule of pipeline %s needs a value that this machine lacks: write the ID", p.Name)
	}
	var headers []semel.Header
	for line := range strings.Lines(form.Headers) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" {
			return "", fmt.Errorf("header %q: write NAME: VALUE", line)
		}
		headers = append(headers, semel.Header{Name: name, Value: []byte(strings.TrimSpace(value))})
	}
	id, err := facts.IDOf(p, headers, []byte(strings.ReplaceAll(form.Message, "\r\n", "\n"))) // as browsers write line ends
	if err != nil {
		return "", fmt.Errorf("the message has no key by the rule %s of pipeline %s: %w", p.Key.Rule, p.Name, err)
	}
	return id, nil
}

// answerKey shows what is known of a key with some readings.
func answerKey(v *visit, places []facts.Place, ids []string, search bool, d *keyData) error {
	q := questionOf(v)
	q.IDs, q.Searches, q.AnyCaller = ids, search, true
	return askAll(v, q, places, d)
}

// askAll asks a question and shows the answer.
func askAll(v *visit, q *facts.Question, places []facts.Place, d *keyData) error {
	answer, err := q.Ask(v.r.Context(), places)
	if answer == nil {
		return err
	}
	d.Form.Wrong = ""
	if d.Form.Pipelines == nil {
		d.Form = keyFormOf(v)
	}
	d.Found, d.Nothing, d.Events, d.Looked = true, answer.Nothing(), answer.Events, answer.Looked
	if err != nil {
		d.Failed = v.App.Redact(term.PlainText(term.JoinLines(err.Error())))
	}
	if d.Nothing && err == nil && answer.Known() != nil {
		d.Next = answer.Next
	}
	for i := range answer.Now {
		d.Now = append(d.Now, facts.Doing(&answer.Now[i], time.Now()))
	}
	d.Troubles = answer.Troubles
	if d.Said != "" && d.status == 0 {
		for i := range answer.Parked {
			m := &answer.Parked[i]
			d.Waiting = append(d.Waiting, notice{
				Detail: facts.Detail{Text: "A message of this key is parked, and stays so: process it again, so that it has its effect or is found to be a duplicate"},
				Link:   "message?" + url.Values{"pipeline": {m.By}, "id": {m.ID}}.Encode(), Label: "parked message " + m.ID,
			})
		}
	}
	d.Picture = newTimeline(answer.Events, time.Now())
	for i, a := range append([]*facts.Answer{answer}, answer.Others...) {
		if d.Nothing && a.Known() == nil {
			continue
		}
		view := answerView{Pipeline: a.Pipeline, Store: a.Store, Next: v.App.Redact(a.Next)}
		if i == 0 {
			view.Parked = a.Parked
		}
		view.Commands = a.Cases()
		if r := a.Known(); r != nil {
			view.Facts = keyrecord.Facts(r)
			if v.who.Role >= admin.Operator && a.Store != "" && (r.State == semel.Unknown || r.State == semel.Done) {
				view.Change = &changeForm{Store: a.Store, Ref: refOf(r), Expect: facts.Version(r), Unknown: r.State == semel.Unknown, Filtered: a.Filtered()}
			}
		}
		if len(a.Elsewhere) > 0 {
			view.Elsewhere = keyrecord.InScopes(a.Elsewhere)
		}
		d.Answers = append(d.Answers, view)
	}
	if !q.ByDigest && !q.Searches && v.operates() {
		for _, id := range q.IDs {
			d.Refs = append(d.Refs, refOf(&semel.Record{Key: semel.Key{ID: id}}))
		}
	}
	return v.show(cmp.Or(d.status, http.StatusOK), "key", "Key", d)
}

// changeKey settles or releases a key, if it is still what was shown.
func changeKey(v *visit) error {
	form := v.r.PostForm
	by, err := v.by()
	if err != nil {
		return err
	}
	r, err := parseRef(form.Get("ref"))
	if err != nil {
		return err
	}
	store, d := form.Get("store"), &keyData{}
	if err := changeShown(v, by, store, r, d); err != nil {
		return err
	}
	v.unknownLists.named(store).forget()
	v.status.forget()
	return keyOfRecord(v, store, r, d)
}

// changeShown changes a record, if it is still what was shown.
func changeShown(v *visit, by keyrecord.By, store string, r *semel.Record, d *keyData) error {
	end, err := alone(v.r.Context(), v.changing, "change")
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), changeFor) // a browser that goes away does not cut a change
	defer cancel()
	return v.onStore(store, func(hands *facts.Hands) error {
		now, err := hands.Again(ctx, r)
		if err != nil {
			return err
		}
		if facts.Version(now) != v.r.PostForm.Get("expect") {
			d.status = http.StatusConflict
			d.Said = fmt.Sprintf("Nothing was changed: the record changed since it was shown. It is %s now.", now.State)
			return nil
		}
		return changeRecord(ctx, v, hands, by, store, now, v.r.PostForm.Get("do"), d)
	})
}

// changeRecord changes one record and says so.
func changeRecord(ctx context.Context, v *visit, hands *facts.Hands, by keyrecord.By, store string, r *semel.Record, do string, d *keyData) error {
	switch do {
	case "done":
		window, of := facts.WindowOf(v.Conf, store, r)
		if err := hands.Settle(ctx, by, r, semel.Done, window); err != nil {
			return settling(err)
		}
		d.Said = "The key is done: it is remembered for " + schema.Duration(window)
		if of != "" {
			d.Said += ", the window of pipeline " + of
		}
		d.Said += "."
	case "absent":
		if err := hands.Settle(ctx, by, r, semel.Absent, 0); err != nil {
			return settling(err)
		}
		d.Said = "The key is absent: the next delivery of its message has its effect."
	case "release":
		// Remove takes no expected state. A done record can only change by its end, so it is not
		// released shortly before: the next claim would lose its record.
		switch left := time.Until(r.Expires); {
		case r.State != semel.Done:
			return refuse(http.StatusConflict, "nothing was changed: the key is %s, and only a key that is done is released here", r.State)
		case !r.Expires.IsZero() && left < 2*changeFor:
			return refuse(http.StatusConflict, "nothing was changed: the key expires by itself at %s: wait for that", term.DisplayTime(r.Expires))
		}
		if err := hands.Forget(ctx, by, r); err != nil {
			return settling(err)
		}
		d.Said = "The key is released: the next delivery of its message is processed again."
		d.Warnings = facts.DropWarnings(v.Conf, store, r, time.Now())
	default:
		return refuse(http.StatusBadRequest, "choose what happens to the key")
	}
	return nil
}

// settling adds the status to an error of a change.
func settling(err error) error {
	switch {
	case errors.Is(err, facts.ErrChanged):
		return &statusError{http.StatusConflict, err}
	case errors.Is(err, semel.ErrNotUnknown):
		return &statusError{http.StatusConflict, errors.New("nothing was changed: the key is no longer unknown, because its holder or another operator settled it")}
	}
	return err
}
