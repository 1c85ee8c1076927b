package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/semel-dev/semel"
)

// recordLine is a record in JSON. Members that are unknown or do not apply are
// omitted.
type recordLine struct {
	Scope       *string         `json:"scope,omitempty"`
	ScopeBase64 []byte          `json:"scope_base64,omitempty"`
	ID          json.RawMessage `json:"id,omitempty"`
	IDBase64    []byte          `json:"id_base64,omitempty"`
	Digest      string          `json:"digest,omitempty"`
	State       string          `json:"state"`
	FirstSeen   string          `json:"first_seen,omitempty"`
	Attempts    int             `json:"attempts,omitempty"`
	Holder      string          `json:"holder,omitempty"`
	LeaseEnd    string          `json:"lease_end,omitempty"`
	Expires     string          `json:"expires,omitempty"` // "forever" if it never expires
	Fingerprint string          `json:"fingerprint,omitempty"`
	Result      string          `json:"result,omitempty"`
	ResultSize  *int            `json:"result_size,omitempty"`
}

func newRecordLine(r *semel.Record) recordLine {
	line := recordLine{
		State:       r.State.String(),
		FirstSeen:   jsonTime(r.FirstSeen),
		Attempts:    r.Attempt,
		Holder:      r.Holder,
		LeaseEnd:    jsonTime(r.LeaseEnd),
		Expires:     jsonTime(r.Expires),
		Fingerprint: r.Fingerprint.String(),
	}
	if r.Digest != (semel.Digest{}) {
		line.Digest = r.Digest.String()
	}
	if r.Key.ID != "" {
		line.Scope, line.ScopeBase64 = jsonText(r.Key.Scope)
		var ok bool
		if line.ID, ok = formatJSONID(r.Key.ID); !ok {
			line.IDBase64 = []byte(r.Key.ID)
		}
	}
	if r.State == semel.Done {
		if r.Expires.IsZero() {
			line.Expires = "forever"
		}
		if kind := resultName(r.Result.Kind); kind != "" {
			line.Result, line.ResultSize = kind, &r.ResultSize
		}
	}
	return line
}

// resultName returns the name of a result kind, or "" for no result.
func resultName(kind semel.ResultKind) string {
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

func jsonTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// writeRecord prints one record for people, one fact per line.
func writeRecord(w io.Writer, r *semel.Record) error {
	var text []byte
	fact := func(name, value string) {
		if value != "" {
			text = fmt.Appendf(text, "%-12s %s\n", name, value)
		}
	}
	fact("key", displayID(r.Key.ID))
	fact("scope", displayScope(r.Key.Scope))
	fact("state", r.State.String())
	fact("first seen", displayTime(r.FirstSeen))
	if r.Attempt > 0 {
		fact("attempts", fmt.Sprint(r.Attempt))
	}
	fact("holder", displayText(r.Holder))
	fact("lease end", displayTime(r.LeaseEnd))
	if r.State == semel.Done {
		fact("expires", displayExpiry(r.Expires))
		fact("result", displayResult(r))
	}
	fact("fingerprint", r.Fingerprint.String())
	if r.Digest != (semel.Digest{}) {
		fact("digest", r.Digest.String())
	}
	_, err := w.Write(text)
	return err
}

func displayResult(r *semel.Record) string {
	size := formatBytes(int64(r.ResultSize))
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

func displayScope(scope string) string {
	if scope == "" {
		return `""`
	}
	return displayText(scope)
}

// displayText shows any text on one terminal line.
func displayText(text string) string {
	for _, r := range text {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return fmt.Sprintf("%q", text)
		}
	}
	return text
}

func displayTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 MST")
}

func displayExpiry(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return displayTime(t)
}
