package cli

import (
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/daemon"
)

// daemonFlags are the flags of every verb that runs until it is stopped.
type daemonFlags struct {
	admin, logFormat, logLevel string
	insecure                   bool
}

func (f *daemonFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.admin, "admin", "", "`ADDRESS` of probes and metrics, or off (default what the file says, or "+daemon.DefaultAdmin+")")
	flags.BoolVar(&f.insecure, "insecure-no-auth", false, "allow an admin address that other machines reach without auth")
	flags.StringVar(&f.logFormat, "log-format", "", "`FORMAT` of the log: text, json, or auto: text on a terminal (default what the file says, or auto)")
	flags.StringVar(&f.logLevel, "log-level", "", "least `LEVEL` that is logged: debug, info, warn, error (default what the file says, or info)")
	completeValues(cmd, "log-format", "auto", "text", "json")
	completeValues(cmd, "log-level", "debug", "info", "warn", "error")
	completeValues(cmd, "admin", daemon.Off)
}

// logger returns the logger of a daemon. It hides secrets.
func (f *daemonFlags) logger(a *app, conf *config.File, p *problems) *slog.Logger {
	format, level := conf.Log.Format, conf.Log.Level
	if f.logFormat != "" {
		format = f.logFormat
	}
	if f.logLevel != "" {
		level = f.logLevel
	}
	var least slog.Level
	if level != "" && least.UnmarshalText([]byte(level)) != nil {
		p.addf("--log-level %s: write debug, info, warn or error", level)
	}
	if a.quiet {
		least = slog.LevelError
	}
	opts := &slog.HandlerOptions{Level: least, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		switch value := attr.Value.Any().(type) {
		case error:
			attr.Value = slog.StringValue(oneLine(a.redact(value.Error())))
		case string:
			attr.Value = slog.StringValue(a.redact(value))
		}
		return attr
	}}
	switch {
	case format == "json", (format == "" || format == "auto") && a.columns == 0:
		return slog.New(slog.NewJSONHandler(a.stderr, opts))
	case format == "text", format == "auto", format == "":
		return slog.New(slog.NewTextHandler(a.stderr, opts))
	}
	p.addf("--log-format %s: write auto, text or json", format)
	return nil
}

// runGC is the GC percentage when keys live in Kafka transactions, unless GOGC is
// set. Most memory is then a table without pointers. Collecting more often costs
// less than a tenth of the processor time.
const runGC = 60

func newRunCommand(a *app) *cobra.Command {
	f := &daemonFlags{}
	cmd := &cobra.Command{
		Use:   "run FILE [PIPELINE...]",
		Short: "Run pipelines",
		Example: `semel run pipelines.yaml
semel run pipelines.yaml lines --admin off --log-level warn`,
		Long: `Runs the pipelines that a configuration names, or some of them, until there is no
more to read or it is told to end. SIGTERM and SIGINT drain: nothing more is read,
what is under way ends or goes back, within the file's shutdown. A second signal
ends the program at once; what was under way then comes again.

The log goes to stderr. Probes and metrics are served on --admin: /livez, /readyz
and /metrics.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("FILE is missing: name the configuration")
			}
			return nil
		},
		RunE: a.checked(func(cmd *cobra.Command, args []string, wrong problems) error {
			var conf *config.File
			var log *slog.Logger
			var chosen []*config.Pipeline
			if len(args) > 0 {
				conf = a.readConfig(args[0], &wrong)
			}
			if conf != nil {
				log = f.logger(a, conf, &wrong)
				chosen = choosePipelines(conf, args[1:], &wrong)
				for _, p := range chosen {
					for _, problem := range conf.Refused(p.Name) {
						wrong.addf("%s", problem)
					}
				}
			}
			if err := wrong.err(); err != nil {
				return err
			}
			inKafka := func(p *config.Pipeline) bool { return conf.Mode(p) == config.SourceIsSink }
			if a.env("GOGC") == "" && slices.ContainsFunc(chosen, inKafka) {
				defer debug.SetGCPercent(debug.SetGCPercent(runGC))
			}
			err := daemon.Run(cmd.Context(), conf, &daemon.Options{
				Pipelines: args[1:], Log: log, Admin: f.admin, InsecureNoAuth: f.insecure, Stdout: a.stdout,
			})
			if errors.Is(err, semel.ErrInvalidRequest) {
				return usagef("%s", err)
			}
			return err
		}),
	}
	f.add(cmd)
	return cmd
}
