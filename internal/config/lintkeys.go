package config

import (
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

// key checks that deliveries of one message get the same key, and that different
// messages get different keys.
func (l *Linter) key() {
	k := &l.Pipeline.Key
	path := l.At("key.id")
	none := l.Pipeline.Source.About(l.Pipeline).NoPositions
	if none != "" && k.Rule.NeedsPosition() {
		l.Add(doctor.Broken, Loss, path, k.Rule.String()+" needs the position of a message, but "+none, "all messages would have one key, and all but the first would be dropped",
			"use an id that the producer gave the message, such as .event_id or header:NAME, or its content: hash(.)")
	} else if why := k.Rule.Unstable(); why != "" {
		severity := doctor.Broken
		remedy := "use the id that the producer gave the message, such as .event_id or header:NAME; or write unstable: true if only redelivery from the same place must be noticed"
		if k.Unstable {
			severity, remedy = doctor.Warning, "use the id that the producer gave the message, such as .event_id or header:NAME"
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
		case key.FormPath, key.FormHeader, key.FormShaped:
			if looksLikeTime(r) {
				l.Deciding(doctor.Warning, Loss|Repeat, path, r.String()+" looks like a time", "two messages of one moment have the same key, and the second is dropped; a time that changes on each sending makes a repeat look new",
					"use an id, or { all: [.id, "+r.String()+"] }")
			}
		case key.FormRecordKey:
			if _, ok := l.Pipeline.Source.(Topics); ok {
				l.Notice(path, "record-key", "if the record key names an entity, such as a customer, all its messages but the first are dropped", "nothing if each record has a different key; otherwise use the id of the event")
			}
		case key.FormHash:
			if r.String() == "hash(.)" {
				l.Notice(path, r.String(), "two messages with equal content count as one; a field that changes on every sending, such as a time, makes a repeat look new", "nothing if you want that; otherwise use an id, the relevant fields: hash(.a,.b), or all but some: hash(. - .received)")
			}
		}
	}
	if ignored := k.Rule.Ignores(); len(ignored) > 0 {
		l.Notice(path, k.Rule.String()+" ignores "+strings.Join(ignored, ", and "), "messages whose values differ only in that count as one", "nothing if you want that; otherwise use the value itself")
	}
	l.ambiguous(path, k.Rule)
	path = l.At("key.on_missing")
	switch k.OnMissing {
	case "drop":
		l.Add(doctor.Warning, Loss, path, "drop", "messages without a key are lost", "write on_missing: park")
	case "pass":
		if none != "" {
			l.Add(doctor.Broken, Loss, path, "pass makes the key from the position of a message, but "+none, "all messages without an id would have one key, and all but the first would be dropped", "write on_missing: park, or hash for a key from its content")
			break
		}
		l.Add(doctor.Warning, Repeat, path, "pass", "a message without an id is recognised only by its position: if it is published again, it has its effect again", "write on_missing: park, or hash")
	case "fail":
		l.Notice(path, "fail", "one message without a key ends the pipeline", "write on_missing: park to keep it running")
	}
	if l.Pipeline.OnMismatch == "drop" {
		l.Deciding(doctor.Warning, Loss, l.At("on_mismatch"), "drop", "a message that uses the key of another is lost", "write on_mismatch: park")
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
	if r.Form() == key.FormShaped {
		r = r.Rules()[0]
	}
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
		l.Add(doctor.Warning, Repeat, path, schema.Duration(p.Window), "almost every redelivery comes after it", "choose a window that is longer than redelivery takes, such as 7d")
	}
	if p.OnLate == "drop" {
		l.Deciding(doctor.Warning, Loss, l.At("on_late"), "drop", "a message that is older than the window is lost, even if it never had its effect", "write on_late: park")
	}
}

// duplicates checks a sink whose server drops messages with a known id for a time, and
// answers as if it had stored them. A message that counts as new for the pipeline would
// then be lost.
func (l *Linter) duplicates() {
	drops := l.Pipeline.Sink.About().Drops
	if drops.For == 0 {
		return
	}
	server, within := drops.Server, schema.Duration(drops.For)
	if p := l.Pipeline; p.Window < drops.For {
		l.Add(doctor.Warning, Loss, l.At("window"), schema.Duration(p.Window)+", but "+server+" drops a message with the same id for "+within,
			"a message that comes after the window is new for the pipeline, and "+server+" drops it and reports success", "write window: "+within+" or more")
	}
	if l.Pipeline.Observe {
		l.Notice(l.At("observe"), "the pipeline delivers duplicates, but "+server+" drops them for "+within, "fewer messages arrive than the pipeline counts as delivered", "nothing, if that is what you want")
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
	if l.Holds() {
		l.unsettled(l.At("on_lease_expired"), l.Pipeline.Store.Name)
	}
}

// unsettled reports a field that holds keys, if no operator can settle those of its store.
func (l *Linter) unsettled(path, store string) {
	if decider := l.File.Decider(store); decider != nil && decider.Spec.About().Unsettled {
		l.Add(doctor.Warning, Loss, path, "hold, and no operator can settle keys of a "+decider.Spec.Kind(), "a key whose outcome is unknown stays so, and its message may never have its effect", "write on_lease_expired: retry, or use another kind of store")
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
