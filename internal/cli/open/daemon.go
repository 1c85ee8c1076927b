package open

import (
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

// DaemonFlags are the flags of every verb that runs until it is stopped.
type DaemonFlags struct {
	// Admin is the address of the admin server, and Insecure permits one that other
	// machines reach without auth.
	Admin               string
	Insecure            bool
	logFormat, logLevel string
}

// AddDaemon adds the flags.
func (f *DaemonFlags) AddDaemon(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Admin, "admin", "", "`ADDRESS` of probes and metrics, or off (default the one in the file, or "+admin.DefaultAddress+")")
	flags.BoolVar(&f.Insecure, "insecure-no-auth", false, "allow an admin address that other machines reach without auth")
	flags.StringVar(&f.logFormat, "log-format", "", "`FORMAT` of the log: text, json, or auto: text on a terminal (default the one in the file, or auto)")
	flags.StringVar(&f.logLevel, "log-level", "", "lowest `LEVEL` in the log: debug, info, warn, error (default the one in the file, or info)")
	term.CompleteValues(cmd, "log-format", "auto", "text", "json")
	term.CompleteValues(cmd, "log-level", "debug", "info", "warn", "error")
	term.CompleteValues(cmd, "admin", admin.Off)
}

// Logger returns the logger of a daemon, and whether it writes text. It hides secrets.
func (f *DaemonFlags) Logger(a *term.App, conf *config.File, to io.Writer, p *term.Problems) (_ *slog.Logger, text bool) {
	format, level := conf.Log.Format, conf.Log.Level
	if f.logFormat != "" {
		format = f.logFormat
	}
	if f.logLevel != "" {
		level = f.logLevel
	}
	var least slog.Level
	if level != "" && least.UnmarshalText([]byte(level)) != nil {
		p.Addf("--log-level %s: write debug, info, warn or error", level)
	}
	if a.Quiet {
		least = slog.LevelError
	}
	opts := &slog.HandlerOptions{Level: least, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		switch value := attr.Value.Any().(type) {
		case error:
			attr.Value = slog.StringValue(term.OneLine(a.Redact(term.JoinLines(value.Error()))))
		case string:
			attr.Value = slog.StringValue(a.Redact(value))
		case time.Duration:
			attr.Value = slog.StringValue(value.String()) // otherwise JSON has it in nanoseconds
		}
		return attr
	}}
	switch {
	case format == "json", (format == "" || format == "auto") && !a.Terminal:
		return slog.New(slog.NewJSONHandler(to, opts)), false
	case format == "text", format == "auto", format == "":
		return slog.New(slog.NewTextHandler(to, opts)), true
	}
	p.Addf("--log-format %s: write auto, text or json", format)
	return nil, false
}
