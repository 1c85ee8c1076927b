package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/term"
)

type versionReport struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Time     string `json:"time,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand(a *term.App) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of the program",
		Example: "semel version\nsemel version --json",
		Args:    term.NoArguments,
		RunE: a.Plain(func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo()
			report := versionOf(info)
			if a.JSON {
				return a.PrintJSON(report)
			}
			_, err := fmt.Fprintln(a.Stdout, report)
			return err
		}),
	}
}

// versionOf reads the version from the build information of the binary. info is
// nil if the binary has none.
func versionOf(info *debug.BuildInfo) versionReport {
	report := versionReport{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		return report
	}
	if info.Main.Version != "" {
		report.Version = info.Main.Version
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			report.Revision = setting.Value
		case "vcs.time":
			report.Time = setting.Value
		case "vcs.modified":
			report.Modified = setting.Value == "true"
		}
	}
	return report
}

func (r versionReport) String() string {
	text := "semel " + r.Version
	if r.Revision != "" {
		text += " (" + r.Revision
		if r.Modified {
			text += ", modified"
		}
		text += ")"
	}
	return text + " " + r.Go + " " + r.Platform
}
