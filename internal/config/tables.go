package config

import (
	"regexp"
	"slices"
	"time"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/stream"
)

// tablesField is the field with the tables whose rows filter and map use.
func tablesField(p *Pipeline) schema.Field {
	return schema.Field{
		Name: "tables", Doc: "In a Kafka transaction: compacted topics by name, whose rows `filter` and `map` use as `tables.NAME`. All rows are read before the first record is joined, and are in memory.",
		Form: schema.Form{Named: &schema.Form{Members: func() schema.Mapping { return tableMapping(&stream.Table{}) }}},
		Read: func(v schema.Value) {
			readNamed(v, "table", func(name string, at schema.Place, member schema.Value) {
				if !schema.IsVariable(name) {
					v.WrongAt(at, "%s.%s: an expression cannot name it: write letters, digits and _, and a letter first", v.Path, name)
				}
				t := &stream.Table{Name: name}
				member.Mapping(tableMapping(t))
				p.Tables = append(p.Tables, t)
			})
		},
	}
}

// missingPolicies are the words for the policies of package stream, in their order.
var missingPolicies = []string{"park", "drop", "pass", "wait"}

func tableMapping(t *stream.Table) schema.Mapping {
	var read, asOf, missing string
	var history time.Duration
	return schema.Mapping{
		Fields: []schema.Field{
			schema.TextField("topic", &t.Topic, "The topic with the rows. The broker must keep the newest record of each key: `cleanup.policy=compact`.").Need(),
			{Name: "by", Doc: "Where a message has the key of its row: a rule. The record key of the row is that value as text.", Required: true, Form: schema.Form{Either: ruleForms()}, Read: func(v schema.Value) { t.By = oneRule(v) }},
			schema.ChoiceField("read", &read, "`global` reads all partitions in each process, `local` those with the numbers that the process works on. Both topics then need the same number of partitions, and the key of the row as record key.", "global", "local").Or("global"),
			schema.ChoiceField("as_of", &asOf, "`latest` joins a record with the newest row that was read. `record` joins it with the row that was valid at the record's time.", "latest", "record").Or("latest"),
			schema.DurationField("history", &history, "With `as_of: record`: how long former rows are kept. The topic needs a `min.compaction.lag.ms` and `delete.retention.ms` of at least that.").Means("1h with `as_of: record`"),
			schema.ChoiceField("missing", &missing, "A record without a row: `park` parks it, `drop` loses it, `pass` joins it without `tables.NAME`, `wait` parks it after reading the table up to its present end.", missingPolicies...).Or("park"),
		},
		Check: func(_ schema.Value, there schema.Members) {
			t.Local = read == "local"
			t.Missing = stream.Missing(max(0, slices.Index(missingPolicies, missing)))
			if asOf == "record" {
				if t.History = history; history == 0 {
					t.History = time.Hour
				}
			} else if at, ok := there["history"]; ok {
				at.Wrong("it needs as_of: record: write that too, or leave it out")
			}
		},
	}
}

// checkTables reports what contradicts the tables of a Kafka transaction.
func checkTables(p *Pipeline, source TransactionalSource, there schema.Members) {
	v, ok := there["tables"]
	if !ok {
		return
	}
	_, filters := there["filter"]
	_, maps := there["map"]
	if len(p.Tables) > 0 && !filters && !maps {
		v.Wrong("no expression uses it: write filter or map, such as map: '{\"name\": tables.customers.name}'")
	}
	for i, t := range p.Tables {
		for _, other := range p.Tables[:i] {
			if t.Topic != "" && t.Topic == other.Topic && (t.Local != other.Local || t.History != other.History) {
				v.Wrong("%s and %s have one topic, so read, as_of and history must be the same", other.Name, t.Name)
			}
		}
		source.CheckTable(p, t, v)
	}
}

// uses reports whether an expression of the pipeline names a table.
func (p *Pipeline) uses(t *stream.Table) bool {
	return regexp.MustCompile(`\btables\s*\.\s*\??\s*` + t.Name + `\b`).MatchString(p.Filter + "\n" + p.Map)
}

// MissingPolicy returns the word for the policy of a table.
func MissingPolicy(t *stream.Table) string { return missingPolicies[t.Missing] }

// Tables looks for tables that lose records, or have no use.
func (l *Linter) Tables() {
	for _, t := range l.Pipeline.Tables {
		at := "tables." + t.Name
		if !l.Pipeline.uses(t) {
			l.Notice(l.At(at), "no expression uses it", "its rows are read and kept in memory for nothing", "leave it out, or use tables."+t.Name)
		}
		if t.Missing == stream.MissingDrop {
			l.Add(doctor.Warning, Loss, l.At(at+".missing"), "drop", "a record without a row is lost", "write missing: park")
		}
	}
}
