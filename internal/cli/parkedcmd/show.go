package parkedcmd

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/pipeline"
)

// Line is a parked message in JSON.
type Line struct {
	Pipeline    string          `json:"pipeline"`
	ID          string          `json:"id"`
	Reason      string          `json:"reason"`
	Error       string          `json:"error,omitempty"`
	Attempts    int             `json:"attempts,omitempty"`
	At          string          `json:"at"`
	Queued      bool            `json:"queued,omitempty"`
	Redrives    int             `json:"redrives,omitempty"`
	Scope       *string         `json:"scope,omitempty"`
	ScopeBase64 []byte          `json:"scope_base64,omitempty"`
	Key         json.RawMessage `json:"key,omitempty"`
	KeyBytes    []byte          `json:"key_base64,omitempty"`
	Source      string          `json:"source,omitempty"`
	// Partition and Offset are the place in the source.
	Partition int32        `json:"partition"`
	Offset    int64        `json:"offset"`
	Bytes     int          `json:"bytes"`
	Message   *asideDetail `json:"message,omitempty"`
}

// asideDetail is the message itself. A value that is not UTF-8 is written as
// base64 in its own member. Values that the message lacks are omitted.
type asideDetail struct {
	ID              string        `json:"id,omitempty"`
	Time            string        `json:"time,omitempty"`
	Delivery        int           `json:"delivery,omitempty"`
	RecordKey       *string       `json:"record_key,omitempty"`
	RecordKeyBase64 []byte        `json:"record_key_base64,omitempty"`
	Headers         []asideHeader `json:"headers,omitempty"`
	Body            *string       `json:"body,omitempty"`
	BodyBase64      []byte        `json:"body_base64,omitempty"`
}

type asideHeader struct {
	Name        string  `json:"name"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
}

// failure formats the error with which a message was parked.
func (f *parkedFlags) failure(text string) string {
	return f.Redact(term.PlainText(term.JoinLines(text)))
}

func (f *parkedFlags) line(m *pipeline.Parked, whole bool) Line {
	o := &m.Message.Origin
	line := Line{
		Pipeline: m.Pipeline, Redrives: m.Redrives, Source: o.Source, Partition: o.Partition, Offset: o.Offset, Bytes: len(m.Message.Body),
		ID: m.ID, Reason: string(m.Reason), Error: f.failure(m.Error), Attempts: m.Attempts, At: term.JSONTime(m.At), Queued: m.Queued,
	}
	if !isMissing(m) {
		line.Scope, line.ScopeBase64 = jsonid.Text(m.Key.Scope)
		var ok bool
		if line.Key, ok = jsonid.Format(m.Key.ID); !ok {
			line.KeyBytes = []byte(m.Key.ID)
		}
	}
	if !whole {
		return line
	}
	d := &asideDetail{ID: m.Message.ID, Time: term.JSONTime(m.Message.Time), Delivery: o.Delivery}
	d.RecordKey, d.RecordKeyBase64 = jsonBytes(m.Message.RecordKey)
	d.Body, d.BodyBase64 = jsonBytes(m.Message.Body)
	for _, h := range m.Message.Headers {
		header := asideHeader{Name: h.Name}
		header.Value, header.ValueBase64 = jsonBytes(h.Value)
		d.Headers = append(d.Headers, header)
	}
	line.Message = d
	return line
}

func jsonBytes(b []byte) (text *string, encoded []byte) {
	if b == nil {
		return nil, nil
	}
	return jsonid.Text(string(b))
}

func newParkedListCommand(f *parkedFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls --config FILE", SuggestFor: []string{"list"},
		Short: "List parked messages",
		Example: `semel parked ls --config pipelines.yaml
semel parked ls --config pipelines.yaml --reason permanent --older 1h --json`,
		Long: `Lists the parked messages, for each pipeline the oldest first. With --json each
message is a line of JSON.`,
		Args: term.NoArguments,
		RunE: f.Checked(func(cmd *cobra.Command, _ []string, wrong term.Problems) error {
			f.check(nil, false, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return f.withDeadLetters(cmd.Context(), func(stores []deadLetters) error { return f.list(cmd, stores) })
		}),
	}
	f.addFilters(cmd, "reason")
	open.AddAdmin(cmd, &f.admin)
	return cmd
}

func (f *parkedFlags) list(cmd *cobra.Command, stores []deadLetters) error {
	out := bufio.NewWriterSize(f.Stdout, 64<<10)
	if !f.JSON {
		fmt.Fprintf(out, "%-24s  %-23s  %-12s  %-11s  %8s  %s\n", "ID", "SINCE", "PIPELINE", "REASON", "ATTEMPTS", "KEY: ERROR")
	}
	now, count := time.Now(), int64(0)
	var listed listing
	for _, s := range stores {
		var writing error
		err := f.parkedOn(cmd.Context(), s, func(m *pipeline.Parked) bool {
			if f.chooses(m, now) {
				count++
				listed.add(s.spec, m)
				writing = f.writeListed(out, m)
			}
			return writing == nil && cmd.Context().Err() == nil
		})
		if err := errors.Join(err, writing, cmd.Context().Err()); err != nil {
			return errors.Join(out.Flush(), err)
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	f.Note("%s parked", term.Plural(int(count), "message"))
	if !f.JSON {
		f.noteSettling(&listed)
	}
	f.noteStrangers(cmd.Context(), stores)
	return nil
}

// listing counts the listed messages for the commands that settle them.
type listing struct {
	unknown, others int
	keys            map[semel.Key]bool // of the unknown ones
	stores          []string           // of these keys
}

func (l *listing) add(p *config.Pipeline, m *pipeline.Parked) {
	if m.Reason != pipeline.ReasonUnknown {
		l.others++
		return
	}
	if l.keys == nil {
		l.keys = map[semel.Key]bool{}
	}
	l.unknown++
	l.keys[m.Key] = true
	if !slices.Contains(l.stores, p.Store.Name) {
		l.stores = append(l.stores, p.Store.Name)
	}
}

// noteSettling prints the commands that settle the listed messages, in their order.
func (f *parkedFlags) noteSettling(l *listing) {
	flags := []string{"--config", f.file}
	if f.EnvFile != "" {
		flags = append(flags, "--env-file", f.EnvFile)
	}
	line := func(more []string, words ...string) string {
		return term.ShellLine(slices.Concat([]string{"semel"}, words, flags, more)...)
	}
	var ofPipeline []string
	if f.pipeline != "" {
		ofPipeline = []string{"--pipeline", f.pipeline}
	}
	var commands []keyrecord.Command
	if l.unknown > 0 {
		for _, store := range l.stores {
			commands = append(commands, keyrecord.Command{
				Case: fmt.Sprintf("%s of %s: the effects may have happened. Look at the target, and settle the keys first; this lists them, with the commands", term.Plural(l.unknown, "message"), term.Plural(len(l.keys), "unknown key")),
				Line: line([]string{"--store-name", store}, "keys", "ls", "--state", "unknown"),
			})
		}
		commands = append(commands, keyrecord.Command{Case: "then process these messages again", Line: line(ofPipeline, "parked", "retry", "--reason", string(pipeline.ReasonUnknown))})
	}
	if l.others > 0 {
		commands = append(commands,
			keyrecord.Command{Case: "to see a message", Line: line(nil, "parked", "show", "ID")},
			keyrecord.Command{Case: "once the cause is repaired, to process a message again, or all of them with --all", Line: line(nil, "parked", "retry", "ID")},
			keyrecord.Command{Case: "to give a message up", Line: line(nil, "parked", "skip", "ID", "--reason", "TEXT")})
	}
	keyrecord.NoteCommands(f.App, commands)
}

func (f *parkedFlags) writeListed(out *bufio.Writer, m *pipeline.Parked) error {
	if f.JSON {
		return term.WriteJSONLine(out, f.line(m, false))
	}
	const keyWidth, errorWidth = 100, 500 // parked show has the whole texts
	why := term.Shorten(displayKey(m), keyWidth)
	if m.Error != "" {
		why += ": " + term.Shorten(term.OneLine(f.failure(m.Error)), errorWidth)
	}
	if m.Queued {
		why += " (to be redriven)"
	}
	_, err := fmt.Fprintf(out, "%-24s  %-23s  %-12s  %-11s  %8d  %s\n", m.ID, term.DisplayTime(m.At), m.Pipeline, string(m.Reason), m.Attempts, why)
	return err
}

func newParkedShowCommand(f *parkedFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show ID... --config FILE",
		Short: "Show parked messages with their bodies",
		Example: `semel parked show 9f2c41d07be35a1186c0de42 --config pipelines.yaml
semel parked show 9f2c41d07be35a1186c0de42 --config pipelines.yaml --json`,
		Long: `Shows parked messages: reason, error, attempts, origin, headers and body. Bytes
that are not text are shown as base64.`,
		Args:              term.Arguments(1, -1, "ID is missing: semel parked ls lists the parked messages", ""),
		ValidArgsFunction: f.completeIDs,
		RunE: f.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			f.check(args, false, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return f.withDeadLetters(cmd.Context(), func(stores []deadLetters) error {
				list, missing := f.chosenOn(cmd.Context(), stores, args)
				printed := 0
				for _, of := range list {
					for _, m := range of {
						if err := f.show(m, printed > 0); err != nil {
							return err
						}
						printed++
					}
				}
				return missing
			})
		}),
	}
	open.AddAdmin(cmd, &f.admin)
	return cmd
}

func (f *parkedFlags) show(m *pipeline.Parked, further bool) error {
	if f.JSON {
		return f.PrintJSON(f.line(m, true))
	}
	var text strings.Builder
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%-12s %s\n", name, term.DisplayText(value))
		}
	}
	if further {
		text.WriteString("\n")
	}
	fact("id", m.ID)
	fact("pipeline", m.Pipeline)
	fact("key", displayKey(m))
	if !isMissing(m) {
		fact("scope", keyrecord.DisplayScope(m.Key.Scope))
	}
	fact("reason", string(m.Reason))
	fact("error", f.failure(m.Error))
	fact("attempts", fmt.Sprint(m.Attempts))
	if m.Redrives > 0 {
		fact("redrives", fmt.Sprint(m.Redrives))
	}
	fact("since", term.DisplayTime(m.At))
	if m.Queued {
		fact("queued", "to be redriven")
	}
	o := &m.Message.Origin
	fact("from", fmt.Sprintf("%s, partition %d, offset %d", o.Source, o.Partition, o.Offset))
	fact("message id", m.Message.ID)
	fact("time", term.DisplayTime(m.Message.Time))
	if m.Message.RecordKey != nil {
		fact("record key", displayBytes(m.Message.RecordKey))
	}
	for _, h := range m.Message.Headers {
		fact("header", h.Name+": "+displayBytes(h.Value))
	}
	if m.Message.Body == nil {
		fact("body", "none")
	} else {
		fmt.Fprintf(&text, "body         %s\n%s\n", term.FormatBytes(int64(len(m.Message.Body))), displayBytes(m.Message.Body))
	}
	_, err := f.Stdout.Write([]byte(text.String()))
	return err
}

// displayBytes shows foreign bytes to people. Text is shown as it is, even with
// several lines. Anything that may control a terminal is shown as base64.
func displayBytes(b []byte) string {
	text := string(b)
	odd := strings.ContainsFunc(strings.ReplaceAll(text, "\r\n", "\n"), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' })
	if odd || !utf8.ValidString(text) {
		return "base64:" + base64.StdEncoding.EncodeToString(b)
	}
	return text
}
