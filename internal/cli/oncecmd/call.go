package oncecmd

import (
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

	stopWaiting, stopAsking context.CancelCauseFunc

	mu          sync.Mutex // guards the fields below until do returns
	interrupted syscall.Signal
	began       time.Time
	process     *process // nil until the command runs
	unstarted   error    // why it could not be started
	attempt     int
	result      *kept // nil until it has ended by itself
	took        time.Duration
	lost        bool // it was ended because the lease was lost
	out         *output
}

func newCall(f *flags, of semel.Key, name, path string, argv []string) *call {
	return &call{flags: f, of: of, name: name, path: path, argv: argv, out: &output{to: f.Stdout, most: f.keep}}
}

var (
	errInterrupted = errors.New("a signal came before the command ran")
	errFailed      = errors.New("the command failed")
	errEnded       = errors.New("the command was ended")
	errPatience    = errors.New("the store does not answer")
)

// do claims the key and runs the command. A signal before that ends the wait, and a second one
// ends the question to the store.
func (c *call) do(ctx context.Context, guard *semel.Guard) (out semel.Outcome, err error) {
	came := ctx // ends with a signal that came before this function takes them
	ctx = context.WithoutCancel(ctx)
	waiting, stopWaiting := context.WithCancelCause(ctx)
	asking, stopAsking := context.WithCancelCause(ctx)
	defer stopWaiting(nil)
	defer stopAsking(nil)
	c.stopWaiting, c.stopAsking = stopWaiting, stopAsking
	defer listen(c.signalled)()
	if came.Err() != nil {
		return out, errInterrupted
	}
	waited := retry.Poll(waiting, time.Now().Add(c.wait), func() bool {
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
	if err := c.start(claim); err != nil {
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

func (c *call) start(claim semel.Claim) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.interrupted != 0 {
		return errInterrupted
	}
	c.began, c.attempt = time.Now(), claim.Attempt
	env := append(os.Environ(), "SEMEL_KEY="+c.name, "SEMEL_ATTEMPT="+strconv.Itoa(claim.Attempt), "SEMEL_TOKEN="+strconv.FormatUint(uint64(claim.Token), 10))
	c.process, err = startProcess(c.App, c.path, c.argv, env, c.out)
	c.unstarted = err
	return err
}

// report says what happened and returns the exit status.
func (c *call) report(ctx context.Context, store *callStore, out semel.Outcome, err error) error {
	answer, unreleased := store.last()
	switch {
	case c.unstarted != nil:
		return c.cannotStart(c.argv[0], c.unstarted)
	case c.lost:
		c.unknown("its lease was lost while the command ran, and the command was ended", err)
	case c.result != nil && errors.Is(err, errFailed) && unreleased != nil:
		c.unknown(fmt.Sprintf("the command ended with exit status %d, and the store did not take that", c.result.Status), unreleased)
	case c.result != nil && errors.Is(err, errFailed):
		return c.done("failed", c.result.Status, "a later call runs the command again")
	case c.result != nil && err != nil:
		c.unknown(fmt.Sprintf("the command ended with exit status %d, and the store did not take that", c.result.Status), err)
	case c.result != nil:
		return c.done("ran", c.result.Status, "")
	case errors.Is(err, errInterrupted), c.interrupted != 0:
		status := term.ExitInterrupted
		if c.interrupted != 0 {
			status = statusSignal + int(c.interrupted)
		}
		return c.done("interrupted", status, "the command did not run")
	case err == nil, errors.Is(err, semel.ErrResultNotKept):
		return c.duplicate(readKept(out.Result))
	case errors.Is(err, semel.ErrInFlight):
		return c.done("in_flight", statusHeld, "it is held by "+holder(answer)+", and the command did not run")
	case out.Decision == semel.OutcomeUnknown:
		c.unknown("it was last held by "+holder(answer)+", which did not report how the command ended", nil)
	default:
		return open.Advise(ctx, c.Conf, c.Conf.Stack(c.Found.Name), fmt.Errorf("the command did not run: %w", err))
	}
	return term.Status(statusUnknown)
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
func (c *call) duplicate(k *kept) error {
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
		c.line(outcome, status, more)
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
func (c *call) line(outcome string, status int, more string) {
	if c.Quiet && outcome != "unknown" {
		return
	}
	text, err := json.Marshal(struct {
		Key     string `json:"key"`
		Scope   string `json:"scope"`
		Outcome string `json:"outcome"`
		Status  int    `json:"status"`
		Attempt int    `json:"attempt,omitempty"`
		Detail  string `json:"detail,omitempty"`
	}{c.name, c.scope, outcome, status, c.attempt, more})
	if err == nil {
		fmt.Fprintln(c.Stderr, c.Redact(string(text)))
	}
}

// unknown says why the outcome is unknown, with the commands that settle the key.
func (c *call) unknown(why string, err error) {
	if err != nil {
		why += fmt.Sprintf(" (%v)", term.InOneLine(err))
	}
	if c.JSON {
		c.line("unknown", statusUnknown, why)
		return
	}
	if c.expired == "retry" && c.attempt > 0 {
		c.Complain("semel once", fmt.Sprintf("the outcome of %s is unknown: %s: a later call runs the command again when its lease has ended", c.name, why))
		return
	}
	c.Complain("semel once", fmt.Sprintf("the outcome of %s is unknown: %s: look whether the command took effect, and settle the key", c.name, why))
	_ = keyrecord.WriteCommands(c.Stderr, c.commands(c.of)) // there is no other place to say so
}
