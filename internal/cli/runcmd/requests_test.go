package runcmd_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// receiver is a pipeline from requests to a file.
type receiver struct {
	file, out, url string
	listen         string
}

func newReceiver(t *testing.T, source, key string) receiver {
	dir := t.TempDir()
	r := receiver{out: filepath.Join(dir, "out.jsonl"), listen: servicestest.FreeAddr(t)}
	r.url = "http://" + r.listen
	r.file = programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: %s/keys } } }
pipelines:
  in:
    source: { http: { listen: "%s"%s } }
    key: { id: "%s" }
    store: keys
    sink: { file: { path: %s } }
    parked: { path: %s/parked }
`, dir, r.listen, source, key, r.out, dir))
	return r
}

// lines counts the lines of the output.
func (r *receiver) lines(t *testing.T) map[string]int {
	t.Helper()
	data, err := os.ReadFile(r.out)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(data)) {
		counts[strings.TrimSpace(line)]++
	}
	return counts
}

// send sends a request, and returns 0 if it gets no answer.
func (r *receiver) send(ctx context.Context, body io.Reader, headers ...string) (status int, decision, text string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, body)
	if err != nil {
		return 0, "", err.Error()
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header[headers[i]] = []string{headers[i+1]} // as it is spelled
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", err.Error()
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, "", err.Error()
	}
	return answer.StatusCode, answer.Header.Get("Semel-Decision"), strings.TrimSpace(string(data))
}

// The process is killed in the middle of a request with many events, and its sender repeats it until it has an
// answer. No event is lost and none takes effect twice. The one that has no key is parked once.
func TestARequestWithManyEventsOutlivesKills(t *testing.T) {
	t.Parallel()
	// All events may take effect while this test stands still. Then others are sent.
	for late := time.Now().Add(5 * time.Minute); manyEventsOverKills(t) == 0 && !t.Failed(); {
		if time.Now().After(late) {
			t.Fatal("the process was never killed in the middle of a request")
		}
	}
}

// manyEventsOverKills returns how often it killed the process before the request had its answer.
func manyEventsOverKills(t *testing.T) (kills int) {
	t.Helper()
	const events, bad = 3000, 1700
	r := newReceiver(t, ", split: lines, wait: 60s", ".id")
	var body bytes.Buffer
	for i := range events {
		if i == bad {
			fmt.Fprintln(&body, `{"event":"without an id"}`)
		}
		fmt.Fprintf(&body, "{\"id\":%d}\n", i)
	}
	fmt.Fprintln(&body, `{"id":0}`) // a copy within the request

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	program := programtest.Start(t, "running", "run", r.file, "--admin", "off", "--log-format", "text")
	answers := make(chan string, 1)
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		for ctx.Err() == nil {
			status, _, text := r.send(ctx, bytes.NewReader(body.Bytes()))
			if status/100 == 2 {
				answers <- fmt.Sprint(status, " ", text)
				return
			}
			_ = retry.Sleep(ctx, 5*time.Millisecond)
		}
		close(answers)
	})
	for _, size := range []int64{2000, 12_000, 25_000} { // of 32,890 bytes
		for {
			if info, err := os.Stat(r.out); err == nil && info.Size() >= size {
				break
			}
			if ctx.Err() != nil {
				t.Fatal("the output does not grow")
			}
			_ = retry.Sleep(ctx, time.Millisecond)
		}
		select {
		case answer := <-answers:
			answers <- answer // the rest came before the kill
			continue
		default:
		}
		kills++
		_ = program.Process.Kill()
		_ = program.Wait()
		program = programtest.Start(t, "running", "run", r.file, "--admin", "off", "--log-format", "text")
	}
	answer := <-answers
	if !strings.HasPrefix(answer, fmt.Sprintf(`202 {"messages":%d,`, events+2)) || !strings.Contains(answer, `"parked":1,"dropped":0,"unsettled":0`) {
		t.Errorf("after %d kills: %s", kills, answer)
	}
	want := fmt.Sprintf(`202 {"messages":%d,"fresh":0,"duplicate":%d,"parked":1,"dropped":0,"unsettled":0,"in_flight":0}`, events+2, events+1)
	if status, _, text := r.send(ctx, bytes.NewReader(body.Bytes())); fmt.Sprint(status, " ", text) != want {
		t.Errorf("the next repetition: %d %s, want %s", status, text, want)
	}
	_ = program.Process.Kill()
	_ = program.Wait()
	lost, doubled := 0, 0
	counts := r.lines(t)
	for i := range events {
		switch n := counts[fmt.Sprintf(`{"id":%d}`, i)]; {
		case n == 0:
			lost++
		case n > 1:
			doubled++
		}
	}
	if lost > 0 || doubled > 0 || len(counts) != events {
		t.Errorf("after %d kills, %d events are lost and %d doubled; the output has %d different lines", kills, lost, doubled, len(counts))
	}
	if listed := programtest.Run(t, "", "parked", "ls", "--config", r.file, "--json", "-q"); strings.Count(listed.Stdout, `"reason":"key-missing"`) != 1 {
		t.Errorf("parked: %s", listed.Stdout)
	}
	t.Logf("%d kills, %d lost, %d doubled", kills, lost, doubled)
	return kills
}

// Senders leave in the middle of their body, or before the answer, and repeat the request later.
func TestASenderThatLeavesCanRepeatItsRequest(t *testing.T) {
	t.Parallel()
	const requests, events = 20, 50
	r := newReceiver(t, ", split: array", ".id")
	stop := programtest.BackgroundUntil(t, "running", programtest.NoEnv, "run", r.file, "--admin", "off")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var senders sync.WaitGroup
	for n := range requests {
		var list []string
		for i := range events {
			list = append(list, fmt.Sprintf(`{"id":"%d-%d"}`, n, i))
		}
		body := "[" + strings.Join(list, ",") + "]"
		senders.Go(func() {
			if n%2 == 0 { // half of the body
				conn, err := net.Dial("tcp", r.listen)
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:len(body)/2])
				conn.Close()
			} else { // the whole body, and no patience
				short, leave := context.WithTimeout(ctx, time.Duration(n)*time.Millisecond)
				_, _, _ = r.send(short, strings.NewReader(body))
				leave()
			}
			for {
				status, decision, text := r.send(ctx, strings.NewReader(body))
				if status == http.StatusOK {
					return
				}
				if ctx.Err() != nil || status != 0 && status != http.StatusServiceUnavailable {
					t.Errorf("request %d: %d %s %s", n, status, decision, text)
					return
				}
				_ = retry.Sleep(ctx, 5*time.Millisecond)
			}
		})
	}
	senders.Wait()
	stop()
	counts := r.lines(t)
	for n := range requests {
		for i := range events {
			if got := counts[fmt.Sprintf(`{"id":"%d-%d"}`, n, i)]; got != 1 {
				t.Errorf("event %d of request %d took effect %d times", i, n, got)
			}
		}
	}
}

// A typing error in the key parks every event. The sender, the probe, the status and the log say so.
func TestASenderIsNotToldThatAllIsWellIfEverythingIsParked(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, "", "header:X-Event-Id")
	run := programtest.StartRun(t, r.file)
	run.Probe(http.StatusOK)
	ctx := t.Context()
	send := func(wanted int, decision string, body string, headers ...string) {
		t.Helper()
		if status, got, text := r.send(ctx, strings.NewReader(body), headers...); status != wanted || got != decision {
			t.Errorf("%s %q: %d %s %s, want %d %s", body, headers, status, got, text, wanted, decision)
		}
	}
	for i := range 3 {
		send(http.StatusServiceUnavailable, "parked", fmt.Sprintf(`{"action":"opened","n":%d}`, i), "X-Evnt-Id", "e-1")
		send(http.StatusServiceUnavailable, "parked", fmt.Sprintf(`{"action":"opened","n":%d}`, i), "X-Evnt-Id", "e-1")
	}
	why := "every message since the start was parked: header:X-Event-Id is missing"
	run.Probe(http.StatusServiceUnavailable, why)
	programtest.WaitForStatus(t, term.ExitFound, []string{why, "not ready", "6 settled = 0 fresh + 6 parked"}, "--admin", run.Address)
	run.Line("source_changed", "messages fail all alike", why[:40], "the last one has the headers x-evnt-id: did you mean header:x-evnt-id?; its body has action, n")
	for _, name := range []string{"X-Event-Id", "x-event-id", "X-EVENT-ID"} { // HTTP has no case in names
		send(http.StatusOK, "fresh", "{}", name, "right-"+name)
	}
	run.Probe(http.StatusOK)
	run.Line("source_changed", "messages no longer fail all alike")
	send(http.StatusAccepted, "parked", `{"action":"opened","n":0}`, "X-Evnt-Id", "e-1")
	send(http.StatusAccepted, "parked", `{"action":"opened","n":9}`, "X-Evnt-Id", "e-9")
	for i := range 20 { // four failed since the last right one
		wanted := http.StatusAccepted
		if i >= 20-3 {
			wanted = http.StatusServiceUnavailable
		}
		send(wanted, "parked", fmt.Sprintf(`{"m":%d}`, i))
	}
	run.Probe(http.StatusServiceUnavailable, "20 messages, and none in between that succeeded, were parked: header:X-Event-Id is missing")
	run.Stop()
	listed := programtest.Run(t, "", "parked", "ls", "--config", r.file, "--json", "-q")
	if got := strings.Count(listed.Stdout, `"reason":"key-missing"`); got != 3+1+20 {
		t.Errorf("%d messages are parked, want 24", got)
	}
}

// The names of headers have no case in HTTP, wherever a configuration names one.
func TestHeaderNamesHaveNoCaseThroughEveryDoor(t *testing.T) {
	t.Parallel()
	spellings := []string{"X-GitHub-Delivery", "x-github-delivery", "X-GITHUB-DELIVERY", "webhook-id", "Webhook-Id", "X-WC-Webhook-Delivery-ID"}
	for n, written := range spellings {
		t.Run(written, func(t *testing.T) {
			t.Parallel()
			got := make(chan string, 10)
			target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				got <- fmt.Sprint(r.Header.Get(written), " ", r.Header.Get("Idempotency-Key"), " ", string(body), err)
			}))
			t.Cleanup(target.Close)
			r := newReceiver(t, "", "header:"+written)
			config := strings.Replace(programtest.ReadFile(t, r.file), "sink: { file: { path: "+r.out+" } }", fmt.Sprintf(`filter: '"%[1]s" in headers && headers["%[1]s"] != ""'
    map: '{"id": headers["%[1]s"]}'
    sink: { webhook: { url: "%[2]s", forward: ["%[1]s"], allow_private: true } }`, written, target.URL), 1)
			programtest.WriteFile(t, r.file, config)
			stop := programtest.BackgroundUntil(t, "running", programtest.NoEnv, "run", r.file, "--admin", "off")
			defer stop()
			for i, sent := range []string{written, strings.ToLower(written), strings.ToUpper(written)} {
				decision := "fresh"
				if i > 0 {
					decision = "duplicate"
				}
				if status, decided, text := r.send(t.Context(), strings.NewReader("{}"), sent, fmt.Sprint("d-", n)); status != http.StatusOK || decided != decision {
					t.Errorf("sent as %s: %d %s %s, want %s", sent, status, decided, text, decision)
				}
			}
			want := fmt.Sprintf(`d-%[1]d d-%[1]d {"id":"d-%[1]d"}<nil>`, n)
			if arrived := <-got; arrived != want || len(got) != 0 {
				t.Errorf("the target got %q and %d more, want %q", arrived, len(got), want)
			}
		})
	}
}

// When the key is corrected, the parked events are redriven, and their senders still repeat them.
func TestParkedEventsAndTheirRepetitionsTakeEffectOnce(t *testing.T) {
	t.Parallel()
	const events = 5
	r := newReceiver(t, "", "header:X-Event-Id")
	run := programtest.StartRun(t, r.file)
	run.Probe(http.StatusOK)
	sendAll := func(wanted int) {
		t.Helper()
		for i := range events {
			if status, _, text := r.send(t.Context(), strings.NewReader(fmt.Sprintf(`{"n":%d}`, i)), "X-Evnt-Id", fmt.Sprint("e-", i)); status != wanted {
				t.Errorf("event %d: %d %s, want %d", i, status, text, wanted)
			}
		}
	}
	for range 3 {
		sendAll(http.StatusServiceUnavailable)
	}
	run.Stop()
	text := programtest.ReadFile(t, r.file)
	programtest.WriteFile(t, r.file, strings.Replace(text, "X-Event-Id", "X-Evnt-Id", 1))
	run = programtest.StartRun(t, r.file)
	run.Probe(http.StatusOK)
	var senders sync.WaitGroup
	senders.Go(func() { sendAll(http.StatusOK) })
	programtest.Run(t, "", "parked", "retry", "--all", "--config", r.file, "--wait", "1m").Check(t, term.ExitDone, "waiting for it")
	senders.Wait()
	sendAll(http.StatusOK)
	run.Stop()
	for i := range events {
		if got := r.lines(t)[fmt.Sprintf(`{"n":%d}`, i)]; got != 1 {
			t.Errorf("event %d took effect %d times", i, got)
		}
	}
	if listed := programtest.Run(t, "", "parked", "ls", "--config", r.file, "--json", "-q"); listed.Stdout != "" {
		t.Errorf("still parked: %s", listed.Stdout)
	}
}

// Bodies that no honest sender sends get a status, and the process continues.
func TestHostileBodiesAreRefusedOrParked(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, ", split: .e, max_body: 64KiB", ".id")
	stop := programtest.BackgroundUntil(t, "running", programtest.NoEnv, "run", r.file, "--admin", "off")
	ctx := t.Context()
	zip := programtest.Gzip(t, `{"e":[{"id":1}]}`)
	for name, c := range map[string]struct {
		body    string
		headers []string
		status  int
	}{
		"empty":            {"", nil, 400},
		"cut gzip":         {string(zip[:len(zip)-3]), []string{"Content-Encoding", "gzip"}, 400},
		"no gzip":          {`{"e":[]}`, []string{"Content-Encoding", "gzip"}, 400},
		"bomb":             {string(programtest.Gzip(t, strings.Repeat(" ", 10<<20))), []string{"Content-Encoding", "gzip"}, 413},
		"br":               {"x", []string{"content-encoding", "br"}, 415},
		"deep":             {strings.Repeat(`{"e":[`, 20_000), nil, 413},
		"deeper than JSON": {strings.Repeat(`[`, 20_000), nil, 400},
		"half a character": {"{\"e\":[\"\xc3\"]}", nil, 503},
		"wrong charset":    {"e=%E9", []string{"Content-Type", "application/x-www-form-urlencoded; charset=iso-8859-1"}, 415},
		"form of Latin-1":  {"e=%E9", []string{"Content-Type", "application/x-www-form-urlencoded"}, 400},
		"UTF-16":           {"\xff\xfe{\x00}\x00", nil, 400},
		"no list":          {`{"e":{"id":1}}`, nil, 400},
		"no events":        {`{"e":[` + strings.Repeat("1,", 200) + "1]}", nil, 503},
	} {
		if status, _, text := r.send(ctx, strings.NewReader(c.body), c.headers...); status != c.status {
			t.Errorf("%s: %d %.200s, want %d", name, status, text, c.status)
		}
	}
	if status, decision, text := r.send(ctx, strings.NewReader(`{"e":[{"id":1},{"id":1},{"id":2}]}`)); status != 200 || !strings.Contains(text, `"fresh":2,"duplicate":1`) {
		t.Errorf("a right request: %d %s %s", status, decision, text)
	}
	if status, decision, _ := r.send(ctx, bytes.NewReader(programtest.Gzip(t, `{"e":[{"id":1},{"id":2}]}`)), "content-encoding", "X-GZIP"); status != 200 || decision != "duplicate" {
		t.Errorf("its repetition: %d %s", status, decision)
	}
	stop()
	if got := len(r.lines(t)); got != 2 {
		t.Errorf("the output has %d lines, want 2", got)
	}
}
