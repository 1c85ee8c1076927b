package keyscmd_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/programtest"
)

func TestResolveAllAsksOnATerminal(t *testing.T) {
	t.Parallel()
	file := scopedConfig(t)
	unknownIn(t, file, "ledger", semel.Key{Scope: "charges", ID: "c-1"}, semel.Key{Scope: "refunds", ID: "r-1"})
	for _, c := range []struct{ answer, want string }{
		{"\n", "nothing was changed"},
		{"no\n", "nothing was changed"},
		{"y\n", "resolved 2 of 2 unknown keys of ledger as absent"},
	} {
		person, program := programtest.OpenTerminal(t, 80)
		command := exec.CommandContext(t.Context(), os.Args[0], "keys", "resolve", "--all", "--as", "absent", "--reason", "x", "--config", file, "--store-name", "ledger")
		command.Env = append(os.Environ(), programtest.Variable+"=1")
		command.Stdin, command.Stderr = program, program
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		_ = program.Close() // so that the program's end ends the copy below
		question := "resolve 2 unknown keys of ledger as absent? [y/N] "
		seen := make([]byte, len(question))
		if _, err := io.ReadFull(person, seen); err != nil || string(seen) != question {
			t.Errorf("%q, %v; want %q", seen, err, question)
		}
		if _, err := io.WriteString(person, c.answer); err != nil {
			t.Fatal(err)
		}
		var rest bytes.Buffer
		_, _ = io.Copy(&rest, person) // ends with an error when the program ends
		if err := command.Wait(); err != nil || !strings.Contains(rest.String(), c.want) {
			t.Errorf("answer %q: %v: %q, want %q", c.answer, err, rest.String(), c.want)
		}
	}
}
