// Command growth measures stores at growing numbers of keys, and writes the results.
//
//	growth                     measure all stores, about 80 minutes
//	growth STORE...            measure some: embedded, embedded-1gib, kafka, postgres, redis
//	growth -most 100000000     measure up to this many keys
//	growth -quick              check that everything works; the figures mean nothing
//
// Run it in the directory of its module: go run -C bench ./cmd/growth. If a store fails, the
// others are still measured, and the exit status is 1.
package main

import (
	"context"
	"errors"
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
		fmt.Fprintln(os.Stderr, "growth:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "tiny sizes: prove that everything works")
	most := flags.Int("most", 0, "measure up to this `number` of keys; 0 is all")
	child := flags.String("child", "", "have the store in this `directory`; for growth itself")
	index := flags.Int64("index", 0, "its `bytes` for the index; for growth itself")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *child != "" {
		return suite.GrowthChild(ctx, *child, *index, os.Stdin, os.Stdout)
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	stores := flags.Args()
	if len(stores) == 0 {
		stores = suite.GrowthStores()
	}
	runner := suite.Runner{Env: suite.Env{Root: root, Quick: *quick}, Log: os.Stderr}
	var failed []error
	for _, store := range stores {
		if err := runner.Grow(ctx, store, *most); err != nil {
			fmt.Fprintln(os.Stderr, "FAILED", err)
			failed = append(failed, err)
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(append(failed, err)...)
		}
	}
	return errors.Join(failed...)
}
