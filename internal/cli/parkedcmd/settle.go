package parkedcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/pipeline"
)

func newParkedSkipCommand(f *parkedFlags) *cobra.Command {
	return f.settling(&cobra.Command{
		Use:   "skip (ID... | --all | filters) --reason TEXT --config FILE",
		Short: "Give up parked messages",
		Example: `semel parked skip 9f2c41d07be35a1186c0de42 --reason "a test of ours" --config pipelines.yaml
semel parked skip --parked-for key-missing --reason "no orders of ours" --config pipelines.yaml`,
		Long: `Removes parked messages, which are not processed again. Their keys stay as they
are, so a later message with the same key is processed. A key that is unknown stays
unknown: settle it first with semel keys resolve. Before the removal, the operator
and the reason are written to the audit log next to the messages: in the directory,
the table, or the topic whose name ends with -settled.`,
	}, func(ctx context.Context, s deadLetters, list []*pipeline.Parked, reason string) error {
		for _, m := range list {
			if err := f.takeOut(ctx, s, m, facts.Skipped, reason); err != nil {
				return err
			}
		}
		return nil
	})
}

func newParkedDoneCommand(f *parkedFlags) *cobra.Command {
	return f.settling(&cobra.Command{
		Use:   "done (ID... | --all | filters) --reason TEXT --config FILE",
		Short: "Declare that parked messages had their effect",
		Example: `semel parked done 9f2c41d07be35a1186c0de42 --reason "it is in the bank's list" --config pipelines.yaml
semel parked done --parked-for unknown --reason "all are in the bank's list" --config pipelines.yaml`,
		Long: `Marks the keys of parked messages done and removes the messages. A later message
with the same key is then a duplicate, within the window of the pipeline. Before
each change, the operator and the reason are written to the audit log of the store
and to the one next to the messages.

Keys in Kafka cannot be marked: use skip.`,
	}, f.markDone)
}

// settling completes a verb that settles messages by hand.
func (f *parkedFlags) settling(cmd *cobra.Command, settle func(context.Context, deadLetters, []*pipeline.Parked, string) error) *cobra.Command {
	var reason string
	cmd.RunE = f.Checked(func(cmd *cobra.Command, ids []string, wrong term.Problems) error {
		f.check(ids, true, &wrong)
		keyrecord.CheckReason(reason, &wrong)
		if err := wrong.Err(); err != nil {
			return err
		}
		return f.withDeadLetters(cmd.Context(), func(stores []deadLetters) error {
			list, err := f.chosenOn(cmd.Context(), stores, ids)
			if err != nil {
				return err
			}
			count := 0
			for i, s := range stores {
				count += len(list[i])
				if len(list[i]) > 0 {
					err = errors.Join(err, settle(cmd.Context(), s, list[i], strings.TrimSpace(reason)))
				}
			}
			if count == 0 {
				f.Note("no message was chosen")
				f.noteStrangers(cmd.Context(), stores)
			}
			return err
		})
	})
	f.addChoice(cmd, "parked-for")
	keyrecord.AddReason(cmd, &reason)
	return cmd
}

// takeOut removes a message and reports it.
func (f *parkedFlags) takeOut(ctx context.Context, s deadLetters, m *pipeline.Parked, how, reason string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := s.letters.Settle(ctx, m, pipeline.Settlement{How: how, Actor: keyrecord.Actor(), Reason: reason})
	if errors.Is(err, pipeline.ErrNotParked) {
		return f.report(f.Stdout, m, facts.SettledByOther, "", "")
	}
	if err != nil {
		return fmt.Errorf("%s: take %s out: %w", s.spec.Name, m.ID, term.InOneLine(err))
	}
	return f.report(f.Stdout, m, how, "", "")
}

// markDone marks the keys of messages done and removes the messages. The key
// comes first: if the command is interrupted in between, the message remains and
// its key is done.
func (f *parkedFlags) markDone(ctx context.Context, s deadLetters, list []*pipeline.Parked, reason string) error {
	if err := facts.Markable(f.conf, s.spec); err != nil {
		return err
	}
	keys, reasons := open.StoreOf(f.App, f.file, f.conf, s.spec)
	if len(reasons) > 0 {
		return errors.New(strings.Join(reasons, "; "))
	}
	keys.KeepIDs = true // keep the id of a key settled by hand readable
	return keys.WithStore(ctx, func(store semel.Store) error {
		by, err := facts.HandsOn(keys, store)
		if err != nil {
			return err
		}
		var failures []error
		for _, m := range list {
			if isMissing(m) {
				failures = append(failures, fmt.Errorf("%s has no key that could be done: semel parked skip takes it out", m.ID))
				continue
			}
			if err := by.MakeDone(ctx, keyrecord.Me(reason), m.Key, s.spec.Window); err != nil {
				failures = append(failures, fmt.Errorf("%s: mark %s done: %w", m.ID, keyrecord.DisplayID(m.Key.ID), err))
				continue
			}
			if err := f.takeOut(ctx, s, m, facts.MarkedDone, reason); err != nil {
				return errors.Join(append(failures, err)...)
			}
		}
		return errors.Join(failures...)
	})
}
