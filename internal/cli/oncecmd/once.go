// Package oncecmd is the verb once. It runs a command once for a key, on all hosts that share
// the store.
package oncecmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

// Exit statuses besides that of the command. Scripts rely on them.
const (
	statusHeld     = 75 // another call holds the key
	statusUnknown  = 76 // the outcome is unknown
	statusCannot   = 126
	statusNotFound = 127
	statusSignal   = 128 // and the number of the signal
)

// onceGC is the GC percentage, unless GOGC is set. A call that runs a short command ends before the
// first collection, which would cost a tenth of its time.
const onceGC = 400

// defaultDir is the store of calls that name none.
const defaultDir = "./semel-once"

// flags are the flags of the verb.
type flags struct {
	open.StoreFlags
	name, scope     string
	every           time.Duration
	zone            *time.Location
	window, lease   time.Duration
	expired, failed string
	wait            time.Duration
	replay          bool
	keep            int64
}

// New returns the verb once.
func New(a *term.App) *cobra.Command {
	f := &flags{StoreFlags: open.StoreFlags{App: a, Default: defaultDir}}
	return f.command()
}

func (f *flags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "once --key KEY [flags] -- COMMAND [ARG...]",
		Short: "Run a command once for a key",
		Example: `semel once --key report --every 1d -- echo "the report of today"
semel once --key invoice-42 --replay -- echo "sent invoice 42"
semel once --key import --store ./ledger --on-failure keep -- true`,
		Long: `Runs a command unless it has already run for the key. Use it for cron on several hosts,
for a step of a CI run, and for a pod that is started again. Calls on several hosts need
a shared store: name it with --config FILE.

The claim of the key is renewed while the command runs. Its exit status and the start of
its output are kept for the window. If the host dies, the outcome is unknown: the next
call does not run the command, and prints the commands that settle the key. With
--on-lease-expired retry it runs the command again.

The exit status is that of the command, also for a duplicate. It is 75 if another call
holds the key, 76 if the outcome is unknown, 126 or 127 if the command cannot be started,
and 128 and the signal if a signal ended it. The command has SEMEL_KEY, SEMEL_ATTEMPT
and SEMEL_TOKEN in its environment. Signals are passed on to its process group, which
ends with the call.`,
		RunE: f.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			f.check(cmd, args, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return f.run(cmd.Context(), args)
		}),
	}
	f.AddStore(cmd)
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags behind the command are its own
	flags.StringVar(&f.name, "key", "", "`KEY` for which the command runs once")
	flags.StringVar(&f.scope, "scope", "once", "`NAME` of the key space")
	term.AddParsed(flags, &f.every, "every", "", "DUR", "append the start of the current interval to the key, so that the command runs once in each", schema.ParseDuration)
	term.AddParsed(flags, &f.zone, "zone", "", "ZONE", "time zone of an interval of whole days, as in Europe/Vienna (default UTC)", schema.ParseZone)
	term.WindowVar(flags, &f.window, "window", "7d", "how long the result is remembered, or forever; the default is longer for a long --every")
	term.AddParsed(flags, &f.lease, "lease", "30s", "DUR", "how long a dead holder keeps the key", schema.ParseDuration)
	flags.StringVar(&f.expired, "on-lease-expired", "hold", "what a later call does after a holder died: `hold` or retry")
	flags.StringVar(&f.failed, "on-failure", "release", "what a later call does after an exit status other than 0: `release` runs the command again, keep returns the status")
	term.AddParsed(flags, &f.wait, "wait", "0", "DUR", "how long to wait for a call that holds the key", schema.ParseDuration)
	flags.BoolVar(&f.replay, "replay", false, "write the kept output again for a duplicate")
	term.AddParsed(flags, &f.keep, "keep-output", "64KiB", "SIZE", "how much of stdout is kept; with 0 the command writes to stdout itself", schema.ParseSize)
	for _, name := range []string{"key", "scope", "every", "zone", "lease", "wait", "keep-output"} {
		term.CompleteValues(cmd, name)
	}
	term.CompleteValues(cmd, "window", "forever")
	term.CompleteValues(cmd, "on-lease-expired", "hold", "retry")
	term.CompleteValues(cmd, "on-failure", "release", "keep")
	return cmd
}

// check reports all faults of the flags, and finds the store.
func (f *flags) check(cmd *cobra.Command, args []string, wrong *term.Problems) {
	if f.name == "" && !cmd.Flags().Changed("key") {
		wrong.Addf("--key KEY is missing: name what takes effect once, as in --key backup")
	}
	if len(args) == 0 {
		wrong.Addf("the COMMAND is missing: write it behind --, as in semel once --key backup -- ./backup.sh")
	}
	f.checkIntervals(cmd, wrong)
	if f.lease < time.Millisecond {
		wrong.Addf("--lease: write at least 1ms")
	}
	if f.wait < 0 {
		wrong.Addf("--wait: write 0 or more")
	}
	if f.expired != "hold" && f.expired != "retry" {
		wrong.Addf("--on-lease-expired %q: %s", f.expired, schema.OneOf(f.expired, []string{"hold", "retry"}))
	}
	if f.failed != "release" && f.failed != "keep" {
		wrong.Addf("--on-failure %q: %s", f.failed, schema.OneOf(f.failed, []string{"release", "keep"}))
	}
	if !f.Find(wrong) {
		return
	}
	if why := f.Found.Spec.About().NoRecords; why != "" {
		wrong.Addf("%s %s", f.Shown(), why)
	}
}

// checkIntervals also finds the window: a key must be remembered until its interval has ended.
func (f *flags) checkIntervals(cmd *cobra.Command, wrong *term.Problems) {
	const day = 24 * time.Hour
	switch every := cmd.Flags().Changed("every"); {
	case every && (f.every < time.Millisecond || f.every%time.Millisecond != 0):
		wrong.Addf("--every: write a whole number of milliseconds above 0, as in --every 1d")
	case f.zone != nil && f.every == 0:
		wrong.Addf("--zone is only for --every: leave it out, or write --every 1d")
	case f.zone != nil && f.every%day != 0:
		wrong.Addf("--zone is only for intervals of whole days, as in --every 1d")
	case !every:
	case !cmd.Flags().Changed("window"):
		f.window = max(f.window, longer(f.every, day))
	case f.zone != nil && f.window < longer(f.every, day):
		wrong.Addf("--window is too short: an interval would run twice, because its key would be forgotten before its end. Write at least the time of --every and 1d, because a day of --zone may be longer, or leave --window out")
	case f.window < f.every:
		wrong.Addf("--window is too short: an interval would run twice, because its key would be forgotten before its end. Write at least the time of --every, or leave --window out")
	}
}

// run runs the command, or says why it does not run.
func (f *flags) run(ctx context.Context, argv []string) error {
	name := f.name
	if f.every > 0 {
		name += "@" + intervalStart(time.Now(), f.every, f.zone).Format(time.RFC3339Nano)
	}
	of := semel.Key{Scope: f.scope, ID: string(key.AppendString(nil, name))}
	if err := of.Validate(); err != nil {
		return term.Usagef("--key: %v", err)
	}
	path, err := exec.LookPath(argv[0])
	if err != nil { // shells say so too before anything else
		return f.cannotStart(argv[0], err)
	}
	if f.Env("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(onceGC))
	}
	keeper := startKeeper()
	defer keeper.end()
	store := &callStore{open: f.Open, momentary: f.momentary(), patience: f.Patience}
	if err := store.begin(ctx); err != nil {
		return fmt.Errorf("the command did not run: %w", err)
	}
	opts := &semel.GuardOptions{Lease: f.lease, Window: f.window, MaxResult: f.keep + resultHead}
	if f.expired == "hold" {
		opts.OnLeaseExpired = semel.ExpiryHold
	}
	guard, err := semel.NewGuard(store, opts)
	if err != nil {
		err = errors.Join(err, store.Close())
		if errors.Is(err, semel.ErrResultTooLarge) {
			return term.Usagef("--keep-output: the store %s keeps results of up to %d bytes: write less", f.Shown(), max(0, store.Traits().MaxResult-resultHead))
		}
		return term.Usagef("%s", err)
	}
	c := newCall(f, of, name, path, argv, keeper)
	outcome, err := c.do(ctx, guard, store)
	if closeErr := store.Close(); closeErr != nil {
		f.Complain("semel once", fmt.Sprintf("close the store %s: %v", f.Shown(), term.InOneLine(closeErr)))
	}
	return c.report(ctx, store, outcome, err)
}

// momentary reports whether only one process at a time can have the store open. Several calls
// share it by opening it for moments.
func (f *flags) momentary() bool {
	for _, s := range f.Conf.Stack(f.Found.Name) {
		if s.Spec.About().Directory != "" {
			return true
		}
	}
	return false
}

// cannotStart says why a command cannot be started, with the status that shells have for it.
func (f *flags) cannotStart(command string, err error) error {
	status := term.Status(statusCannot)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) { // of the file, or of its interpreter
		status = statusNotFound
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	f.Complain("semel once", fmt.Sprintf("%s: %v: nothing ran", command, err))
	return status
}

// settling returns the flags that name the store, for commands that are pasted in any directory.
func (f *flags) settling() []string {
	flags := f.Flags()
	for i, name := range flags {
		if name != "--store" && name != "--config" && name != "--env-file" {
			continue
		}
		if path, err := filepath.Abs(flags[i+1]); err == nil {
			flags[i+1] = path
		}
	}
	return flags
}

// commands returns the commands that settle the key.
func (f *flags) commands(of semel.Key) []keyrecord.Command {
	return keyrecord.Commands(&semel.Record{Key: of, State: semel.Unknown}, f.settling())
}
