// Package trialcmd has the verbs that decide about messages without delivering them:
// dry-run decides those of a source, test those of a file.
package trialcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/rows"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/stream"
)

// NewDryRun returns the verb dry-run.
func NewDryRun(a *term.App) *cobra.Command {
	var limit, samples int64
	var period time.Duration
	cmd := &cobra.Command{
		Use: "dry-run FILE [PIPELINE]", ValidArgsFunction: open.NamesAfterFile(a, 1, (*config.File).PipelineNames),
		Short: "Show what a pipeline would drop, without writing",
		Example: `semel dry-run backfill.yaml
semel dry-run backfill.yaml lines --limit 1e6 --json`,
		Long: `Reads the source of a pipeline from the beginning and says what would happen to
the messages: how many are new, how many would be dropped, with examples, and how
many have no key. It compares them with each other and with the keys in the
pipeline's store, if that store can be read. Tables of a pipeline are read first, up
to the ends that they have then, for at most the time of --for.

Nothing is claimed, written or acknowledged. No position moves, and no consumer
group is joined. A source that receives messages, such as a queue, cannot be read in
advance: use "observe: true" in the pipeline instead.

The exit status is 3 if a message would be dropped or parked.`,
		Args: term.Arguments(1, 2, term.MissingFile, "FILE and PIPELINE"),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			var conf *config.File
			var chosen []*config.Pipeline
			if len(args) > 0 {
				conf, chosen = open.Pipelines(a, args[0], args[1:], &wrong)
				refuseKeep(chosen, "it compares each message with the first one of its key. Run the pipeline with another group and output to see what it keeps", &wrong)
			}
			if limit == 0 {
				wrong.Addf("--limit 0: read at least one message")
			}
			if period <= 0 {
				wrong.Addf("--for %s: read for at least a moment, such as 10s", period)
			}
			if err := wrong.Err(); err != nil {
				return err
			}
			d := dryRun{App: a, conf: conf, limit: limit, samples: int(samples), period: period}
			return d.all(cmd.Context(), args[0], chosen)
		}),
	}
	term.CountVar(cmd.Flags(), &limit, "limit", "10000", "maximum number of messages to read from a pipeline")
	term.CountVar(cmd.Flags(), &samples, "samples", "5", "maximum number of messages to show of each kind")
	term.AddParsed(cmd.Flags(), &period, "for", "10s", "DUR", "maximum time to read the messages, and the tables before them", schema.ParseDuration)
	return cmd
}

// all prints the forecast for each of these pipelines. The receiver has what they share.
func (d dryRun) all(ctx context.Context, file string, chosen []*config.Pipeline) error {
	var failures []error
	found := false
	for i, p := range chosen {
		one := d
		one.spec = p
		if err := one.do(ctx, file); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", p.Name, term.InOneLine(err)))
			continue
		}
		one.numberLines()
		if err := one.print(i > 0); err != nil {
			return err
		}
		found = found || one.found()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := errors.Join(failures...); err != nil || !found {
		return err
	}
	return term.ErrFound
}

// dryRun is the forecast for the messages of one pipeline.
type dryRun struct {
	*term.App
	conf    *config.File
	spec    *config.Pipeline
	limit   int64
	samples int
	period  time.Duration

	read   int64
	differ int64 // duplicates whose content differs from the first message of their key
	count  map[string]int64
	shown  map[string][]drySample
	ended  string // why reading ended
	unseen string // why the store was not read
	tables []*dryTable
	// rowFates are what becomes of the messages that have no row.
	rowFates map[string]bool
}

// drySample is a message that would be dropped or parked, or that a map changes.
type drySample struct {
	placed
	Key string `json:"key,omitempty"`
	// FirstSeen is when the store first saw its key. First is the message in this
	// reading that has the same key.
	FirstSeen string  `json:"first_seen,omitempty"`
	First     *placed `json:"first,omitempty"`
	Error     string  `json:"error,omitempty"`
	// Output is the body that the map makes of a fresh message.
	Output json.RawMessage `json:"output,omitempty"`
}

// placed is the place of a message.
type placed struct {
	Source    string `json:"source"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	// Line is the number of the line in a file that is not compressed, or 0.
	Line int64 `json:"line,omitempty"`
}

// String names the place as its source does.
func (p placed) String() string {
	if p.Line > 0 {
		return fmt.Sprintf("%s line %d (byte %d)", p.Source, p.Line, p.Offset)
	}
	return fmt.Sprintf("%s %d/%d", p.Source, p.Partition, p.Offset)
}

// number sets the number of the line of a message in a file. It reads the file up to
// that line.
func (p *placed) number() {
	switch strings.ToLower(filepath.Ext(p.Source)) {
	case ".gz", ".gzip", ".zst", ".zstd":
		return // the offset is that of the decompressed content
	}
	file, err := os.Open(p.Source)
	if err != nil {
		return
	}
	defer file.Close()
	buf, lines, left := make([]byte, 64<<10), int64(0), p.Offset
	for left > 0 {
		n, err := file.Read(buf[:min(left, int64(len(buf)))])
		if err != nil {
			return
		}
		lines += int64(bytes.Count(buf[:n], []byte{'\n'}))
		left -= int64(n)
	}
	p.Line = lines + 1
}

// numberLines sets the numbers of the lines of the samples.
func (d *dryRun) numberLines() {
	if d.spec.Source.Kind() != "file" {
		return
	}
	for _, list := range d.shown {
		for i := range list {
			list[i].number()
			if first := list[i].First; first != nil && first.Line == 0 {
				first.number()
			}
		}
	}
}

// Possible outcomes of a message.
const (
	dryFresh     = "fresh"
	dryDuplicate = "duplicate"
	dryMismatch  = "mismatch"
	dryLate      = "late"
	dryInFlight  = "in_flight"
	dryUnknown   = "unknown"
	dryMissing   = "missing"
	dryNoTarget  = "no_target"
	dryFiltered  = "filtered" // new, and not delivered
	dryFailed    = "failed"   // new, and its filter or map fails
	dryNoRow     = "row_missing"
)

// dryAll is why reading ended at the end.
const dryAll = "all there is"

func dryKinds() []string {
	return []string{dryFresh, dryDuplicate, dryMismatch, dryLate, dryInFlight, dryUnknown, dryMissing, dryNoTarget, dryFiltered, dryFailed, dryNoRow}
}

// do reads and decides messages.
func (d *dryRun) do(ctx context.Context, file string) error {
	d.count, d.shown, d.rowFates = map[string]int64{}, map[string][]drySample{}, map[string]bool{}
	if err := d.readTables(ctx); err != nil {
		return err
	}
	f, reasons := open.StoreOf(d.App, file, d.conf, d.spec)
	if len(reasons) > 0 {
		d.unseen = strings.Join(reasons, "; ")
		return d.decideAll(ctx, nil)
	}
	f.ReadOnly = true
	err := f.WithStore(ctx, func(store semel.Store) error {
		looker, err := open.Able[semel.Inspector](f, store, "look keys up")
		if err != nil {
			return err
		}
		return d.decideAll(ctx, looker)
	})
	if errors.Is(err, config.ErrNoStore) {
		d.unseen = term.InOneLine(err).Error()
		return d.decideAll(ctx, nil)
	}
	return err
}

func (d *dryRun) decideAll(ctx context.Context, looker semel.Inspector) error {
	j := newDecider(d, looker)
	limited, cancel := context.WithTimeout(ctx, d.period)
	defer cancel()
	d.ended = dryAll
	var failed error
	err := app.Sample(limited, d.conf, d.spec, func(m *semel.Message) bool {
		d.read++
		if j.add(ctx, m); len(j.batch) >= 500 {
			failed = j.decide(ctx)
		}
		if d.read >= d.limit {
			d.ended = "--limit"
		}
		return failed == nil && d.read < d.limit
	})
	if err == nil && failed == nil {
		failed = j.decide(ctx)
	}
	if limited.Err() != nil && d.ended != "--limit" {
		d.ended = "--for"
	}
	return errors.Join(err, failed)
}

// found reports whether a message would be dropped or parked.
func (d *dryRun) found() bool {
	for kind, n := range d.count {
		switch {
		case n == 0, kind == dryFresh, kind == dryInFlight, kind == dryFiltered:
		case kind == dryDuplicate && d.conf.Mode(d.spec) == config.Direct:
		case kind == dryMissing && (d.spec.Key.OnMissing == "pass" || d.spec.Key.OnMissing == "hash"):
		default:
			return true
		}
	}
	return false
}

// fate says what the pipeline does with a message of this kind.
func (d *dryRun) fate(kind string) string {
	fates := map[string]string{"park": "parked", "drop": "dropped", "stop": "the pipeline would end", "fail": "the pipeline would end", "pass": "processed, with its place as its key", "hash": "processed, with its content as its key"}
	switch kind {
	case dryDuplicate:
		switch {
		case d.spec.Observe:
			return "processed: observe is true"
		case d.conf.Mode(d.spec) == config.Direct:
			return "processed: the pipeline keeps no keys"
		}
		return "dropped"
	case dryMismatch:
		return fates[d.spec.OnMismatch]
	case dryLate:
		return fates[d.spec.OnLate]
	case dryInFlight:
		return "wait for the process that holds the key"
	case dryUnknown:
		return "parked"
	case dryFiltered:
		return "not delivered, and remembered"
	case dryFailed:
		return fates[d.spec.OnFailure.Then.String()]
	case dryNoRow:
		return d.rowFate()
	case dryMissing:
		return fates[d.spec.Key.OnMissing]
	case dryNoTarget:
		return fates[d.spec.OnFailure.Then.String()] + " after its last attempt"
	}
	return "processed"
}

// untilWords says for people where reading ended.
func untilWords(ended string) string {
	if ended == dryAll {
		return "the end of the source"
	}
	return ended
}

// Sample decides the first messages of a pipeline as dry-run does, at most limit of them
// and for at most period. It returns how much attention the result needs, and how many
// messages would get each outcome.
func Sample(ctx context.Context, a *term.App, file string, conf *config.File, p *config.Pipeline, limit int64, period time.Duration) (severity doctor.Severity, counts string, err error) {
	d := &dryRun{App: a, conf: conf, spec: p, limit: limit, period: period}
	if err := d.do(ctx, file); err != nil {
		return 0, "", err
	}
	return d.verdict(), d.inWords(), nil
}

// verdict returns the severity of a forecast. A message that was seen before is what
// Semel is for. Any other that would not be processed deserves a look.
func (d *dryRun) verdict() doctor.Severity {
	seen := d.count[dryDuplicate]
	delete(d.count, dryDuplicate)
	defer func() { d.count[dryDuplicate] = seen }()
	if d.found() {
		return doctor.Warning
	}
	return doctor.Fine
}

// inWords returns the counts of a forecast.
func (d *dryRun) inWords() string {
	text := "read " + term.FormatCount(d.read)
	for _, kind := range dryKinds() {
		if n := d.count[kind]; n > 0 {
			text += fmt.Sprintf(", %s %s (%s)", term.FormatCount(n), strings.ReplaceAll(kind, "_", " "), d.fate(kind))
		}
	}
	if d.unseen != "" {
		text += "; compared only with each other: " + d.unseen
	}
	for _, t := range d.tables {
		if t.Ended != dryAll {
			text += "; " + t.inWords()
		}
	}
	return text
}

// DryLine is a report in JSON.
type DryLine struct {
	Pipeline string                 `json:"pipeline"`
	Read     int64                  `json:"read"`
	Ended    string                 `json:"ended"`
	Count    map[string]int64       `json:"count"`
	Samples  map[string][]drySample `json:"samples"`
	Unseen   string                 `json:"unseen,omitempty"`
	// Differ counts the duplicates whose content differs from the first message of
	// their key in this reading.
	Differ int64 `json:"differ,omitempty"`
	// Tables are what was read of each table.
	Tables []*dryTable `json:"tables,omitempty"`
}

func (d *dryRun) print(further bool) error {
	for _, kind := range dryKinds() {
		d.count[kind] += 0 // report each kind, also with 0
	}
	if d.JSON {
		return d.PrintJSON(DryLine{d.spec.Name, d.read, d.ended, d.count, d.shown, d.unseen, d.differ, d.tables})
	}
	var text strings.Builder
	if further {
		text.WriteString("\n")
	}
	fmt.Fprintf(&text, "%s: read %s, until %s\n", d.spec.Name, term.FormatCount(d.read), untilWords(d.ended))
	if d.unseen != "" {
		fmt.Fprintf(&text, "  compared only with each other: %s\n", term.DisplayText(d.Redact(d.unseen)))
	}
	for _, t := range d.tables {
		fmt.Fprintf(&text, "  %s\n", t.inWords())
	}
	for _, kind := range dryKinds() {
		if n := d.count[kind]; n > 0 || kind == dryFresh || kind == dryDuplicate {
			fmt.Fprintf(&text, "  %-11s %11s  %s\n", strings.ReplaceAll(kind, "_", " "), term.FormatCount(n), d.fate(kind))
		}
		if kind == dryDuplicate && d.differ > 0 && !d.spec.Observe {
			fmt.Fprintf(&text, "    %s with other content than the first message of their key: on_mismatch: park keeps such messages\n", term.FormatCount(d.differ))
		}
		for _, s := range d.shown[kind] {
			line := "    " + s.String()
			if s.Key != "" {
				line += "  " + s.Key
			}
			switch {
			case s.First != nil:
				line += ": as " + s.First.String()
			case s.FirstSeen != "":
				line += ": first seen " + s.FirstSeen
			case s.Error != "":
				line += ": " + s.Error
			case s.Output != nil:
				line += ": " + string(s.Output)
			}
			text.WriteString(term.OneLine(line) + "\n")
		}
	}
	_, err := d.Stdout.Write([]byte(text.String()))
	return err
}

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
	err := d.spec.Source.(config.TransactionalSource).ReadRows(limited, d.conf, d.spec, func(m *semel.Message) {
		if m.RecordKey == nil {
			return
		}
		change := rows.Change{Key: m.RecordKey, Row: m.Body, At: max(m.Time.UnixMilli(), 0)}
		for _, one := range byTopic[m.Origin.Source] {
			one.state.Apply(placeOf(one.table, m.Origin.Partition), []rows.Change{change})
		}
	})
	if err != nil && limited.Err() == nil {
		return fmt.Errorf("tables: %w", d.conf.Advise(d.spec, config.SourcePart, err))
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

// refuseKeep refuses pipelines in which another message than the first takes effect.
func refuseKeep(pipelines []*config.Pipeline, why string, wrong *term.Problems) {
	for _, p := range pipelines {
		if p.Key.Keep != nil {
			wrong.Addf("pipeline %s has key.keep, and this verb does not decide by it: %s", p.Name, why)
		}
	}
}

// placeOf returns the partition in which rows for messages of a partition are kept.
func placeOf(t *stream.Table, partition int32) int32 {
	if t.Local {
		return partition
	}
	return 0
}
