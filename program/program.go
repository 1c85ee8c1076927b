// Package program is the program semel, for a main of your own that adds kinds of sources, sinks
// and stores:
//
//	func main() {
//		os.Exit(program.Main(connector.Kinds{Stores: []func() connector.Store{bolt.New}}))
//	}
package program

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/outside"
)

// Main runs the program with the arguments of the process, the standard kinds and more of them,
// and returns its exit status. It handles SIGINT and SIGTERM: the first one lets a verb drain, a
// second one ends the process. It blocks until the verb is done. Call it once, as the last thing
// that main does. It panics if a kind is declared wrong.
func Main(more connector.Kinds) int {
	kinds := kind.All()
	outside.Add(kinds, more)
	// A closed pipe must be seen as a write error, so that keys of lines that were
	// not written are not remembered.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal starts a drain and restores the default handling. A second
	// signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	return cli.Main(ctx, kinds, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
}
