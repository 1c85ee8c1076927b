package cli

import (
	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/schema"
)

func newExplainCommand(a *app) *cobra.Command {
	q := &keyQuestion{app: a}
	cmd := &cobra.Command{
		Use:   "explain FILE [PIPELINE] | explain --config FILE --key ID",
		Short: "Say what a pipeline promises, or why a message was dropped or passed",
		Example: `semel explain pipelines.yaml
semel explain pipelines.yaml lines --json
semel explain --config pipelines.yaml --key order-41 --scope default --store-name ledger`,
		Long: `With FILE: what each pipeline promises, or the one that is named. How it commits,
whether a message can be lost or an effect repeat and when, and what becomes of a
message at each moment at which the process can die. It connects to nothing.

With --config and --key: what is known of a key, and what its next delivery gets. It
looks in the store of each pipeline, under the pipeline's scope, or in the store of
--store-name, and among the messages that were put aside. Several --key are the parts
of one composite key.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 2 {
				return usagef("unexpected argument %q: this verb takes FILE and PIPELINE", args[2])
			}
			return nil
		},
		RunE: a.checked(func(cmd *cobra.Command, args []string, wrong problems) error {
			if q.asked(cmd) {
				return q.answer(cmd, args, wrong)
			}
			return a.explainPipelines(args, wrong)
		}),
	}
	q.add(cmd)
	return cmd
}

// explainPipelines prints the promises of pipelines.
func (a *app) explainPipelines(args []string, wrong problems) error {
	var conf *config.File
	var chosen []*config.Pipeline
	if len(args) == 0 {
		if len(wrong) == 0 {
			wrong.addf("FILE is missing: name the configuration, or --config FILE --key ID")
		}
		return wrong.err()
	}
	if conf = a.readConfig(args[0], &wrong); conf != nil {
		chosen = choosePipelines(conf, args[1:], &wrong)
	}
	if err := wrong.err(); err != nil {
		return err
	}
	for i, p := range chosen {
		promise := explain.Explain(conf, p)
		var err error
		switch {
		case a.asJSON:
			err = a.printJSON(promise)
		case i > 0:
			_, err = a.stdout.Write([]byte("\n" + a.redact(promise.Text())))
		default:
			_, err = a.stdout.Write([]byte(a.redact(promise.Text())))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// choosePipelines returns the pipelines with these names, or all.
func choosePipelines(conf *config.File, names []string, p *problems) []*config.Pipeline {
	if len(conf.Pipelines) == 0 {
		p.addf("%s: it names no pipeline", conf.Name)
		return nil
	}
	if len(names) == 0 {
		return conf.Pipelines
	}
	var list []*config.Pipeline
	for _, name := range names {
		if found, ok := conf.Pipeline(name); ok {
			list = append(list, found)
			continue
		}
		p.addf("%s: %s has no such pipeline: %s", name, conf.Name, schema.OneOf(name, conf.PipelineNames()))
	}
	return list
}
