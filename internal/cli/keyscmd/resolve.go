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
	"github.com/semel-dev/semel/internal/schema"
)

// resolution is what keys resolve does to keys.
type resolution struct {
	*keysFlags
	as     semel.State
	reason string
	window time.Duration // 0: that of the pipeline
	all    bool
	older  time.Duration
	yes    bool
}

func newKeysResolveCommand(k *keysFlags) *cobra.Command {
	r := &resolution{keysFlags: k}
	var as, state string
	cmd := &cobra.Command{
		Use:   "resolve (ID... | --all) --as done|absent --reason TEXT --store DIR",
		Short: "Settle a key whose outcome is unknown",
		Example: `semel keys resolve order-42 --as done --reason "the charge is in the bank's list" --store ./ledger
semel keys resolve order-43 --as absent --reason "the bank never saw it" --store ./ledger
semel keys resolve --all --older 1h --as absent --reason "the bank was down" --store ./ledger --yes`,
		Long: `Settles an unknown key. Its holder was lost while the effect ran, and the policy
is to hold such keys. "done" says that the effect happened: deliveries of the
message are duplicates from now on. "absent" says that it did not happen: the
next delivery has its effect. Before the change, the operator and the reason are
written to the audit log of the store, as by keys rm.

A key that is done is remembered for the window of the pipeline with its scope, and
forever without such a pipeline. --window chooses another time.

A key in any other state is left alone, with exit status 1.

--all settles every unknown key of the store, or those of --scope that the store
keeps readable. --older DUR leaves out keys that became unknown later. The verb
prints the number of keys and asks for confirmation. Without a terminal it needs
--yes.`,
		RunE: k.Checked(func(cmd *cobra.Command, words []string, wrong term.Problems) error {
			r.as = stateOf(as, &wrong)
			r.checkAll(cmd, words, state, &wrong)
			return r.run(cmd, words, wrong)
		}),
	}
	k.addKey(cmd)
	keyrecord.AddReason(cmd, &r.reason)
	flags := cmd.Flags()
	flags.StringVar(&as, "as", "", "`STATE` that the key gets: done or absent")
	term.WindowVar(flags, &r.window, "window", "", "how long a key that is done is remembered from now (default the pipeline's window, or forever without a pipeline)")
	flags.BoolVar(&r.all, "all", false, "settle all unknown keys")
	flags.StringVar(&state, "state", "", "with --all: the `STATE` of the keys, which is always unknown")
	term.AddParsed(flags, &r.older, "older", "", "DUR", "with --all: only keys that became unknown at least this long ago", schema.ParseDuration)
	flags.BoolVar(&r.yes, "yes", false, "with --all: do not ask for confirmation")
	term.CompleteValues(cmd, "as", "done", "absent")
	term.CompleteValues(cmd, "state", semel.Unknown.String())
	term.CompleteValues(cmd, "window", "forever")
	return cmd
}

// stateOf returns the state that --as names.
func stateOf(as string, wrong *term.Problems) semel.State {
	switch as {
	case "done":
		return semel.Done
	case "absent":
		return semel.Absent
	case "":
		wrong.Addf("--as is missing: write --as done if the effect happened, --as absent if it did not")
	default:
		wrong.Addf("--as %q: %s", as, schema.OneOf(as, []string{"done", "absent"}))
	}
	return semel.Unknown
}

// run settles the keys that the arguments name, or all.
func (r *resolution) run(cmd *cobra.Command, words []string, wrong term.Problems) error {
	var t *target
	if !r.all {
		t = r.target(words, &wrong)
	}
	keyrecord.CheckReason(r.reason, &wrong)
	r.Check(&wrong)
	if err := wrong.Err(); err != nil {
		return err
	}
	if r.as == semel.Done && r.window == 0 {
		for _, p := range r.Conf.PipelinesOn(r.Found.Name) {
			if problem, lacks := r.Conf.Lacks(p.Name, "window"); lacks {
				return term.Usagef("%s: or choose the window with --window", problem)
			}
		}
	}
	r.KeepIDs = true // keep the id of a key settled by hand readable
	if r.all {
		return r.changing(cmd.Context(), func(store *facts.Hands) error { return r.resolveAll(cmd, store) })
	}
	if err := r.place(cmd, t); err != nil {
		return err
	}
	return r.changing(cmd.Context(), func(store *facts.Hands) error { return r.resolveOne(cmd.Context(), store, t) })
}

// resolveOne settles the key of a target.
func (r *resolution) resolveOne(ctx context.Context, store *facts.Hands, t *target) error {
	record, err := r.findOne(ctx, store, t, nil)
	if err != nil {
		return err
	}
	if record.State != semel.Unknown {
		return fmt.Errorf("%s is %s, not unknown: there is nothing to settle", nameOf(record), record.State)
	}
	if err := r.resolve(ctx, store, record); err != nil {
		return err
	}
	if !r.JSON {
		r.Note("resolved %s as %s%s", nameOf(record), r.as, r.remembered(record))
	}
	return nil
}

// checkAll checks the flags that belong to --all.
func (r *resolution) checkAll(cmd *cobra.Command, words []string, state string, wrong *term.Problems) {
	if !r.all {
		for _, name := range []string{"state", "older", "yes"} {
			if cmd.Flags().Changed(name) {
				wrong.Addf("--%s is only for --all: leave it out, or write --all instead of the ID", name)
			}
		}
		return
	}
	if _, byDigest := r.key.Digest(nil, wrong); byDigest || len(words) > 0 {
		wrong.Addf("--all and a key exclude each other: leave one of them out")
	}
	if r.older < 0 {
		wrong.Addf("--older %s: must be above 0", schema.Duration(r.older))
	}
	if state != "" && state != semel.Unknown.String() {
		wrong.Addf("--state %q: only keys in the state unknown can be resolved", state)
	}
}

// resolve settles one unknown record, between two lines of the audit log.
func (r *resolution) resolve(ctx context.Context, store *facts.Hands, record *semel.Record) error {
	window, _ := r.windowOf(record)
	err := store.Settle(ctx, keyrecord.Me(r.reason), record, r.as, window)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return r.ByDigest("resolve", record.Digest, err)
	case err != nil:
		return fmt.Errorf("resolve %s: %w", nameOf(record), err)
	case r.JSON:
		report := changeReport{Verb: "resolve", Before: keyrecord.NewLine(record), After: r.as.String()}
		if r.as == semel.Done {
			report.Window = schema.Duration(window)
		}
		return r.PrintJSON(report)
	}
	return nil
}

// windowOf returns how long a record is remembered, and the pipeline that says so.
// If several pipelines may have the key, the longest window counts.
func (r *resolution) windowOf(record *semel.Record) (window time.Duration, pipeline string) {
	if r.window > 0 {
		return r.window, ""
	}
	return facts.WindowOf(r.Conf, r.Found.Name, record)
}

// remembered says how long a resolved record is remembered.
func (r *resolution) remembered(record *semel.Record) string {
	if r.as != semel.Done {
		return ""
	}
	window, pipeline := r.windowOf(record)
	switch {
	case pipeline != "":
		return fmt.Sprintf(", remembered for %s, the window of pipeline %s", schema.Duration(window), pipeline)
	case window == semel.Forever:
		return ", remembered forever"
	}
	return ", remembered for " + schema.Duration(window)
}

// resolveAll settles the unknown keys that the flags select.
func (r *resolution) resolveAll(cmd *cobra.Command, store *facts.Hands) error {
	ctx := cmd.Context()
	lister, err := open.Able[semel.Inspector](&r.StoreFlags, store.Store, "list keys")
	if err != nil {
		return err
	}
	options := semel.ListOptions{State: semel.Unknown}
	if cmd.Flags().Changed("scope") {
		options.Scope = &r.scope
	}
	var chosen []semel.Record
	before := time.Now().Add(-r.older)
	for record, err := range lister.List(ctx, options) {
		if err != nil {
			return fmt.Errorf("list the store %s: %w", r.Shown(), err)
		}
		if r.older == 0 || !record.LeaseEnd.After(before) {
			chosen = append(chosen, record)
		}
	}
	if len(chosen) == 0 {
		r.Note("no unknown key was chosen")
		if options.Scope != nil {
			return r.hintScope(ctx, store.Store, *options.Scope)
		}
		return nil
	}
	keys := term.Plural(len(chosen), "unknown key") + " of " + r.Shown()
	if !r.yes {
		agreed, err := r.Confirm(fmt.Sprintf("resolve %s as %s%s?", keys, r.as, r.allRemembered(chosen)))
		switch {
		case errors.Is(err, term.ErrNoTerminal):
			return term.Usagef("%s would become %s: --yes is missing, and there is no terminal to ask for confirmation", keys, r.as)
		case err != nil:
			return err
		case !agreed:
			r.Note("nothing was changed")
			return nil
		}
	}
	settled := 0
	for i := range chosen {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else {
			err = r.resolve(ctx, store, &chosen[i])
		}
		if errors.Is(err, semel.ErrNotUnknown) {
			r.Note("%s is no longer unknown: its holder or another operator settled it", nameOf(&chosen[i]))
			continue
		}
		if err != nil {
			r.Note("resolved %d of %s as %s", settled, keys, r.as)
			return err
		}
		settled++
	}
	r.Note("resolved %d of %s as %s%s", settled, keys, r.as, r.allRemembered(chosen))
	return nil
}

// allRemembered says how long resolved records are remembered.
func (r *resolution) allRemembered(chosen []semel.Record) string {
	text := r.remembered(&chosen[0])
	for i := range chosen {
		if r.remembered(&chosen[i]) != text {
			return ", remembered for the windows of their pipelines"
		}
	}
	return text
}
