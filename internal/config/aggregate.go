package config

import (
	"errors"
	"strings"
	"time"
	_ "time/tzdata" // zones are known without the host's

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// aggregateField is the field that makes a pipeline write results.
func aggregateField(p *Pipeline) schema.Field {
	return schema.Field{
		Name: "aggregate", Doc: "In a Kafka transaction: write one final result for each group and window, instead of the messages. Messages with one group key must be in one partition.",
		Form: schema.Form{Members: func() schema.Mapping { return aggregateMapping(&stream.Aggregate{}) }},
		Read: func(v schema.Value) {
			p.Aggregate = &stream.Aggregate{}
			v.Mapping(aggregateMapping(p.Aggregate))
		},
	}
}

func aggregateMapping(a *stream.Aggregate) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			{Name: "by", Doc: "Where a message has its group key: a rule.", Required: true, Form: schema.Form{Either: ruleForms()}, Read: func(v schema.Value) { a.By = oneRule(v) }},
			schema.PartField("over", func() schema.Mapping { return overMapping(&a.Over) }, "The windows over the times of the records.").Need().Titled("Windows"),
			{Name: "values", Doc: "The values of a result, by name: `count`, or `sum`, `min`, `max`, `avg`, `first` or `last` and the path of a JSON value, as in `sum .cents`. Numbers are exact, and have at most 60 digits before the point and 60 behind it.", Required: true,
				Form: schema.Form{Named: &schema.Form{Scalar: schema.ScalarText}}, Read: func(v schema.Value) { readValues(v, a) }},
			{Name: "time", Doc: "Where a record has its time: a rule. It looks at the record as it was read, before `map`.", Form: schema.Form{Either: ruleForms()}, Read: func(v schema.Value) { a.Time = oneRule(v) }, Shown: "the time of the record"},
			timeUnitField(&a.Unit),
			schema.PauseField("grace", &a.Grace, "How much older than the newest record of its input partition a record may be and still count.").Or("0s"),
			schema.WindowField("idle", &a.Idle, "If a partition that was read to its end gets no new record for this time, windows are closed whose end is at least `idle` + `grace` + 5s ago. With `forever`, only newer records close windows.").Or("1m"),
			schema.DurationField("max_ahead", &a.MaxAhead, "How far the time of a record may be ahead of the clock. A record further ahead is parked.").Or("5m"),
			maxBehindField(&a.MaxBehind, ""),
			thenField("late", &a.Late, "A record whose window is closed: `park` parks it, `drop` loses it, `stop` ends the pipeline."),
			schema.DurationField("correct", &a.Correct, "How long a closed window still takes late records. Its result is then written again. Not for sessions.").Means("0s: a result is written once"),
			schema.DurationField("early", &a.Early, "Write early results of open windows that have changed, at most once in this time, with the header `semel-final: false`.").Means("only final results"),
		},
		Refused: refusedInAggregate,
		Check: func(v schema.Value, there schema.Members) {
			if unit, ok := there["time_unit"]; ok && a.Time == nil {
				unit.Wrong("it is only for time, whose rule finds a time")
			}
			if correct, ok := there["correct"]; ok && a.Over.Gap() > 0 {
				correct.Wrong("sessions cannot be corrected, because a late record may join sessions whose results are written: write a longer grace instead")
			}
		},
	}
}

func overMapping(over *stream.Window) schema.Mapping {
	var tumbling, hopping, every, session, most time.Duration
	var zone *time.Location
	return schema.Mapping{
		Fields: []schema.Field{
			schema.DurationField("tumbling", &tumbling, "Windows of this size, one after the other, that start at multiples of the size since 1970 in UTC."),
			schema.DurationField("hopping", &hopping, "Windows of this size that overlap. One starts at each multiple of `every` since 1970 in UTC."),
			schema.DurationField("every", &every, "The distance between the starts of hopping windows, at most their size."),
			schema.DurationField("session", &session, "A window ends when its group has no record for longer than this gap."),
			schema.DurationField("max", &most, "The greatest length of a session. A record that would make the session longer begins another one."),
			{Name: "zone", Doc: "For `tumbling` windows of whole days: the time zone whose days they are, such as `Europe/Vienna`. A day has 23 or 25 hours if clocks are changed in it. Days are counted from 1970-01-01.",
				Form: schema.Form{Scalar: schema.ScalarText}, Shown: "UTC", Read: func(v schema.Value) { zone = readZone(v) }},
		},
		OneOf: [][]string{{"tumbling", "hopping", "session"}},
		Check: func(v schema.Value, there schema.Members) {
			for _, pair := range [][2]string{{"hopping", "every"}, {"session", "max"}} {
				of, needs := there[pair[0]]
				with, has := there[pair[1]]
				switch {
				case needs && !has:
					of.Wrong("it needs %s", pair[1])
				case has && !needs:
					with.Wrong("it is only for %s", pair[0])
				}
			}
			if member, ok := there["zone"]; ok {
				switch {
				case tumbling == 0:
					member.Wrong("it is only for tumbling")
				case tumbling%day != 0:
					member.Wrong("it is only for windows of whole days, as in tumbling: 1d")
				}
			}
			switch {
			case zone != nil && tumbling > 0 && tumbling%day == 0:
				*over = stream.Days(int(tumbling/day), zone)
			case hopping > 0 && every > 0:
				*over = stream.Hopping(hopping, every)
			case session > 0 && most > 0:
				*over = stream.Session(session, most)
			case tumbling > 0:
				*over = stream.Tumbling(tumbling)
			default:
				return // already reported
			}
			if err := over.Validate(); err != nil {
				text := strings.TrimPrefix(err.Error(), "stream: Window: ")
				v.Wrong("%s", strings.TrimSuffix(text, ": "+semel.ErrInvalidRequest.Error()))
			}
		},
	}
}

const day = 24 * time.Hour

// readZone reads the name of a time zone.
func readZone(v schema.Value) *time.Location {
	var name string
	if v.Text(&name); name == "" {
		return nil // already reported
	}
	zone, err := schema.ParseZone(name)
	if err != nil {
		v.Wrong("%q is %v", name, err)
		return nil
	}
	return zone
}

// readValues reads the values in their order.
func readValues(v schema.Value, a *stream.Aggregate) {
	entries, ok := v.Entries()
	if !ok {
		return
	}
	var list []stream.Value
	for _, e := range entries {
		value := stream.Value{Name: e.Name}
		member := v.Value(e.Value, schema.Within(v.Path, e.Name))
		member.Text(&value.Of)
		if value.Of == "" {
			return // already reported
		}
		if _, err := stream.Values(value); err != nil {
			member.Wrong("%s", problemOf(err))
			return
		}
		list = append(list, value)
	}
	if len(list) == 0 {
		v.Wrong("expected a value, as in { n: count }")
		return
	}
	f, err := stream.Values(list...)
	if err != nil {
		v.Wrong("%s", problemOf(err))
		return
	}
	a.Func = f
}

// problemOf returns why values are refused, without their text, which may come from a
// reference.
func problemOf(err error) string {
	var wrong *key.RuleError
	if errors.As(err, &wrong) {
		return RuleProblem(err).Error()
	}
	if errors.Is(err, semel.ErrInvalidRequest) {
		return "expected count, or sum, min, max, avg, first or last and a path, as in sum .cents; for other values, aggregate with a Go function (stream.Aggregator)"
	}
	return err.Error()
}
