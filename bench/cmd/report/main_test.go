package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCommittedPagesAndChartsMatchTheResults(t *testing.T) {
	t.Parallel()
	docs := filepath.Join("..", "..", "..", "docs")
	made, err := files(filepath.Join("..", "..", "results"), docs)
	if err != nil {
		t.Fatal(err)
	}
	var charts []string
	for name, want := range made {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		} else if string(got) != want {
			t.Errorf("%s is not what the results make: run make bench-report", name)
		}
		if strings.HasSuffix(name, ".svg") {
			charts = append(charts, name)
		}
	}
	there, err := filepath.Glob(filepath.Join(docs, "charts", "*"))
	slices.Sort(charts)
	if err != nil || !slices.Equal(there, charts) {
		t.Errorf("docs/charts has %v, %v; the page shows %v", there, err, charts)
	}
}

func TestPerformancePageIsShort(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	if words := len(strings.Fields(string(page))); words > 1500 {
		t.Errorf("docs/performance.md has %d words, and at most 1500 are wanted: a figure that few readers compare belongs into bench/results alone", words)
	}
}
