package runcmd

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

// NewOutbox returns the verb outbox.
func NewOutbox(a *term.App) *cobra.Command {
	cmd := term.Group(a, &cobra.Command{
		Use:   "outbox VERB",
		Short: "Deliver the messages of a transactional outbox",
		Example: `semel outbox relay relay.yaml
semel outbox relay relay.yaml events --migrate`,
	})
	cmd.AddCommand(newRelay(a))
	return cmd
}

func newRelay(a *term.App) *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use: "relay FILE [PIPELINE...]", ValidArgsFunction: open.NamesAfterFile(a, 0, (*config.File).PipelineNames),
		Short: "Run the pipelines that read an outbox",
		Example: `semel outbox relay relay.yaml
semel outbox relay relay.yaml events --admin off`,
		Long: `Runs the pipelines of a configuration whose source is an outbox, or the named ones
of them. It works as semel run does, which runs such pipelines too.

Several processes may run it: each takes a share of the outbox. When one of them
ends, the others take over its share; after a crash, when its lease has ended.

--migrate creates or updates the tables first. It is for development.`,
		Args: term.Arguments(1, -1, term.MissingFile, ""),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			var conf *config.File
			var chosen []*config.Pipeline
			if len(args) > 0 {
				conf, chosen = open.Pipelines(a, args[0], args[1:], &wrong)
			}
			return f.run(cmd.Context(), a, conf, relays(conf, chosen, len(args) > 1, &wrong), wrong)
		}),
	}
	f.AddDaemon(cmd)
	cmd.Flags().BoolVar(&f.migrate, "migrate", false, "create or update the tables of the stores first, for development")
	return cmd
}

// relays returns the pipelines that read an outbox. If they were named, the others are
// problems.
func relays(conf *config.File, chosen []*config.Pipeline, named bool, p *term.Problems) (list []*config.Pipeline) {
	var others []string
	for _, spec := range chosen {
		if spec.Source.About(spec).Outbox.Name != "" {
			list = append(list, spec)
		} else {
			others = append(others, spec.Name)
		}
	}
	switch {
	case conf == nil || len(chosen) == 0:
	case named && others != nil:
		p.Addf("%s: the source of %s is no outbox: semel run %s %[2]s", conf.Name, strings.Join(others, " "), conf.Name)
	case list == nil:
		p.Addf("%s: no pipeline reads an outbox: write source: { outbox: { store: NAME } } with a store of the kind postgres", conf.Name)
	}
	return list
}
