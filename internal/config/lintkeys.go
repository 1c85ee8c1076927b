package config

import (
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

// key checks that deliveries of one message get the same key, and that different
// messages get different keys.
func (l *Linter) key() {
	k := &l.Pipeline.Key
	path := l.At("key.id")
	if why := k.Rule.Unstable(); why != "" {
		severity := semel.Broken
		remedy := "the id that the producer gave the message, such as .event_id or header:NAME; unstable: true if nothing but redelivery in place is to be noticed"
		if k.Unstable {
			severity, remedy = semel.Warning, "the id that the producer gave the message, such as .event_id or header:NAME"
		}
		risk := Repeat
		if slices.ContainsFunc(alternatives(k.Rule), func(r *key.Rule) bool {
			return r.Form() == key.FormUnstable && (r.String() == "timestamp" || r.String() == "time")
		}) {
			risk = Loss | Repeat // two messages may get the same key
		}
		l.Deciding(severity, risk, path, k.Rule.String()+" is not stable", why, remedy)
	}
	for _, r := range alternatives(k.Rule) {
		switch r.Form() {
		case key.FormPath, key.FormHeader:
			if looksLikeTime(r) {
				l.Deciding(semel.Warning, Loss|Repeat, path, r.String()+" looks like a time", "two messages of one moment have one key, and the second is dropped; a time set anew on sending makes a repeat look new",
					"an id, or { all: [.id, "+r.String()+"] }")
			}
		case key.FormRecordKey:
			if _, ok := l.Pipeline.Source.(Topics); ok {
				l.Notice(path, "record-key", "if the records' key names an entity, such as a customer, all but its first message are dropped", "none if each record has a key of its own; else the id of the event")
			}
		case key.FormHash:
			if r.String() == "hash(.)" {
				l.Notice(path, r.String(), "two messages that happen to be equal are one; a field that changes on every sending, such as a time, makes a repeat look new", "none if that is meant; else name an id, or the fields that count: hash(.a,.b)")
			}
		}
	}
	path = l.At("key.on_missing")
	switch k.OnMissing {
	case "drop":
		l.Add(semel.Warning, Loss, path, "drop", "messages without a key are given up", "on_missing: park")
	case "pass":
		l.Add(semel.Warning, Repeat, path, "pass", "a message without a key that is published again has its effect again", "on_missing: park, or hash")
	case "fail":
		l.Notice(path, "fail", "one message without a key ends the pipeline", "on_missing: park keeps it going")
	}
	if k.Fingerprint && l.Pipeline.OnMismatch == "drop" {
		l.Deciding(semel.Warning, Loss, l.At("on_mismatch"), "drop", "a message that uses the key of another is given up", "on_mismatch: park")
	}
}

// alternatives returns the rules that can make the key on their own.
func alternatives(r *key.Rule) []*key.Rule {
	if r.Form() == key.FormFirst {
		var list []*key.Rule
		for _, part := range r.Rules() {
			list = append(list, alternatives(part)...)
		}
		return list
	}
	return []*key.Rule{r}
}

// looksLikeTime reports whether the last name in a rule looks like a time field.
func looksLikeTime(r *key.Rule) bool {
	_, name, ok := schema.CutLast(r.String(), ".")
	if !ok {
		name = strings.TrimPrefix(r.String(), "header:")
	}
	name = strings.ToLower(strings.NewReplacer("_", "", "-", "", `"`, "", "[", "", "]", "").Replace(name))
	return slices.Contains([]string{"time", "timestamp", "ts", "date", "datetime", "createdat", "updatedat", "sentat", "occurredat", "eventtime"}, name)
}

// window compares the window with how late a message can be delivered again.
func (l *Linter) window() {
	p := l.Pipeline
	path := l.At("window")
	if p.Window < time.Minute {
		l.Add(semel.Warning, Repeat, path, schema.Duration(p.Window), "hardly any redelivery comes within it", "a window longer than a message can come again, such as 7d")
	}
	if p.OnLate == "drop" {
		l.Deciding(semel.Warning, Loss, l.At("on_late"), "drop", "a message that is older than the window is given up, also if it never had its effect", "on_late: park")
	}
}

// keys checks whether the store can do what the pipeline needs.
func (l *Linter) keys() {
	stores := l.File.Stack(l.Pipeline.Store.Name)
	if above, ok := l.File.Above(l.Pipeline.Store.Name); ok {
		stores = append(stores, above)
	}
	for _, s := range stores {
		s.Spec.Lint(l, s)
	}
}

// Decides reports whether every answer of the pipeline's store depends on store
// s.
func (l *Linter) Decides(s *Store) bool {
	return l.Pipeline != nil && l.File.Decider(l.Pipeline.Store.Name) == s
}

// Holds reports whether the pipeline holds a key after its lease ended.
func (l *Linter) Holds() bool {
	return l.Pipeline.OnLeaseExpired == "hold" && l.Mode == TwoPhase
}
