package keyscmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

func newKeysRemoveCommand(k *keysFlags) *cobra.Command {
	var (
		choice keyrecord.KeyFlags
		reason string
	)
	cmd := &cobra.Command{
		Use:   "rm ID... --reason TEXT --store DIR",
		Short: "Remove a key, so that its message is processed again",
		Example: `semel keys rm evt_01HX7Z2M --reason "sent with the wrong amount" --store ./seen
semel keys rm --json-id '"evt_01HX7Z3C"' --reason "replay for the auditors" --store ./seen`,
		Long: `Removes a key in any state. The next delivery of its message is fresh and has its
effect again. Several IDs are one composite key. Before the change, the operator
and the reason are written to the audit log of the store. That is audit.jsonl in
the directory of an embedded store, and the table or list "audit" behind the
prefix of a PostgreSQL or Redis store.

The exit status is 1 if the key is absent.`,
		RunE: k.Checked(func(cmd *cobra.Command, words []string, wrong term.Problems) error {
			keys := choice.Keys(k.scope, words, &wrong)
			keyrecord.CheckReason(reason, &wrong)
			k.Check(&wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return k.changeOne(cmd.Context(), keys, k.forgetAbove, func(store changer, record *semel.Record) error {
				return k.remove(cmd.Context(), store, record, reason)
			})
		}),
	}
	k.addScope(cmd)
	choice.Add(cmd)
	keyrecord.AddReason(cmd, &reason)
	return cmd
}

func (k *keysFlags) remove(ctx context.Context, store changer, record *semel.Record, reason string) error {
	err := keyrecord.Audited(ctx, store, "rm", reason, record, semel.Absent, func() error {
		removed, err := store.Remove(ctx, record.Key)
		switch {
		case err == nil && !removed:
			err = errors.New("the key has expired")
		case err != nil && removed: // removed from the deciding store, but not from a layer above it
			err = fmt.Errorf("%w: run the same command again", err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("forget %s: %w", keyrecord.DisplayID(record.Key.ID), err)
	}
	for _, stackOf := range []func(string) (*config.Store, bool){k.Conf.Above, k.Conf.LayerOf} {
		if stack, ok := stackOf(k.Found.Name); ok {
			k.Note("%s is a layer of %s, and other layers may still know the key. The same command with --store-name %s reaches all layers", k.Shown(), stack.Name, stack.Name)
		}
	}
	if k.JSON {
		return k.PrintJSON(changeReport{"rm", keyrecord.NewLine(record), semel.Absent.String()})
	}
	k.Note("forgot %s, which was %s", keyrecord.DisplayID(record.Key.ID), record.State)
	return nil
}

// forgetAbove removes keys from the upper layers of a stack if the deciding store
// has no record of them. A layer may still have a copy of a key that was removed
// directly from the deciding store.
func (k *keysFlags) forgetAbove(ctx context.Context, store changer, keys []semel.Key) error {
	if k.Found.Spec.About().Layers == nil {
		return nil
	}
	for _, key := range keys {
		if _, err := store.Remove(ctx, key); err != nil {
			return fmt.Errorf("forget %s: %w", keyrecord.DisplayID(key.ID), err)
		}
	}
	k.Note("the layers above have no copy of it any more")
	return nil
}

// changeReport says what was done to a key, in the terms of the audit log.
type changeReport struct {
	Verb   string         `json:"verb"`
	Before keyrecord.Line `json:"before"`
	After  string         `json:"after"`
}

func newKeysResolveCommand(k *keysFlags) *cobra.Command {
	var (
		choice     keyrecord.KeyFlags
		as, reason string
		window     time.Duration
	)
	cmd := &cobra.Command{
		Use:   "resolve ID... --as done|absent --reason TEXT --store DIR",
		Short: "Settle a key whose outcome is unknown",
		Example: `semel keys resolve order-42 --as done --reason "the charge is in the bank's list" --store ./ledger
semel keys resolve order-43 --as absent --reason "the bank never saw it" --store ./ledger`,
		Long: `Settles an unknown key. Its holder was lost while the effect ran, and the policy
is to hold such keys. "done" says that the effect happened: deliveries of the
message are duplicates from now on. "absent" says that it did not happen: the
next delivery has its effect. Before the change, the operator and the reason are
written to the audit log of the store, as by keys rm.

A key in any other state is left alone, with exit status 1.`,
		RunE: k.Checked(func(cmd *cobra.Command, words []string, wrong term.Problems) error {
			keys := choice.Keys(k.scope, words, &wrong)
			var state semel.State
			switch as {
			case "done":
				state = semel.Done
			case "absent":
				state = semel.Absent
			case "":
				wrong.Addf("--as is missing: write --as done if the effect happened, --as absent if it did not")
			default:
				wrong.Addf("--as %q: %s", as, schema.OneOf(as, []string{"done", "absent"}))
			}
			keyrecord.CheckReason(reason, &wrong)
			k.Check(&wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			k.KeepIDs() // keep the id of a key settled by hand readable
			return k.changeOne(cmd.Context(), keys, nil, func(store changer, record *semel.Record) error {
				return k.resolve(cmd.Context(), store, record, state, window, reason)
			})
		}),
	}
	k.addScope(cmd)
	choice.Add(cmd)
	keyrecord.AddReason(cmd, &reason)
	cmd.Flags().StringVar(&as, "as", "", "`STATE` that the key gets: done or absent")
	term.WindowVar(cmd.Flags(), &window, "window", "forever", "how long a key that is done is remembered from now")
	term.CompleteValues(cmd, "as", "done", "absent")
	term.CompleteValues(cmd, "window", "forever")
	return cmd
}

func (k *keysFlags) resolve(ctx context.Context, store changer, record *semel.Record, as semel.State, window time.Duration, reason string) error {
	name := keyrecord.DisplayID(record.Key.ID)
	if record.State != semel.Unknown {
		return fmt.Errorf("%s is %s, not unknown: there is nothing to settle", name, record.State)
	}
	err := keyrecord.Audited(ctx, store, "resolve", reason, record, as, func() error {
		return store.Resolve(ctx, record.Key, as, semel.Result{}, window)
	})
	if err != nil {
		return fmt.Errorf("resolve %s: %w", name, err)
	}
	if k.JSON {
		return k.PrintJSON(changeReport{"resolve", keyrecord.NewLine(record), as.String()})
	}
	k.Note("resolved %s as %s", name, as)
	return nil
}

// changer is the set of store interfaces that a manual change needs.
type changer struct {
	semel.Resolver
	keyrecord.Log
}

// changeOne calls change with the only record that the keys may mean. If there is
// no record, it returns an error after calling absent, if that is not nil.
func (k *keysFlags) changeOne(ctx context.Context, keys []semel.Key, absent func(context.Context, changer, []semel.Key) error, change func(changer, *semel.Record) error) error {
	return k.WithStore(ctx, func(store semel.Store) error {
		resolver, err := open.Able[semel.Resolver](&k.StoreFlags, store, "change a key by hand")
		if err != nil {
			return err
		}
		log, err := open.Able[keyrecord.Log](&k.StoreFlags, store, "keep an audit log, without which no key is changed by hand")
		if err != nil {
			return err
		}
		by := changer{resolver, log}
		found, err := k.LookUp(ctx, store, keys)
		if err == nil && len(found) == 0 && absent != nil {
			err = absent(ctx, by, keys)
		}
		switch {
		case err != nil:
			return err
		case len(found) == 0:
			return absentError(k, keys[0])
		case len(found) > 1:
			var names []string
			for _, record := range found {
				names = append(names, keyrecord.DisplayID(record.Key.ID))
			}
			return fmt.Errorf("the ID means %d keys, %s: choose one with --json-id", len(found), strings.Join(names, " and "))
		}
		return change(by, &found[0])
	})
}

func newKeysPurgeCommand(k *keysFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "purge --store DIR",
		Short: "Free the space of expired keys now",
		Example: `semel keys purge --store ./seen
semel keys purge --store ./seen --json`,
		Long: `Removes the keys whose window is over now, instead of when the store gets to
them. An expired key never makes a message a duplicate, purged or not. An
embedded store frees whole segments of its log. A segment with a key that is
still remembered stays.`,
		Args: term.NoArguments,
		RunE: k.onStore(func(*cobra.Command, []string, *term.Problems) func(context.Context, semel.Store) error {
			return func(ctx context.Context, store semel.Store) error {
				purger, err := open.Able[semel.Purger](&k.StoreFlags, store, "purge: it gives the space of a key back by itself when the key expires")
				if err != nil {
					return err
				}
				purged, err := purger.Purge(ctx)
				if err != nil {
					return fmt.Errorf("purge %s: %w", k.Shown(), err)
				}
				if k.JSON {
					return k.PrintJSON(struct {
						Purged int64 `json:"purged"`
					}{purged})
				}
				k.Note("purged %s expired keys", term.FormatCount(purged))
				return nil
			}
		}),
	}
}
