package config

import (
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// Holds reports whether the pipeline holds messages until no other can replace them.
func (p *Pipeline) Holds() bool { return p.Key.Keep != nil && p.Key.Keep.Holds() }

// Remembers reports whether the pipeline remembers the keys of messages that took effect.
// The last message of a window needs no key: a message that comes later is late.
func (p *Pipeline) Remembers() bool { return p.Key.Keep == nil || p.Key.Keep.Last == stream.Window{} }

// keepField is the field that says which message of a key takes effect.
func keepField(k *Key) schema.Field {
	return schema.Field{
		Name: "keep", Doc: "Which message of a key takes effect. `first` is the first one that is read. In a Kafka transaction it may be the earliest, the last one of each window, or each newer version.",
		Shown: "first",
		Form:  schema.Form{Either: []schema.Form{{Words: []string{"first"}}, {Members: func() schema.Mapping { return keepMapping(&stream.Keep{}) }}}},
		Read: func(v schema.Value) {
			switch v.Node.(type) {
			case *ast.MappingNode, *ast.MappingValueNode:
				k.Keep = &stream.Keep{}
				v.Mapping(keepMapping(k.Keep))
			default:
				var text string
				if v.Text(&text); text != "" && text != "first" {
					v.Wrong("expected first, { first: .time }, { last: { tumbling: 1m } }, { last: { session: 30s, max: 1h } } or { newest: .version }")
				}
			}
		},
	}
}

func keepMapping(k *stream.Keep) schema.Mapping {
	rule := func(name string, target **key.Rule, doc string) schema.Field {
		return schema.Field{Name: name, Doc: doc, Form: schema.Form{Either: ruleForms()}, Read: func(v schema.Value) { *target = oneRule(v) }}
	}
	return schema.Mapping{
		Fields: []schema.Field{
			rule("first", &k.First, "Where a message has its time: a rule. The earliest message of a key takes effect, once no earlier one can come. Keys are remembered by these times."),
			schema.PartField("last", func() schema.Mapping { return overMapping(&k.Last) }, "The last message of a key takes effect in each window over the times of the records. With `session`, that is after a time without messages of the key.").Titled("Windows"),
			{Name: "time", Doc: "For `last`: where a record has its time, a rule. It looks at the record as it was read, before `map`.", Form: schema.Form{Either: ruleForms()}, Read: func(v schema.Value) { k.Time = oneRule(v) }, Shown: "the time of the record"},
			timeUnitField(&k.Unit),
			rule("newest", &k.Newest, "Where a message has its version: a rule. A message takes effect immediately if its version is newer than all before, for as long as `window` remembers them. A version is a whole number, a time as in RFC 3339, or another text of at most 32 bytes, ordered by its bytes. `grace`, `idle`, `max_ahead`, `max_behind` and `late` are not for it."),
			schema.PauseField("grace", &k.Grace, "How much older than the newest record of its partition a record may be. A record is held until the newest one is later by that much.").Or("0s"),
			schema.WindowField("idle", &k.Idle, "If a partition that was read to its end gets no new record for this time, held records take effect when the clock is `idle` + `grace` + 5s later. With `forever`, only newer records have that effect.").Or("1m"),
			schema.DurationField("max_ahead", &k.MaxAhead, "How far the time of a record may be ahead of the clock. A record further ahead is parked.").Or("5m"),
			maxBehindField(&k.MaxBehind, ""),
			thenField("late", &k.Late, "A record that is too old to be held: `park` parks it, `drop` loses it, `stop` ends the pipeline."),
		},
		OneOf: [][]string{{"first", "last", "newest"}},
		Check: func(v schema.Value, there schema.Members) {
			if _, ok := there["newest"]; ok {
				for _, name := range []string{"grace", "idle", "max_ahead", "max_behind", "late"} {
					if member, ok := there[name]; ok {
						member.Wrong("newest holds no records, and takes each newer version immediately: leave it out")
					}
				}
			}
			at, hasTime := there["time"]
			if _, ok := there["last"]; hasTime && !ok {
				at.Wrong("it is only for last: first has the rule of a time itself, and newest needs no time")
			}
			if unit, ok := there["time_unit"]; ok && there["first"].Node == nil && !hasTime {
				unit.Wrong("it is the unit of the time that first or time finds: leave it out, or write time")
			}
			if last, ok := there["last"]; ok && k.Last.Gap() == 0 && k.Last.Every() != k.Last.Size() {
				last.Wrong("windows that overlap would keep a message several times: use tumbling or session")
			}
		},
	}
}

// timeUnitField is the field that says how a rule has a time.
func timeUnitField(unit *stream.TimeUnit) schema.Field {
	var text string
	f := schema.ChoiceField("time_unit", &text, "How that field has a time: a number since 1970, which may be a text and have decimals, or a text as in RFC 3339. Without it, numbers are recognised by their digits before the decimals: 9 to 11 have seconds, 12 to 14 milliseconds, 15 to 17 microseconds, and 18 to 20 nanoseconds.",
		"s", "ms", "us", "ns", "rfc3339").Means("recognised")
	choose := f.Read
	f.Read = func(v schema.Value) {
		if choose(v); text != "" {
			*unit, _ = stream.ParseTimeUnit(text) // choose has checked it
		}
	}
	return f
}

// maxBehindField is the field that bounds the times of records in the past.
func maxBehindField(target *time.Duration, more string) schema.Field {
	return schema.WindowField("max_behind", target, "How far the time of a record may be behind the clock. A record further behind is parked, and so is one without a time or before 1970. Times before 1973 are nearly always in the wrong unit; `forever` allows them."+more).Means("since 1973")
}

// checkKeep reports what cannot be combined with keep in a Kafka transaction.
func checkKeep(p *Pipeline, there schema.Members) {
	k := p.Key.Keep
	if k == nil {
		return
	}
	if a, ok := there["aggregate"]; ok {
		a.Wrong("it cannot be combined with key.keep: let one pipeline keep messages, and aggregate its output with another")
	}
	if t, ok := there["transaction"]; ok && k.First != nil && p.Transaction.Time == "event" {
		t.Wrong("time: event cannot be combined with key.keep.first, which has the times by which keys are remembered: leave out time and grace")
	}
}
