package open

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/term"
)

// AddNoEnv adds --no-env to a verb that only describes a configuration.
func AddNoEnv(a *term.App, cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.NoEnv, "no-env", false, "accept ${env:…} and ${file:…} without a value here; the fields that have them are not checked")
}

// Environment returns the variables for a configuration: those of the environment,
// and of --env-file where the environment has none. A problem of that file is added
// to p.
func Environment(a *term.App, p *term.Problems) func(name string) string {
	if a.EnvFile == "" {
		return a.Env
	}
	text, err := os.ReadFile(a.EnvFile)
	if err != nil {
		p.Addf("--env-file %s: %s", a.EnvFile, term.FileReason(err))
		return a.Env
	}
	values, err := parseEnv(string(text))
	if err != nil {
		p.Addf("--env-file %s:%v", a.EnvFile, err)
		return a.Env
	}
	return func(name string) string {
		if value := a.Env(name); value != "" {
			return value
		}
		return values[name]
	}
}

// parseEnv reads lines NAME=VALUE. Its errors never show a line, which may have a
// secret.
func parseEnv(text string) (map[string]string, error) {
	values := map[string]string{}
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(name, " \t\"'") {
			return nil, fmt.Errorf("%d: expected NAME=VALUE", number)
		}
		value, err := unquote(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("%d: %s: %w", number, name, err)
		}
		values[name] = value
	}
	return values, nil
}

// unquote removes the quotes around a value. It expands nothing.
func unquote(value string) (string, error) {
	if value == "" || value[0] != '"' && value[0] != '\'' {
		return value, nil
	}
	if len(value) < 2 || value[len(value)-1] != value[0] {
		return "", errors.New("the quote is not closed at the end of the line")
	}
	return value[1 : len(value)-1], nil
}
