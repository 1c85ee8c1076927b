// Package keyscmd has the verbs of semel keys.
package keyscmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/schema"
)

// keysFlags are the flags that all keys verbs share.
type keysFlags struct {
	open.StoreFlags
	scope string
	key   keyrecord.KeyFlags
}

// New returns the verb keys.
func New(a *term.App) *cobra.Command {
	k := &keysFlags{StoreFlags: open.StoreFlags{App: a}}
	cmd := term.Group(a, &cobra.Command{
		Use:   "keys VERB (--store DIR | --config FILE --store-name NAME)",
		Short: "Show the keys of a store, and settle unknown ones",
		Example: `semel keys show evt_01HX7Z2M --store ./seen
semel keys stats --config semel.yaml --store-name ledger
semel keys ls --store ./seen --state done --json`,
		Long: `Shows and changes the keys of an embedded store, or of any store in a
configuration. One process at a time can open an embedded store. If semel run has it
open, these verbs ask that process; while another program has it open, they fail and
name the process. Redis and PostgreSQL stores are shared. ls, show and stats ask a
process on another machine with --admin.

A store keeps a digest of each key. It keeps the scope and the id only if it was
opened to keep ids. Every key can still be found by its id.

With --config, a key is looked up in the scopes of the file's pipelines whose keys
are in the store. A verb that changes a key wants it to be in one of them. Choose
another scope with --scope. Without pipelines the scope is "default".

An ID is looked up as a string and, if it reads as a number, true or false, as
that value too. Several IDs are the parts of one composite key, in the order of
the --key flags. With --json-id each ID is one JSON value: '"42"' is the string
and '42' is the number. --digest DIGEST takes a digest that keys ls prints instead
of an ID.`,
	})
	k.AddStore(cmd)
	cmd.AddCommand(
		newKeysListCommand(k),
		newKeysShowCommand(k),
		newKeysStatsCommand(k),
		newKeysRemoveCommand(k),
		newKeysResolveCommand(k),
		newKeysPurgeCommand(k),
		newKeysExportCommand(k),
		newKeysImportCommand(k),
	)
	return cmd
}

// reading is onStore for a verb that changes nothing.
func (k *keysFlags) reading(check func(cmd *cobra.Command, words []string, wrong *term.Problems) func(context.Context, semel.Store) error) func(*cobra.Command, []string) error {
	return k.onStore(func(cmd *cobra.Command, words []string, wrong *term.Problems) func(context.Context, semel.Store) error {
		k.ReadOnly = true
		return check(cmd, words, wrong)
	})
}

// onStore returns the run function of a verb. check validates the arguments and
// returns the work on the store.
func (k *keysFlags) onStore(check func(cmd *cobra.Command, words []string, wrong *term.Problems) func(context.Context, semel.Store) error) func(*cobra.Command, []string) error {
	return k.Checked(func(cmd *cobra.Command, words []string, wrong term.Problems) error {
		use := check(cmd, words, &wrong)
		k.Check(&wrong)
		if err := wrong.Err(); err != nil {
			return err
		}
		return k.WithStore(cmd.Context(), func(store semel.Store) error { return use(cmd.Context(), store) })
	})
}

// addKey adds the flags of verbs that look up one key.
func (k *keysFlags) addKey(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.scope, "scope", "", "`NAME` of the key's space (default those of the pipelines in the configuration, or "+keyrecord.DefaultScope+")")
	k.key.Add(cmd)
	k.key.AddDigest(cmd)
	k.key.AddCaller(cmd)
	term.CompleteValues(cmd, "scope")
	cmd.ValidArgsFunction = cobra.NoFileCompletions // the next argument is an ID
}

// filterFlags select the records of a listing.
type filterFlags struct{ scope, state string }

func (f *filterFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.scope, "scope", "", "only keys of the key space `NAME`, if the store keeps it readable (default all)")
	cmd.Flags().StringVar(&f.state, "state", "", "only keys in `STATE`: claimed, done or unknown (default all)")
	term.CompleteValues(cmd, "scope")
	term.CompleteValues(cmd, "state", semel.Claimed.String(), semel.Done.String(), semel.Unknown.String())
}

func (f *filterFlags) filter(cmd *cobra.Command, p *term.Problems) semel.ListOptions {
	var filter semel.ListOptions
	if cmd.Flags().Changed("scope") {
		filter.Scope = &f.scope
	}
	names := []string{semel.Claimed.String(), semel.Done.String(), semel.Unknown.String()}
	switch f.state {
	case "":
	case names[0]:
		filter.State = semel.Claimed
	case names[1]:
		filter.State = semel.Done
	case names[2]:
		filter.State = semel.Unknown
	default:
		p.Addf("--state %q: %s", f.state, schema.OneOf(f.state, names))
	}
	return filter
}
