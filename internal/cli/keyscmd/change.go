package keyscmd

import (
	"context"
	"errors"
	"fmt"
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
			return k.changing(cmd.Context(), func(store changer) error {
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

func (k *keysFlags) remove(ctx context.Context, store changer, record *semel.Record, reason string) error {
	err := keyrecord.Audited(ctx, store, "rm", reason, record, semel.Absent, func() error {
		removed, err := store.remove(ctx, record)
		switch {
		case err == nil && !removed:
			err = errors.New("the key has expired")
		case err != nil && removed: // removed from the deciding store, but not from a layer above it
			err = fmt.Errorf("%w: run the same command again", err)
		}
		return err
	})
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
	k.warnOfDrops(record, time.Now())
	if k.JSON {
		return k.PrintJSON(changeReport{Verb: "rm", Before: keyrecord.NewLine(record), After: semel.Absent.String()})
	}
	k.Note("forgot %s, which was %s", nameOf(record), record.State)
	return nil
}

// warnOfDrops names the servers that still drop a message with the id of a removed
// key, and says until when. A message that comes again before would be lost.
func (k *keysFlags) warnOfDrops(record *semel.Record, now time.Time) {
	for _, p := range k.Conf.PipelinesOn(k.Found.Name) {
		if record.Key.ID != "" && record.Key.Scope != p.Key.Scope {
			continue
		}
		// The producer published the message before a pipeline saw its key.
		if until, why := dropsUntil(p.Source.About(p).Drops, record.FirstSeen, now); until != "" {
			k.Note("warning: the source of %s drops a message that its producer publishes again with the same id, until %s (%s), and reports success: publish it again after that", p.Name, until, why)
		}
		if until, why := dropsUntil(p.Sink.About().Drops, completed(record, p.Window), now); until != "" {
			k.Note("warning: the sink of %s drops a message that has the id of this key, until %s (%s), and reports success: let the message come again after that", p.Name, until, why)
		}
	}
}

// dropsUntil says until when a server drops the id of a message that it stored at the
// given time, or now if that is zero. It returns empty texts if it does not.
func dropsUntil(drops config.Drops, stored, now time.Time) (until, why string) {
	if stored.IsZero() || stored.After(now) {
		stored = now
	}
	end := stored.Add(drops.For)
	if !end.After(now) {
		return "", ""
	}
	why = drops.Server + " keeps ids for " + schema.Duration(drops.For)
	if drops.Setting != "" {
		why += ", or for the " + drops.Setting
	}
	return term.DisplayTime(end.Add(time.Second)), why
}

// completed returns when a key became done, or zero if the record does not say.
func completed(record *semel.Record, window time.Duration) time.Time {
	if record.State != semel.Done || record.Expires.IsZero() {
		return time.Time{}
	}
	at := record.Expires.Add(-window)
	if at.Before(record.FirstSeen) { // it was completed with another window
		return time.Time{}
	}
	return at
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
	// Window is how long a resolved key is remembered.
	Window string `json:"window,omitempty"`
}

// changer is the set of store interfaces that a manual change needs.
type changer struct {
	semel.Resolver
	keyrecord.Log
	store semel.Store
}

// changing opens the store for changes by hand.
func (k *keysFlags) changing(ctx context.Context, change func(changer) error) error {
	return k.WithStore(ctx, func(store semel.Store) error {
		resolver, err := open.Able[semel.Resolver](&k.StoreFlags, store, "change a key by hand")
		if err != nil {
			return err
		}
		log, err := open.Able[keyrecord.Log](&k.StoreFlags, store, "keep an audit log, without which no key is changed by hand")
		if err != nil {
			return err
		}
		return change(changer{resolver, log, store})
	})
}

// findOne returns the only record that the target may mean. If there is no record,
// it returns an error after calling absent, if that is not nil.
func (k *keysFlags) findOne(ctx context.Context, by changer, t *target, absent func(context.Context, changer, []semel.Key) error) (*semel.Record, error) {
	found, missing, err := k.find(ctx, by.store, t)
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

// remove removes a record, by its digest if its key is not known.
func (c changer) remove(ctx context.Context, r *semel.Record) (bool, error) {
	if r.Key.ID != "" {
		return c.Remove(ctx, r.Key)
	}
	return c.RemoveDigest(ctx, r.Digest)
}

// resolve settles a record, by its digest if its key is not known.
func (c changer) resolve(ctx context.Context, r *semel.Record, as semel.State, window time.Duration) error {
	if r.Key.ID != "" {
		return c.Resolve(ctx, r.Key, as, semel.Result{}, window)
	}
	return c.ResolveDigest(ctx, r.Digest, as, semel.Result{}, window)
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
