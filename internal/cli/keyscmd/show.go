package keyscmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
)

func newKeysListCommand(k *keysFlags) *cobra.Command {
	var choice filterFlags
	cmd := &cobra.Command{
		Use: "ls --store DIR", SuggestFor: []string{"list"},
		Short: "List keys",
		Example: `semel keys ls --store ./seen
semel keys ls --store ./ledger --state unknown --json`,
		Long: `Lists the keys of a store, in no particular order. A column without a value is left
out. Below unknown keys are the commands that settle them, and the messages that were
parked because of them, in order. With --json each key is a line of JSON. semel keys
stats counts keys.`,
		Args: term.NoArguments,
		RunE: k.reading(func(cmd *cobra.Command, _ []string, wrong *term.Problems) func(context.Context, semel.Store) error {
			return k.list(choice.filter(cmd, wrong), "ls")
		}),
	}
	choice.add(cmd)
	open.AddAdmin(cmd, &k.Admin)
	return cmd
}

func newKeysExportCommand(k *keysFlags) *cobra.Command {
	var choice filterFlags
	cmd := &cobra.Command{
		Use:   "export --store DIR",
		Short: "Write keys as JSON lines",
		Example: `semel keys export --store ./seen > keys.jsonl
semel keys export --store ./ledger --scope payments --state done > payments.jsonl`,
		Long: `Writes the keys of a store as JSON lines. keys import reads the lines that have
an id. An id is a string, a number, true, false, or an array of these for a
composite key. Any other id, such as one that is not valid UTF-8, is written as
"id_base64". A key whose id the store does not keep has only a digest, which no
other store can read. Results are not exported.`,
		Args: term.NoArguments,
		RunE: k.reading(func(cmd *cobra.Command, _ []string, wrong *term.Problems) func(context.Context, semel.Store) error {
			return k.list(choice.filter(cmd, wrong), "export")
		}),
	}
	choice.add(cmd)
	return cmd
}

// list returns a function that prints the selected records. verb chooses the format.
func (k *keysFlags) list(filter semel.ListOptions, verb string) func(context.Context, semel.Store) error {
	return func(ctx context.Context, store semel.Store) error {
		asJSON := verb == "export" || k.JSON
		lister, err := open.Able[semel.Inspector](&k.StoreFlags, store, "list keys")
		if err != nil {
			return err
		}
		out := bufio.NewWriterSize(k.Stdout, 64<<10)
		table := &keyTable{out: out}
		listed, nameless := int64(0), int64(0)
		var unknown unknownKeys
		for record, err := range lister.List(ctx, filter) {
			if err != nil {
				if listed > 0 && !asJSON {
					table.flush()
				}
				return errors.Join(out.Flush(), fmt.Errorf("list the store %s: %w", k.Shown(), err))
			}
			listed++
			if record.Key.ID == "" {
				nameless++
			}
			if record.State == semel.Unknown {
				unknown.add(&record)
			}
			if !asJSON {
				table.add(&record)
			} else if err := term.WriteJSONLine(out, keyrecord.NewLine(&record)); err != nil {
				return err
			}
		}
		if !asJSON {
			table.flush()
		}
		if verb == "export" && nameless > 0 {
			k.Note("%s keys have a digest but no id: this store does not keep ids, and no other store can import these keys", term.FormatCount(nameless))
		}
		if listed == 0 && filter.Scope != nil {
			if err := k.hintScope(ctx, store, *filter.Scope); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil || asJSON {
			return err
		}
		k.noteSettling(ctx, &unknown, filter.Scope)
		return nil
	}
}

// unknownKeys are the listed keys whose outcome is unknown.
type unknownKeys struct {
	count int
	first semel.Record
}

func (u *unknownKeys) add(r *semel.Record) {
	if u.count++; u.count == 1 {
		u.first = *r
	}
}

// noteSettling prints the commands that settle unknown keys, in their order: first the keys, and
// then the messages that were parked because of them.
func (k *keysFlags) noteSettling(ctx context.Context, unknown *unknownKeys, scope *string) {
	if unknown.count == 0 {
		return
	}
	var commands []keyrecord.Command
	if unknown.count == 1 {
		commands = keyrecord.Commands(&unknown.first, k.Flags())
	} else {
		all := func(when, as, reason string) {
			line := append([]string{"semel", "keys", "resolve", "--all", "--as", as, "--reason", reason}, k.Flags()...)
			if scope != nil {
				line = append(line, "--scope", *scope)
			}
			commands = append(commands, keyrecord.Command{Case: when, Line: term.ShellLine(line...)})
		}
		all("if the effects of all these keys happened", "done", "the effects happened")
		all("if none of the effects happened", "absent", "the effects did not happen")
		if line, ok := keyrecord.LineOf(&unknown.first, "keys show", k.Flags()...); ok {
			commands = append(commands, keyrecord.Command{Case: "if they differ, for each key, such as the first, which prints its two commands", Line: line})
		}
	}
	k.Note("%s: the effect may have happened. Look at the target, and settle the keys first:", term.Plural(unknown.count, "unknown key"))
	keyrecord.NoteCommands(k.App, append(commands, k.parkedUnknown(ctx)...))
}

// hintScope suggests why a listing may be empty although the store is not.
func (k *keysFlags) hintScope(ctx context.Context, store semel.Store, scope string) error {
	counter, ok := semel.As[semel.Inspector](store)
	if !ok {
		return nil
	}
	counts, err := counter.Count(ctx)
	if err != nil {
		return fmt.Errorf("count the keys of %s: %w", k.Shown(), err)
	}
	if n := counts.Claimed + counts.Done + counts.Unknown; n > 0 {
		k.Note("no listed key has the scope %s. The store has %s keys, but a scope is readable only if the store keeps ids. List all keys without --scope, or find one with keys show",
			keyrecord.DisplayScope(scope), term.FormatCount(n))
	}
	return nil
}

// keyTable prints records as rows. It leaves out the columns that are empty in all of
// the first rows; if a later row has such a column, it prints all from there on.
type keyTable struct {
	out   *bufio.Writer // its Flush returns what fails
	rows  [][]string
	shown []bool // by column; nil before the header
	wide  int    // the width of the origins
}

var keyColumns = []struct {
	title string
	width int
}{{"STATE", 7}, {"FIRST SEEN", 23}, {"EXPIRES", 23}, {"DIGEST", 32}, {"ORIGIN", 6}, {"SCOPE/ID", 0}}

// originColumn is the column whose width follows its texts, up to widestOrigin.
const (
	originColumn = 4
	widestOrigin = 100
)

func (t *keyTable) add(r *semel.Record) {
	state := r.State.String()
	if r.Orphaned {
		state = "orphan"
	}
	row := []string{state, term.DisplayTime(r.FirstSeen), "", "-", term.OneLine(term.DisplayText(r.Origin)), ""} // "-": Redis' compact form has half of the digest
	if r.State == semel.Done {
		row[2] = keyrecord.DisplayExpiry(r.Expires)
	}
	if r.Digest != (semel.Digest{}) {
		row[3] = r.Digest.String()
	}
	if r.Key.ID != "" {
		row[5] = keyrecord.DisplayScope(r.Key.Scope) + "/" + keyrecord.DisplayID(r.Key.ID)
	}
	if t.rows = append(t.rows, row); len(t.rows) >= 1000 {
		t.flush()
	}
}

// flush prints the rows since the last call, and the header if it changes.
func (t *keyTable) flush() {
	shown := make([]bool, len(keyColumns))
	for i := range keyColumns {
		shown[i] = t.shown != nil && t.shown[i] || len(t.rows) == 0 && t.shown == nil ||
			slices.ContainsFunc(t.rows, func(row []string) bool { return row[i] != "" })
	}
	if !slices.Equal(shown, t.shown) {
		t.shown = shown
		for _, row := range t.rows {
			t.wide = min(max(t.wide, utf8.RuneCountInString(row[originColumn])), widestOrigin)
		}
		titles := make([]string, len(keyColumns))
		for i, c := range keyColumns {
			titles[i] = c.title
		}
		t.write(titles)
	}
	for _, row := range t.rows {
		t.write(row)
	}
	t.rows = t.rows[:0]
}

func (t *keyTable) write(row []string) {
	var line strings.Builder
	for i, c := range keyColumns {
		if t.shown[i] {
			width := c.width
			if i == originColumn {
				width = max(width, t.wide)
			}
			fmt.Fprintf(&line, "%-*s  ", width, row[i])
		}
	}
	t.out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}

func newKeysShowCommand(k *keysFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show ID... --store DIR", SuggestFor: []string{"get"},
		Short: "Show the record of a key",
		Example: `semel keys show evt_01HX7Z2M --store ./seen
semel keys show evt_01HX7Z2M --store ./seen --json
semel keys show --store ./seen --json-id '"evt_01HX7Z2M"'`,
		Long: `Shows the record of a key: state, first seen, origin of its message, attempts,
holder, end of the lease, expiry, fingerprint and size of the result, as far as
the store keeps them. Several IDs are one composite key. Below the record are the
commands that can follow.

The exit status is 0 if there is a record, and otherwise 1.`,
		RunE: k.reading(func(cmd *cobra.Command, words []string, wrong *term.Problems) func(context.Context, semel.Store) error {
			t := k.target(words, wrong)
			return func(ctx context.Context, store semel.Store) error {
				if err := k.place(cmd, t); err != nil {
					return err
				}
				return k.show(ctx, store, t)
			}
		}),
	}
	k.addKey(cmd)
	open.AddAdmin(cmd, &k.Admin)
	return cmd
}

func (k *keysFlags) show(ctx context.Context, store semel.Store, t *target) error {
	found, absent, err := k.find(ctx, store, t)
	if err != nil {
		return err
	}
	if absent != nil {
		found = t.ofCallers
	}
	if absent != nil && len(found) == 0 {
		record := semel.Record{Digest: t.digest}
		if !t.byDigest {
			record.Key = t.keys(t.scopes)[0]
			if list := k.askWhy(ctx, t.keys(t.scopes)); len(list) > 0 {
				absent = fmt.Errorf("%w: a message with this key is parked: %s", absent, list[0].Line)
			}
		}
		if k.JSON {
			if err := k.PrintJSON(keyrecord.NewLine(&record)); err != nil {
				return err
			}
		}
		return absent
	}
	for i := range found {
		if k.JSON {
			err = k.PrintJSON(keyrecord.NewLine(&found[i]))
		} else {
			if i > 0 {
				fmt.Fprintln(k.Stdout)
			}
			err = errors.Join(keyrecord.Write(k.Stdout, &found[i]),
				keyrecord.WriteCommands(k.Stdout, append(keyrecord.Commands(&found[i], k.Flags()), k.askWhy(ctx, []semel.Key{found[i].Key})...)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type statsReport struct {
	Claimed       int64   `json:"claimed"`
	Done          int64   `json:"done"`
	Unknown       int64   `json:"unknown"`
	MemoryBytes   int64   `json:"memory_bytes"`
	DiskBytes     int64   `json:"disk_bytes"`
	OldestSeconds float64 `json:"oldest_seconds"`
}

func newKeysStatsCommand(k *keysFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "stats --store DIR", SuggestFor: []string{"count"},
		Short: "Count the keys of a store",
		Example: `semel keys stats --store ./seen
semel keys stats --store ./seen --json`,
		Long: `Counts the keys of a store and shows how much memory and disk they use. The done
keys may include expired ones that the store has not removed yet. "oldest" is the
age of the oldest key that still answers. That is the window that the store
really has.`,
		Args: term.NoArguments,
		RunE: k.reading(func(*cobra.Command, []string, *term.Problems) func(context.Context, semel.Store) error {
			return k.stats
		}),
	}
	open.AddAdmin(cmd, &k.Admin)
	return cmd
}

func (k *keysFlags) stats(ctx context.Context, store semel.Store) error {
	counter, err := open.Able[semel.Inspector](&k.StoreFlags, store, "count keys")
	if err != nil {
		return err
	}
	c, err := counter.Count(ctx)
	if err != nil {
		return fmt.Errorf("count the keys of %s: %w", k.Shown(), err)
	}
	if k.JSON {
		return k.PrintJSON(statsReport{c.Claimed, c.Done, c.Unknown, c.MemoryBytes, c.DiskBytes, c.Oldest.Seconds()})
	}
	_, err = fmt.Fprintf(k.Stdout, "claimed  %s\ndone     %s\nunknown  %s\nmemory   %s\ndisk     %s\noldest   %s\n",
		term.FormatCount(c.Claimed), term.FormatCount(c.Done), term.FormatCount(c.Unknown),
		term.FormatBytes(c.MemoryBytes), term.FormatBytes(c.DiskBytes), term.FormatElapsed(c.Oldest.Round(100*time.Millisecond)))
	return err
}
