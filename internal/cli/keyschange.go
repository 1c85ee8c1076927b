package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

func newKeysRemoveCommand(k *keysFlags) *cobra.Command {
	var (
		choice keyFlags
		reason string
	)
	cmd := &cobra.Command{
		Use:   "rm ID... --reason TEXT --store DIR",
		Short: "Forget a key, so that its message is processed again",
		Example: `semel keys rm evt_01HX7Z2M --reason "sent with the wrong amount" --store ./seen
semel keys rm --json-id '"evt_01HX7Z3C"' --reason "replay for the auditors" --store ./seen`,
		Long: `Forgets a key in whatever state it is: the next delivery of its message is fresh
and has its effect again. Several IDs are one composite key. Who did it and why
is written to the audit log of the store before it is done: audit.jsonl in the
directory of an embedded store, the table "audit" or the list "audit" behind the
prefix of one in PostgreSQL or Redis.

The exit status is 1 if there is no such key.`,
		RunE: k.checked(func(cmd *cobra.Command, words []string, wrong problems) error {
			keys := choice.keys(k.scope, words, &wrong)
			checkReason(reason, &wrong)
			k.check(k.app, &wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			return k.changeOne(cmd.Context(), keys, k.forgetAbove, func(store changer, record *semel.Record) error {
				return k.remove(cmd.Context(), store, record, reason)
			})
		}),
	}
	k.addScope(cmd)
	choice.add(cmd)
	addReason(cmd, &reason)
	return cmd
}

func (k *keysFlags) remove(ctx context.Context, store changer, record *semel.Record, reason string) error {
	err := audited(ctx, store, "rm", reason, record, semel.Absent, func() error {
		removed, err := store.Remove(ctx, record.Key)
		switch {
		case err == nil && !removed:
			err = errors.New("the key expired meanwhile")
		case err != nil && removed: // removed from the deciding store, but not from a layer above it
			err = fmt.Errorf("%w: run the same command again", err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("forget %s: %w", displayID(record.Key.ID), err)
	}
	for _, stackOf := range []func(string) (*config.Store, bool){k.conf.Above, k.conf.LayerOf} {
		if stack, ok := stackOf(k.found.Name); ok {
			k.note("%s is a layer of %s, where others may know the key still: the same command with --store-name %s reaches all", k.shown(), stack.Name, stack.Name)
		}
	}
	if k.asJSON {
		return k.printJSON(changeReport{"rm", newRecordLine(record), semel.Absent.String()})
	}
	k.note("forgot %s, which was %s", displayID(record.Key.ID), record.State)
	return nil
}

// forgetAbove removes keys from the upper layers of a stack if the deciding store
// has no record of them. A layer may still have a copy of a key that was removed
// directly from the deciding store.
func (k *keysFlags) forgetAbove(ctx context.Context, store changer, keys []semel.Key) error {
	if k.found.Spec.About().Layers == nil {
		return nil
	}
	for _, key := range keys {
		if _, err := store.Remove(ctx, key); err != nil {
			return fmt.Errorf("forget %s: %w", displayID(key.ID), err)
		}
	}
	k.note("no layer above has a copy of it either, from now on")
	return nil
}

// changeReport says what was done to a key, in the terms of the audit log.
type changeReport struct {
	Verb   string     `json:"verb"`
	Before recordLine `json:"before"`
	After  string     `json:"after"`
}

func newKeysResolveCommand(k *keysFlags) *cobra.Command {
	var (
		choice     keyFlags
		as, reason string
		window     time.Duration
	)
	cmd := &cobra.Command{
		Use:   "resolve ID... --as done|absent --reason TEXT --store DIR",
		Short: "Settle a key whose outcome is unknown",
		Example: `semel keys resolve order-42 --as done --reason "the charge is in the bank's list" --store ./ledger
semel keys resolve order-43 --as absent --reason "the bank never saw it" --store ./ledger`,
		Long: `Settles an unknown key: one whose holder was lost while the effect ran, under
the policy to hold. "done" says that the effect happened: deliveries of the
message are duplicates from now on. "absent" says that it did not: the next
delivery has it. Who did it and why is written to the audit log of the store
before it is done, as by keys rm.

A key in any other state is left alone, with exit status 1.`,
		RunE: k.checked(func(cmd *cobra.Command, words []string, wrong problems) error {
			keys := choice.keys(k.scope, words, &wrong)
			var state semel.State
			switch as {
			case "done":
				state = semel.Done
			case "absent":
				state = semel.Absent
			case "":
				wrong.addf("--as is missing: write --as done if the effect happened, --as absent if it did not")
			default:
				wrong.addf("--as %q: %s", as, schema.OneOf(as, []string{"done", "absent"}))
			}
			checkReason(reason, &wrong)
			k.check(k.app, &wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			k.keepIDs() // keep the id of a key settled by hand readable
			return k.changeOne(cmd.Context(), keys, nil, func(store changer, record *semel.Record) error {
				return k.resolve(cmd.Context(), store, record, state, window, reason)
			})
		}),
	}
	k.addScope(cmd)
	choice.add(cmd)
	addReason(cmd, &reason)
	cmd.Flags().StringVar(&as, "as", "", "`STATE` that the key gets: done or absent")
	windowVar(cmd.Flags(), &window, "window", "forever", "how long a key that is done is remembered from now")
	completeValues(cmd, "as", "done", "absent")
	completeValues(cmd, "window", "forever")
	return cmd
}

func (k *keysFlags) resolve(ctx context.Context, store changer, record *semel.Record, as semel.State, window time.Duration, reason string) error {
	name := displayID(record.Key.ID)
	if record.State != semel.Unknown {
		return fmt.Errorf("%s is %s, not unknown: there is nothing to settle", name, record.State)
	}
	err := audited(ctx, store, "resolve", reason, record, as, func() error {
		return store.Resolve(ctx, record.Key, as, semel.Result{}, window)
	})
	if err != nil {
		return fmt.Errorf("resolve %s: %w", name, err)
	}
	if k.asJSON {
		return k.printJSON(changeReport{"resolve", newRecordLine(record), as.String()})
	}
	k.note("resolved %s as %s", name, as)
	return nil
}

// changer is the set of store interfaces that a manual change needs.
type changer struct {
	semel.Resolver
	auditor
}

// changeOne calls change with the only record that the keys may mean. If there is
// no record, it returns an error after calling absent, if that is not nil.
func (k *keysFlags) changeOne(ctx context.Context, keys []semel.Key, absent func(context.Context, changer, []semel.Key) error, change func(changer, *semel.Record) error) error {
	return k.withStore(ctx, k.app, func(store semel.Store) error {
		resolver, err := able[semel.Resolver](&k.storeFlags, store, "change a key by hand")
		if err != nil {
			return err
		}
		log, err := able[auditor](&k.storeFlags, store, "keep an audit log, without which no key is changed by hand")
		if err != nil {
			return err
		}
		by := changer{resolver, log}
		found, err := k.lookUp(ctx, store, keys)
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
				names = append(names, displayID(record.Key.ID))
			}
			return fmt.Errorf("the ID means %d keys, %s: choose one with --json-id", len(found), strings.Join(names, " and "))
		}
		return change(by, &found[0])
	})
}

func addReason(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "`TEXT` that says why, for the audit log")
	completeValues(cmd, "reason")
}

func checkReason(reason string, p *problems) {
	if strings.TrimSpace(reason) == "" {
		p.addf("--reason TEXT is missing: say why, for the audit log")
	}
}

func newKeysPurgeCommand(k *keysFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "purge --store DIR",
		Short: "Give back the space of expired keys now",
		Example: `semel keys purge --store ./seen
semel keys purge --store ./seen --json`,
		Long: `Forgets the keys whose window is over, now rather than when the store comes to
it. An expired key is never taken for a duplicate, purged or not. An embedded
store gives space back by whole segments of its log: what shares one with a key
that is still remembered stays.`,
		Args: noArguments,
		RunE: k.checked(func(cmd *cobra.Command, _ []string, wrong problems) error {
			k.check(k.app, &wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			return k.withStore(cmd.Context(), k.app, func(store semel.Store) error {
				purger, err := able[semel.Purger](&k.storeFlags, store, "purge: it gives the space of a key back by itself when the key expires")
				if err != nil {
					return err
				}
				purged, err := purger.Purge(cmd.Context())
				if err != nil {
					return fmt.Errorf("purge %s: %w", k.shown(), err)
				}
				if k.asJSON {
					return k.printJSON(struct {
						Purged int64 `json:"purged"`
					}{purged})
				}
				k.note("purged %s expired keys", formatCount(purged))
				return nil
			})
		}),
	}
}
