package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/vfs"
	"github.com/semel-dev/semel/store/logstore"
)

// defaultScope is the scope that dedup and keys use if none is named.
const defaultScope = "default"

// keysFlags are the flags that all verbs of keys share.
type keysFlags struct {
	*app
	store   string
	scope   string
	keepIDs bool // of what is written
}

func newKeysCommand(a *app) *cobra.Command {
	k := &keysFlags{app: a}
	cmd := newGroup(a, &cobra.Command{
		Use:   "keys VERB --store DIR",
		Short: "Look into a store of keys, and settle what only a person can",
		Example: `semel keys show evt_01HX7Z2M --store ./seen
semel keys stats --store ./seen
semel keys ls --store ./seen --state done --json`,
		Long: `Looks into an embedded store. A store is open in one process at a time: while
another one has it, these verbs fail and name the holder.

A store keeps a digest of each key, and its scope and id only where the store
was opened to keep ids. Every key can be looked up by its id all the same.

An ID is looked up as a string and, if it reads as a number, true or false, as
that too. Several IDs are the parts of one composite key, in the order in which
--key named them. With --json-id each ID is one JSON value and means just that:
'"42"' is the string and '42' is the number.`,
	})
	flags := cmd.PersistentFlags()
	flags.StringVar(&k.store, "store", "", "`DIR` of the store")
	completeDirs(cmd, "store")
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

// checkStore finds what is wrong with --store. A store that does not exist is
// wrong too: looking must not make one.
func (k *keysFlags) checkStore(p *problems) {
	if !k.wantStore(p) {
		return
	}
	switch exists, err := storeExists(k.store); {
	case err != nil:
		p.addf("--store %s: %s", k.store, fileReason(err))
	case !exists:
		p.addf("--store %s: there is no store in this directory", k.store)
	}
}

// wantStore reports whether --store names something.
func (k *keysFlags) wantStore(p *problems) bool {
	said := slices.ContainsFunc(*p, func(text string) bool { return strings.HasPrefix(text, "--store ") })
	if k.store == "" && !said {
		p.addf("--store DIR is missing: name the directory of the store")
	}
	return k.store != ""
}

// storeExists reports whether the directory holds a store, by the file that
// docs/format.md names.
func storeExists(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, "STORE"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// withStore opens the store, calls use and closes it.
func (k *keysFlags) withStore(use func(*logstore.Store) error) error {
	store, err := logstore.Open(k.store, &logstore.Options{KeepIDs: k.keepIDs})
	var locked *vfs.LockedError
	switch {
	case errors.As(err, &locked):
		return fmt.Errorf("the store %s is in use by %s: run this again when that has ended", k.store, locked.Holder)
	case err != nil:
		return fmt.Errorf("open the store %s: %w", k.store, err)
	}
	err = use(store)
	if closeErr := store.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("close the store %s: %w", k.store, closeErr))
	}
	return err
}

// addScope adds --scope for verbs that look one key up.
func (k *keysFlags) addScope(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.scope, "scope", defaultScope, "`NAME` of the key's space")
	completeValues(cmd, "scope")
	cmd.ValidArgsFunction = cobra.NoFileCompletions // what follows is an ID
}

// filterFlags choose records of a listing.
type filterFlags struct{ scope, state string }

func (f *filterFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.scope, "scope", "", "only keys of the key space `NAME`, as far as the store keeps it readable (default all)")
	cmd.Flags().StringVar(&f.state, "state", "", "only keys in `STATE`: claimed, done or unknown (default all)")
	completeValues(cmd, "scope")
	completeValues(cmd, "state", semel.Claimed.String(), semel.Done.String(), semel.Unknown.String())
}

func (f *filterFlags) filter(cmd *cobra.Command, p *problems) semel.Filter {
	var filter semel.Filter
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
		p.addf("--state %q: %s", f.state, config.OneOf(f.state, names))
	}
	return filter
}

// keyFlags choose one key.
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
