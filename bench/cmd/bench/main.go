// Command bench measures Semel and its peers, and writes the results.
//
//	bench all            run every benchmark, about two hours
//	bench NAME...        run some; a pattern such as 'kafka-*' selects several
//	bench list           list the names
//	bench -quick -rounds 1 all
//	                     check that everything works; the figures mean nothing
//
// Run it in the directory of its module: go run -C bench ./cmd/bench all. If a benchmark
// fails, the others still run, and the exit status is 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"slices"

	"github.com/semel-dev/semel/bench/internal/suite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(suite.ExitStatus(err))
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "tiny sizes: prove that everything works")
	rounds := flags.Int("rounds", 0, "another `number` of rounds than five: see how long one takes; writes no results into results")
	child := flags.String("child", "", "measure one `role` of one benchmark; for bench itself")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *rounds < 0 {
		return fmt.Errorf("-rounds %d is negative: give a number above 0", *rounds)
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	env := suite.Env{Root: root, Quick: *quick, Rounds: *rounds}
	table := suite.Table(env)
	names := flags.Args()
	if slices.Equal(names, []string{"list"}) {
		for _, b := range table {
			fmt.Fprintln(stdout, b.Name)
		}
		return nil
	}
	chosen, err := choose(table, names)
	if err != nil {
		return err
	}
	if *child != "" {
		return chosen[0].Child(ctx, *child, stdout)
	}
	runner := suite.Runner{Env: env, Log: stderr}
	var failed []error
	for _, b := range chosen {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(failed, err)...)
		}
		if err := runner.Run(ctx, b); err != nil {
			err = fmt.Errorf("%s: %w", b.Name, err)
			fmt.Fprintln(stderr, "FAILED", err)
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// choose finds benchmarks by name, or by a pattern for path.Match.
func choose(table []suite.Benchmark, names []string) ([]*suite.Benchmark, error) {
	var chosen []*suite.Benchmark
	for _, name := range names {
		found := false
		for i := range table {
			match, err := path.Match(name, table[i].Name)
			if err != nil {
				return nil, fmt.Errorf("%q is no pattern of names: %w", name, err)
			}
			if name == "all" || match {
				chosen = append(chosen, &table[i])
				found = true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no benchmark %q: see bench list", name)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("name benchmarks, or all: see bench list")
	}
	return chosen, nil
}
