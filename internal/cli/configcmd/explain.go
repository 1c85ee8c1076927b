package configcmd

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/schema"
)

// NewExplain returns the verb explain.
func NewExplain(a *term.App) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "explain FILE [NAME]", ValidArgsFunction: open.NamesAfterFile(a, 1, (*config.File).PipelineNames),
		Short: "Show what a pipeline or a proxy promises",
		Example: `semel explain pipelines.yaml
semel explain pipelines.yaml lines --format markdown > promise.md`,
		Long: `Prints the promise of each pipeline and of each route of the proxy, or of the named
one. It shows how the pipeline commits, when a message can be lost or an effect can
repeat, and the outcome of a message at each moment at which the process can die. For a
route it also shows what the client gets. It works offline. With --no-env, a variable
that is not set stands for itself. --format markdown prints a page to commit, and
mermaid a figure of the moments at which the process can die.

semel why says what happened to one key.`,
		Args: term.Arguments(0, 2, "", "FILE and NAME"),
		RunE: a.Checked(func(_ *cobra.Command, args []string, wrong term.Problems) error {
			switch {
			case format == "":
			case !slices.Contains(formats, format):
				wrong.Addf("--format %q: %s", format, schema.OneOf(format, formats))
			case a.JSON && format != "json":
				wrong.Addf("--format %s and --json exclude each other: leave one of them out", format)
			case format == "json":
				a.JSON = true
			}
			return explainPipelines(a, args, format, wrong)
		}),
	}
	open.AddNoEnv(a, cmd)
	cmd.Flags().StringVar(&format, "format", "", "`FORMAT` of the promise: text, json, markdown or mermaid (default text)")
	term.CompleteValues(cmd, "format", formats...)
	return cmd
}

// formats are the forms of a promise.
var formats = []string{"text", "json", "markdown", "mermaid"}

// promisesOf returns the promises of the pipelines and routes of a file, or of the one with
// this name.
func promisesOf(a *term.App, file, name string, wrong *term.Problems) (all []*explain.Promise) {
	conf := open.Config(a, file, wrong)
	if conf == nil {
		return nil
	}
	var names []string
	add := func(of string, promise *explain.Promise) {
		if names = append(names, of); name == "" || name == of {
			all = append(all, promise)
		}
	}
	for _, p := range conf.Pipelines {
		add(p.Name, explain.Explain(conf, p))
	}
	for _, p := range explain.Routes(conf) {
		add(p.Route, p)
	}
	if p := explain.Served(conf); p != nil {
		add(p.Service, p)
	}
	switch {
	case len(names) == 0:
		wrong.Addf("%s: it names no pipeline, no proxy and no serve", conf.Name)
	case len(all) == 0:
		wrong.Addf("%s: %s has no such pipeline or route: %s", name, conf.Name, schema.OneOf(name, names))
	}
	return all
}

// explainPipelines prints the promises of pipelines and routes.
func explainPipelines(a *term.App, args []string, format string, wrong term.Problems) error {
	if len(args) == 0 {
		if len(wrong) == 0 {
			wrong.Addf("%s", term.MissingFile)
		}
		return wrong.Err()
	}
	promises := promisesOf(a, args[0], strings.Join(args[1:], ""), &wrong)
	if err := wrong.Err(); err != nil {
		return err
	}
	for i, promise := range promises {
		if a.JSON {
			if err := a.PrintJSON(promise); err != nil {
				return err
			}
			continue
		}
		text := promise.Text()
		switch format {
		case "markdown":
			text = promise.Markdown()
		case "mermaid":
			text = promise.Mermaid()
		}
		text = a.Redact(text)
		if i > 0 {
			text = "\n" + text
		}
		if _, err := io.WriteString(a.Stdout, text); err != nil {
			return err
		}
	}
	return nil
}
