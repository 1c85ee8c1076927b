package trialcmd

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/internal/rows"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/stream"
)

// NewTest returns the verb test.
func NewTest(a *term.App) *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE CASES",
		Short: "Check keys and decisions of pipelines with example messages",
		Example: `semel test pipelines.yaml cases.jsonl
semel test pipelines.yaml cases.jsonl --json`,
		Long: `Gives example messages to the pipelines of a configuration and compares the key and
the decision of each with the expected ones. It needs no server: the keys are in
memory, and a sink is not opened. From Kafka to Kafka without a store, the code of
the transaction decides, and only the brokers are missing. Run it in CI with the
configuration.

CASES is a file of JSON lines; - is standard input. Each line is a message:

  {"name": "a retry", "body": {"order_id": 7}, "key": 7, "decision": "duplicate"}

  pipeline    the pipeline; needed if the file has several
  name        what the case shows
  body        the body: a JSON value, or the text of a JSON string
  headers     an object of texts
  record_key  the record key of a Kafka message
  partition   the number of its partition (default 0)
  after       time that passes before the message, such as 25h
  time        the message's own time: a text as in RFC 3339 or a number since 1970
              (default the time at which it arrives)
  key         the expected id, as in semel keys ls --json
  decision    fresh, filtered, failed, duplicate, mismatch, late or missing; with
              key.keep also held or superseded; with tables also row-missing
  output      the expected body of a fresh message, behind filter and map
  results     with aggregate or keep: a list of the results that the line writes, or
              of the bodies of held messages that take effect

With aggregate or keep, the clock starts at the time of the first message, and moves to
the time of each line that is later and has no after. A line without body, record_key
and headers is then no message: time passes, and idle closes windows.

With tables, a line with "table" is no message: it sets the row of record_key in that
table to body, from then on. Without body it deletes the row.

  {"table": "customers", "record_key": "ann", "body": {"tier": "gold"}}

The messages of a pipeline come in the order of the lines, and each remembers its
key. A case without key, decision or output checks nothing of that kind.

The exit status is 3 if a case fails.`,
		Args: term.Arguments(2, 2, "FILE or CASES is missing", "FILE and CASES"),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			if len(args) < 2 {
				return wrong.Err()
			}
			a.NoEnv = true // addresses and passwords are not used
			conf, chosen := open.Pipelines(a, args[0], nil, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			cases, err := readCases(a, args[1], chosen)
			if err != nil {
				return err
			}
			return runCases(cmd.Context(), a, conf, cases)
		}),
	}
}

// testCase is a line of the file with cases.
type testCase struct {
	Pipeline  string            `json:"pipeline"`
	Name      string            `json:"name"`
	Body      json.RawMessage   `json:"body"`
	Headers   map[string]string `json:"headers"`
	RecordKey string            `json:"record_key"`
	Table     string            `json:"table"`
	Partition int32             `json:"partition"`
	After     string            `json:"after"`
	Time      caseTime          `json:"time"`
	Key       json.RawMessage   `json:"key"`
	Decision  string            `json:"decision"`
	Output    json.RawMessage   `json:"output"`
	// Results are nil if they are not compared.
	Results *[]json.RawMessage `json:"results"`

	line  int
	after time.Duration
	spec  *config.Pipeline
}

// caseTime is a text as in RFC 3339, or a number since 1970 that says its unit by its size.
type caseTime struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (t *caseTime) UnmarshalJSON(raw []byte) (err error) {
	text := string(raw)
	if text == "null" {
		return nil
	}
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return err
		}
	}
	if t.Time, err = stream.AnyUnit.Parse([]byte(text)); err != nil {
		return fmt.Errorf("time: %s", strings.Replace(err.Error(), "state its unit (time_unit)", "write a text as in RFC 3339", 1)) // a case states no unit
	}
	return nil
}

// mostPartitions is how many partitions the cases may have.
const mostPartitions = 100_000

// maxCase is the longest line in bytes.
const maxCase = 64 << 20

// readCases reads the file with cases. One error names all wrong lines.
func readCases(a *term.App, name string, pipelines []*config.Pipeline) ([]*testCase, error) {
	in := a.Stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, term.Usagef("%s: %s", name, term.FileReason(err))
		}
		defer file.Close()
		in = file
	}
	var cases []*testCase
	var wrong term.Problems
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxCase)
	for number := 1; lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		c := &testCase{line: number}
		if err := c.read(lines.Bytes(), pipelines); err != nil {
			wrong.Addf("%s:%d: %s", name, number, term.PlainText(err.Error()))
			continue
		}
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(cases) == 0 && len(wrong) == 0 {
		wrong.Addf("%s: there is no case: write a JSON object in each line", name)
	}
	return cases, wrong.Err()
}

// read reads a case and finds its pipeline.
func (c *testCase) read(line []byte, pipelines []*config.Pipeline) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return fmt.Errorf("%s: semel test --help lists the fields", noCase(err))
	}
	if c.Partition < 0 || c.Partition >= mostPartitions {
		return fmt.Errorf("partition %d: write a number from 0 to %d", c.Partition, mostPartitions-1)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("expected one JSON object in the line")
	}
	if kinds := caseKinds(); c.Decision != "" && !slices.Contains(kinds, c.Decision) {
		return fmt.Errorf("decision %q: write one of %s", c.Decision, strings.Join(kinds, ", "))
	}
	if c.After != "" {
		var err error
		if c.after, err = schema.ParseDuration(c.After); err != nil || c.after < 0 || c.after == semel.Forever {
			return fmt.Errorf("after %q: write a duration, such as 25h", c.After)
		}
	}
	var names []string
	for _, p := range pipelines {
		if names = append(names, p.Name); p.Name == c.Pipeline || c.Pipeline == "" && len(pipelines) == 1 {
			c.spec = p
		}
	}
	if c.spec == nil {
		return fmt.Errorf("pipeline %q: name one of %s", c.Pipeline, strings.Join(names, ", "))
	}
	return c.checkTable()
}

// noCase says why a line is no case.
func noCase(err error) string {
	if _, ok := errors.AsType[*json.SyntaxError](err); ok || errors.Is(err, io.ErrUnexpectedEOF) {
		return "it is not JSON: " + err.Error()
	}
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok && strings.HasPrefix(err.Error(), "json: "):
		return strings.TrimPrefix(err.Error(), "json: ") // an unknown field
	case !ok: // only a time is read by itself
		return err.Error()
	case wrong.Field == "":
		return "expected one JSON object in the line"
	}
	want := "a text"
	switch wrong.Type.Kind() {
	case reflect.Map:
		want = "an object of texts"
	case reflect.Slice:
		want = "a list"
	case reflect.Int32:
		want = "a whole number of at most 32 bits"
	}
	return fmt.Sprintf("%s: expected %s, got JSON %s", wrong.Field, want, wrong.Value)
}

// The results of a message with key.keep, besides those of dry-run.
const (
	caseHeld       = "held"
	caseSuperseded = "superseded"
)

// caseNoRow is the decision about a message that has no row in a table.
const caseNoRow = "row-missing"

func caseKinds() []string {
	return []string{dryFresh, dryFiltered, dryFailed, dryDuplicate, dryMismatch, dryLate, dryMissing, caseHeld, caseSuperseded, caseNoRow}
}

// caseLine is what test prints about a case with --json.
type caseLine struct {
	Line     int             `json:"line"`
	Pipeline string          `json:"pipeline"`
	Name     string          `json:"name,omitempty"`
	OK       bool            `json:"ok"`
	Decision string          `json:"decision"`
	Key      json.RawMessage `json:"key,omitempty"`
	Output   json.RawMessage `json:"output,omitempty"`
	// Results are those of an aggregate, or held messages that take effect.
	Results []json.RawMessage `json:"results,omitempty"`
	Error   string            `json:"error,omitempty"`
	Wrong   []string          `json:"wrong,omitempty"`
}

// runCases runs the cases in their order.
func runCases(ctx context.Context, a *term.App, conf *config.File, cases []*testCase) error {
	benches := map[*config.Pipeline]*caseBench{}
	failed := 0
	for _, c := range cases {
		b := benches[c.spec]
		if b == nil {
			var err error
			if b, err = newCaseBench(a, conf, c.spec, cases); err != nil {
				return err
			}
			benches[c.spec] = b
		}
		line, err := b.run(ctx, c)
		if err != nil {
			return fmt.Errorf("line %d: %w", c.line, err)
		}
		if !line.OK {
			failed++
		}
		if err := printCase(a, line); err != nil {
			return err
		}
	}
	if !a.JSON {
		if _, err := fmt.Fprintf(a.Stdout, "%d cases, %d failed\n", len(cases), failed); err != nil {
			return err
		}
	}
	if failed > 0 {
		return term.ErrFound
	}
	return nil
}

func printCase(a *term.App, line caseLine) error {
	if a.JSON {
		return json.NewEncoder(a.Stdout).Encode(line)
	}
	result, what := "ok  ", line.Decision
	if what == "" {
		what = "time passes"
	}
	if n := len(line.Results); n > 0 {
		what += fmt.Sprintf(", %d results", n)
	}
	if !line.OK {
		result, what = "FAIL", strings.Join(line.Wrong, "; ")
	}
	name := fmt.Sprintf("%s line %d", line.Pipeline, line.Line)
	if line.Name != "" {
		name += ", " + line.Name
	}
	_, err := fmt.Fprintf(a.Stdout, "%s  %s: %s\n", result, name, what)
	return err
}

// caseBench decides the cases of one pipeline. Its clock stands still unless a case
// says that time passes.
type caseBench struct {
	*decider
	store *memstore.Store
	// trial decides instead, from the first case on, if outputs and keys are one Kafka
	// transaction.
	trial config.Trial
	// partitions is how many the cases name.
	partitions int32
	// tables have the rows of the cases.
	tables map[string]*rows.State
}

func newCaseBench(a *term.App, conf *config.File, p *config.Pipeline, cases []*testCase) (*caseBench, error) {
	b := &caseBench{decider: newDecider(&dryRun{App: a, conf: conf, spec: p}, nil)}
	for _, c := range cases {
		if c.spec == p {
			b.partitions = max(b.partitions, c.Partition+1)
		}
	}
	opts := &memstore.Options{Clock: func() time.Time { return b.now }, KeepIDs: true}
	if p.Window != semel.Forever {
		opts.MaxWindow = p.Window
	}
	b.attachTables()
	var err error
	b.store, err = memstore.New(opts)
	return b, err
}

// run decides a case and compares.
func (b *caseBench) run(ctx context.Context, c *testCase) (caseLine, error) {
	line := caseLine{Line: c.line, Pipeline: c.spec.Name, Name: c.Name}
	if b.now = b.now.Add(c.after); c.After == "" && b.isTimed() && b.trial != nil && c.Time.After(b.now) {
		b.now = c.Time.Time // the message arrives at its own time
	}
	var err error
	switch {
	case c.Table != "":
		b.row(c)
		line.Decision = "row"
	case b.conf.Mode(b.spec) == config.SourceIsSink:
		err = b.try(ctx, c, &line)
	default:
		err = b.message(ctx, c, &line)
	}
	if err != nil {
		return line, err
	}
	c.compare(&line)
	line.OK = len(line.Wrong) == 0
	return line, nil
}

// compare compares the result of a case with the expected one.
func (c *testCase) compare(line *caseLine) {
	if c.Decision != "" && c.Decision != line.Decision {
		line.Wrong = append(line.Wrong, fmt.Sprintf("it is %s, want %s", cmp.Or(line.Decision, "no message"), c.Decision))
	}
	if len(c.Key) > 0 && !sameJSON(c.Key, line.Key) {
		line.Wrong = append(line.Wrong, fmt.Sprintf("its key is %s, want %s", orNone(line.Key), c.Key))
	}
	if len(c.Output) > 0 && !sameJSON(c.Output, line.Output) {
		line.Wrong = append(line.Wrong, fmt.Sprintf("its output is %s, want %s", orNone(line.Output), c.Output))
	}
	if c.Results != nil && !slices.EqualFunc(line.Results, *c.Results, sameJSON) {
		line.Wrong = append(line.Wrong, fmt.Sprintf("its results are %s, want %s", listOf(line.Results), listOf(*c.Results)))
	}
	if line.Error != "" && len(line.Wrong) > 0 {
		line.Wrong = append(line.Wrong, line.Error)
	}
}

// message returns the message of a case.
func (b *caseBench) messageOf(c *testCase) *semel.Message {
	m := &semel.Message{Body: c.Body, Time: c.Time.Time, Origin: semel.Origin{Source: "test", Identity: "test", Partition: c.Partition, Offset: int64(c.line)}}
	var text string
	if json.Unmarshal(c.Body, &text) == nil && len(c.Body) > 0 && c.Body[0] == '"' {
		m.Body = []byte(text)
	}
	if c.RecordKey != "" {
		m.RecordKey = []byte(c.RecordKey)
	}
	m.CaselessHeaders = b.spec.Source.About(b.spec).CaselessHeaders
	for name, value := range c.Headers {
		if m.CaselessHeaders {
			name = strings.ToLower(name)
		}
		m.Headers = append(m.Headers, semel.Header{Name: name, Value: []byte(value)})
	}
	if m.Time.IsZero() {
		m.Time = b.now
	}
	return m
}

// message decides the message of a case by a store in memory.
func (b *caseBench) message(ctx context.Context, c *testCase, line *caseLine) error {
	b.shown = map[string][]drySample{}
	b.count, b.samples, b.batch = map[string]int64{}, 1, b.batch[:0]
	b.add(ctx, b.messageOf(c))
	line.Decision = dryMissing
	if len(b.batch) == 0 {
		if shown := b.shown[dryMissing]; c.Decision != dryMissing && len(shown) > 0 {
			line.Wrong = append(line.Wrong, "it has no key: "+shown[0].Error)
		}
		return nil
	}
	d := &b.batch[0]
	if id, ok := jsonid.Format(d.key.ID); ok {
		line.Key = id
	}
	var err error
	if line.Decision, err = b.claim(ctx, d); err != nil {
		return err
	}
	switch line.Decision {
	case dryFresh:
		if b.spec.FilterMap != nil || len(c.Output) > 0 {
			line.Output = jsonOf(d.output)
		}
	case dryFailed:
		line.Error = term.PlainText(d.failed.Error())
	}
	return nil
}

// claim decides a message by the store, which remembers its key.
func (b *caseBench) claim(ctx context.Context, d *dryMessage) (string, error) {
	k := d.key
	req := semel.ClaimRequest{Key: k, Owner: semel.Owner{Nonce: uint64(d.at.Offset)}, Window: b.spec.Window, Fingerprint: d.fingerprint, Done: true}
	if d.late {
		req.Time = b.now.Add(-b.spec.Window - time.Second)
	}
	if d.failed != nil { // its key is not remembered
		records := make([]semel.Record, 1)
		if err := b.store.Look(ctx, []semel.Key{k}, records); err != nil {
			return "", err
		}
		if records[0].State == semel.Absent && !d.late {
			return dryFailed, nil
		}
	}
	answers := make([]semel.ClaimAnswer, 1)
	if err := b.store.Claim(ctx, []semel.ClaimRequest{req}, answers); err != nil {
		return "", err
	}
	if err := answers[0].Err; err != nil {
		return "", err
	}
	switch answers[0].Decision {
	case semel.Fresh:
		return d.fresh(), nil
	case semel.Mismatch:
		return dryMismatch, nil
	case semel.Late:
		return dryLate, nil
	}
	return dryDuplicate, nil
}

// jsonOf returns a body as JSON: the text of a body that is not JSON becomes a string.
func jsonOf(body []byte) json.RawMessage {
	if json.Valid(body) {
		return body
	}
	text, _ := json.Marshal(string(body)) // a string always has a form
	return text
}

// sameJSON reports whether two JSON values are the same but for white space.
func sameJSON(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

func listOf(list []json.RawMessage) string {
	if len(list) == 0 {
		return "none"
	}
	text, _ := json.Marshal(list) // they are JSON
	return string(text)
}

func orNone(text json.RawMessage) string {
	if len(text) == 0 {
		return "none"
	}
	return string(text)
}

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
