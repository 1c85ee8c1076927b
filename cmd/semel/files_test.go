//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuildWithTheFilesTagNeedsNoServerClient builds the program as docs/getting-started.md does. It needs no
// client of a server, so that its first build is short.
func TestBuildWithTheFilesTagNeedsNoServerClient(t *testing.T) {
	t.Parallel()
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-tags", "files", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, client := range []string{"franz-go", "pgx", "rueidis", "nats.go", "amqp091-go", "aws-sdk-go", "cel-go"} {
		if strings.Contains(string(deps), client) {
			t.Errorf("a build with -tags files compiles %s", client)
		}
	}
	semel := filepath.Join(t.TempDir(), "semel")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "files", "-ldflags=-w", "-o", semel, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	dedup := exec.CommandContext(t.Context(), semel, "dedup", "--quiet", "--key", ".id")
	dedup.Stdin = strings.NewReader("{\"id\":1}\n{\"id\":2}\n{\"id\":1}\n")
	if got, err := dedup.Output(); err != nil || string(got) != "{\"id\":1}\n{\"id\":2}\n" {
		t.Errorf("dedup: %q, %v", got, err)
	}
	const all = "go install ./cmd/semel"
	// Every verb of the whole program is there, or says what is missing.
	command, _ := asProgram(t, "--help")
	list, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	_, verbs, _ := strings.Cut(string(list), "\nFiles:\n")
	verbs, _, _ = strings.Cut(verbs, "\nFlags:\n")
	if !strings.Contains(verbs, " doctor ") {
		t.Fatalf("no list of verbs in %s", list)
	}
	for line := range strings.Lines(verbs) {
		if !strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "   ") { // a title, or more of a description
			continue
		}
		verb := strings.Fields(line)[0]
		output, err := exec.CommandContext(t.Context(), semel, verb, "--help").CombinedOutput()
		if err != nil && !strings.Contains(string(output), all) {
			t.Errorf("semel %s: %v: %s", verb, err, output)
		}
	}
	conf := filepath.Join(t.TempDir(), "semel.yaml")
	if err := os.WriteFile(conf, []byte("store: { redis: { url: 'redis://localhost' } }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--help"}, {"help", "run"}, {"keys", "ls", "--config", conf}} {
		if output, _ := exec.CommandContext(t.Context(), semel, args...).CombinedOutput(); !strings.Contains(string(output), all) {
			t.Errorf("semel %s does not say how to build everything: %s", strings.Join(args, " "), output)
		}
	}
}
