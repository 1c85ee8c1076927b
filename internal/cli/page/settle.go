package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// typedFrom is from how many on a person types the number.
	typedFrom = 101
	// shownAtOnce is how many of them a preview shows.
	shownAtOnce = 100
	// settleFor limits the time for a change.
	settleFor = 2 * time.Minute
)

// previewRow is a message or a key of a preview, with what happens to it.
type previewRow struct{ Name, Key, Reason, Then string }

// previewData is what a preview shows.
type previewData struct {
	Do, What, Action string
	choice
	Count, Chosen int
	Rows          []previewRow
	Hidden        int
	// Picks names what was shown, for the change.
	Picks, Store string
	Typed        bool
	Back         string
}

// verbs are what can be done to parked messages.
var verbs = map[string]string{
	"retry": "process them again, through the same keys", "skip": "give them up: Semel does not process them again", "done": "mark their keys done: they had their effect",
}

// previewParked says what a change of parked messages would do.
func previewParked(v *visit) error {
	do := v.r.PostForm.Get("do")
	what, ok := verbs[do]
	if !ok {
		return refuse(http.StatusUnprocessableEntity, "choose what to do with the messages")
	}
	list, of, err := picked(v)
	if err != nil {
		return err
	}
	d := &previewData{choice: of, Do: do, What: what, Action: "settle", Back: "parked", Chosen: len(list)}
	var picks []string
	for _, of := range byPipeline(list) {
		p, err := v.pipelineOf(of[0].Pipeline)
		if err != nil {
			return err
		}
		now, then, err := foretell(v, v.r.Context(), p, of, do)
		if err != nil {
			return err
		}
		for i := range of {
			row := rowOf(v, &now[i])
			if len(d.Rows) < shownAtOnce {
				d.Rows = append(d.Rows, previewRow{row.Pipeline + " " + row.ID, row.Key, row.Reason, then[i].text})
			} else {
				d.Hidden++
			}
			if then[i].possible {
				picks = append(picks, pick(&now[i]))
			}
		}
	}
	d.Count, d.Picks = len(picks), strings.Join(picks, "\n")
	d.Typed = d.Count >= typedFrom
	return v.show(http.StatusOK, "preview", "Preview", d)
}

// byPipeline returns the messages of each pipeline.
func byPipeline(list []pipeline.Parked) (groups [][]pipeline.Parked) {
	at := map[string]int{}
	for _, m := range list {
		i, ok := at[m.Pipeline]
		if !ok {
			i, groups = len(groups), append(groups, nil)
			at[m.Pipeline] = i
		}
		groups[i] = append(groups[i], m)
	}
	return groups
}

// then is what a change does to a message.
type then struct {
	text     string
	possible bool
}

// foretell says what a change does to messages of a pipeline, which it reads again.
func foretell(v *visit, ctx context.Context, p *config.Pipeline, list []pipeline.Parked, do string) ([]pipeline.Parked, []then, error) {
	now, told := slices.Clone(list), make([]then, len(list))
	for i := range told {
		told[i].text = "it is no longer parked"
	}
	err := withLetters(v, ctx, p, func(letters pipeline.DeadLetters) error {
		topic, _ := letters.(facts.ParkedTopic)
		for i := range list {
			m, err := letters.Get(ctx, list[i].ID)
			switch {
			case errors.Is(err, pipeline.ErrNotParked):
				told[i].text = "it was settled meanwhile"
				continue
			case err != nil:
				return err
			case !same(m, &list[i]):
				told[i].text = "it was redriven since it was shown, and parked again: look at it again"
				continue
			}
			now[i] = bare(m)
			told[i] = foretold(v, p, m, topic, do)
		}
		return nil
	})
	if err == nil && do != "done" {
		err = foretellKeys(v, ctx, p, now, told, do)
	}
	return now, told, err
}

// foretold says what a change does to one message, except for the next delivery of its key.
func foretold(v *visit, p *config.Pipeline, m *pipeline.Parked, topic facts.ParkedTopic, do string) then {
	switch do {
	case "skip":
		return then{"it is removed without an effect; its key stays as it is", true}
	case "done":
		if err := facts.Markable(v.Conf, p); err != nil {
			return then{err.Error(), false}
		}
		if m.Key.ID == "" {
			return then{"it has no key that could be done: skip it", false}
		}
		return then{"its key becomes done, and it is removed", true}
	}
	if how := facts.TooOld(m, p, time.Now()); how != "" {
		return then{facts.NotRedriven + ": " + facts.WhyTooOld(how, p) + ". Check the target; semel parked retry --past-window redrives it", false}
	}
	if topic != nil {
		if err := topic.Redrivable(m); err != nil {
			return then{facts.NotRedriven + ": " + v.App.Redact(term.JoinLines(err.Error())), false}
		}
	}
	return then{"", true}
}

// skipsUnknown warns of giving up a message whose key is unknown.
const skipsUnknown = "it is removed, but its key is unknown: its effect may have happened, and the key stays unknown. Settle the key first: if the effect did not happen, no other message of the key may come"

// foretellKeys says what the next delivery of each message gets, or warns of skipping messages
// whose keys are unknown.
func foretellKeys(v *visit, ctx context.Context, p *config.Pipeline, list []pipeline.Parked, told []then, do string) error {
	var keys []semel.Key
	var of []int
	for i := range list {
		switch {
		case !told[i].possible:
		case list[i].Key.ID == "" && do == "skip":
		case list[i].Key.ID == "":
			told[i].text = "its key is found again, with the current rule of the configuration"
		default:
			keys, of = append(keys, list[i].Key), append(of, i)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	records := make([]semel.Record, len(keys))
	unseen := ""
	if err := facts.Markable(v.Conf, p); err != nil { // the keys are elsewhere, or do not exist
		unseen = "the pipeline decides"
	} else if err := v.onStore(p.Store.Name, func(by *facts.Hands) error { return by.LookUp(ctx, keys, records) }); err != nil {
		unseen = "not known: " + v.App.Redact(term.JoinLines(err.Error()))
	}
	for n, i := range of {
		if do == "skip" {
			if unseen == "" && records[n].State == semel.Unknown || unseen != "" && list[i].Reason == pipeline.ReasonUnknown {
				told[i].text = skipsUnknown
			}
			continue
		}
		if told[i].text = unseen; unseen == "" {
			told[i] = then{keyrecord.NextDelivery(&records[n], p, time.Now()), records[n].State != semel.Unknown}
		}
	}
	return nil
}

// confirmed checks the number that a person typed.
func confirmed(v *visit, count int) error {
	if count < typedFrom {
		return nil
	}
	if typed := strings.ReplaceAll(strings.TrimSpace(v.r.PostForm.Get("count")), ",", ""); typed != strconv.Itoa(count) {
		return refuse(http.StatusUnprocessableEntity, "type the number %d to confirm. Nothing was changed", count)
	}
	return nil
}

// settleParked changes parked messages that a preview showed.
func settleParked(v *visit) error {
	do := v.r.PostForm.Get("do")
	if _, ok := verbs[do]; !ok {
		return refuse(http.StatusUnprocessableEntity, "choose what to do with the messages")
	}
	by, err := v.by()
	if err != nil {
		return err
	}
	list, _, err := picked(v)
	if err != nil {
		return err
	}
	if err := confirmed(v, len(list)); err != nil {
		return err
	}
	end, err := alone(v.r.Context(), v.changing, "change")
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), settleFor) // a browser that goes away does not cut a change
	defer cancel()
	op := &operation{do: do, by: by.Actor, at: time.Now()}
	for _, of := range byPipeline(list) {
		p, err := v.pipelineOf(of[0].Pipeline)
		if err != nil {
			for i := range of {
				op.items = append(op.items, &settled{name: of[i].Pipeline + " " + of[i].ID, outcome: "not done", failed: true, reason: err.Error()})
			}
			continue
		}
		settlePipeline(v, ctx, op, p, of, by)
		v.parkedLists.named(p.Name).forget()
	}
	v.status.forget()
	return v.redirect("outcome?op=" + url.QueryEscape(v.operations.add(op)))
}

// settlePipeline changes parked messages of one pipeline, and notes the outcome of each.
func settlePipeline(v *visit, ctx context.Context, op *operation, p *config.Pipeline, list []pipeline.Parked, by keyrecord.By) {
	items := make([]*settled, len(list))
	for i := range list {
		items[i] = &settled{name: p.Name + " " + list[i].ID, link: "message?" + url.Values{"pipeline": {p.Name}, "id": {list[i].ID}}.Encode(), outcome: "not done", reason: "it is no longer parked"}
	}
	op.items = append(op.items, items...)
	err := withLetters(v, ctx, p, func(letters pipeline.DeadLetters) error {
		var end int64
		if store, ok := letters.(pipeline.DeadLetterStore); ok && op.do == "retry" {
			var err error
			if end, err = store.AuditEnd(ctx); err != nil {
				return err
			}
		}
		for i := range list {
			m, err := letters.Get(ctx, list[i].ID)
			switch {
			case errors.Is(err, pipeline.ErrNotParked):
				continue
			case err != nil:
				return err
			case !same(m, &list[i]):
				items[i].reason = "it was redriven since it was shown, and parked again"
				continue
			}
			items[i].spec, items[i].before, items[i].auditEnd = p, bare(m), end
			if m.Key.ID != "" {
				items[i].key = keyrecord.DisplayID(m.Key.ID)
			}
			by.Message = p.Name + "/" + m.ID
			if err := settleMessage(v, ctx, op.do, p, letters, m, by, items[i]); err != nil {
				items[i].outcome, items[i].failed, items[i].waits, items[i].reason = "failed", true, false, v.App.Redact(term.PlainText(term.JoinLines(err.Error())))
			}
		}
		return nil
	})
	if err != nil {
		for _, item := range items {
			if item.spec == nil {
				item.outcome, item.failed, item.reason = "failed", true, v.App.Redact(term.PlainText(term.JoinLines(err.Error())))
			}
		}
	}
}

// settleMessage changes one parked message.
func settleMessage(v *visit, ctx context.Context, do string, p *config.Pipeline, letters pipeline.DeadLetters, m *pipeline.Parked, by keyrecord.By, item *settled) error {
	takeOut := func(how string) error {
		err := letters.Settle(ctx, m, pipeline.Settlement{How: how, Actor: by.Actor, Reason: by.Reason})
		if errors.Is(err, pipeline.ErrNotParked) {
			item.outcome, item.reason = facts.SettledByOther, ""
			return nil
		}
		item.outcome, item.reason = how, ""
		return err
	}
	switch do {
	case "skip":
		return takeOut(facts.Skipped)
	case "done":
		if err := facts.Markable(v.Conf, p); err != nil {
			return err
		}
		if m.Key.ID == "" {
			return errors.New("it has no key that could be done: skip it")
		}
		if err := v.onStore(p.Store.Name, func(hands *facts.Hands) error { return hands.MakeDone(ctx, by, m.Key, p.Window) }); err != nil {
			return err
		}
		return takeOut(facts.MarkedDone)
	}
	if how := facts.TooOld(m, p, time.Now()); how != "" {
		return errors.New(facts.WhyTooOld(how, p))
	}
	again := func() error {
		if topic, ok := letters.(facts.ParkedTopic); ok {
			places, errs := topic.Redrive(ctx, []*pipeline.Parked{m}, by.Actor)
			if errs[0] == nil {
				item.outcome, item.reason = facts.Redriven, fmt.Sprintf("written to %s/%d at %d, for the running pipeline", places[0].Source, places[0].Partition, places[0].Offset)
			}
			return errs[0]
		}
		item.outcome, item.reason, item.waits = facts.Queued, "", true
		return letters.(pipeline.DeadLetterStore).Queue(ctx, []string{m.ID})
	}
	outcome := keyrecord.OutcomeQueued
	if _, ok := letters.(facts.ParkedTopic); ok {
		outcome = keyrecord.OutcomeWritten
	}
	if facts.Markable(v.Conf, p) != nil { // no store has its key, so the log next to the messages has the change
		return keyrecord.Audited(ctx, letters, "parked retry", by, &semel.Record{Key: m.Key}, semel.Absent, outcome, again)
	}
	return v.onStore(p.Store.Name, func(hands *facts.Hands) error {
		now, err := hands.Again(ctx, &semel.Record{Key: m.Key})
		if m.Key.ID == "" {
			now, err = &semel.Record{}, nil
		}
		if err != nil {
			return err
		}
		if now.State == semel.Unknown {
			return errors.New("its key is unknown, so that it would be parked again: settle the key first")
		}
		return keyrecord.Audited(ctx, hands, "parked retry", by, now, now.State, outcome, again)
	})
}

// outcomeRow is a message or a key of an operation, with what became of it.
type outcomeRow struct {
	Name, Link, Key, Outcome, Reason string
	Failed                           bool
}

// outcomeData is what the page about an operation shows.
type outcomeData struct {
	Do, By   string
	At       time.Time
	Rows     []outcomeRow
	Counts   []fact
	Waiting  bool
	Next     []notice
	KeysDone bool
}

// outcomePage shows what became of messages or keys.
func outcomePage(v *visit) error {
	op := v.operations.named(v.r.URL.Query().Get("op"))
	if op == nil {
		return refuse(http.StatusNotFound, "this change is no longer known: the audit log has it")
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if pause := max(time.Second, followPause*op.took); time.Since(op.followed) > pause { // many people may look
		began := time.Now()
		follow(v, op)
		op.followed, op.took = time.Now(), time.Since(began)
	}
	d := &outcomeData{Do: op.do, By: op.by, At: op.at}
	counts := map[string]int{}
	for _, item := range op.items {
		reason := item.reason
		if item.failure != "" {
			reason += ": " + term.Shorten(v.failure(item.failure), errorWidth)
		}
		d.Rows = append(d.Rows, outcomeRow{item.name, item.link, term.Shorten(item.key, keyWidth), item.outcome, reason, item.failed})
		counts[item.outcome]++
		d.Waiting = d.Waiting || item.waits
	}
	for _, item := range op.items {
		if n := counts[item.outcome]; n > 0 {
			d.Counts = append(d.Counts, fact{item.outcome, term.FormatCount(int64(n))})
			delete(counts, item.outcome)
		}
	}
	if len(d.Rows) > 2*shownAtOnce { // failures and what waits come first
		slices.SortStableFunc(d.Rows, func(a, b outcomeRow) int { return cmp.Compare(rank(a), rank(b)) })
		d.Rows = d.Rows[:2*shownAtOnce]
	}
	if op.do == "resolve" {
		d.Next = parkedUnknown(v)
	}
	return v.show(http.StatusOK, "outcome", "Outcome", d)
}

func rank(r outcomeRow) int {
	switch {
	case r.Failed:
		return 0
	case r.Outcome == facts.Queued:
		return 1
	}
	return 2
}

// parkedUnknown names the pipelines with parked messages whose keys were not known.
func parkedUnknown(v *visit) (list []notice) {
	for _, p := range v.pipelines() {
		of, err := parkedOf(v, v.r.Context(), p)
		if err != nil {
			continue
		}
		messages := make([]*pipeline.Parked, len(of.messages))
		for i := range messages {
			messages[i] = &of.messages[i]
		}
		parked := notice{Link: "parked?" + url.Values{"pipeline": {p.Name}, "reason": {string(pipeline.ReasonUnknown)}}.Encode(), Label: "parked messages of " + p.Name}
		add := func(n int, next notice, what string) {
			if n > 0 {
				next.Detail = facts.Detail{Text: term.Plural(n, "parked message") + " of " + p.Name + ": " + what}
				list = append(list, next)
			}
		}
		keys := keyStatesOf(v, messages)
		add(keys.Settled, parked, "the key is settled: process them again, so that each has its effect or is found to be a duplicate")
		add(keys.Unknown, noticeOf(facts.Detail{Kind: facts.AboutUnknown, Name: p.Store.Name}), "the key is still unknown: settle it first")
		add(keys.Unseen, parked, "the key was unknown, and this page did not look at it now")
	}
	return list
}

// follow finds out what became of the messages that wait. The caller holds op.mu.
func follow(v *visit, op *operation) {
	byPipeline := map[*config.Pipeline][]*settled{}
	for _, item := range op.items {
		if item.waits {
			byPipeline[item.spec] = append(byPipeline[item.spec], item)
		}
	}
	ctx := v.r.Context()
	for p, items := range byPipeline {
		waits := ""
		now := v.now(ctx)
		for i := range now.Pipelines {
			if of := &now.Pipelines[i]; of.Name == p.Name && of.Reason != "" {
				waits = term.Trouble(of.Reason, of.NextAttempt, now.Time)
			}
		}
		err := withLetters(v, ctx, p, func(letters pipeline.DeadLetters) error {
			store, ok := letters.(pipeline.DeadLetterStore)
			if !ok {
				return nil
			}
			found := make([]*pipeline.Parked, len(items))
			for i, item := range items {
				m, err := store.Get(ctx, item.before.ID)
				if err != nil && !errors.Is(err, pipeline.ErrNotParked) {
					return err
				}
				if err == nil {
					found[i] = m
				}
			}
			end, err := store.AuditEnd(ctx)
			if err != nil {
				return err
			}
			fates, err := facts.Fates(ctx, store, items[0].auditEnd) // read last: it has every message that is gone
			if err != nil {
				return err
			}
			for i, item := range items {
				item.auditEnd, item.fate = end, item.fate.And(fates[item.before.ID])
				outcome, reason, failure, gone := facts.Outcome(&item.before, found[i], item.fate, waits)
				item.outcome, item.reason, item.failure = outcome, reason, failure
				item.waits = !gone && outcome == facts.Queued
			}
			return nil
		})
		if err != nil {
			for _, item := range items {
				item.failure, item.reason = "", "not known: "+v.App.Redact(term.JoinLines(err.Error()))
			}
		}
	}
}

// unknownRow is an unknown key in a list.
type unknownRow struct {
	Store, Pick, Key, Scope, Link, Holder, Origin string
	Since                                         time.Time
	Attempts                                      int
}

// unknownOf returns the unknown keys of a store, those first that are unknown for the longest time.
func unknownOf(v *visit, ctx context.Context, name string) (*unknownList, error) {
	return v.unknownLists.named(name).get(ctx, func(ctx context.Context) (*unknownList, error) {
		list := &unknownList{at: time.Now()}
		if err := v.silent(name); err != nil {
			return list, err
		}
		var wrong term.Problems
		f := &open.StoreFlags{App: v.App, File: v.File, Conf: v.Conf, Name: name, Process: v.Process}
		if f.Check(&wrong); len(wrong) > 0 {
			return list, errors.New(strings.Join(wrong, "; "))
		}
		err := f.WithStore(ctx, func(store semel.Store) error {
			lister, err := open.Able[semel.Inspector](f, store, "list keys")
			if err != nil {
				return err
			}
			for record, err := range lister.List(ctx, semel.ListOptions{State: semel.Unknown}) {
				if err != nil {
					return err
				}
				if list.more = len(list.records) == mostListed; list.more {
					break
				}
				list.records = append(list.records, record)
			}
			return nil
		})
		slices.SortStableFunc(list.records, func(a, b semel.Record) int {
			return cmp.Or(a.LeaseEnd.Compare(b.LeaseEnd), cmp.Compare(a.Digest.String(), b.Digest.String()))
		})
		return list, err
	})
}

// older returns the earlier of two times, where zero is no time.
func older(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// unknownData is what the list of unknown keys shows.
type unknownData struct {
	At      time.Time // when the oldest part of the list was read
	Stores  []string
	Store   string
	Rows    []unknownRow
	Pager   pager
	Notes   []string
	Changes bool
}

// unknownPage lists the unknown keys.
func unknownPage(v *visit) error {
	d := &unknownData{Stores: v.stores(), Store: v.r.URL.Query().Get("store"), Changes: v.operates()}
	type found struct {
		store  string
		record semel.Record
	}
	var list []found
	more := false
	for _, name := range d.Stores {
		if d.Store != "" && d.Store != name {
			continue
		}
		of, err := unknownOf(v, v.r.Context(), name)
		if err != nil {
			d.Notes = append(d.Notes, fmt.Sprintf("store %s: %s", name, v.App.Redact(term.JoinLines(err.Error()))))
			var known bool
			if of, known = v.unknownLists.named(name).last(); !known {
				continue
			}
			d.Notes[len(d.Notes)-1] += asRead(of.at)
		}
		more, d.At = more || of.more, older(d.At, of.at)
		for i := range of.records {
			list = append(list, found{name, of.records[i]})
		}
	}
	var shown []found
	shown, d.Pager = paged(v, list, more)
	for i := range shown {
		r := &shown[i].record
		row := unknownRow{Store: shown[i].store, Pick: keyPick(shown[i].store, r), Key: "digest " + r.Digest.String(), Holder: r.Holder, Origin: r.Origin, Since: r.LeaseEnd, Attempts: r.Attempt}
		if r.Key.ID != "" {
			row.Key, row.Scope = term.Shorten(keyrecord.DisplayID(r.Key.ID), keyWidth), keyrecord.DisplayScope(r.Key.Scope)
		}
		if r.Digest != (semel.Digest{}) {
			row.Link = "key?" + url.Values{"store": {shown[i].store}, "digest": {r.Digest.String()}}.Encode()
		}
		d.Rows = append(d.Rows, row)
	}
	return v.show(http.StatusOK, "unknown", "Unknown keys", d)
}

// keyPick names a key as it was shown.
func keyPick(store string, r *semel.Record) string {
	return strings.Join([]string{store, refOf(r), facts.Version(r)}, "\t")
}

// keyPicked is a key that was shown.
type keyPicked struct {
	store, version string
	record         *semel.Record
}

// keysPicked returns the keys that the form names.
func keysPicked(v *visit) (list []keyPicked, of choice, err error) {
	for _, text := range slices.Concat(v.r.PostForm["pick"], strings.Split(v.r.PostForm.Get("picks"), "\n")) {
		if text = strings.TrimSuffix(text, "\r"); text == "" {
			continue
		}
		parts := strings.Split(text, "\t")
		if len(parts) != 3 {
			return nil, of, refuse(http.StatusBadRequest, "the form does not name a key: open the list again")
		}
		r, err := parseRef(parts[1])
		if err != nil {
			return nil, of, err
		}
		list = append(list, keyPicked{parts[0], parts[2], r})
	}
	if v.r.PostForm.Get("all") != "" {
		list = nil
		only := v.r.PostForm.Get("store")
		if of.Filter = "every unknown key"; only != "" {
			of.Filter += ", store " + only
		}
		for _, name := range v.stores() {
			if only != "" && only != name {
				continue
			}
			found, err := unknownOf(v, v.r.Context(), name)
			if err != nil {
				return nil, of, err
			}
			of.More = of.More || found.more
			for i := range found.records {
				r := &found.records[i]
				list = append(list, keyPicked{name, facts.Version(r), r})
			}
		}
	}
	if of.All = len(list); of.All == 0 {
		return nil, of, refuse(http.StatusUnprocessableEntity, "no key was chosen: nothing was changed")
	}
	return list[:min(len(list), mostChanged)], of, nil
}

// resolutions are what can be done to unknown keys.
var resolutions = map[string]string{
	"done": "settle them as done: their effects happened", "absent": "settle them as absent: their effects did not happen",
}

// previewKeys says what a settlement of unknown keys would do.
func previewKeys(v *visit) error {
	do := v.r.PostForm.Get("do")
	what, ok := resolutions[do]
	if !ok {
		return refuse(http.StatusUnprocessableEntity, "choose whether the effects happened")
	}
	list, of, err := keysPicked(v)
	if err != nil {
		return err
	}
	d := &previewData{choice: of, Do: do, What: what, Action: "resolve", Back: "unknown", Chosen: len(list)}
	var picks []string
	for _, k := range list {
		now, err := recordOf(v, k.store, k.record)
		if err != nil {
			return err
		}
		row := previewRow{Name: k.store, Key: "digest " + now.Digest.String()}
		if now.Key.ID != "" {
			row.Key = term.Shorten(keyrecord.DisplayID(now.Key.ID), keyWidth)
		}
		switch {
		case now.State != semel.Unknown:
			row.Then = "it is " + now.State.String() + " now: it is left as it is"
		case facts.Version(now) != k.version:
			row.Then = "it changed since it was shown: look at it again"
		default:
			row.Then = "further deliveries are duplicates"
			if do == "absent" {
				row.Then = "the next delivery has its effect"
			}
			picks = append(picks, strings.Join([]string{k.store, refOf(now), k.version}, "\t"))
		}
		if len(d.Rows) < shownAtOnce {
			d.Rows = append(d.Rows, row)
		} else {
			d.Hidden++
		}
	}
	d.Count, d.Picks = len(picks), strings.Join(picks, "\n")
	d.Typed = d.Count >= typedFrom
	return v.show(http.StatusOK, "preview", "Preview", d)
}

// resolveKeys settles unknown keys that a preview showed.
func resolveKeys(v *visit) error {
	do := v.r.PostForm.Get("do")
	if _, ok := resolutions[do]; !ok {
		return refuse(http.StatusUnprocessableEntity, "choose whether the effects happened")
	}
	by, err := v.by()
	if err != nil {
		return err
	}
	list, _, err := keysPicked(v)
	if err != nil {
		return err
	}
	if err := confirmed(v, len(list)); err != nil {
		return err
	}
	as := semel.Done
	if do == "absent" {
		as = semel.Absent
	}
	end, err := alone(v.r.Context(), v.changing, "change")
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), settleFor)
	defer cancel()
	op := &operation{do: "resolve", by: by.Actor, at: time.Now()}
	for _, k := range list {
		item := &settled{name: k.store, key: "digest " + k.record.Digest.String(), outcome: "resolved as " + do}
		if k.record.Key.ID != "" {
			item.key = keyrecord.DisplayID(k.record.Key.ID)
		}
		op.items = append(op.items, item)
		err := v.onStore(k.store, func(hands *facts.Hands) error {
			now, err := hands.Again(ctx, k.record)
			if err != nil {
				return err
			}
			if facts.Version(now) != k.version {
				return fmt.Errorf("it changed since it was shown, and is %s now: it is left as it is", now.State)
			}
			window, _ := facts.WindowOf(v.Conf, k.store, now)
			return settling(hands.Settle(ctx, by, now, as, window))
		})
		if err != nil {
			item.outcome, item.failed, item.reason = "not resolved", true, v.App.Redact(term.PlainText(term.JoinLines(err.Error())))
		}
		v.unknownLists.named(k.store).forget()
	}
	v.status.forget()
	return v.redirect("outcome?op=" + url.QueryEscape(v.operations.add(op)))
}
