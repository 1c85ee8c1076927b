package oncecmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/retry"
)

// call is one call for a key.
type call struct {
	*flags
	of   semel.Key
	name string // of the key
	path string // of the command
	argv []string
	// keeper is for the process group of the command.
	keeper *keeper

	stopWaiting, stopAsking context.CancelCauseFunc
	taken                   *listener

	mu          sync.Mutex // guards the fields below until do returns
	interrupted syscall.Signal
	began       time.Time
	process     *process // nil until the command runs
	unstarted   error    // why it could not be started
	attempt     int
	granted     int   // the attempt of the claim, or 0 without one
	result      *kept // nil until it has ended by itself
	took        time.Duration
	lost        bool // it was ended because the lease was lost
	out         *output
}

func newCall(f *flags, of semel.Key, name, path string, argv []string, k *keeper) *call {
	return &call{flags: f, of: of, name: name, path: path, argv: argv, keeper: k, out: &output{to: f.Stdout, most: f.keep}}
}

var (
	errInterrupted = errors.New("a signal came before the command ran")
	errFailed      = errors.New("the command failed")
	errEnded       = fmt.Errorf("the command was ended: %w", semel.ErrOutcomeUnknown)
	errPatience    = errors.New("the store does not answer")
)

// Waiters for a store that only one process can have open ask less often. Each question opens
// the store, and its holder must wait for that. An embedded store can be opened 16 million times.
const (
	firstPause = 2 * time.Second
	lastPause  = 10 * time.Second
)

// do claims the key and runs the command. A signal before that ends the wait, and a second one
// ends the question to the store. If the store may still grant the claim when nothing ran, the
// guard gives it back in the background, and do waits for that.
func (c *call) do(ctx context.Context, guard *semel.Guard, store *callStore) (out semel.Outcome, err error) {
	came := ctx // ends with a signal that came before this function takes them
	ctx = context.WithoutCancel(ctx)
	waiting, stopWaiting := context.WithCancelCause(ctx)
	asking, stopAsking := context.WithCancelCause(ctx)
	defer stopWaiting(nil)
	defer stopAsking(nil)
	c.stopWaiting, c.stopAsking = stopWaiting, stopAsking
	c.taken = listen(c.signalled)
	defer c.taken.stop()
	if came.Err() != nil {
		return out, errInterrupted
	}
	first, last := time.Millisecond, 250*time.Millisecond
	if store.momentary {
		first, last = firstPause, lastPause
	}
	waited := retry.PollPaced(waiting, time.Now().Add(c.wait), first, last, func() bool {
		patient := time.AfterFunc(c.Patience, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.began.IsZero() {
				stopAsking(errPatience)
			}
		})
		defer patient.Stop()
		out, err = guard.Do(asking, c.of, c.run)
		return !errors.Is(err, semel.ErrInFlight)
	})
	if c.granted == 0 {
		store.settle(ctx)
	}
	if waited != nil {
		return out, errInterrupted
	}
	return out, err
}

// signalled takes a signal of the program.
func (c *call) signalled(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.process != nil:
		c.process.signal(sig)
	case !ends(sig), !c.began.IsZero():
	case c.interrupted == 0:
		c.interrupted = sig
		c.stopWaiting(errInterrupted)
	default:
		c.stopAsking(errInterrupted)
	}
}

// run runs the command under a claim. Its errors say that nothing remains of the command, except
// that of a command which was ended because the lease was lost.
func (c *call) run(ctx context.Context, claim semel.Claim) ([]byte, error) {
	if err := c.start(ctx, claim); err != nil {
		return nil, err
	}
	status, ended := c.process.wait(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = time.Since(c.began)
	if ended {
		c.lost = true
		return nil, errEnded
	}
	c.result = newKept(status, c.out)
	if status != 0 && c.failed == "release" {
		return nil, errFailed
	}
	return c.result.encode()
}

func (c *call) start(ctx context.Context, claim semel.Claim) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.granted = claim.Attempt
	if c.interrupted != 0 {
		return errInterrupted
	}
	if ctx.Err() != nil { // not wrapped: nothing ran, so there is no doubt
		return fmt.Errorf("its claim ended before that: %v", context.Cause(ctx))
	}
	c.began, c.attempt = time.Now(), claim.Attempt
	env := append(os.Environ(), "SEMEL_KEY="+c.name, "SEMEL_ATTEMPT="+strconv.Itoa(claim.Attempt), "SEMEL_TOKEN="+strconv.FormatUint(uint64(claim.Token), 10))
	c.process, err = startProcess(c.App, c.keeper, c.path, c.argv, env, c.out, c.taken)
	c.unstarted = err
	return err
}

// report says what happened and returns the exit status.
func (c *call) report(ctx context.Context, store *callStore, out semel.Outcome, err error) error {
	answer, unreleased := store.last()
	if c.result == nil && !c.lost {
		c.remains(unreleased)
	}
	switch {
	case c.unstarted != nil:
		return c.cannotStart(c.argv[0], c.unstarted)
	case c.lost:
		c.unknown("its lease was lost while the command ran, and the command was ended", err)
	case c.result != nil && errors.Is(err, errFailed) && unreleased != nil:
		c.unknown(fmt.Sprintf("the command ended with exit status %d, and the store did not take that", c.result.Status), unreleased)
	case c.result != nil && errors.Is(err, errFailed) && c.earlier():
		c.unknown(fmt.Sprintf("the command ended with exit status %d, but this was attempt %d, and an earlier one may have taken effect", c.result.Status, c.attempt), nil)
	case c.result != nil && errors.Is(err, errFailed):
		return c.done("failed", c.result.Status, "a later call runs the command again")
	case c.result != nil && err != nil:
		c.unknown(fmt.Sprintf("the command ended with exit status %d, and the store did not take that", c.result.Status), err)
	case c.result != nil && c.out.failed != nil:
		// The command knows nothing of it: its output went into a pipe.
		return c.done("ran", cmp.Or(c.result.Status, term.ExitFailed), fmt.Sprintf("its output could not be written: %v", c.out.failed))
	case c.result != nil:
		return c.done("ran", c.result.Status, "")
	case errors.Is(err, errInterrupted), c.interrupted != 0:
		status := term.ExitInterrupted
		if c.interrupted != 0 {
			status = statusSignal + int(c.interrupted)
		}
		return c.done("interrupted", status, "the command did not run")
	case err == nil, errors.Is(err, semel.ErrResultNotKept):
		return c.duplicate(out.Result)
	case errors.Is(err, semel.ErrInFlight):
		return c.done("in_flight", statusHeld, "it is held by "+holder(answer)+c.ahead(answer)+", and the command did not run")
	case out.Decision == semel.OutcomeUnknown:
		c.unknown("it was last held by "+holder(answer)+", which did not report how the command ended", nil)
	default:
		return open.Advise(ctx, c.Conf, c.Conf.Stack(c.Found.Name), fmt.Errorf("the command did not run: %w", err))
	}
	return term.Status(statusUnknown)
}

// earlier reports whether the key stays unknown although this attempt had no effect: another
// call had the claim before, under --on-lease-expired retry.
func (c *call) earlier() bool { return c.expired == "hold" && c.granted > 1 }

// remains says what the next call finds if nothing ran, and the key may not be free.
func (c *call) remains(unreleased error) {
	switch {
	case unreleased != nil && c.expired == "retry":
		c.Complain("semel once", fmt.Sprintf("the command did not run, but the store did not take its claim of %s back (%v): the key may be held until the lease ends", c.name, term.InOneLine(unreleased)))
		return
	case unreleased != nil:
		c.Complain("semel once", fmt.Sprintf("the command did not run, but the store did not take its claim of %s back (%v): a later call may find the outcome unknown", c.name, term.InOneLine(unreleased)))
	case c.earlier():
		c.Complain("semel once", fmt.Sprintf("the command did not run, but this was attempt %d of %s, and an earlier one may have taken effect: the outcome is unknown", c.granted, c.name))
	default:
		return
	}
	_ = keyrecord.WriteCommands(c.Stderr, c.commands(c.of)) // there is no other place to say so
}

// ahead says what a lease means that ends late.
func (c *call) ahead(a semel.ClaimAnswer) string {
	if a.Claim.LeaseEnd.Before(time.Now().Add(c.lease + time.Second)) {
		return ""
	}
	return "; that is later than --lease from now, so that call has a longer lease, or the clock of the store is ahead of this host"
}

// holder names the holder of a claim.
func holder(a semel.ClaimAnswer) string {
	name := a.Holder
	if name == "" {
		return "a holder without a name"
	}
	if a.Claim.LeaseEnd.IsZero() {
		return name
	}
	return fmt.Sprintf("%s (lease until %s)", name, a.Claim.LeaseEnd.UTC().Format(time.RFC3339))
}

// duplicate returns the status of the command that ran before, and writes its output if that was
// asked for.
func (c *call) duplicate(r semel.Result) error {
	k, ok := readKept(r)
	if !ok {
		return c.done("duplicate", term.ExitFailed, "ran before, but the key has no exit status that this program can read")
	}
	said := "ran before"
	if k.Host != "" {
		said += " on " + k.Host + " at " + k.Ended.Format(time.RFC3339)
	}
	if c.replay {
		if _, err := c.Stdout.Write(k.output); err != nil {
			return err
		}
		if int64(len(k.output)) < k.Written {
			said += fmt.Sprintf("; only the first %d of %d bytes of its output were kept", len(k.output), k.Written)
		}
	}
	return c.done("duplicate", k.Status, said)
}

// done says how the call ended, in one line.
func (c *call) done(outcome string, status int, more string) error {
	if c.JSON {
		c.line(outcome, status, more, nil)
		return term.Status(status)
	}
	said := map[string]string{"ran": "ran", "failed": "failed", "interrupted": "interrupted", "duplicate": "duplicate", "in_flight": "in flight"}[outcome]
	if c.result != nil {
		said += fmt.Sprintf(" in %s, attempt %d", term.FormatElapsed(c.took), c.attempt)
	}
	if more != "" {
		more = ": " + more
	}
	c.Note("semel once: %s: %s, exit status %d%s", c.name, said, status, more)
	return term.Status(status)
}

// line is done for programs.
func (c *call) line(outcome string, status int, more string, settle []keyrecord.Command) {
	if c.Quiet && outcome != "unknown" {
		return
	}
	type command struct {
		When    string `json:"when"`
		Command string `json:"command"`
	}
	var commands []command
	for _, s := range settle {
		commands = append(commands, command{s.Case, s.Line})
	}
	text, err := json.Marshal(struct {
		Key     string `json:"key"`
		Scope   string `json:"scope"`
		Outcome string `json:"outcome"`
		Status  int    `json:"status"`
		Attempt int    `json:"attempt,omitempty"`
		Detail  string `json:"detail,omitempty"`
		// Commands settle the key.
		Commands []command `json:"commands,omitempty"`
	}{c.name, c.scope, outcome, status, c.attempt, more, commands})
	if err == nil {
		fmt.Fprintln(c.Stderr, c.Redact(string(text)))
	}
}

// unknown says why the outcome is unknown, with the commands that settle the key.
func (c *call) unknown(why string, err error) {
	if err != nil {
		why += fmt.Sprintf(" (%v)", term.InOneLine(err))
	}
	again := c.expired == "retry" && c.attempt > 0
	switch {
	case c.JSON && again:
		c.line("unknown", statusUnknown, why+": a later call runs the command again when its lease has ended", nil)
		return
	case c.JSON:
		c.line("unknown", statusUnknown, why, c.commands(c.of))
		return
	case again:
		c.Complain("semel once", fmt.Sprintf("the outcome of %s is unknown: %s: a later call runs the command again when its lease has ended", c.name, why))
		return
	}
	c.Complain("semel once", fmt.Sprintf("the outcome of %s is unknown: %s: look whether the command took effect, and settle the key", c.name, why))
	_ = keyrecord.WriteCommands(c.Stderr, c.commands(c.of)) // there is no other place to say so
}
