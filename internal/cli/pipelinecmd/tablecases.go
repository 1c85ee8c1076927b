package pipelinecmd

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/rows"
	"github.com/semel-dev/semel/stream"
)

// attachTables gives the tables of the pipeline the rows of the cases.
func (b *caseBench) attachTables() {
	b.tables = map[string]*rows.State{}
	for _, t := range b.spec.Tables {
		state := rows.New(t.History)
		b.tables[t.Name] = state
		t.Attach(func(key []byte, m *semel.Message) ([]byte, error) {
			row, found := state.Find(placeOf(t, m.Origin.Partition), key, m.Time.UnixMilli(), b.now.UnixMilli())
			if found == rows.Unknown {
				return nil, fmt.Errorf("former rows are kept for %v (history): %w", t.History, semel.ErrLate)
			}
			return row, nil
		})
	}
}

// placeOf returns the partition in which rows for messages of a partition are kept.
func placeOf(t *stream.Table, partition int32) int32 {
	if t.Local {
		return partition
	}
	return 0
}

// row sets or deletes the row of a case.
func (b *caseBench) row(c *testCase) {
	at := c.Time.Time
	if at.IsZero() {
		at = b.now
	}
	i := slices.IndexFunc(b.spec.Tables, func(t *stream.Table) bool { return t.Name == c.Table })
	change := rows.Change{Key: []byte(c.RecordKey), At: at.UnixMilli()}
	if len(c.Body) > 0 {
		change.Row = b.messageOf(c).Body
	}
	b.tables[c.Table].Apply(placeOf(b.spec.Tables[i], c.Partition), []rows.Change{change})
}

// checkTable checks a case that is a row.
func (c *testCase) checkTable() error {
	if c.Table == "" {
		return nil
	}
	var names []string
	for _, t := range c.spec.Tables {
		names = append(names, t.Name)
	}
	switch {
	case len(names) == 0:
		return fmt.Errorf("table %q: pipeline %s has no tables", c.Table, c.spec.Name)
	case !slices.Contains(names, c.Table):
		return fmt.Errorf("table %q: name one of %s", c.Table, strings.Join(names, ", "))
	case c.RecordKey == "":
		return errors.New("record_key is missing: it is the key of the row")
	case c.Decision != "" || len(c.Key) > 0 || len(c.Output) > 0:
		return errors.New("a row has no key, decision or output: write only table, record_key, body, partition, time, after and name")
	}
	return nil
}
