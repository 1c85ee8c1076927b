// Package report writes the performance page from the result files alone.
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/semel-dev/semel/bench/internal/result"
)

// section is a part of the page. It has the results whose names start with its word.
type section struct{ word, title string }

// sections are the sections with a title, in order. Other results follow under the first
// word of their name.
var sections = [...]section{
	{"dedup", "semel dedup"},
	{"pipeline", "semel run from file to file"},
	{"kafka", "semel run with Kafka"},
	{"key", "Finding the key in a line"},
	{"memstore", "The store in memory"},
	{"logstore", "The embedded store"},
	{"redis", "The store in Redis"},
	{"postgres", "The store in PostgreSQL"},
	{"tiered", "A cache above a store"},
	{"http", "Requests with an Idempotency-Key"},
	{"outbox", "The transactional outbox"},
}

// Write writes the page.
func Write(w io.Writer, results []result.Result) error {
	p := page{w: w}
	p.print("# Performance\n\n" +
		"<!-- Made by `make bench-report` from bench/results. Do not edit. -->\n\n" +
		"Each figure was measured side by side with its peer: the two ran in turn, each time in a new process, and both columns are medians of the rounds. " +
		"The ratio is above 1 where Semel is better, also where less is better; compare ratios, because absolute figures belong to the machine and its disk. " +
		"The command after each figure repeats it, in a checkout of this repository.\n")
	p.machines(results)
	for _, s := range split(results) {
		p.section(s.section, s.results)
	}
	return p.err
}

type filled struct {
	section
	results []result.Result
}

// split assigns results to sections, in the order of their names.
func split(results []result.Result) []filled {
	var parts []filled
	for _, s := range sections {
		parts = append(parts, filled{section: s})
	}
	for _, r := range slices.SortedStableFunc(slices.Values(results), func(a, b result.Result) int { return strings.Compare(a.Name, b.Name) }) {
		word, _, _ := strings.Cut(r.Name, "-")
		at := slices.IndexFunc(parts, func(f filled) bool { return f.word == word })
		if at < 0 {
			at = len(parts)
			parts = append(parts, filled{section: section{word, word}})
		}
		parts[at].results = append(parts[at].results, r)
	}
	return slices.DeleteFunc(parts, func(f filled) bool { return len(f.results) == 0 })
}

type page struct {
	w   io.Writer
	err error
}

func (p *page) print(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// machines names the machines and dates of the measurements.
func (p *page) machines(results []result.Result) {
	dates := map[string][]string{}
	var machines []string
	for _, r := range results {
		if dates[r.Machine] == nil {
			machines = append(machines, r.Machine)
		}
		dates[r.Machine] = append(dates[r.Machine], r.Date)
	}
	for _, m := range machines {
		first, last := slices.Min(dates[m]), slices.Max(dates[m])
		p.print("\nMeasured on %s, from %s to %s.\n", m, first, last)
	}
}

func (p *page) section(s section, results []result.Result) {
	p.print("\n## %s\n\n| figure | unit | Semel | peer | ratio | target | peer is |\n|---|---|--:|--:|--:|--:|---|\n", s.title)
	for _, r := range results {
		target := "–"
		if r.Target > 0 {
			target = fmt.Sprintf("%.3g, ", r.Target)
			if r.Met() {
				target += "met"
			} else {
				target += "**short**"
			}
		}
		p.print("| [%s](#%s) | %s | %s | %s | **%s** | %s | %s |\n",
			r.Name, r.Name, r.Unit, number(r.Ours), number(r.Peer), digits(r.Ratio), target, cell(r.PeerVersion))
	}
	for _, r := range results {
		p.print("\n### %s\n\n%s.\n\nRounds, Semel and peer in %s:", r.Name, strings.TrimSuffix(sentence(r.Work), "."), r.Unit)
		for i, round := range r.Rounds {
			separator := ","
			if i == 0 {
				separator = ""
			}
			p.print("%s %s and %s", separator, number(round[0]), number(round[1]))
		}
		p.print(".")
		if r.PeerEnded > 0 {
			p.print(" Times that the peer's program ended by itself, and its side was measured again: %d.", r.PeerEnded)
		}
		p.print("\n\n    %s\n", r.Command)
	}
}

// sentence returns a text with a capital first letter, unless it starts with a command.
func sentence(text string) string {
	if strings.HasPrefix(text, "semel ") || text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// cell escapes a text for a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }

// number formats a value with three significant digits, and k or M for large values.
func number(v float64) string {
	switch {
	case v >= 1e6:
		return digits(v/1e6) + " M"
	case v >= 1e4:
		return digits(v/1e3) + " k"
	}
	return digits(v)
}

func digits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
