package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
)

// defaultScope is the default scope of dedup and keys.
const defaultScope = "default"

// keysFlags are the flags that all keys verbs share.
type keysFlags struct {
	*app
	storeFlags
	scope string
}

func newKeysCommand(a *app) *cobra.Command {
	k := &keysFlags{app: a}
	cmd := newGroup(a, &cobra.Command{
		Use:   "keys VERB (--store DIR | --config FILE --store-name NAME)",
		Short: "Look into a store of keys, and settle what only a person can",
		Example: `semel keys show evt_01HX7Z2M --store ./seen
semel keys stats --config semel.yaml --store-name ledger
semel keys ls --store ./seen --state done --json`,
		Long: `Looks into an embedded store, or into any store that a configuration names. An
embedded store is open in one process at a time: while another one has it, these
verbs fail and name the holder. Stores in Redis and PostgreSQL are shared.

A store keeps a digest of each key, and its scope and id only where the store
was opened to keep ids. Every key can be looked up by its id all the same.

An ID is looked up as a string and, if it reads as a number, true or false, as
that too. Several IDs are the parts of one composite key, in the order in which
--key named them. With --json-id each ID is one JSON value and means just that:
'"42"' is the string and '42' is the number.`,
	})
	k.addStore(cmd)
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

// addScope adds --scope to verbs that look up one key.
func (k *keysFlags) addScope(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.scope, "scope", defaultScope, "`NAME` of the key's space")
	completeValues(cmd, "scope")
	cmd.ValidArgsFunction = cobra.NoFileCompletions // the next argument is an ID
}

// filterFlags select the records of a listing.
type filterFlags struct{ scope, state string }

func (f *filterFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.scope, "scope", "", "only keys of the key space `NAME`, as far as the store keeps it readable (default all)")
	cmd.Flags().StringVar(&f.state, "state", "", "only keys in `STATE`: claimed, done or unknown (default all)")
	completeValues(cmd, "scope")
	completeValues(cmd, "state", semel.Claimed.String(), semel.Done.String(), semel.Unknown.String())
}

func (f *filterFlags) filter(cmd *cobra.Command, p *problems) semel.ListOptions {
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
		p.addf("--state %q: %s", f.state, schema.OneOf(f.state, names))
	}
	return filter
}

// keyFlags select one key.
type keyFlags struct{ jsonID bool }

func (f *keyFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.jsonID, "json-id", false, "each ID is a JSON value: '\"42\"' is the string, '42' the number")
}

// keys returns the keys that the words may mean.
func (f *keyFlags) keys(scope string, words []string, p *problems) []semel.Key {
	if len(words) == 0 {
		p.addf("the ID of the key is missing")
		return nil
	}
	var (
		ids []string
		err error
	)
	if f.jsonID {
		var id string
		text := words[0]
		if len(words) > 1 {
			text = "[" + strings.Join(words, ",") + "]"
		}
		id, err = newIDParser().id([]byte(text))
		ids = []string{id}
	} else {
		ids, err = idReadings(words)
	}
	if err != nil {
		p.addf("ID %s: %v", strings.Join(words, " "), err)
		return nil
	}
	keys := make([]semel.Key, len(ids))
	for i, id := range ids {
		keys[i] = semel.Key{Scope: scope, ID: id}
		if err := keys[i].Validate(); err != nil {
			p.addf("%v", err)
			return nil
		}
	}
	return keys
}
