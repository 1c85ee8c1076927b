// Package examples_test runs the examples as their readers do: as programs, on real
// servers. It delivers messages twice, kills programs in the middle and counts the
// effects.
package examples_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

// started are the programs that tests start. make check compiles all.
var started = []string{
	"./batch-files", "./http-handler", "./kafka-consumer", "./nats-consumer", "./proxied", "./sqs-consumer", "./webhook-receiver", "./workers-redis",
	"../cmd/semel",
}

// programs is the directory of the built examples.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		return "", err
	}
	output, err := exec.Command("go", append([]string{"build", "-ldflags=-w", "-o", dir}, started...)...).CombinedOutput()
	if err != nil {
		os.Stderr.Write(output)
	}
	return dir, err
})

func TestMain(m *testing.M) {
	status := servers.Run(m)
	if dir, _ := programs(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(status)
}

// program is a running example.
type program struct {
	t       *testing.T
	command *exec.Cmd
	lines   chan string
	ended   chan struct{} // closed at the end of its output
	printed strings.Builder
}

// start starts an example. env and args are those of its user.
func start(t *testing.T, env []string, name string, args ...string) *program {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, command: exec.Command(filepath.Join(dir, name), args...), lines: make(chan string, 1000), ended: make(chan struct{})}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.command.Env, p.command.Stdout, p.command.Stderr = append(os.Environ(), env...), writer, writer
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	go func() {
		defer reader.Close()
		defer close(p.lines)
		defer close(p.ended)
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// await waits until the program prints a line with this prefix, and returns the rest.
func (p *program) await(prefix string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*time.Minute)
	defer cancel()
	for {
		select {
		case line, open := <-p.lines:
			p.printed.WriteString(line + "\n")
			if rest, found := strings.CutPrefix(line, prefix); found {
				return rest
			} else if !open {
				p.t.Fatalf("the program ended without %q:\n%s", prefix, &p.printed)
			}
		case <-ctx.Done():
			p.t.Fatalf("the program does not print %q:\n%s", prefix, &p.printed)
		}
	}
}

// kill kills the program, if it still runs, and waits for it.
func (p *program) kill() {
	_ = p.command.Process.Kill() // an error says that it has ended
	_ = p.command.Wait()         // the same
}

// end waits for the end of the program and returns its error and its output.
func (p *program) end() (string, error) {
	p.t.Helper()
	for line := range p.lines {
		p.printed.WriteString(line + "\n")
	}
	return p.printed.String(), p.command.Wait()
}

// stop stops the program as its operator does.
func (p *program) stop() string {
	p.t.Helper()
	if err := p.command.Process.Signal(os.Interrupt); err != nil {
		p.t.Error(err)
	}
	output, err := p.end()
	if err != nil {
		p.t.Errorf("%v\n%s", err, output)
	}
	return output
}

func connect(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	return conn
}

func rows(t *testing.T, conn *pgx.Conn, query string) string {
	t.Helper()
	list, err := conn.Query(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(list, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(found)
}

// awaitLock waits until a statement in this database waits for a lock, or until what
// waited has given up.
func awaitLock(t *testing.T, database string, gaveUp <-chan struct{}) {
	t.Helper()
	conn := connect(t, database)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if rows(t, conn, "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") != "[]" {
			return
		}
		select {
		case <-gaveUp:
			return
		case <-tick.C:
		}
	}
	t.Fatal("no statement waits for a lock")
}
