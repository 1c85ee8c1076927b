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

// verbs finds each verb with its description in a help text, whose verbs may be in groups.
var verbs = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*)  +(\S.*)$`)

// groups finds a group of verbs, such as "Verbs:" or "Files:", in a help text.
var groups = regexp.MustCompile(`(?m)^[A-Z][^\n]*:\n((?:  [a-z][a-z-]*  +\S.*\n)+)`)

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
	for _, group := range groups.FindAllStringSubmatch(about+"\n", -1) {
		for _, verb := range verbs.FindAllStringSubmatch(group[1], -1) {
			below, err := manual(program, verb[2], append(append([]string{}, path...), verb[1]))
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
