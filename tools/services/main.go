//go:build linux

// Command services installs and starts the real servers that tests and
// demonstrations need, on free loopback ports and with their data in temporary
// directories.
//
//	services list
//	services install [NAME...]
//	services start [-detach] [-state DIR] [NAME...]
//	services stop [-state DIR]
//	services run [NAME...] -- COMMAND...
//
// The names are those that list shows, or all; without one the default ones are
// meant. Install takes promtool too, which is no server. Addresses are printed on standard output as a shell evaluates them:
//
//	eval "$(go run ./tools/services start -detach)"
//	go test ./...
//	go run ./tools/services stop
//
// Run starts its own servers and gives the command their addresses, and none that the
// environment had. It ends command and servers together, however that happens. The temporary
// files of the command, also those of the go command, are beside the data of the servers, and
// go with them.
//
// Start without -detach stays until it is interrupted, and takes its servers
// with it, however it ends. With -detach it leaves such a process behind, which
// stop ends: that one and no other. Stop and start meet in the directory of
// -state. What runs in another directory, or in tests, is not in the way.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/semel-dev/semel/test/services"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `usage: services list
       services install [NAME...]
       services start [-detach] [-state DIR] [NAME...]
       services stop [-state DIR]
       services run [NAME...] -- COMMAND...
`

// run returns the exit status: 0, 1 for a failure, 2 for wrong usage, or the status of the
// command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	verbs := map[string]func(ctx context.Context, args []string, stdout, stderr io.Writer) error{
		"list": list, "install": install, "start": start, "stop": stop, "run": runCommand,
	}
	if len(args) == 0 || verbs[args[0]] == nil {
		_, _ = io.WriteString(stderr, usage)
		return 2
	}
	err := verbs[args[0]](ctx, args[1:], stdout, stderr)
	var failed *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 2
	case errors.As(err, &failed) && args[0] == "run":
		return max(failed.ExitCode(), 1)
	}
	_, _ = fmt.Fprintln(stderr, err)
	return 1
}

func list(_ context.Context, _ []string, stdout, _ io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAME\tSTARTS\tDEFAULT\tINSTALLED\tADDRESS IN")
	for _, unit := range services.Units() {
		missing := slices.ContainsFunc(unit.Needs, func(name string) bool {
			_, err := services.Find(name)
			return err != nil
		})
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", unit.Name, unit.About, word(unit.Default), word(!missing), unit.Variable)
	}
	return table.Flush()
}

func word(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func install(ctx context.Context, args []string, _, stderr io.Writer) error {
	names, err := services.SelectPackages(args)
	if err != nil {
		return err
	}
	return services.Install(ctx, stderr, names...)
}

// commandLimit is how long a command may take to end after an interruption.
const commandLimit = 10 * time.Second

// runCommand starts servers, runs a command with their addresses, and closes
// them. The command is the first process of a group. An interruption ends the whole group,
// also the tests that `go test` started, and nothing of it outlives the servers.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	split := slices.Index(args, "--")
	if split < 0 || split == len(args)-1 {
		_, _ = io.WriteString(stderr, usage)
		return flag.ErrHelp
	}
	running, err := startUnits(ctx, args[:split])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, services.CloseUnits(running)) }()
	temporary, remove, err := services.TempDir()
	if err != nil {
		return err
	}
	defer func() { _ = remove() }() // a leftover does no harm
	command := exec.CommandContext(ctx, args[split+1], args[split+2:]...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = commandLimit
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, stdout, stderr
	command.Env = slices.DeleteFunc(os.Environ(), isAddress) // those of servers of others
	command.Env = append(command.Env, "TMPDIR="+temporary, "GOTMPDIR="+temporary)
	for _, started := range running {
		command.Env = append(command.Env, started.Unit.Variable+"="+started.Addr)
	}
	if err := command.Start(); err != nil {
		return err
	}
	err = command.Wait()
	if left := syscall.Kill(-command.Process.Pid, syscall.SIGKILL); left != nil && !errors.Is(left, syscall.ESRCH) {
		err = errors.Join(err, fmt.Errorf("services: end what the command left: %w", left))
	}
	return err
}

// isAddress reports whether a line of the environment has the address of a unit.
func isAddress(line string) bool {
	return slices.ContainsFunc(services.Units(), func(u services.Unit) bool { return strings.HasPrefix(line, u.Variable+"=") })
}

func startUnits(ctx context.Context, names []string) ([]*services.Started, error) {
	units, err := services.SelectUnits(names)
	if err != nil {
		return nil, err
	}
	return services.StartUnits(ctx, units)
}

// addresses are lines that a shell evaluates. No address has a quote in it.
func addresses(running []*services.Started) string {
	var lines strings.Builder
	for _, started := range running {
		fmt.Fprintf(&lines, "export %s='%s'\n", started.Unit.Variable, started.Addr)
	}
	return lines.String()
}

// stateFlag reads the flags of start and stop.
func stateFlag(verb string, stderr io.Writer) (*flag.FlagSet, *string) {
	flags := flag.NewFlagSet("services "+verb, flag.ContinueOnError)
	flags.SetOutput(stderr)
	return flags, flags.String("state", filepath.Join(".work", "services"), "directory in which stop finds what start left running")
}

func start(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags, dir := stateFlag("start", stderr)
	detach := flags.Bool("detach", false, "return when the servers answer, and leave them running")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if *detach {
		return leave(ctx, *dir, flags.Args(), stdout)
	}
	return hold(ctx, *dir, flags.Args(), stdout)
}

func stop(ctx context.Context, args []string, _, stderr io.Writer) error {
	flags, dir := stateFlag("stop", stderr)
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if flags.NArg() > 0 { // it ends all or nothing
		flags.Usage()
		return flag.ErrHelp
	}
	return end(ctx, *dir)
}
