package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

// key looks at whether deliveries of one message have one key, and two messages
// two.
func (l *linter) key() {
	k := &l.pipeline.Key
	path := l.at("key.id")
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
			risk = Loss | Repeat // two messages may share one
		}
		l.deciding(severity, risk, path, k.Rule.String()+" is not stable", why, remedy)
	}
	for _, r := range alternatives(k.Rule) {
		switch r.Form() {
		case key.FormPath, key.FormHeader:
			if looksLikeTime(r) {
				l.deciding(semel.Warning, Loss|Repeat, path, r.String()+" looks like a time", "two messages of one moment have one key, and the second is dropped; a time set anew on sending makes a repeat look new",
					"an id, or { all: [.id, "+r.String()+"] }")
			}
		case key.FormRecordKey:
			if _, ok := l.pipeline.Source.(*KafkaSource); ok {
				l.notice(path, "record-key", "if the records' key names an entity, such as a customer, all but its first message are dropped", "none if each record has a key of its own; else the id of the event")
			}
		case key.FormHash:
			if r.String() == "hash(.)" {
				l.notice(path, r.String(), "two messages that happen to be equal are one; a field that changes on every sending, such as a time, makes a repeat look new", "none if that is meant; else name an id, or the fields that count: hash(.a,.b)")
			}
		}
	}
	path = l.at("key.on_missing")
	switch k.OnMissing {
	case "drop":
		l.add(semel.Warning, Loss, path, "drop", "messages without a key are given up", "on_missing: park")
	case "pass":
		l.add(semel.Warning, Repeat, path, "pass", "a message without a key that is published again has its effect again", "on_missing: park, or hash")
	case "fail":
		l.notice(path, "fail", "one message without a key ends the pipeline", "on_missing: park keeps it going")
	}
	if k.Fingerprint && l.pipeline.OnMismatch == "drop" {
		l.deciding(semel.Warning, Loss, l.at("on_mismatch"), "drop", "a message that uses the key of another is given up", "on_mismatch: park")
	}
}

// alternatives are the rules of which one alone makes the key.
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

// looksLikeTime reports whether the last name of a rule is one that times have.
func looksLikeTime(r *key.Rule) bool {
	_, name, ok := schema.CutLast(r.String(), ".")
	if !ok {
		name = strings.TrimPrefix(r.String(), "header:")
	}
	name = strings.ToLower(strings.NewReplacer("_", "", "-", "", `"`, "", "[", "", "]", "").Replace(name))
	return slices.Contains([]string{"time", "timestamp", "ts", "date", "datetime", "createdat", "updatedat", "sentat", "occurredat", "eventtime"}, name)
}

// window compares the window with how long a message can come again.
func (l *linter) window() {
	p := l.pipeline
	path := l.at("window")
	if s, ok := p.Source.(*KafkaSource); ok {
		retention := l.at("source.kafka.retention")
		switch {
		case s.Retention == 0 && p.Window != semel.Forever:
			l.notice(retention, "not stated", "a record that is read again after the window of "+schema.Duration(p.Window)+" has its effect again, and nothing here can tell whether the topics keep records that long", "retention: what the topics have, such as 7d")
		case s.Retention > p.Window:
			l.add(semel.Warning, Repeat, path, fmt.Sprintf("%s, and the topics keep records for %s", schema.Duration(p.Window), schema.Duration(s.Retention)),
				"a record that is read again after its key was forgotten, as after a reset of offsets or a redrive, has its effect again", "window: "+longer(s.Retention))
		}
	}
	if p.Window < time.Minute {
		l.add(semel.Warning, Repeat, path, schema.Duration(p.Window), "hardly any redelivery comes within it", "a window longer than a message can come again, such as 7d")
	}
	if p.OnLate == "drop" {
		l.deciding(semel.Warning, Loss, l.at("on_late"), "drop", "a message that is older than the window is given up, also if it never had its effect", "on_late: park")
	}
	for _, s := range l.file.Stack(p.Store.Name) {
		kept, field := time.Duration(0), ""
		switch spec := s.Spec.(type) {
		case *Filter:
			kept, field = spec.Window, "filter.window"
		case *Redis:
			if spec.Compact != nil {
				kept, field = spec.Compact.Window, "redis.compact.window"
			}
		}
		if field == "" || kept == p.Window {
			continue
		}
		if field == "filter.window" && kept < p.Window {
			risk, severity, cost := NoRisk, semel.Notice, "the filter forgets keys that the store below still has: it then saves no work"
			if l.mode == Lossy {
				risk, severity, cost = Repeat, semel.Warning, "the filter forgets a key earlier, and its message has its effect again"
			}
			l.add(severity, risk, path, fmt.Sprintf("%s, and that of %s is %s", schema.Duration(p.Window), s.Name, schema.Duration(kept)), cost, "the same window in both")
		}
		if field == "redis.compact.window" {
			l.notice(path, fmt.Sprintf("%s, and %s of %s is %s", schema.Duration(p.Window), field, s.Name, schema.Duration(kept)), "keys of another window keep their full records", "the same window in both")
		}
	}
}

// longer is a window with some room behind a retention.
func longer(retention time.Duration) string {
	if retention == semel.Forever {
		return "forever"
	}
	return schema.Duration(retention+retention/7) + " or more"
}

// keys looks at whether the store can do what is asked of it.
func (l *linter) keys() {
	p := l.pipeline
	path := l.at("store")
	_, fromKafka := p.Source.(*KafkaSource)
	hold := p.OnLeaseExpired == "hold" && l.mode == TwoPhase
	decider := l.file.Decider(p.Store.Name)
	if decider == nil {
		return
	}
	switch spec := decider.Spec.(type) {
	case *Memory:
		l.add(semel.Warning, Repeat, path, decider.Name+" is memory", "the end of the process forgets every key: what comes again has its effect again", "a store that lasts: embedded, redis or postgres")
		if hold {
			l.add(semel.Broken, Repeat, l.at("on_lease_expired"), "hold, in memory", "a crash forgets the key that is to be held", "a store that lasts: embedded or postgres")
		}
	case *Embedded:
		if spec.Fsync != "always" {
			l.add(semel.Warning, Repeat, path, decider.Name+" has fsync: "+spec.Fsync, "loss of power forgets keys since the last sync: what comes again has its effect again", "fsync: always")
		}
		if fromKafka {
			l.notice(path, decider.Name+" is embedded", "it is open in one process: a second member of the group would have keys of its own, and not know those of a partition it takes over", "none for one process; redis or postgres for several")
		}
	case *Redis:
		severity, cost := semel.Warning, ""
		switch spec.Persistence {
		case "volatile":
			cost = "failover, eviction and restart may forget keys: what comes again has its effect again"
		case "logged":
			cost = "failover, and a crash within a second of a write, may forget keys: what comes again has its effect again"
		default:
			severity, cost = semel.Notice, "failover to a replica may forget keys: what comes again has its effect again"
		}
		l.add(severity, Repeat, path, decider.Name+" is Redis with persistence: "+spec.Persistence, cost, "postgres, alone or below Redis in a tiered store; or persistence: synced, if the server has appendfsync always")
		if hold && spec.Persistence == "volatile" {
			l.add(semel.Warning, Repeat, l.at("on_lease_expired"), "hold, in a Redis that may forget", "a key that is held may be forgotten, and its message run again", "postgres, or persistence: synced")
		}
	case *Filter:
		l.filterAlone(decider, spec)
	}
	for _, s := range l.file.Stack(p.Store.Name) {
		if spec, ok := s.Spec.(*Tiered); ok && spec.OnStoreError == "pass" {
			l.add(semel.Warning, Repeat, path, s.Name+" has on_store_error: pass", "while "+decider.Name+" does not answer, effects happen and are not remembered", "on_store_error: stop, or wait")
		}
	}
	if stack, ok := l.file.Above(p.Store.Name); ok {
		if spec, ok := stack.Spec.(*Tiered); ok && spec.SeesEveryWriter {
			l.add(semel.Broken, Repeat, path, fmt.Sprintf("%s, on which %s stands with sees_every_writer", p.Store.Name, stack.Name),
				"its filter does not hear of keys that this pipeline writes", "store: "+stack.Name+", or no sees_every_writer there")
		}
	}
}

// filterAlone looks at a filter that decides.
func (l *linter) filterAlone(s *Store, spec *Filter) {
	severity, found := semel.Warning, fmt.Sprintf("%s is a filter with rate %g", s.Name, spec.Rate)
	remedy := "an exact store; or nothing, where some loss is borne"
	if !l.pipeline.Lossy {
		severity, found = semel.Broken, found+", and lossy is not set"
		remedy = "an exact store; or lossy: true, where some loss is borne"
	}
	l.deciding(severity, Loss, l.at("store"), found, fmt.Sprintf("about %g of the new messages are dropped", spec.Rate), remedy)
	if l.pipeline.OnLeaseExpired == "hold" {
		l.add(semel.Broken, Repeat, l.at("on_lease_expired"), "hold, in a filter", "a filter keeps no claims", "an exact store")
	}
	if spec.Redis.Name == "" {
		l.add(semel.Warning, Repeat, l.at("store"), s.Name+" is in memory", "the end of the process forgets every key", "redis: the name of a store on whose server it is")
	}
}

// Decider returns the store on which every answer of a store rests: itself, or
// the lowest of its stack; nil if there is none.
func (f *File) Decider(name string) *Store {
	s, ok := f.Store(name)
	if !ok {
		return nil
	}
	if spec, ok := s.Spec.(*Tiered); ok && len(spec.Layers) > 0 {
		return f.Decider(spec.Layers[len(spec.Layers)-1].Name)
	}
	return s
}
