// Command semel makes messages take effect once: see semel --help.
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
	// A closed pipe is to be seen as an error of the write, so that keys of
	// lines that were not written are not remembered.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal drains; from then on signals act as if nobody had asked
	// for them, so that a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	return cli.Main(ctx, kind.All(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
}
