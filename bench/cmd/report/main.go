// Command report writes bench/results/README.md, docs/performance.md and docs/charts from
// the results in bench/results.
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
	if err := run("results", filepath.Join("..", "docs")); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(results, docs string) error {
	made, err := files(results, docs)
	if err != nil {
		return err
	}
	for name, text := range made {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// files returns the pages and charts by their names.
func files(results, docs string) (map[string]string, error) {
	var all report.Measurements
	var err error
	if all.Results, err = result.LoadAll(results); err != nil {
		return nil, err
	}
	if all.Growth, err = result.LoadGrowth(results); err != nil {
		return nil, err
	}
	if all.Costs, err = result.LoadCosts(results); err != nil {
		return nil, err
	}
	if len(all.Results) == 0 {
		return nil, errors.New("there are no results: run the benchmarks first, in the folder bench")
	}
	var tables, page bytes.Buffer
	if err := report.WriteTables(&tables, all); err != nil {
		return nil, err
	}
	charts, err := report.WriteSummary(&page, all)
	if err != nil {
		return nil, err
	}
	made := map[string]string{
		filepath.Join(results, "README.md"):   tables.String(),
		filepath.Join(docs, "performance.md"): page.String(),
	}
	for name, text := range charts {
		made[filepath.Join(docs, filepath.FromSlash(name))] = text
	}
	return made, nil
}
