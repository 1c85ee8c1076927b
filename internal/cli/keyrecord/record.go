// Package keyrecord shows keys and their records as text and as JSON, reads ids as
// people write them, and logs what people change by hand.
package keyrecord

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/jsonid"
)

// Line is a record in JSON. Members that are unknown or do not apply are
// omitted.
type Line struct {
	Scope       *string         `json:"scope,omitempty"`
	ScopeBase64 []byte          `json:"scope_base64,omitempty"`
	ID          json.RawMessage `json:"id,omitempty"`
	IDBase64    []byte          `json:"id_base64,omitempty"`
	Digest      string          `json:"digest,omitempty"`
	State       string          `json:"state"`
	FirstSeen   string          `json:"first_seen,omitempty"`
	Attempts    int             `json:"attempts,omitempty"`
	Holder      string          `json:"holder,omitempty"`
	Orphaned    bool            `json:"orphaned,omitempty"`
	Origin      string          `json:"origin,omitempty"`
	LeaseEnd    string          `json:"lease_end,omitempty"`
	Expires     string          `json:"expires,omitempty"` // "forever" if it never expires
	Fingerprint string          `json:"fingerprint,omitempty"`
	Result      string          `json:"result,omitempty"`
	ResultSize  *int            `json:"result_size,omitempty"`
}

// NewLine returns a record as a line of JSON.
func NewLine(r *semel.Record) Line {
	line := Line{
		State:       r.State.String(),
		FirstSeen:   term.JSONTime(r.FirstSeen),
		Attempts:    r.Attempt,
		Holder:      r.Holder,
		Orphaned:    r.Orphaned,
		Origin:      r.Origin,
		LeaseEnd:    term.JSONTime(r.LeaseEnd),
		Expires:     term.JSONTime(r.Expires),
		Fingerprint: r.Fingerprint.String(),
	}
	if r.Digest != (semel.Digest{}) {
		line.Digest = r.Digest.String()
	}
	if r.Key.ID != "" {
		line.Scope, line.ScopeBase64 = jsonid.Text(r.Key.Scope)
		var ok bool
		if line.ID, ok = jsonid.Format(r.Key.ID); !ok {
			line.IDBase64 = []byte(r.Key.ID)
		}
	}
	if r.State == semel.Done {
		if r.Expires.IsZero() {
			line.Expires = "forever"
		}
		if kind := ResultName(r.Result.Kind); kind != "" {
			line.Result, line.ResultSize = kind, &r.ResultSize
		}
	}
	return line
}

// ResultName returns the name of a result kind, or "" for no result.
func ResultName(kind semel.ResultKind) string {
	switch kind {
	case semel.Value:
		return "value"
	case semel.Failed:
		return "failed"
	case semel.NotKept:
		return "not_kept"
	}
	return ""
}

// Fact is one thing that is known of a record.
type Fact struct{ Name, Value string }

// Facts returns the known facts of a record, for people.
func Facts(r *semel.Record) (list []Fact) {
	fact := func(name, value string) {
		if value != "" {
			list = append(list, Fact{name, value})
		}
	}
	if r.Key.ID != "" {
		fact("key", DisplayID(r.Key.ID))
		fact("scope", DisplayScope(r.Key.Scope))
	}
	fact("state", r.State.String())
	fact("first seen", term.DisplayTime(r.FirstSeen))
	fact("origin", term.DisplayText(r.Origin))
	if r.Attempt > 0 {
		fact("attempts", fmt.Sprint(r.Attempt))
	}
	fact("holder", term.DisplayText(r.Holder))
	if r.Orphaned {
		fact("orphaned", "the holder's process has ended or closed the store; its effect may still run")
	}
	fact("lease end", term.DisplayTime(r.LeaseEnd))
	if r.State == semel.Done {
		fact("expires", DisplayExpiry(r.Expires))
		fact("result", displayResult(r))
	}
	fact("fingerprint", r.Fingerprint.String())
	if r.Digest != (semel.Digest{}) {
		fact("digest", r.Digest.String())
	}
	return list
}

// Write prints one record for people, one fact per line.
func Write(w io.Writer, r *semel.Record) error {
	var text []byte
	for _, f := range Facts(r) {
		text = fmt.Appendf(text, "%-12s %s\n", f.Name, f.Value)
	}
	_, err := w.Write(text)
	return err
}

func displayResult(r *semel.Record) string {
	size := term.FormatBytes(int64(r.ResultSize))
	switch r.Result.Kind {
	case semel.Value:
		return size
	case semel.Failed:
		return "permanent error, " + size
	case semel.NotKept:
		return "not kept: it was too large"
	}
	return "none"
}

// DisplayScope shows a scope to people.
func DisplayScope(scope string) string {
	if scope == "" {
		return `""`
	}
	return term.DisplayText(scope)
}

// ScopesOf returns the scopes of records.
func ScopesOf(records []semel.Record) []string {
	var scopes []string
	for _, r := range records {
		if !slices.Contains(scopes, r.Key.Scope) {
			scopes = append(scopes, r.Key.Scope)
		}
	}
	return scopes
}

// InScopes names scopes in a message.
func InScopes(scopes []string) string {
	names := make([]string, len(scopes))
	for i, scope := range scopes {
		names[i] = DisplayScope(scope)
	}
	if len(names) == 1 {
		return "scope " + names[0]
	}
	return "the scopes " + strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// ChooseScope returns the flags that choose one of the scopes.
func ChooseScope(scopes []string) string {
	flags := make([]string, len(scopes))
	for i, scope := range scopes {
		flags[i] = term.ShellLine("--scope", scope)
	}
	return strings.Join(flags, " or ")
}

// DisplayExpiry shows the end of a window to people.
func DisplayExpiry(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return term.DisplayTime(t)
}
