// Command report writes docs/performance.md from bench/results.
//
// Run it in the directory of its module: go run -C bench ./cmd/report.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/semel-dev/semel/bench/internal/report"
	"github.com/semel-dev/semel/bench/internal/result"
)

func main() {
	if err := run("results", filepath.Join("..", "docs", "performance.md")); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(results, page string) error {
	all, err := result.LoadAll(results)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("there are no results: run the benchmarks first, in the folder bench")
	}
	var b bytes.Buffer
	if err := report.Write(&b, all); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(page), 0o755); err != nil {
		return err
	}
	return os.WriteFile(page, b.Bytes(), 0o644)
}
