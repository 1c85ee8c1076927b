package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
)

func newKeysListCommand(k *keysFlags) *cobra.Command {
	var choice filterFlags
	cmd := &cobra.Command{
		Use:   "ls --store DIR",
		Short: "List keys",
		Example: `semel keys ls --store ./seen
semel keys ls --store ./ledger --state unknown --json`,
		Long: "Lists the keys of a store, in no particular order. With --json each key is a line of JSON.",
		Args: noArguments,
		RunE: k.checked(func(cmd *cobra.Command, _ []string, wrong problems) error {
			return k.list(cmd, &choice, "ls", wrong)
		}),
	}
	choice.add(cmd)
	return cmd
}

func newKeysExportCommand(k *keysFlags) *cobra.Command {
	var choice filterFlags
	cmd := &cobra.Command{
		Use:   "export --store DIR",
		Short: "Write keys as JSON lines",
		Example: `semel keys export --store ./seen > keys.jsonl
semel keys export --store ./ledger --scope payments --state done > payments.jsonl`,
		Long: `Writes the keys of a store as JSON lines, which keys import reads where they
have an id. An id is a string, a number, true, false, or an array of these for
a composite key; any other id, as one that is not valid UTF-8, is written as
"id_base64". A key whose id the store does not keep has only its digest, which
no other store can read. Results are not exported.`,
		Args: noArguments,
		RunE: k.checked(func(cmd *cobra.Command, _ []string, wrong problems) error {
			return k.list(cmd, &choice, "export", wrong)
		}),
	}
	choice.add(cmd)
	return cmd
}

// list prints the records that the flags select. verb chooses the format.
func (k *keysFlags) list(cmd *cobra.Command, choice *filterFlags, verb string, wrong problems) error {
	filter := choice.filter(cmd, &wrong)
	k.check(k.app, &wrong)
	if err := wrong.err(); err != nil {
		return err
	}
	asJSON := verb == "export" || k.asJSON
	return k.withStore(cmd.Context(), k.app, func(store semel.Store) error {
		lister, err := able[semel.Lister](&k.storeFlags, store, "list keys")
		if err != nil {
			return err
		}
		out := bufio.NewWriterSize(k.stdout, 64<<10)
		if !asJSON {
			fmt.Fprintf(out, "%-7s  %-23s  %-23s  %-32s  %s\n", "STATE", "FIRST SEEN", "EXPIRES", "DIGEST", "SCOPE/ID")
		}
		listed, nameless := int64(0), int64(0)
		for record, err := range lister.List(cmd.Context(), filter) {
			if err != nil {
				return errors.Join(out.Flush(), fmt.Errorf("list the store %s: %w", k.shown(), err))
			}
			listed++
			if record.Key.ID == "" {
				nameless++
			}
			if err := k.writeListed(out, &record, asJSON); err != nil {
				return err
			}
		}
		if verb == "export" && nameless > 0 {
			k.note("%s keys have a digest but no id: this store does not keep them readable, and no other store can import them", formatCount(nameless))
		}
		if listed == 0 && filter.Scope != nil {
			if err := k.hintScope(cmd.Context(), store, *filter.Scope); err != nil {
				return err
			}
		}
		return out.Flush()
	})
}

// hintScope suggests why a listing may be empty although the store is not.
func (k *keysFlags) hintScope(ctx context.Context, store semel.Store, scope string) error {
	counter, ok := semel.Ability[semel.Counter](store)
	if !ok {
		return nil
	}
	counts, err := counter.Count(ctx)
	if err != nil {
		return fmt.Errorf("count the keys of %s: %w", k.shown(), err)
	}
	if n := counts.Claimed + counts.Done + counts.Unknown; n > 0 {
		k.note("no key is known to be of scope %s: the store has %s keys, but keeps a scope readable only where it keeps ids; list them all without --scope, or look one up with keys show",
			displayScope(scope), formatCount(n))
	}
	return nil
}

func (k *keysFlags) writeListed(out *bufio.Writer, r *semel.Record, asJSON bool) error {
	if asJSON {
		return writeJSONLine(out, newRecordLine(r))
	}
	name := ""
	if r.Key.ID != "" {
		name = displayScope(r.Key.Scope) + "/" + displayID(r.Key.ID)
	}
	expires := ""
	if r.State == semel.Done {
		expires = displayExpiry(r.Expires)
	}
	digest := "-" // the compact form in Redis has only half of the digest
	if r.Digest != (semel.Digest{}) {
		digest = r.Digest.String()
	}
	_, err := fmt.Fprintf(out, "%-7s  %-23s  %-23s  %-32s  %s\n",
		r.State, displayTime(r.FirstSeen), expires, digest, name)
	return err
}

func newKeysShowCommand(k *keysFlags) *cobra.Command {
	var choice keyFlags
	cmd := &cobra.Command{
		Use:   "show ID... --store DIR",
		Short: "Show what is known of a key",
		Example: `semel keys show evt_01HX7Z2M --store ./seen
semel keys show evt_01HX7Z2M --store ./seen --json
semel keys show --store ./seen --json-id '"evt_01HX7Z2M"'`,
		Long: `Shows what a store knows of a key: state, first seen, attempts, holder, end of
the lease, expiry, fingerprint and size of the result, as far as it keeps them.
Several IDs are one composite key.

The exit status is 0 if there is a record and 1 if there is none.`,
		RunE: k.checked(func(cmd *cobra.Command, words []string, wrong problems) error {
			keys := choice.keys(k.scope, words, &wrong)
			k.check(k.app, &wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			return k.withStore(cmd.Context(), k.app, func(store semel.Store) error {
				return k.show(cmd.Context(), store, keys)
			})
		}),
	}
	k.addScope(cmd)
	choice.add(cmd)
	return cmd
}

func (k *keysFlags) show(ctx context.Context, store semel.Store, keys []semel.Key) error {
	found, err := k.lookUp(ctx, store, keys)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		if k.asJSON {
			if err := k.printJSON(newRecordLine(&semel.Record{Key: keys[0]})); err != nil {
				return err
			}
		}
		return absentError(k, keys[0])
	}
	for i := range found {
		if k.asJSON {
			err = k.printJSON(newRecordLine(&found[i]))
		} else {
			if i > 0 {
				fmt.Fprintln(k.stdout)
			}
			err = writeRecord(k.stdout, &found[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func absentError(k *keysFlags, key semel.Key) error {
	return fmt.Errorf("%s is absent: the store %s has no such key in scope %s", displayID(key.ID), k.shown(), displayScope(key.Scope))
}

// lookUp returns the existing records of the keys, with the key in each.
func (k *keysFlags) lookUp(ctx context.Context, store semel.Store, keys []semel.Key) ([]semel.Record, error) {
	looker, err := able[semel.Looker](&k.storeFlags, store, "look keys up")
	if err != nil {
		return nil, err
	}
	records := make([]semel.Record, len(keys))
	if err := looker.Look(ctx, keys, records); err != nil {
		return nil, fmt.Errorf("look the key up: %w", err)
	}
	var found []semel.Record
	for i, record := range records {
		if record.State != semel.Absent {
			record.Key = keys[i]
			found = append(found, record)
		}
	}
	return found, nil
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
	return &cobra.Command{
		Use:   "stats --store DIR",
		Short: "Count the keys of a store",
		Example: `semel keys stats --store ./seen
semel keys stats --store ./seen --json`,
		Long: `Counts the keys of a store and says what they take. Keys that expired and are
not yet forgotten may be among those that are done. "oldest" is the age of the
oldest key that still answers: the window that the store really has.`,
		Args: noArguments,
		RunE: k.checked(func(cmd *cobra.Command, _ []string, wrong problems) error {
			k.check(k.app, &wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			return k.withStore(cmd.Context(), k.app, func(store semel.Store) error {
				counter, err := able[semel.Counter](&k.storeFlags, store, "count keys")
				if err != nil {
					return err
				}
				counts, err := counter.Count(cmd.Context())
				if err != nil {
					return fmt.Errorf("count the keys of %s: %w", k.shown(), err)
				}
				return k.printStats(counts)
			})
		}),
	}
}

func (k *keysFlags) printStats(c semel.Counts) error {
	if k.asJSON {
		return k.printJSON(statsReport{c.Claimed, c.Done, c.Unknown, c.MemoryBytes, c.DiskBytes, c.Oldest.Seconds()})
	}
	_, err := fmt.Fprintf(k.stdout, "claimed  %s\ndone     %s\nunknown  %s\nmemory   %s\ndisk     %s\noldest   %s\n",
		formatCount(c.Claimed), formatCount(c.Done), formatCount(c.Unknown),
		formatBytes(c.MemoryBytes), formatBytes(c.DiskBytes), formatElapsed(c.Oldest.Round(100*time.Millisecond)))
	return err
}
