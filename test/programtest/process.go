package programtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// Start runs the program in a process of its own until it logs a word.
func Start(t *testing.T, word string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	command.Env = append(os.Environ(), Variable+"=1")
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	var all strings.Builder
	for lines.Scan() {
		fmt.Fprintln(&all, lines.Text())
		if strings.Contains(lines.Text(), word) {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for lines.Scan() {
					fmt.Fprintln(&all, lines.Text())
				}
			}()
			kill := func() { _ = command.Process.Kill() } // it may have ended
			context.AfterFunc(t.Context(), func() {
				if !t.Failed() {
					kill()
				}
			})
			t.Cleanup(func() {
				if !t.Failed() {
					kill()
					<-ended
					return
				}
				_ = command.Process.Signal(syscall.SIGQUIT) // its goroutines say what it waits for
				_ = command.Process.Signal(syscall.SIGCONT) // the test may have stopped it
				defer time.AfterFunc(10*time.Second, kill).Stop()
				<-ended
				t.Log(all.String())
			})
			return command
		}
	}
	t.Fatalf("the log lacks %q: %s", word, &all)
	return nil
}

// Shell runs a command line with the program on its path.
func Shell(t *testing.T, dir, line string) Outcome {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binaries := t.TempDir()
	if err := os.Symlink(program, filepath.Join(binaries, "semel")); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), "sh", "-e", "-c", line)
	command.Dir, command.Stdout, command.Stderr = dir, &stdout, &stderr
	command.Env = append(os.Environ(), "PATH="+binaries+string(os.PathListSeparator)+os.Getenv("PATH"), Variable+"=1", "GORACE=atexit_sleep_ms=0")
	var exit *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return Outcome{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// Background runs the program until stop, which returns its outcome.
func Background(t *testing.T, args ...string) (stop func() Outcome) {
	t.Helper()
	return BackgroundIn(t, NoEnv, args...)
}

// BackgroundIn is Background with an environment.
func BackgroundIn(t *testing.T, env func(string) string, args ...string) (stop func() Outcome) {
	t.Helper()
	return BackgroundUntil(t, "running", env, args...)
}

// BackgroundUntil is BackgroundIn, but returns after a word was logged.
func BackgroundUntil(t *testing.T, word string, env func(string) string, args ...string) (stop func() Outcome) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var stdout bytes.Buffer
	stderr := &Log{Lines: make(chan string, 10_000)}
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Main(ctx, kind.All(), args, strings.NewReader(""), &stdout, stderr, env)
		close(stderr.Lines)
	}()
	stop = sync.OnceValue(func() Outcome {
		cancel()
		return Outcome{Status: <-ended, Stdout: stdout.String(), Stderr: stderr.Text()}
	})
	t.Cleanup(func() { stop() })
	for line := range stderr.Lines {
		if strings.Contains(line, word) {
			return stop
		}
	}
	return stop
}

// Log is the standard error of a program. It sends each write to Lines, unless the channel
// is full.
type Log struct {
	Lines chan string
	mu    sync.Mutex
	all   strings.Builder
}

// Write implements io.Writer.
func (w *Log) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	select {
	case w.Lines <- string(p):
	default:
	}
	return len(p), nil
}

// Text returns all that was written.
func (w *Log) Text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

// GetPage returns what the admin server answers at a path.
func GetPage(t *testing.T, address, path string) (status int, text string) {
	t.Helper()
	answer, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// WaitForPage waits until a page of the admin server says this.
func WaitForPage(t *testing.T, address, path string, most time.Duration, wanted int, text string) {
	t.Helper()
	for deadline := time.Now().Add(most); ; {
		status, got := GetPage(t, address, path)
		if status == wanted && strings.Contains(got, text) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v, %s: %d %s, want %d %s", most, path, status, got, wanted, text)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// WaitForStatus runs semel status until it ends with a status and shows all these words, and returns
// what it shows. A part of a process that stands still for two seconds is not ready for as long.
func WaitForStatus(t *testing.T, status int, words []string, args ...string) string {
	t.Helper()
	for late := time.Now().Add(TroubleWithin); ; <-time.After(20 * time.Millisecond) {
		got := Run(t, "", append([]string{"status"}, args...)...)
		if got.Status == status && ContainsAll(got.Stdout, words) {
			return got.Stdout
		}
		if time.Now().After(late) {
			t.Fatalf("after %v, semel status %q does not end with %d and show %q: %+v", TroubleWithin, args, status, words, got)
		}
	}
}

// WaitUntilSettled waits until the pipeline of a process has settled this many messages.
func WaitUntilSettled(t *testing.T, file string, messages int) {
	t.Helper()
	for late := time.Now().Add(TroubleWithin); ; <-time.After(20 * time.Millisecond) {
		got := Run(t, "", "status", file, "--json")
		if strings.Contains(got.Stdout, fmt.Sprintf(`"settled":%d,`, messages)) {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("%d messages are not settled after %v: %+v", messages, TroubleWithin, got)
		}
	}
}

// TroubleWithin is how soon the log must name a trouble: 10 s, and much more for a slow
// machine.
const TroubleWithin = time.Minute

// Running is the program in the background.
type Running struct {
	T       *testing.T
	Log     *Log
	Address string
	Stop    func()
}

// StartRun runs pipelines until the test ends.
func StartRun(t *testing.T, file string, flags ...string) *Running {
	t.Helper()
	r := &Running{T: t, Log: &Log{Lines: make(chan string, 10_000)}, Address: servicestest.FreeAddr(t)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		args := append([]string{"run", file, "--admin", r.Address, "--log-format", "text"}, flags...)
		ended <- cli.Main(ctx, kind.All(), args, strings.NewReader(""), &bytes.Buffer{}, r.Log, NoEnv)
	}()
	r.Stop = sync.OnceFunc(func() {
		cancel()
		if status := <-ended; status != 0 {
			t.Errorf("run ended with %d: %s", status, r.Log.Text())
		}
		if t.Failed() {
			t.Log(r.Log.Text())
		}
	})
	t.Cleanup(r.Stop)
	return r
}

// Line waits for a line that contains all these words, and returns it.
func (r *Running) Line(words ...string) string {
	r.T.Helper()
	late := time.After(TroubleWithin)
	for {
		select {
		case line := <-r.Log.Lines:
			if ContainsAll(line, words) {
				return line
			}
		case <-late:
			r.T.Fatalf("no line with %q in %v:\n%s", words, TroubleWithin, r.Log.Text())
		}
	}
}

// ContainsAll reports whether a text contains all these words.
func ContainsAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// Probe waits until /readyz has this status and contains all these words.
func (r *Running) Probe(status int, words ...string) {
	r.T.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(2 * time.Minute); ; {
		got, text := r.Readyz()
		if got == status && ContainsAll(text, words) {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			r.T.Fatalf("/readyz is %d %s, want %d with %q\n%s", got, text, status, words, r.Log.Text())
		}
	}
}

// Readyz asks whether the program is ready. The status is 0 if it does not answer.
func (r *Running) Readyz() (status int, text string) {
	answer, err := http.Get("http://" + r.Address + "/readyz")
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body)
}
