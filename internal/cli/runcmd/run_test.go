package runcmd_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestRunReportsAllConfigurationErrorsTogether(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  a: { source: { file: { paths: [in] } }, key: { id: offset }, store: keys, sink: { file: { path: out } } }
  b: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { webhook: { url: "http://10.0.0.1/" } } }
`)
	got := programtest.Run(t, "", "run", file, "--log-level", "luod", "--log-format", "xml")
	got.Check(t, term.ExitUsage, "offset is not stable", "10.0.0.1 is a private address", "--log-level luod: write debug, info, warn or error", "--log-format xml: write auto, text or json")
	if strings.Count(got.Stderr, "\n") != 4 {
		t.Errorf("one line each: %s", got.Stderr)
	}
	if got = programtest.Run(t, "", "run", file, "b"); strings.Contains(got.Stderr, "offset") || got.Status != term.ExitUsage {
		t.Errorf("b alone: %+v", got)
	}
	programtest.Run(t, "", "run", file, "c").Check(t, term.ExitUsage, "has no such pipeline: did you mean a?")
	open := programtest.CopyConfig(t, "", "")
	programtest.Run(t, "", "run", open, "--admin", "0.0.0.0:0").Check(t, term.ExitUsage, "admin address 0.0.0.0:0 can be reached from other machines, and admin.auth is missing")
	if entries, err := os.ReadDir(filepath.Dir(open)); err != nil || len(entries) != 2 {
		t.Errorf("something was touched: %v %v", entries, err)
	}
}

func TestRunRefusesAnOutputThatItsStoreDoesNotKnow(t *testing.T) {
	t.Parallel()
	file := programtest.CopyConfig(t, "", "")
	dir := filepath.Dir(file)
	out := filepath.Join(dir, "out.jsonl")
	programtest.Run(t, "", "run", file, "--admin", "off", "-q").Check(t, term.ExitDone)
	if err := os.Rename(filepath.Join(dir, "keys"), filepath.Join(dir, "keys.damaged")); err != nil {
		t.Fatal(err)
	}
	programtest.Run(t, "", "run", file, "--admin", "off", "-q").Check(t, term.ExitUsage, out+" has 18 bytes that this store does not know", "move the file away, or write sink.file.append: true to append to it\n")
	const once = "{\"id\":1}\n{\"id\":2}\n"
	if text := programtest.ReadFile(t, out); text != once {
		t.Errorf("refused, and wrote %q", text)
	}
	permitted := programtest.WriteFile(t, filepath.Join(dir, "append.yaml"), strings.Replace(programtest.ReadFile(t, file), "path: out.jsonl", "path: out.jsonl, append: true", 1))
	programtest.Run(t, "", "run", permitted, "--admin", "off", "-q").Check(t, term.ExitDone)
	programtest.Run(t, "", "run", file, "--admin", "off", "-q").Check(t, term.ExitDone)
	if text := programtest.ReadFile(t, out); text != once+once {
		t.Errorf("appended: %q", text)
	}
}

func TestRunStopsAtAMessageWithFailure(t *testing.T) {
	t.Parallel()
	file := programtest.CopyConfig(t, "", "")
	file = programtest.WriteFile(t, file, strings.Replace(programtest.ReadFile(t, file), "id: .id", "id: .oid, on_missing: fail", 1))
	got := programtest.Run(t, "", "run", file, "--admin", "off", "-q")
	got.Check(t, term.ExitFailed, "semel run: pipeline copy: stopped at a message of ", "in.jsonl, byte 0, key ", ": fix the cause and start again, or write on_missing: park\n")
}

func TestRunOnAStoreInUseNamesItsHolder(t *testing.T) {
	t.Parallel()
	file := programtest.CopyConfig(t, ", follow: true", "")
	stop := programtest.Background(t, "run", file, "--admin", "off")
	got := programtest.Run(t, "", "run", file, "--admin", "off")
	got.Check(t, term.ExitFailed, fmt.Sprintf("is held by process %d on ", os.Getpid()))
	const want = "{\"id\":1}\n{\"id\":2}\n"
	var text string
	for deadline := time.Now().Add(5 * time.Minute); text != want && time.Now().Before(deadline); {
		<-time.After(10 * time.Millisecond)
		text = programtest.ReadFile(t, filepath.Join(filepath.Dir(file), "out.jsonl"))
	}
	stop().Check(t, term.ExitDone, "running")
	if text != want {
		t.Errorf("%q", text)
	}
}

func TestRunEndsWithErrorsThatOnlyAnOperatorCanFix(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		old, new, want string
		status         int
	}{
		{"path: out.jsonl", "path: dir", "/dir is not a regular file: write another path\n", term.ExitUsage},
		{"path: out.jsonl", "path: /dev/null", "/dev/null is not a regular file: write another path\n", term.ExitUsage},
		{"path: out.jsonl", "path: loop", "/loop: too many levels of symbolic links: write another path\n", term.ExitFailed},
		{"paths: [in.jsonl]", "paths: ['none*']", "/none*: no such file or directory: write another path, or follow: true to wait for one\n", term.ExitFailed},
		{"path: keys", "path: in.jsonl/keys", "/in.jsonl: not a directory: write another path\n", term.ExitFailed},
		{"file: { path: out.jsonl }", "stdout: {}", "/in.jsonl/copy.positions: not a directory: write another path\n", term.ExitFailed},
	} {
		file := programtest.CopyConfig(t, ", state: in.jsonl", "")
		dir := filepath.Dir(file)
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "dir"), 0o700), os.Symlink("loop", filepath.Join(dir, "loop"))); err != nil {
			t.Fatal(err)
		}
		programtest.WriteFile(t, file, strings.Replace(programtest.ReadFile(t, file), c.old, c.new, 1))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		var stdout, stderr bytes.Buffer
		status := cli.Main(ctx, kind.All(), []string{"run", file, "--admin", "off", "-q"}, strings.NewReader(""), &stdout, &stderr, programtest.NoEnv)
		if status != c.status || ctx.Err() != nil || !strings.HasSuffix(stderr.String(), c.want) {
			t.Errorf("%s: status %d, %v, stderr %s", c.new, status, ctx.Err(), &stderr)
		}
		cancel()
		if left, err := filepath.Glob(filepath.Join(dir, "*.lock")); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", c.new, left, err)
		}
	}
}

func TestRunStopsAPipelineWhoseReaderHasLeft(t *testing.T) {
	t.Parallel()
	file := programtest.CopyConfig(t, ", state: copied", "")
	dir := filepath.Dir(file)
	var lines strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&lines, "{\"id\":%d}\n", i)
	}
	programtest.WriteFile(t, filepath.Join(dir, "many.jsonl"), lines.String())
	programtest.WriteFile(t, file, programtest.ReadFile(t, file)+`
  show: { source: { file: { paths: [many.jsonl], state: shown } }, key: { id: .id }, store: keys, sink: { stdout: {} } }
`)
	var first, stderr bytes.Buffer
	closes := programtest.WriterFunc(func(data []byte) (int, error) {
		if first.Len() > 0 {
			return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
		}
		return first.Write(data)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if status := cli.Main(ctx, kind.All(), []string{"run", file, "--admin", "off"}, strings.NewReader(""), closes, &stderr, programtest.NoEnv); status != term.ExitDone || ctx.Err() != nil {
		t.Fatalf("status %d, %v, stderr %s", status, ctx.Err(), &stderr)
	}
	if got := programtest.ReadFile(t, filepath.Join(dir, "out.jsonl")); got != "{\"id\":1}\n{\"id\":2}\n" {
		t.Errorf("the other pipeline wrote %q", got)
	}
	rest := programtest.Run(t, "", "run", file, "show", "--admin", "off")
	got := map[string]bool{}
	for line := range strings.Lines(first.String() + rest.Stdout) {
		got[line] = true
	}
	if len(got) != 20_000 || rest.Status != term.ExitDone {
		t.Errorf("%d of 20,000 lines came: status %d, stderr %s", len(got), rest.Status, rest.Stderr)
	}
}

func TestRunAnswersProbes(t *testing.T) {
	t.Parallel()
	file, address := programtest.CopyConfig(t, ", follow: true", ""), servicestest.FreeAddr(t)
	stop := programtest.Background(t, "run", file, "--admin", address, "--log-format", "json")
	for path, want := range map[string]string{"/livez": "ok\n", "/readyz": "copy: ready\n"} {
		answer, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || string(text) != want {
			t.Errorf("%s: %d %s", path, answer.StatusCode, text)
		}
	}
	programtest.Run(t, "", "run", programtest.CopyConfig(t, "", ""), "--admin", address).Check(t, term.ExitFailed, "address already in use")
	ended := stop()
	ended.Check(t, term.ExitDone, "running")
	for line := range strings.Lines(ended.Stderr) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}

// TestReadinessProbeShowsNoKeysAndNoContent probes the readiness of a pipeline while a
// message waits for a server that is down: that of its store, or of its sink.
func TestReadinessProbeShowsNoKeysAndNoContent(t *testing.T) {
	t.Parallel()
	const secret = "canary-7f3a"
	redis := servicestest.StartRedis(t, nil)
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"first\"}\n") // binds the scopes
	r := programtest.StartRun(t, programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores:
  cache: { redis: { url: %q, timeout: 500ms } }
  keys:  { embedded: { path: keys } }
pipelines:
  down: { source: { file: { paths: [in.jsonl], follow: true, state: down } }, key: { id: .id }, store: cache, sink: { file: { path: out } }, parked: { path: p } }
  gone: { source: { file: { paths: [in.jsonl], follow: true, state: gone } }, key: { id: .id }, store: keys, sink: { webhook: { url: %q, allow_private: true } }, parked: { path: p } }
`, redis.URL(), "http://"+servicestest.FreeAddr(t))), "--log-level", "debug")
	r.Line("msg=running") // both pipelines, in any order
	r.Line("msg=running")
	// Otherwise the first message holds up the second one, which no line would name.
	programtest.WaitForPage(t, r.Address, "/metrics", time.Minute, http.StatusOK, `dedup_messages_settled_total{pipeline="down"} 1`)
	if err := redis.Stop(); err != nil {
		t.Fatal(err)
	}
	programtest.AppendFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\""+secret+"\"}\n")
	for deadline := time.Now().Add(time.Minute); ; {
		_, text := programtest.GetPage(t, r.Address, "/readyz")
		if strings.Contains(text, secret) {
			t.Fatalf("a key is shown: %s", text)
		}
		if strings.Contains(text, "down: not ready: the store has not worked since 2") && strings.Count(text, "connection refused") == 2 && strings.Contains(text, "gone: not ready: the sink has not worked since 2") &&
			strings.Contains(r.Log.Text(), "in.jsonl/0/15") { // the log names the message by its place
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not say what is down, or the log does not name the message: %s", text)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func TestRunWithoutAdminServerWhereThePortIsTaken(t *testing.T) {
	t.Parallel()
	const taken = "level=WARN msg=\"no admin server: the address is taken"
	for late := time.Now().Add(5 * time.Minute); ; {
		listener, err := net.Listen("tcp", "127.0.0.1:4195")
		if err == nil { // otherwise another program has it, which is as good, unless that program ends before the test does
			defer listener.Close()
		}
		got := programtest.Run(t, "", "run", programtest.CopyConfig(t, "", ""), "--log-format", "text")
		if err == nil || strings.Contains(got.Stderr, taken) || time.Now().After(late) {
			got.Check(t, term.ExitDone, taken, "msg=running pipeline=copy")
			return
		}
	}
}

func TestRunWaitsForAServerThatIsDown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { db: { postgres: { dsn: "postgres://app:canary-91ab@%s/x" } } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: db, sink: { file: { path: out } } }
`, servicestest.FreeAddr(t)))
	address := servicestest.FreeAddr(t)
	stop := programtest.BackgroundUntil(t, "cannot start yet", programtest.NoEnv, "run", file, "--admin", address)
	answer, err := http.Get("http://" + address + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(answer.Body)
	answer.Body.Close()
	if answer.StatusCode != http.StatusServiceUnavailable || !strings.HasPrefix(string(text), "copy: not ready: ") || strings.Contains(string(text), "canary") {
		t.Errorf("%d %s", answer.StatusCode, text)
	}
	began := time.Now()
	got := stop()
	got.Check(t, term.ExitDone, "trying again")
	if strings.Contains(got.Stderr, "canary") || time.Since(began) > 30*time.Second {
		t.Errorf("%s", got.Stderr)
	}
}

func TestAdminServerSpeaksTLSWhereItIsAsked(t *testing.T) {
	t.Parallel()
	file, address := programtest.CopyConfig(t, ", follow: true", ""), servicestest.FreeAddr(t)
	dir := filepath.Dir(file)
	roots := programtest.SelfSign(t, dir)
	programtest.WriteFile(t, file, programtest.ReadFile(t, file)+"admin: { listen: \""+address+"\", tls: { certificate: cert.pem, key: key.pem }, auth: { token: secret-4d2f } }\n")
	stop := programtest.Background(t, "run", file)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	t.Cleanup(client.CloseIdleConnections)
	for token, want := range map[string]int{"": http.StatusUnauthorized, "secret-4d2f": http.StatusOK} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("token %q: %d", token, answer.StatusCode)
		}
	}
	stop().Check(t, term.ExitDone, "running")
	if err := os.Remove(filepath.Join(dir, "key.pem")); err != nil {
		t.Fatal(err)
	}
	programtest.Run(t, "", "run", file).Check(t, term.ExitUsage, "admin: tls: ", "key.pem")
}

func TestAdminServerAnswersItsOwnHostsOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		admin, authorization string
		want                 map[string]int // by method and Host
	}{
		{"public_url: 'https://Semel.example.com:8443/x'", "", map[string]int{
			"GET ": 200, "GET localhost": 200, "GET LOCALHOST:80": 200, "GET localhost.": 200, "GET 127.0.0.9:1": 200, "GET [::1]:4195": 200, "GET semel.example.com": 200,
			"GET rebound.example.net": 421, "GET semel.example.com.example.net": 421, "GET 10.1.2.3:4195": 421, "GET 127.0.0.1.example.net": 421, "GET localhost.example.net:4195": 421,
			"POST localhost": 403, "DELETE localhost": 403, "POST rebound.example.net": 421,
		}},
		{"auth: { token: secret-1c0a }", "Bearer secret-1c0a", map[string]int{"GET localhost": 200, "POST localhost": 405, "GET rebound.example.net": 421}},
		{"auth: { token: secret-1c0a }", "", map[string]int{"GET localhost": 401, "POST localhost": 401}},
	} {
		file, address := programtest.CopyConfig(t, ", follow: true", ""), servicestest.FreeAddr(t)
		programtest.WriteFile(t, file, programtest.ReadFile(t, file)+"admin: { listen: \""+address+"\", "+c.admin+" }\n")
		stop := programtest.Background(t, "run", file)
		for request, want := range c.want {
			method, host, _ := strings.Cut(request, " ")
			for _, path := range []string{"/readyz", "/metrics"} {
				connection, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				head := method + " " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n"
				if host == "" {
					head = method + " " + path + " HTTP/1.0\r\n"
				}
				if c.authorization != "" {
					head += "Authorization: " + c.authorization + "\r\n"
				}
				if _, err := io.WriteString(connection, head+"\r\n"); err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(connection)
				if err != nil {
					t.Fatal(err)
				}
				connection.Close()
				if _, status, _ := strings.Cut(string(text), " "); !strings.HasPrefix(status, fmt.Sprint(want)) {
					t.Errorf("%s %s %s: %.200s, want %d", c.admin, request, path, text, want)
				}
			}
		}
		stop().Check(t, term.ExitDone, "running")
	}
	file := programtest.CopyConfig(t, "", "")
	programtest.WriteFile(t, file, programtest.ReadFile(t, file)+"admin: { public_url: semel.example.com }\n")
	programtest.Run(t, "", "lint", file).Check(t, term.ExitUsage, "admin.public_url: not the URL of a server: write it like https://semel.example.com")
}
