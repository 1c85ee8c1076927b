package explain

import (
	"fmt"
	"strings"
)

// Markdown returns the promise as a page, with the figure of Mermaid.
func (p *Promise) Markdown() string {
	var out strings.Builder
	fmt.Fprintf(&out, "# %s\n\nFrom %s to %s.\n\n", inMarkdown(p.heading()), inMarkdown(p.From), inMarkdown(p.To))
	out.WriteString("| promise | |\n|---|---|\n")
	row := func(name, text string) { fmt.Fprintf(&out, "| %s | %s |\n", name, inMarkdown(text)) }
	row("commits by", p.Mode)
	row("keys", p.Keys+remembered(p.Window))
	if p.Filter != "" {
		row("filter", p.Filter)
	}
	if p.Map != "" {
		row("map", p.Map)
	}
	row("nothing lost", p.NothingLost.Holds)
	row("no second effect", p.NoSecondEffect.Holds)
	list := func(title string, items []string) {
		if len(items) == 0 {
			return
		}
		out.WriteString("\n## " + title + "\n\n")
		for _, item := range items {
			out.WriteString("- " + inMarkdown(item) + "\n")
		}
	}
	list("Rules", p.Rules)
	list("Nothing lost: "+p.NothingLost.Holds, p.NothingLost.Because)
	list("No second effect: "+p.NoSecondEffect.Holds, p.NoSecondEffect.Because)
	list("Exceptions", p.Exceptions)
	out.WriteString("\n## Crashes and failures\n\n| moment | outcome of the message |\n|---|---|\n")
	for _, c := range p.Crashes {
		row(inMarkdown(c.At), c.Outcome())
	}
	return out.String() + "\n```mermaid\n" + p.Mermaid() + "```\n"
}

// heading is the title of the page.
func (p *Promise) heading() string {
	if p.Route != "" {
		return "Route " + p.Route
	}
	if p.Service != "" {
		return "Service " + p.Service
	}
	return "Pipeline " + p.Pipeline
}

// inMarkdown escapes the characters that Markdown would read in a text or a table.
func inMarkdown(text string) string {
	return strings.NewReplacer("\\", "\\\\", "|", "\\|", "<", "&lt;", ">", "&gt;", "*", "\\*", "_", "\\_", "[", "\\[", "`", "\\`", "\n", " ").Replace(text)
}

// Mermaid returns a figure of the moments at which the process can die, in the order
// in which the pipeline commits, each with its outcome. The other failures follow.
func (p *Promise) Mermaid() string {
	var out strings.Builder
	out.WriteString("flowchart TD\n")
	node := func(id, text string) { fmt.Fprintf(&out, "  %s[\"%s\"]\n", id, inMermaid(text)) }
	node("pipeline", p.From+" → "+p.To+": "+p.Mode)
	before := "pipeline"
	for i, c := range p.Crashes {
		moment, outcome := fmt.Sprintf("m%d", i+1), fmt.Sprintf("o%d", i+1)
		if c.Failure {
			fmt.Fprintf(&out, "  %s{{\"%s\"}}\n", moment, inMermaid(c.At))
			node(outcome, c.Outcome())
			fmt.Fprintf(&out, "  pipeline -.-> %s -.-> %s\n", moment, outcome)
			continue
		}
		node(moment, c.At)
		node(outcome, c.Outcome())
		fmt.Fprintf(&out, "  %s --> %s\n  %s -.->|crash| %s\n", before, moment, moment, outcome)
		before = moment
	}
	return out.String()
}

// inMermaid escapes the characters that end a label, or that a browser would read.
func inMermaid(text string) string {
	return strings.NewReplacer("#", "#35;", `"`, "#quot;", "<", "#lt;", ">", "#gt;", "`", "#96;", "\n", " ").Replace(text)
}
