// Command cost measures what a million messages of each scenario of semel init take, and
// writes the results.
//
//	cost                measure all scenarios, about 8 minutes
//	cost SCENARIO...    measure some
//	cost -quick         check that everything works; the figures mean nothing
//
// Run it in the directory of its module: go run -C bench ./cmd/cost. Nothing else may run on
// the machine, because it reads counters of the machine. If a scenario fails, the others are
// still measured, and the exit status is 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/semel-dev/semel/bench/internal/suite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cost:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("cost", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "tiny sizes: prove that everything works")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	runner := suite.Runner{Env: suite.Env{Root: root, Quick: *quick}, Log: os.Stderr}
	return runner.Costs(ctx, flags.Args())
}
