package page

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// perPage is how many entries of a list a page shows.
	perPage = 50
	// errorWidth and keyWidth limit texts in a list.
	errorWidth, keyWidth = 300, 100
	// mostBody limits the part of a body that a page shows.
	mostBody = 32 << 10
	// mostHeaders limits the headers that a page shows.
	mostHeaders = 100
)

// withLetters opens the parked messages of a pipeline, and calls use if there may be any.
func withLetters(v *visit, ctx context.Context, p *config.Pipeline, use func(pipeline.DeadLetters) error) (err error) {
	if err := v.silent(p.Parked.Store.Name); err != nil {
		return err
	}
	letters, ok, err := v.Process.Parked(ctx, p.Name)
	if err != nil || !ok {
		return err
	}
	defer func() { err = errors.Join(err, letters.Close()) }()
	return use(letters)
}

// parkedOf returns the parked messages of a pipeline.
func parkedOf(v *visit, ctx context.Context, p *config.Pipeline) (*parkedList, error) {
	return v.parkedLists.named(p.Name).get(ctx, func(ctx context.Context) (*parkedList, error) {
		list := &parkedList{at: time.Now()}
		err := withLetters(v, ctx, p, func(letters pipeline.DeadLetters) error {
			return letters.List(ctx, p.Name, func(m *pipeline.Parked) bool {
				if list.more = len(list.messages) == mostListed; list.more {
					return false
				}
				list.messages = append(list.messages, bare(m))
				return true
			})
		})
		if errors.Is(err, pipeline.ErrUnreadable) {
			list.unread, err = err, nil
		}
		return list, err
	})
}

// bare returns a message without its body and its headers.
func bare(m *pipeline.Parked) pipeline.Parked {
	of := *m
	of.Message.Body, of.Message.Headers, of.Message.RecordKey = nil, nil, nil
	return of
}

// messageOf returns a parked message.
func messageOf(v *visit, p *config.Pipeline, id string) (found *pipeline.Parked, err error) {
	missing := refuse(http.StatusNotFound, "%s is no longer a parked message of %s: it was settled", id, p.Name)
	err = withLetters(v, v.r.Context(), p, func(letters pipeline.DeadLetters) error {
		m, err := letters.Get(v.r.Context(), id)
		if errors.Is(err, pipeline.ErrNotParked) || err == nil && m.Pipeline != p.Name {
			return missing
		}
		found = m
		return err
	})
	if err == nil && found == nil {
		err = missing
	}
	return found, err
}

// parkedRow is a parked message in a list.
type parkedRow struct {
	Pipeline, ID, Pick, Key, Reason, Error string
	At                                     time.Time
	Attempts, Redrives                     int
	Queued                                 bool
}

// rowOf returns a message for a list.
func rowOf(v *visit, m *pipeline.Parked) parkedRow {
	r := parkedRow{
		Pipeline: m.Pipeline, ID: m.ID, Pick: pick(m), Key: "(no key)", Reason: string(m.Reason), At: m.At, Attempts: m.Attempts, Redrives: m.Redrives, Queued: m.Queued,
		Error: term.Shorten(v.failure(m.Error), errorWidth),
	}
	if m.Key.ID != "" {
		r.Key = term.Shorten(keyrecord.DisplayID(m.Key.ID), keyWidth)
	}
	return r
}

// pick names a parked message as it was shown.
func pick(m *pipeline.Parked) string {
	return strings.Join([]string{m.Pipeline, m.ID, strconv.Itoa(m.Redrives), strconv.FormatInt(m.At.UnixMicro(), 10)}, "\t")
}

// pager has the links to the pages before and after.
type pager struct {
	First, Last, All int
	More             bool
	Before, After    string
}

// paged returns the part of a list that the request is for.
func paged[T any](v *visit, list []T, more bool) ([]T, pager) {
	query := v.r.URL.Query()
	from, _ := strconv.Atoi(query.Get("from"))
	from = max(min(from, len(list)-1), 0) / perPage * perPage
	to := min(from+perPage, len(list))
	p := pager{First: from + 1, Last: to, All: len(list), More: more}
	at := func(from int) string {
		query.Set("from", strconv.Itoa(from))
		return "?" + query.Encode()
	}
	if from > 0 {
		p.Before = at(from - perPage)
	}
	if to < len(list) {
		p.After = at(to)
	}
	return list[from:to], p
}

// parkedFilter selects parked messages.
type parkedFilter struct{ Pipeline, Reason, Older string }

// selected returns the parked messages that a filter selects, the oldest of each pipeline first.
func selected(v *visit, get func(string) string) (f parkedFilter, list []*pipeline.Parked, more bool, notes []string, err error) {
	f = parkedFilter{get("pipeline"), get("reason"), get("older")}
	var older time.Duration
	if f.Older != "" {
		if older, err = schema.ParseDuration(f.Older); err != nil {
			return f, nil, false, nil, refuse(http.StatusUnprocessableEntity, "older: %w", err)
		}
	}
	if f.Pipeline != "" {
		if _, err := v.pipelineOf(f.Pipeline); err != nil {
			return f, nil, false, nil, err
		}
	}
	now := time.Now()
	for _, p := range v.pipelines() {
		if f.Pipeline != "" && p.Name != f.Pipeline {
			continue
		}
		of, err := parkedOf(v, v.r.Context(), p)
		if err != nil {
			notes = append(notes, fmt.Sprintf("the parked messages of %s cannot be read: %s", p.Name, v.App.Redact(term.JoinLines(v.Conf.Advise(p, config.ParkedPart, err).Error()))))
			var known bool
			if of, known = v.parkedLists.named(p.Name).last(); !known {
				continue
			}
			notes[len(notes)-1] += asRead(of.at)
		}
		if of.unread != nil {
			notes = append(notes, v.App.Redact(term.JoinLines(of.unread.Error())))
		}
		more = more || of.more
		for i := range of.messages {
			m := &of.messages[i]
			if (f.Reason == "" || string(m.Reason) == f.Reason) && (older == 0 || now.Sub(m.At) >= older) {
				list = append(list, m)
			}
		}
	}
	return f, list, more, notes, nil
}

// asRead says that a list is not the present one.
func asRead(at time.Time) string { return ". The list is that of " + term.DisplayTime(at) }

// parkedData is what the list of parked messages shows.
type parkedData struct {
	Filter             parkedFilter
	Pipelines, Reasons []string
	Rows               []parkedRow
	Pager              pager
	Notes              []string
	At                 time.Time // when the oldest part of the list was read
	Keys               keyStates
	Changes            bool // this person may change them
}

// keyStates count the messages that were parked because their keys were unknown.
type keyStates struct {
	// Unknown: the key still is. Settled: it is not. Unseen: this was not looked up.
	Unknown, Settled, Unseen int
}

// keyStatesOf looks the keys of such messages up, at most mostChanged of each pipeline.
func keyStatesOf(v *visit, list []*pipeline.Parked) (all keyStates) {
	keys := map[string][]semel.Key{}
	for _, m := range list {
		if m.Reason == pipeline.ReasonUnknown {
			keys[m.Pipeline] = append(keys[m.Pipeline], m.Key)
		}
	}
	for name, of := range keys {
		records := make([]semel.Record, min(len(of), mostChanged))
		p, ok := v.Conf.Pipeline(name)
		if !ok || facts.Markable(v.Conf, p) != nil || v.onStore(p.Store.Name, func(by *facts.Hands) error {
			return by.LookUp(v.r.Context(), of[:len(records)], records)
		}) != nil { // the page about the store says why
			records = nil
		}
		all.Unseen += len(of) - len(records)
		for i := range records {
			if records[i].State == semel.Unknown {
				all.Unknown++
			} else {
				all.Settled++
			}
		}
	}
	return all
}

// parkedPage lists parked messages.
func parkedPage(v *visit) error {
	f, list, more, notes, err := selected(v, v.r.URL.Query().Get)
	if err != nil {
		return err
	}
	d := &parkedData{Filter: f, Notes: notes, Changes: v.operates()}
	for _, p := range v.pipelines() {
		d.Pipelines = append(d.Pipelines, p.Name)
		if f.Pipeline != "" && f.Pipeline != p.Name {
			continue
		}
		if of, err := parkedOf(v, v.r.Context(), p); err == nil {
			d.At = older(d.At, of.at)
		}
	}
	for _, reason := range pipeline.Reasons() {
		d.Reasons = append(d.Reasons, string(reason))
	}
	d.Keys = keyStatesOf(v, list)
	var shown []*pipeline.Parked
	shown, d.Pager = paged(v, list, more)
	for i := range shown {
		d.Rows = append(d.Rows, rowOf(v, shown[i]))
	}
	return v.show(http.StatusOK, "parked", "Parked messages", d)
}

// messageData is what the page about a parked message shows.
type messageData struct {
	Row     parkedRow
	Facts   []fact
	HasKey  bool
	KeyLink string
	// Headers are names, with values if the message was asked for.
	Headers []fact
	// Whole: the message was asked for. MayAsk: this person may.
	Whole, MayAsk bool
	Size          int
	Body          string
	Cut           bool
}

// messagePage shows a parked message, with its content if it was asked for.
func messagePage(v *visit) error { return showMessage(v, v.r.URL.Query(), false) }

// messageBody shows a parked message with its content.
func messageBody(v *visit) error { return showMessage(v, v.r.PostForm, true) }

func showMessage(v *visit, form url.Values, whole bool) error {
	p, err := v.pipelineOf(form.Get("pipeline"))
	if err != nil {
		return err
	}
	m, err := messageOf(v, p, form.Get("id"))
	if err != nil {
		return err
	}
	d := &messageData{Row: rowOf(v, m), HasKey: m.Key.ID != "", Whole: whole, MayAsk: v.operates(), Size: len(m.Message.Body)}
	d.Row.Error = v.failure(m.Error)
	if d.HasKey {
		d.KeyLink = "key?" + url.Values{"pipeline": {p.Name}, "message": {m.ID}}.Encode()
		d.Facts = append(d.Facts, fact{"scope", keyrecord.DisplayScope(m.Key.Scope)})
	}
	o := &m.Message.Origin
	d.Facts = append(d.Facts, fact{"from", fmt.Sprintf("%s, partition %d, offset %d", o.Source, o.Partition, o.Offset)})
	if m.Message.ID != "" {
		d.Facts = append(d.Facts, fact{"message id", m.Message.ID})
	}
	if !m.Message.Time.IsZero() {
		d.Facts = append(d.Facts, fact{"time", term.DisplayTime(m.Message.Time)})
	}
	for _, h := range m.Message.Headers[:min(len(m.Message.Headers), mostHeaders)] {
		value := masked
		if whole {
			value = term.Shorten(plain(h.Value), 2*errorWidth)
		}
		d.Headers = append(d.Headers, fact{h.Name, value})
	}
	if whole {
		body := m.Message.Body
		if d.Cut = len(body) > mostBody; d.Cut {
			body = body[:mostBody]
			for n := 1; n < utf8.UTFMax && !utf8.Valid(body); n++ { // it may end in a part of a character
				body = body[:len(body)-1]
			}
		}
		d.Body = v.App.Redact(plain(body))
	}
	return v.show(http.StatusOK, "message", "Parked message", d)
}

// plain shows foreign bytes: text as it is, and anything else as base64.
func plain(b []byte) string {
	odd := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r' }
	if text := string(b); utf8.ValidString(text) && !strings.ContainsFunc(text, odd) {
		return text
	}
	return "base64:" + base64.StdEncoding.EncodeToString(b)
}

// pickOf reads what pick wrote.
func pickOf(text string) (m pipeline.Parked, ok bool) {
	parts := strings.Split(text, "\t")
	if len(parts) != 4 {
		return m, false
	}
	redrives, err := strconv.Atoi(parts[2])
	at, wrong := strconv.ParseInt(parts[3], 10, 64)
	m.Pipeline, m.ID, m.Redrives, m.At = parts[0], parts[1], redrives, time.UnixMicro(at)
	return m, err == nil && wrong == nil && m.ID != ""
}

// same reports whether a message is still what was shown.
func same(now, shown *pipeline.Parked) bool {
	return now.Pipeline == shown.Pipeline && now.Redrives == shown.Redrives && now.At.UnixMicro() == shown.At.UnixMicro()
}

// String says what a filter selects.
func (f parkedFilter) String() string {
	var words []string
	for _, of := range [][2]string{{"pipeline", f.Pipeline}, {"reason", f.Reason}, {"parked longer ago than", f.Older}} {
		if of[1] != "" {
			words = append(words, of[0]+" "+of[1])
		}
	}
	if words == nil {
		return "every parked message"
	}
	return strings.Join(words, ", ")
}

// choice says what a form chose, for its preview.
type choice struct {
	// Filter is "" if the form names each entry.
	Filter string
	// All is how many entries were chosen, of which a change takes at most mostChanged. More:
	// there are still more.
	All   int
	More  bool
	Notes []string
}

// picked returns the messages that the form names, at most mostChanged.
func picked(v *visit) (list []pipeline.Parked, of choice, err error) {
	form := v.r.PostForm
	if form.Get("all") != "" {
		f, all, more, notes, err := selected(v, form.Get)
		if err != nil {
			return nil, of, err
		}
		of = choice{f.String(), len(all), more, notes}
		for _, m := range all[:min(len(all), mostChanged)] {
			list = append(list, *m)
		}
	} else {
		for _, text := range slices.Concat(form["pick"], strings.Split(form.Get("picks"), "\n")) {
			if text = strings.TrimSuffix(text, "\r"); text == "" {
				continue
			}
			m, ok := pickOf(text)
			if !ok {
				return nil, of, refuse(http.StatusBadRequest, "the form does not name a message: open the list again")
			}
			list = append(list, m)
		}
		of.All = len(list)
	}
	if len(list) == 0 {
		return nil, of, refuse(http.StatusUnprocessableEntity, "no message was chosen: nothing was changed")
	}
	return list[:min(len(list), mostChanged)], of, nil
}
