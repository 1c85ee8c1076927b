// Command semel makes messages take effect once; see semel --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/kind"
)

func main() { os.Exit(run()) }

func run() int {
	// A closed pipe must be seen as a write error, so that keys of lines that were
	// not written are not remembered.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal starts a drain and restores the default handling. A second
	// signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	return cli.Main(ctx, kind.All(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
}
