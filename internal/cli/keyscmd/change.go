package keyscmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

func newKeysRemoveCommand(k *keysFlags) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "rm ID... --reason TEXT --store DIR", SuggestFor: []string{"remove", "delete"},
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
			t := k.target(words, &wrong)
			keyrecord.CheckReason(reason, &wrong)
			k.Check(&wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			if err := k.place(cmd, t); err != nil {
				return err
			}
			return k.changing(cmd.Context(), func(store *facts.Hands) error {
				record, err := k.findOne(cmd.Context(), store, t, k.forgetAbove)
				if err != nil {
					return err
				}
				return k.remove(cmd.Context(), store, record, reason)
			})
		}),
	}
	k.addKey(cmd)
	keyrecord.AddReason(cmd, &reason)
	return cmd
}

func (k *keysFlags) remove(ctx context.Context, store *facts.Hands, record *semel.Record, reason string) error {
	err := store.Forget(ctx, keyrecord.Me(reason), record)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return k.ByDigest("forget", record.Digest, err)
	case err != nil:
		return fmt.Errorf("forget %s: %w", nameOf(record), err)
	}
	for _, stackOf := range []func(string) (*config.Store, bool){k.Conf.Above, k.Conf.LayerOf} {
		if stack, ok := stackOf(k.Found.Name); ok {
			k.Note("%s is a layer of %s, and other layers may still know the key. The same command with --store-name %s reaches all layers", k.Shown(), stack.Name, stack.Name)
		}
	}
	for _, warning := range facts.DropWarnings(k.Conf, k.Found.Name, record, time.Now()) {
		k.Note("warning: %s", warning)
	}
	if k.JSON {
		return k.PrintJSON(changeReport{Verb: "rm", Before: keyrecord.NewLine(record), After: semel.Absent.String()})
	}
	k.Note("forgot %s, which was %s", nameOf(record), record.State)
	return nil
}

// forgetAbove removes keys from the upper layers of a stack if the deciding store
// has no record of them. A layer may still have a copy of a key that was removed
// directly from the deciding store.
func (k *keysFlags) forgetAbove(ctx context.Context, store *facts.Hands, keys []semel.Key) error {
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
	// Window is how long a resolved key is remembered.
	Window string `json:"window,omitempty"`
}

// changing opens the store for changes by hand.
func (k *keysFlags) changing(ctx context.Context, change func(*facts.Hands) error) error {
	return k.WithStore(ctx, func(store semel.Store) error {
		by, err := facts.HandsOn(&k.StoreFlags, store)
		if err != nil {
			return err
		}
		return change(by)
	})
}

// findOne returns the only record that the target may mean. If there is no record,
// it returns an error after calling absent, if that is not nil.
func (k *keysFlags) findOne(ctx context.Context, by *facts.Hands, t *target, absent func(context.Context, *facts.Hands, []semel.Key) error) (*semel.Record, error) {
	found, missing, err := k.find(ctx, by.Store, t)
	if err == nil && missing != nil && absent != nil && !t.byDigest {
		err = absent(ctx, by, t.keys(t.scopes))
	}
	switch {
	case err != nil:
		return nil, err
	case missing != nil:
		return nil, missing
	}
	return one(found)
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
