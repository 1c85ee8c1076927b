package runcmd_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
)

// TestRunEndsAtAFileThatItsFormatCannotRead has files that no repetition can read. What stands
// before the fault takes effect, and the rest when the file is corrected, each record once.
func TestRunEndsAtAFileThatItsFormatCannotRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, text, said, corrected, want string }{
		{"csv", "id,id\n1,2\n", `two columns "id"`, "id,n\n1,2\n", `{"id":"1","n":"2"}`},
		{"csv", "id;n\n1;2\n", "set the delimiter", "id,n\n1,2\n", `{"id":"1","n":"2"}`},
		{"csv", "id,n\r1,2\r", "carriage return", "id,n\n1,2\n", `{"id":"1","n":"2"}`},
		{"json", `[{"id":1},{"id":2},{"id":3}`, "the array has no end", `[{"id":1},{"id":2},{"id":3},{"id":4}]`, `{"id":1} {"id":2} {"id":3} {"id":4}`},
		{"json", `[{"id":1},{"id":2} {"id":3}]`, "neither a comma nor ] follows", `[{"id":1},{"id":2},{"id":3}]`, `{"id":1} {"id":2} {"id":3}`},
		{"json", `{"id":1}{"id":2`, "the document has no end", `{"id":1}{"id":2}`, `{"id":1} {"id":2}`},
		{"csv", "\xff\xfei\x00d\x00\n\x00", "is in UTF-16", "id\n1\n", `{"id":"1"}`},
		{"json", "PAR1\x15\x04", "Parquet", `{"id":1}`, `{"id":1}`},
		{"lines", "\x1f\x8b\x08\x00\x00\x00\x00\x00", "ends in the middle", "{\"id\":1}\n", `{"id":1}`},
		{"lines", "\x1f\x8bno header, though", "gzip", "{\"id\":1}\n", `{"id":1}`},
	} {
		t.Run(c.said, func(t *testing.T) {
			t.Parallel()
			file := programtest.CopyConfig(t, ", format: "+c.source, "")
			in, out := filepath.Join(filepath.Dir(file), "in.jsonl"), filepath.Join(filepath.Dir(file), "out.jsonl")
			programtest.WriteFile(t, in, c.text)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			for range 2 { // it ends again
				var stdout, stderr bytes.Buffer
				status := cli.Main(ctx, kind.All(), []string{"run", file, "--admin", "off", "-q"}, strings.NewReader(""), &stdout, &stderr, programtest.NoEnv)
				_, said, _ := strings.Cut(stderr.String(), "\nsemel run: pipeline copy: ") // behind one line of the log
				if status != term.ExitFailed || ctx.Err() != nil || strings.Count(said, "\n") != 1 || !strings.Contains(said, in) || !strings.Contains(said, c.said) {
					t.Fatalf("status %d, %v, stderr %s", status, ctx.Err(), &stderr)
				}
			}
			if err := os.WriteFile(in, []byte(c.corrected), 0o600); err != nil {
				t.Fatal(err)
			}
			programtest.Run(t, "", "run", file, "--admin", "off", "-q").Check(t, term.ExitDone)
			if got := strings.Join(strings.Fields(programtest.ReadFile(t, out)), " "); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
