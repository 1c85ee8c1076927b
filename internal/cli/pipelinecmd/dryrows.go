package pipelinecmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/internal/rows"
	"github.com/semel-dev/semel/stream"
)

// dryTable is what a forecast read of a table.
type dryTable struct {
	Name string `json:"name"`
	Rows int    `json:"rows"`
	// Ended is why reading ended, as for the messages.
	Ended string `json:"ended"`
	// Without counts the look-ups that found no row.
	Without int64 `json:"without_row"`

	table *stream.Table
	state *rows.State
}

// readTables reads the tables of the pipeline up to the ends that they have now, for at
// most the time of --for, and attaches their rows.
func (d *dryRun) readTables(ctx context.Context) error {
	if len(d.spec.Tables) == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, d.period)
	defer cancel()
	byTopic := map[string][]*dryTable{}
	for _, t := range d.spec.Tables {
		one := &dryTable{Name: t.Name, Ended: dryAll, table: t, state: rows.New(t.History)}
		d.tables, byTopic[t.Topic] = append(d.tables, one), append(byTopic[t.Topic], one)
		t.Attach(one.find)
	}
	err := kafka.ReadRows(limited, d.conf, d.spec, func(m *semel.Message) {
		if m.RecordKey == nil {
			return
		}
		change := rows.Change{Key: m.RecordKey, Row: m.Body, At: max(m.Time.UnixMilli(), 0)}
		for _, one := range byTopic[m.Origin.Source] {
			one.state.Apply(placeOf(one.table, m.Origin.Partition), []rows.Change{change})
		}
	})
	if err != nil && limited.Err() == nil {
		return fmt.Errorf("tables: %w", err)
	}
	for _, one := range d.tables {
		one.Rows, _ = one.state.Len() // their bytes are not shown
		if limited.Err() != nil {
			one.Ended = "--for"
		}
	}
	return nil
}

// find is the stream.Rows of a table.
func (d *dryTable) find(key []byte, m *semel.Message) ([]byte, error) {
	partition := placeOf(d.table, m.Origin.Partition)
	row, found := d.state.Find(partition, key, max(m.Time.UnixMilli(), 0), time.Now().UnixMilli())
	if found == rows.Unknown {
		return nil, fmt.Errorf("former rows are kept for %v (history): %w", d.table.History, semel.ErrLate)
	}
	if row == nil {
		if where, ok := d.state.Where(key, partition); ok && d.table.Local {
			return nil, fmt.Errorf("the row %q is in partition %d of %s, and the message in partition %d: %w",
				key, where, d.table.Topic, partition, errElsewhere)
		}
		d.Without++
	}
	return row, nil
}

// errElsewhere means that the row of a message is in another partition than the message.
var errElsewhere = errors.New("write read: global, or write both topics with the key of the row as record key")

// without says what the pipeline does with a message whose row it does not have. It
// returns "" if err means something else.
func without(err error) string {
	row, ok := errors.AsType[*stream.RowError](err)
	switch {
	case errors.Is(err, errElsewhere):
		return "the pipeline would end"
	case !ok:
		return ""
	case errors.Is(err, semel.ErrLate):
		return "parked as late"
	case row.Table.Missing == stream.MissingDrop:
		return "dropped"
	case row.Table.Missing == stream.MissingWait:
		return "parked after the table is read again"
	}
	return "parked"
}

// rowFate says what becomes of the messages that have no row.
func (d *dryRun) rowFate() string {
	return strings.Join(slices.Sorted(maps.Keys(d.rowFates)), ", or ")
}

// inWords says what was read of the table.
func (d *dryTable) inWords() string {
	text := fmt.Sprintf("table %s: %s", d.Name, term.Plural(d.Rows, "row"))
	if d.Ended != dryAll {
		text += ", not read to its end (--for): newer rows are left out, and rows may seem to be missing"
	}
	if d.Without > 0 {
		text += fmt.Sprintf("; looked up without a row: %s (missing: %s)", term.FormatCount(d.Without), config.MissingPolicy(d.table))
	}
	return text
}
