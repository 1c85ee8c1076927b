package statuscmd_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestStatusNeedsCredentialsAndTheCertificateOfTheFile(t *testing.T) {
	t.Parallel()
	file, address := programtest.CopyConfig(t, ", follow: true", ""), servicestest.FreeAddr(t)
	dir := filepath.Dir(file)
	programtest.SelfSign(t, dir)
	section := "admin: { listen: \"" + address + "\", tls: { certificate: cert.pem, key: key.pem }, auth: { token: secret-4d2f } }\n"
	programtest.WriteFile(t, file, programtest.ReadFile(t, file)+section)
	programtest.Background(t, "run", file)
	programtest.WaitForStatus(t, term.ExitDone, []string{"\ncopy      ready"}, file)
	programtest.Run(t, "", "status", "--admin", "https://"+address).Check(t, term.ExitFailed, "semel status: https://"+address+"/status does not answer: ", "certificate")
	wrong := programtest.WriteFile(t, filepath.Join(dir, "wrong.yaml"), strings.Replace(programtest.ReadFile(t, file), "secret-4d2f", "secret-5e3a", 1))
	programtest.WaitForStatus(t, term.ExitDone, nil, wrong) // the process that has its store open answers
	refused := programtest.Run(t, "", "status", wrong, "--admin", address)
	refused.Check(t, term.ExitFailed, "refuses the credentials: name the FILE with its admin.auth")
	if strings.Contains(refused.Stderr, "secret-") {
		t.Errorf("%s", refused.Stderr)
	}
	other := t.TempDir()
	programtest.SelfSign(t, other)
	programtest.WriteFile(t, filepath.Join(other, "in.jsonl"), "")
	programtest.Run(t, "", "status", programtest.WriteFile(t, filepath.Join(other, "c.yaml"), programtest.ReadFile(t, file))).Check(t, term.ExitFailed, "the server has another certificate than admin.tls")
}

func TestStatusIsCurrentAndOfTheRightProcess(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	file := programtest.AdminConfig(t, dir)
	programtest.BackgroundUntil(t, `"msg":"parked"`, programtest.NoEnv, "run", file)
	var got programtest.Outcome
	for deadline, counted := time.Now().Add(time.Minute), false; !counted; {
		asked := time.Now()
		got = programtest.Run(t, "", "status", file, "--json")
		var now admin.PipelineStatus
		if err := json.NewDecoder(strings.NewReader(got.Stdout)).Decode(&now); err != nil || asked.After(deadline) {
			t.Fatalf("a minute after a message was parked: %+v, %v", got, err)
		}
		// A process that stood still for long has not counted yet.
		if counted = !now.WaitingMeasured.Before(asked); counted && (now.Waiting == nil || *now.Waiting != 1) {
			t.Errorf("just after a message was parked: %s", got.Stdout)
		}
	}
	got.Check(t, term.ExitFound)
	// The message is acknowledged just after it was parked.
	programtest.WaitForStatus(t, term.ExitFound, []string{`"lag_bytes":0,`}, file, "--json")
	hook := strings.Replace(programtest.ReadFile(t, file), "  copy:", "  hooks:", 1)
	hook = programtest.WriteFile(t, filepath.Join(other, "hook.yaml"), hook)
	programtest.Run(t, "", "status", hook).Check(t, term.ExitFailed, " runs pipeline copy, not hooks of "+hook+": write --admin ADDRESS\n")
}

func TestStatusSaysWhyThereIsNoAnswer(t *testing.T) {
	t.Parallel()
	file, free := programtest.CopyConfig(t, "", ""), servicestest.FreeAddr(t)
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/html/status" {
			_, _ = w.Write([]byte("<html>"))
			return
		}
		if r.URL.Path == "/foreign/status" { // the answer of a server to a name that is not its own
			w.WriteHeader(http.StatusMisdirectedRequest)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(target.Close)
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--admin", free}, term.ExitFailed, "http://" + free + "/status does not answer: dial tcp " + free + ": connect: connection refused: does semel run work, with this address in --admin"},
		{[]string{"--admin", target.URL}, term.ExitFailed, "answers 404 Not Found: is this the admin server of semel run"},
		{[]string{"--admin", target.URL + "/foreign"}, term.ExitFailed, "/status refuses this host: name the server's address, or set admin.public_url"},
		{[]string{"--admin", target.URL + "/html"}, term.ExitFailed, "gives no status: "},
		{[]string{"--admin", "http://user:canary@" + free}, term.ExitUsage, "--admin: credentials do not belong on a command line"},
		{[]string{"--admin", "ftp://" + free}, term.ExitUsage, "--admin: write HOST:PORT or http://HOST:PORT"},
		{[]string{programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), programtest.ReadFile(t, file)+"admin: { listen: off }\n")}, term.ExitUsage, "admin.listen is off"},
		{[]string{programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), programtest.ReadFile(t, file)+"admin: { listen: '"+free+"' }\n")}, term.ExitFailed, "c.yaml, start it with semel run "},
		{[]string{file + "x"}, term.ExitUsage, "there is no such file"},
		{[]string{file, "copy"}, term.ExitUsage, `unexpected argument "copy": this verb takes FILE`},
	} {
		got := programtest.Run(t, "", append([]string{"status"}, c.args...)...)
		got.Check(t, c.status, c.want)
		if strings.Contains(got.Stderr, "canary") {
			t.Errorf("%s", got.Stderr)
		}
	}
}

// The server at an address may be any: its answer neither controls the terminal nor adds
// rows.
func TestStatusEscapesTheAnswerOfTheServer(t *testing.T) {
	t.Parallel()
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"pipelines":[{"pipeline":"a\u001b[2J\nforged\tready","state":"ready\r\u001b]0;title\u0007"}],"stores":[{"store":"s\u001b[1m","state":"ready\u009b2J"}]}`))
	}))
	t.Cleanup(target.Close)
	got := programtest.Run(t, "", "status", "--admin", target.URL)
	got.Check(t, term.ExitFound)
	lines := strings.Split(got.Stdout, "\n")
	if len(lines) != 6 || strings.ContainsFunc(strings.Join(lines, ""), unicode.IsControl) || !strings.HasPrefix(lines[1], `a\x1b[2J\nforged\x09ready  ready\x0d\x1b]0;title\x07  `) {
		t.Errorf("%d lines: %q", len(lines), got.Stdout)
	}
}

func TestStatusSaysWhatLimitsAPipelineThatIsBehind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ pipeline, want string }{
		"a slow sink": {`"rate":8,"lag":2906,"pace":{"left_seconds":363.2,"batch_messages":1,"batch_seconds":0.251,"claim_seconds":0.003,"sink_seconds":0.248,"parallel":2,"more_processes":true,"limit":"sink"}`,
			"a is lagging: 2,906 behind, about 6 min at 8/s; a message takes 251 ms (claim 3.0 ms, sink 248 ms), 2 at a time: raise parallel, or start more processes"},
		"one process": {`"rate":8,"lag":2906,"pace":{"left_seconds":363.2,"batch_messages":1,"batch_seconds":0.251,"claim_seconds":0.003,"sink_seconds":0.248,"parallel":2,"limit":"sink"}`,
			"a is lagging: 2,906 behind, about 6 min at 8/s; a message takes 251 ms (claim 3.0 ms, sink 248 ms), 2 at a time: raise parallel"},
		"a slow store": {`"rate":8,"lag":2906,"pace":{"left_seconds":363.2,"batch_messages":1,"batch_seconds":0.451,"claim_seconds":0.219,"sink_seconds":0.002,"parallel":2,"limit":"store"}`,
			"a is lagging: 2,906 behind, about 6 min at 8/s; a message takes 451 ms (claim 219 ms, sink 2.0 ms), 2 at a time: the store limits it; raise parallel, or look at the store with semel doctor"},
		"parked": {`"rate":75,"lag":2906,"pace":{"left_seconds":38,"batch_messages":1,"batch_seconds":0.006,"parallel":4,"limit":"parking"}`,
			"a is lagging: 2,906 behind, about 38 s at 75/s; a message takes 6.0 ms, 4 at a time: most messages are parked, and that limits it"},
		"transactions": {`"rate":12000,"lag":900000,"pace":{"left_seconds":75,"batch_messages":600,"batch_seconds":0.1,"parallel":2,"more_processes":true,"limit":"parallel"}`,
			"a is lagging: 900,000 behind, about 1 min at 12.0 k/s; a batch of 600 messages takes 100 ms, 2 at a time: raise parallel, or start more processes"},
		"a slow source": {`"rate":2,"lag_bytes":20480,"pace":{"left_seconds":40,"batch_messages":1.2,"batch_seconds":0.00001,"claim_seconds":0.000001,"sink_seconds":0.000005,"parallel":4,"limit":"source"}`,
			"a is lagging: 20.0 KiB behind, about 40 s at 2/s; a message takes 0 ms (claim 0 ms, sink 0 ms), 4 at a time: most of the time they wait for the source"},
		"nothing":        {`"rate":0,"lag":5,"pace":{"parallel":4}`, "a is lagging: 5 behind, and nothing was settled in the last ten seconds"},
		"an endless lag": {`"rate":0.1,"lag":5000000000,"pace":{"left_seconds":5e10,"parallel":4}`, "a is lagging: 5,000,000,000 behind, about a year or more at 0/s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"pipelines":[{"pipeline":"a","state":"ready",` + c.pipeline + `}],"stores":[]}`))
			}))
			t.Cleanup(target.Close)
			got := programtest.Run(t, "", "status", "--admin", target.URL)
			got.Check(t, term.ExitDone)
			if !strings.HasSuffix(got.Stdout, "\n"+c.want+"\n") {
				t.Errorf("got %s, want %s", got.Stdout, c.want)
			}
		})
	}
}

// The file may lack the secrets of stores and pipelines.
func TestStatusReadsTheAdminSectionAlone(t *testing.T) {
	t.Parallel()
	file, address := programtest.CopyConfig(t, ", follow: true", ""), servicestest.FreeAddr(t)
	programtest.Background(t, "run", file, "--admin", address)
	bare := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores: { db: { postgres: { dsn: "${env:NOT_SET_HERE}" } } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl] } }, key: { id: .id }, store: db, sink: { webhook: { url: "${env:NOT_SET_EITHER}" } }, parked: { store: db } }
admin: { listen: "`+address+`" }
`)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var stdout, stderr strings.Builder
	tables := 0
	until := programtest.WriterFunc(func(data []byte) (int, error) {
		if tables += strings.Count(string(data), "PIPELINE"); tables == 2 {
			cancel()
		}
		return stdout.Write(data)
	})
	if status := cli.Main(ctx, kind.All(), []string{"status", bare, "--watch"}, strings.NewReader(""), until, &stderr, programtest.NoEnv); status != term.ExitDone || tables != 2 || stderr.Len() > 0 {
		t.Errorf("status %d, %d tables, %s\n%s", status, tables, &stderr, &stdout)
	}
	if !strings.Contains(stdout.String(), "copy      ready") || !strings.Contains(stdout.String(), "http://"+address+"/status\n") {
		t.Errorf("%s", &stdout)
	}
}

func TestStatusSaysWhereMessagesAre(t *testing.T) {
	t.Parallel()
	answer := `{"time":"2026-01-02T03:04:05Z","pipelines":[{"pipeline":"mail","state":"ready","settled":0,"in_flight":2,"retrying":4,"next_retry":"2026-01-02T03:04:17Z","read_ahead":3792}]}`
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) }))
	t.Cleanup(target.Close)
	got := programtest.Run(t, "", "status", "--admin", target.URL)
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "\nmail: 2 in flight, 4 to be tried again (the first in 12 s), 3,792 read ahead\n") {
		t.Errorf("%s", got.Stdout)
	}
	got = programtest.Run(t, "", "status", "--admin", target.URL, "--json")
	if got.Check(t, term.ExitDone); !strings.Contains(got.Stdout, `"in_flight":2,"retrying":4,"next_retry":"2026-01-02T03:04:17Z","read_ahead":3792}`) {
		t.Errorf("%s", got.Stdout)
	}
}
