package explain

import (
	"fmt"
	"strings"
)

// width is the maximum length of output lines.
const width = 100

// Text returns the promise as readable text.
func (p *Promise) Text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %s → %s\n", p.title(), p.From, p.To)
	line := func(name, text string) { out.WriteString(wrapped("  "+name, 20, text)) }
	line("commits by", p.Mode)
	line("keys", p.Keys+remembered(p.Window))
	if p.Filter != "" {
		line("filter", p.Filter)
	}
	if p.Map != "" {
		line("map", p.Map)
	}
	list := func(name string, items []string) {
		if len(items) > 0 {
			out.WriteString("  " + name + "\n")
		}
		for _, item := range items {
			out.WriteString(wrapped("", 4, "- "+item))
		}
	}
	list("rules", p.Rules)
	answer := func(name string, a Answer) {
		line(name, a.Holds)
		for _, reason := range a.Because {
			out.WriteString(wrapped("", 20, "- "+reason))
		}
	}
	answer("nothing lost", p.NothingLost)
	answer("no second effect", p.NoSecondEffect)
	list("exceptions", p.Exceptions)
	if len(p.Crashes) > 0 {
		out.WriteString("  what happens if the process dies, or something fails\n")
	}
	for _, c := range p.Crashes {
		out.WriteString(wrapped("", 4, c.At+":"))
		out.WriteString(wrapped("", 6, c.Then))
		if c.Client != "" {
			out.WriteString(wrapped("", 6, "the client "+c.Client))
		}
	}
	return out.String()
}

func remembered(window string) string {
	switch window {
	case "":
		return ""
	case "forever":
		return ", remembered " + window
	}
	return ", remembered for " + window
}

// wrapped writes a name followed by a text, in lines that start at a column.
func wrapped(name string, column int, text string) string {
	var out strings.Builder
	line := name + strings.Repeat(" ", max(column-len(name), 1))
	indent, empty := strings.Repeat(" ", column), true
	if strings.HasPrefix(text, "- ") {
		indent += "  "
	}
	for _, word := range strings.Fields(text) {
		switch {
		case empty:
			line += word
		case len(line)+1+len(word) > width:
			out.WriteString(line + "\n")
			line = indent + word
		default:
			line += " " + word
		}
		empty = false
	}
	return out.String() + line + "\n"
}
