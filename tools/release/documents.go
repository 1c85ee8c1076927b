package main

import (
	"regexp"
	"strings"
)

// documents returns the completion scripts and manual pages that the program
// prints.
func documents(program string) ([]entry, error) {
	var list []entry
	for shell, name := range map[string]string{"bash": "semel.bash", "zsh": "_semel", "fish": "semel.fish"} {
		script, err := run(nil, program, "completion", shell)
		if err != nil {
			return nil, err
		}
		list = append(list, entry{"completions/" + name, 0o644, []byte(script + "\n")})
	}
	pages, err := manual(program, "make messages take effect once", nil)
	if err != nil {
		return nil, err
	}
	return sorted(append(list, pages...)), nil
}

// verbs finds the list of verbs in a help text.
var verbs = regexp.MustCompile(`(?ms)^Verbs:\n((?:  \S.*?\n)+)`)

// manual returns the manual pages of a verb and of all verbs below it. A page has
// the verb's help; short describes it in a line.
func manual(program, short string, path []string) ([]entry, error) {
	help, err := run([]string{"NO_COLOR=1"}, program, append(append([]string{}, path...), "--help")...)
	if err != nil {
		return nil, err
	}
	name := strings.Join(append([]string{"semel"}, path...), "-")
	_, text, _ := strings.Cut(help, "\nUsage: ")
	usage, about, _ := strings.Cut(text, "\n\n")
	page := `.TH "` + strings.ToUpper(name) + `" 1` + "\n.SH NAME\n" + roff(name) + ` \- ` + roff(short) +
		"\n.SH SYNOPSIS\n" + roff(usage) + "\n.SH DESCRIPTION\n.nf\n" + roff(about) + "\n.fi\n"
	if examples, _, found := strings.Cut(strings.TrimPrefix(help, "Examples:\n"), "\n\nUsage: "); found {
		page += ".SH EXAMPLES\n.nf\n" + roff(examples) + "\n.fi\n"
	}
	list := []entry{{"man/" + name + ".1", 0o644, []byte(page)}}
	if found := verbs.FindStringSubmatch(about + "\n"); found != nil {
		for line := range strings.Lines(found[1]) {
			verb, short, _ := strings.Cut(strings.TrimSpace(line), " ")
			below, err := manual(program, strings.TrimSpace(short), append(append([]string{}, path...), verb))
			if err != nil {
				return nil, err
			}
			list = append(list, below...)
		}
	}
	return list, nil
}

// roff escapes a text for a manual page.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	return regexp.MustCompile(`(?m)^([.'])`).ReplaceAllString(text, `\&$1`)
}
