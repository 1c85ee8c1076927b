// Package report writes the tables of all results, the performance page and its charts from
// the result files alone.
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/semel-dev/semel/bench/internal/result"
)

// section is a part of the tables. It has the results whose names start with one of its words.
type section struct{ words, title string }

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
	{"serve once", "semel serve, its clients, and semel once"},
	{"rabbitmq sqs nats", "Consumers and publishers of RabbitMQ, SQS and NATS"},
	{"outbox", "The transactional outbox"},
}

// made is the comment of generated pages.
const made = "<!-- Made by `make bench-report` from bench/results. Do not edit. -->\n\n"

// WriteTables writes every result, with its rounds and its command.
func WriteTables(w io.Writer, all Measurements) error {
	p, results := page{w: w}, all.Results
	p.print("%s", "# Results of the benchmarks\n\n"+made+
		"[docs/performance.md](../../docs/performance.md) is the short page, and [bench/README.md](../README.md) says how the benchmarks measure. "+
		"Each figure was measured side by side with its peer: the two ran in turn, each time in a new process. Both columns are medians of the rounds. "+
		"If the ratio is above 1, Semel is better, even for figures where less is better. Compare ratios, because absolute figures depend on the machine and its disk. "+
		"Each figure links to its benchmark, with the command that repeats it in a checkout of this repository.\n")
	p.shortfalls(results, "")
	p.machines(results)
	for _, s := range split(results) {
		p.section(s.section, s.results)
	}
	p.growthTables(&all)
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
		at := slices.IndexFunc(parts, func(f filled) bool { return slices.Contains(strings.Fields(f.words), word) })
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

// shortfalls lists the figures that miss their targets, with links to their tables.
func (p *page) shortfalls(results []result.Result, tables string) {
	short := slices.DeleteFunc(slices.Clone(results), func(r result.Result) bool { return r.Met() })
	slices.SortFunc(short, func(a, b result.Result) int { return strings.Compare(a.Name, b.Name) })
	if len(short) == 0 {
		return
	}
	p.print("\nThese figures miss their targets:\n\n|figure|ratio|wanted|\n|---|--:|--:|\n")
	for _, r := range short {
		p.print("|[%s](%s#%s)|%s|%.3g|\n", r.Name, tables, r.Name, digits(r.Ratio), r.Target)
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
	p.print("\nThe machines:\n\n")
	for _, m := range machines {
		first, last := slices.Min(dates[m]), slices.Max(dates[m])
		p.print("- %s, from %s to %s\n", m, first, last)
	}
}

// section writes a table of the figures, and the benchmarks that measured them.
func (p *page) section(s section, results []result.Result) {
	p.print("\n## %s\n\n| figure | unit | Semel | peer | ratio | target | peer is |\n|---|---|--:|--:|--:|--:|---|\n", s.title)
	var names []string
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
		if !slices.Contains(names, benchmark(r)) {
			names = append(names, benchmark(r))
		}
	}
	for _, name := range names {
		p.benchmark(name, slices.DeleteFunc(slices.Clone(results), func(r result.Result) bool { return benchmark(r) != name }))
	}
}

// benchmark returns the name of the benchmark that measured a figure. It is the last word
// of the command.
func benchmark(r result.Result) string { return r.Command[strings.LastIndexByte(r.Command, ' ')+1:] }

// benchmark writes what a benchmark does, and the rounds of its figures.
func (p *page) benchmark(name string, figures []result.Result) {
	var before string
	for i, r := range figures {
		work, peer, _ := strings.Cut(r.Work, " Peer: ")
		if i == 0 {
			p.print("\n### %s\n\n%s\n\n    %s\n", name, sentence(work), r.Command)
		}
		if i == 0 || peer != before {
			if peer != "" {
				p.print("\nPeer: %s.\n", strings.TrimSuffix(peer, "."))
			}
			p.print("\n| figure | unit | rounds of Semel | rounds of the peer |\n|---|---|---|---|\n")
		}
		before = peer
		anchor := ""
		if r.Name != name {
			anchor = fmt.Sprintf(`<a id="%s"></a>`, r.Name)
		}
		ended := ""
		if r.PeerEnded > 0 {
			ended = fmt.Sprintf("; its program ended by itself %d times, and was measured again", r.PeerEnded)
		}
		p.print("| %s%s | %s | %s | %s%s |\n", anchor, r.Name, r.Unit, rounds(r, 0), rounds(r, 1), ended)
	}
}

// rounds returns the figures of one side.
func rounds(r result.Result, side int) string {
	var list []string
	for _, round := range r.Rounds {
		list = append(list, number(round[side]))
	}
	return strings.Join(list, ", ")
}

// sentence returns a text with a full stop and a capital first letter, unless it starts
// with a command.
func sentence(text string) string {
	text = strings.TrimSuffix(text, ".") + "."
	if strings.HasPrefix(text, "semel ") {
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
