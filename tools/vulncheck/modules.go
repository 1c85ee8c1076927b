package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	listFile = "tools/vulncheck/modules.txt"
	// listHead begins the list. The state of the check follows.
	listHead = `# The modules and versions that Semel builds with: the dependencies that were accepted.
# Where the vulnerability database cannot be reached, "go run ./tools/vulncheck" compares
# the build with this list, and fails if a module or version is not in it. A listed
# version may have vulnerabilities that were published later, so a change of this list
# needs a run of govulncheck with network:
#   go run ./tools/vulncheck -update
`
	listUnchecked = "# NOT CHECKED: this list was written where the database could not be reached.\n"
)

//go:embed modules.txt
var moduleList string

// built returns the modules, with their versions, that the packages of this module need
// on the systems that it is released for.
func built(ctx context.Context) ([]string, error) {
	var modules []string
	for _, system := range []string{"linux", "darwin", "windows"} {
		command := exec.CommandContext(ctx, "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{with .Replace}} => {{.Path}} {{.Version}}{{end}}{{end}}{{end}}", "./...")
		command.Env = append(os.Environ(), "GOOS="+system)
		command.Stderr = os.Stderr
		output, err := command.Output()
		if err != nil {
			return nil, fmt.Errorf("list the modules: %w", err)
		}
		for line := range strings.Lines(string(output)) {
			if line = strings.TrimSpace(line); line != "" {
				modules = append(modules, line)
			}
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules), nil
}

func listText(modules []string, checked bool, now time.Time) string {
	state := listUnchecked
	if checked {
		state = "# Checked with govulncheck on " + now.UTC().Format(time.DateOnly) + ".\n"
	}
	return listHead + state + strings.Join(modules, "\n") + "\n"
}

// compare fails if a module or version is not in the list.
func compare(modules []string, list string) error {
	lines := strings.Split(list, "\n")
	var errs []error
	for _, m := range modules {
		if !slices.Contains(lines, m) {
			errs = append(errs, fmt.Errorf("%s is not in %s", m, listFile))
		}
	}
	if errs != nil {
		errs = append(errs, errors.New("check these modules where the database can be reached, with go run ./tools/vulncheck -update"))
	}
	return errors.Join(errs...)
}
