package open

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

func TestLogsHaveTheSameDurationsAsTextAndJSON(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"362ms"`, "text": "next=362ms"} {
		f := &DaemonFlags{}
		cmd := &cobra.Command{}
		f.AddDaemon(cmd)
		if err := cmd.Flags().Set("log-format", format); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		var wrong term.Problems
		log, _ := f.Logger(&term.App{Redact: func(text string) string { return text }}, &config.File{}, &out, &wrong)
		log.Info("paused", slog.Duration("next", 362*time.Millisecond), slog.Group("of", "next", 362*time.Millisecond))
		if !bytes.Contains(out.Bytes(), []byte(want)) {
			t.Errorf("%s", out.String())
		}
		if format == "text" {
			continue
		}
		var line struct {
			Next string `json:"next"`
			Of   struct {
				Next string `json:"next"`
			} `json:"of"`
		}
		if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Next != "362ms" || line.Of.Next != "362ms" {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}
