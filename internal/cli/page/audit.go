package page

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/pipeline"
)

// mostAudited is how many of the latest lines of each audit log a page shows.
const mostAudited = 100

// auditRow is a change for people.
type auditRow struct {
	Time                                      time.Time
	Actor, Host, Place, What, Reason, Outcome string
	Failed                                    bool
	// message is that of a retry, as PIPELINE/ID.
	message string
}

// auditData is what the page of the audit logs shows.
type auditData struct {
	Rows  []auditRow
	Notes []string
}

// auditPage shows the latest changes by hand, the newest first.
func auditPage(v *visit) error {
	d := &auditData{}
	add := func(place string, lines [][]byte, err error) {
		if err != nil {
			d.Notes = append(d.Notes, place+": "+v.App.Redact(term.PlainText(term.JoinLines(err.Error()))))
		}
		d.Rows = append(d.Rows, rowsOf(place, lines)...)
	}
	for _, name := range v.stores() {
		lines, err := auditOf(v, name)
		add("store "+name, lines, err)
	}
	seen := map[string]bool{}
	for _, p := range v.pipelines() {
		if store := p.Parked.Store.Name; store != "" && !seen["store "+store] && !slices.Contains(v.stores(), store) {
			seen["store "+store] = true
			d.Notes = append(d.Notes, fmt.Sprintf("not shown: what was done to messages that are parked in store %s: the audit table of its database has it", store))
		}
		if topic := p.Parked.Topic; topic != "" && !seen["topic "+topic] {
			seen["topic "+topic] = true
			d.Notes = append(d.Notes, fmt.Sprintf("not shown: what was done to messages that are parked in topic %s: topic %[1]s-settled has it", topic))
		}
		if seen[p.Parked.Path] || p.Parked.Path == "" { // a table is in the audit log of its store
			continue
		}
		seen[p.Parked.Path] = true
		var lines [][]byte
		err := withLetters(v, v.r.Context(), p, func(letters pipeline.DeadLetters) (err error) {
			if of, ok := letters.(admin.AuditTail); ok {
				lines, err = of.AuditTail(v.r.Context(), mostAudited)
			}
			return err
		})
		add("parked messages in "+p.Parked.Path, lines, err)
	}
	sayRetried(v, d.Rows)
	slices.SortStableFunc(d.Rows, func(a, b auditRow) int { return b.Time.Compare(a.Time) })
	return v.show(http.StatusOK, "audit", "Audit", d)
}

// sayRetried adds what became of messages that were queued, as far as they are still parked. The
// others have a line of their own: of the pipeline that settled them.
func sayRetried(v *visit, rows []auditRow) {
	lists := map[string]*parkedList{}
	for i := range rows {
		r := &rows[i]
		at := strings.LastIndexByte(r.message, '/')
		if r.Outcome != keyrecord.OutcomeQueued || at < 0 {
			continue
		}
		name, id := r.message[:at], r.message[at+1:]
		list, known := lists[name]
		if p, ok := v.Conf.Pipeline(name); ok && !known {
			list, _ = parkedOf(v, v.r.Context(), p) // without it, the outcome stays "queued"
			lists[name] = list
		}
		if list == nil {
			continue
		}
		if at := slices.IndexFunc(list.messages, func(m pipeline.Parked) bool { return m.ID == id }); at >= 0 {
			if m := &list.messages[at]; !m.Queued && m.At.After(r.Time) {
				r.Outcome, r.Failed = fmt.Sprintf("%s: %s", facts.ParkedAgain, m.Reason), true
			}
		}
	}
}

// auditOf returns the last lines of the audit log of a store.
func auditOf(v *visit, name string) (lines [][]byte, err error) {
	if err := v.silent(name); err != nil {
		return nil, err
	}
	var wrong term.Problems
	f := &open.StoreFlags{App: v.App, File: v.File, Conf: v.Conf, Name: name, Process: v.Process}
	if f.Check(&wrong); len(wrong) > 0 {
		return nil, errors.New(strings.Join(wrong, "; "))
	}
	err = f.WithStore(v.r.Context(), func(store semel.Store) error {
		of, ok := semel.As[admin.AuditTail](store)
		if !ok {
			return nil // it keeps none
		}
		lines, err = of.AuditTail(v.r.Context(), mostAudited)
		return err
	})
	return lines, err
}

// rowsOf returns the changes that lines of a log are about.
func rowsOf(place string, lines [][]byte) (rows []auditRow) {
	byOperation := map[string]int{}
	for _, line := range lines {
		var l facts.Change
		if json.Unmarshal(line, &l) != nil {
			rows = append(rows, auditRow{Place: place, What: "a line that cannot be read", Failed: true})
			continue
		}
		if at, ok := byOperation[l.Operation]; ok && l.Outcome != "" {
			rows[at].Outcome, rows[at].Failed = l.Outcome, l.Outcome == keyrecord.OutcomeFailed
			if l.Error != "" {
				rows[at].Outcome += ": " + l.Error
			}
			continue
		}
		if l.Operation != "" {
			if l.Verb == "" {
				continue // an outcome whose change is further back
			}
			byOperation[l.Operation] = len(rows)
		}
		row := auditRow{Time: cmp.Or(l.Time, l.At), Actor: l.Actor, Host: l.Host, Place: place, Reason: l.Reason}
		if l.How != "" {
			row.What, row.Outcome = fmt.Sprintf("%s %s of %s", l.How, l.MessageID, l.Pipeline), "done"
			if l.Key != "" {
				row.What += ", key " + keyrecord.DisplayID(l.Key)
			}
		} else {
			row.What, row.Outcome = fmt.Sprintf("%s %s: %s → %s", l.Verb, keyOf(&l), l.Before.State, l.After), "not known"
			if l.Message != "" {
				row.What += ", message " + l.Message
				row.message = l.Message
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// keyOf names the key of a change.
func keyOf(c *facts.Change) string {
	switch k := c.OfKey(); {
	case k.ID != "" && k.Scope != "":
		return keyrecord.DisplayID(k.ID) + " in scope " + keyrecord.DisplayScope(k.Scope)
	case k.ID != "":
		return keyrecord.DisplayID(k.ID)
	case c.Before.Digest != "":
		return "digest " + c.Before.Digest
	}
	return "a message without a key"
}
