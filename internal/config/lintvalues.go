package config

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/key"
)

// values looks for rules, filters and maps that ask for a value which no message of the
// source has, such as a header of a line of a file.
func (l *Linter) values() {
	p := l.Pipeline
	if why := l.never(p.Key.Rule); why != "" {
		severity, cost := doctor.Broken, "no message has a key"
		if p.Key.OnMissing == "hash" || p.Key.OnMissing == "pass" {
			severity, cost = doctor.Warning, "no message has a key of this rule, and on_missing: "+p.Key.OnMissing+" makes all keys"
		}
		l.Add(severity, NoRisk, l.At("key.id"), p.Key.Rule.String()+" can never match: "+why, cost, "use the id in the body, such as .event_id, or a value that messages of this source have")
	} else {
		for _, r := range alternatives(p.Key.Rule) {
			if why := l.never(r); why != "" {
				l.Notice(l.At("key.id"), r.String()+" can never match: "+why, "the other rules make all keys", "leave it out")
			}
		}
	}
	for _, field := range []struct{ name, text, cost string }{
		{"filter", p.Filter, "the condition is the same for every message, or fails"},
		{"map", p.Map, "the map fails, or leaves the value out, for every message"},
	} {
		for _, name := range headersIn(field.text) {
			l.Value(field.name, "header:"+name, field.cost)
		}
	}
	needed := func(field string, r *key.Rule, cost string) {
		if why := l.never(r); why != "" {
			l.Add(doctor.Broken, NoRisk, l.At(field), r.String()+" can never match: "+why, cost, "use a value that messages of this source have")
		}
	}
	if a := p.Aggregate; a != nil {
		needed("aggregate.by", a.By, "no message has a group")
		needed("aggregate.time", a.Time, "every message is parked")
	}
	if k := p.Key.Keep; k != nil {
		needed("key.keep.first", k.First, "every message is parked")
		needed("key.keep.time", k.Time, "every message is parked")
		needed("key.keep.newest", k.Newest, "every message is parked")
	}
}

// Value checks the source of a value in a field of the pipeline, such as that of a column.
func (l *Linter) Value(field, from, cost string) {
	rule, err := key.ParseRule(from)
	if err != nil {
		return // a value that is no rule, such as attempt
	}
	if why := l.never(rule); why != "" {
		l.Add(doctor.Warning, NoRisk, l.At(field), from+" can never match: "+why, cost, "use a value that messages of this source have, or leave it out")
	}
}

// never says why a rule finds nothing in any message of the source. It returns "" if it may
// find something.
func (l *Linter) never(r *key.Rule) string {
	never := l.Pipeline.Source.About(l.Pipeline).Never
	if never == nil || r == nil || l.Pipeline.Unwrap != nil && r.Form() == key.FormHeader { // envelopes bring headers
		return ""
	}
	switch r.Form() {
	case key.FormHeader, key.FormRecordKey, key.FormMessageID:
		return never(r)
	case key.FormAll, key.FormTemplate, key.FormShaped: // all of them are needed
		for _, part := range r.Rules() {
			if why := l.never(part); why != "" {
				return why
			}
		}
	case key.FormFirst: // one of them is enough
		why := ""
		for _, part := range r.Rules() {
			if why = l.never(part); why == "" {
				return ""
			}
		}
		return why
	}
	return ""
}

// headersIn returns the names of headers that an expression asks for, as far as it writes
// them out: headers.name, headers["name"] and "name" in headers.
func headersIn(expression string) (names []string) {
	for _, match := range headerUse.FindAllStringSubmatch(expression, -1) {
		names = append(names, match[1]+match[2]+match[3])
	}
	return names
}

var headerUse = regexp.MustCompile(`\bheaders\s*(?:\.\s*\??\s*([A-Za-z_]\w*)\b(?:[^(\w]|$)|\[\s*\??\s*["']([^"']+)["'])|["']([^"']+)["']\s+in\s+headers\b`)

// ambiguous reports what a template does not tell apart, with an example.
func (l *Linter) ambiguous(path string, r *key.Rule) {
	for _, a := range r.Ambiguous() {
		text := strings.TrimPrefix(r.String(), "template ")
		found := fmt.Sprintf("%s makes one id, %s, of %s and of %s", text, a.ID, a.First, a.Second)
		exact := "{ all: [" + strings.Join(texts(r.Rules()), ", ") + "] }"
		if len(r.Rules()) == 1 {
			exact = r.Rules()[0].String()
		}
		switch {
		case a.OfTypes:
			l.Notice(path, found, "two messages whose values differ only in their types count as one", "nothing if the value always has the same type, or means the same in both; otherwise write id: "+exact)
		case a.Between == "":
			l.Deciding(doctor.Warning, Loss, path, found, "two messages with different values have the same key, and the second is dropped", "write a text between the values that none of them has, as in {.a}/{.b}, or id: "+exact)
		default:
			l.Notice(path, found, "if a value has the text "+fmt.Sprintf("%q", a.Between)+", two messages with different values can have the same key, and the second is dropped", "nothing if no value has that text, as numbers and UUIDs; otherwise write id: "+exact)
		}
	}
	for _, part := range r.Rules() {
		l.ambiguous(path, part)
	}
}

func texts(rules []*key.Rule) (list []string) {
	for _, r := range rules {
		text := r.String()
		if strings.ContainsAny(text, `:,[]{}"`) {
			text = "'" + text + "'"
		}
		list = append(list, text)
	}
	return list
}
