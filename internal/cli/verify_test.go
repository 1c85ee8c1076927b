package cli

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/idemcheck"
	"github.com/semel-dev/semel/store/memstore"
)

// verifyUpstream starts the program as the service behind what is checked.
func verifyUpstream(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "verify", "upstream", "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), programVariable+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, address, ok := strings.Cut(strings.TrimSpace(line), "listens on ")
	if !ok {
		t.Fatalf("the service says %q", line)
	}
	return address
}

// apiKey is a scope.
func apiKey(r *http.Request) (string, error) { return r.Header.Get("X-Api-Key"), nil }

// keyed starts a proxy with keys in front of a service.
func keyed(t *testing.T, upstream string, scope func(*http.Request) (string, error)) string {
	t.Helper()
	address, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := httpidem.NewProxy(&httpidem.ProxyOptions{Target: address})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{OnLeaseExpired: semel.Hold, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := httpidem.New(guard, proxy, &httpidem.Options{Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func TestVerifyHTTPTellsRightFromWrong(t *testing.T) {
	t.Parallel()
	upstream := verifyUpstream(t)
	right := keyed(t, upstream, apiKey)
	t.Run("with keys", func(t *testing.T) {
		t.Parallel()
		got := run(t, "", "verify", "http", "--target", right, "--probe", upstream, "--as", "X-Api-Key: alice", "--other", "X-Api-Key: bob", "--max-body", "1MiB")
		got.check(t, 0, " passed  0 failed  ")
		for _, want := range []string{"\n15  passed   draft     a repetition gets the first answer\n", "\n19  n/a      choice    a repetition in flight can wait: the target does not wait\n"} {
			if !strings.Contains(got.stdout, want) {
				t.Errorf("the table lacks %q:\n%s", want, got.stdout)
			}
		}
	})
	t.Run("without keys", func(t *testing.T) {
		t.Parallel()
		got := run(t, "", "verify", "http", "--target", upstream, "--probe", upstream, "--json")
		got.check(t, 3, " failed  ")
		failed := map[int]string{}
		for line := range strings.Lines(got.stdout) {
			var item idemcheck.Item
			if err := json.Unmarshal([]byte(line), &item); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if item.Result == idemcheck.Failed {
				failed[item.Number] = item.Seen
			}
		}
		for _, n := range []int{1, 5, 6, 15, 16, 17, 20, 24, 28, 37, 43, 45, 49, 62} {
			if failed[n] == "" {
				t.Errorf("item %d did not fail", n)
			}
		}
		if !strings.Contains(failed[15], "a repeated request took effect") {
			t.Errorf("item 15 says %q", failed[15])
		}
	})
}

func TestVerifyHTTPRefusesWhatItCannotCheck(t *testing.T) {
	t.Parallel()
	silent := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(silent.Close)
	for args, want := range map[string]string{
		"": "--target URL is missing: name the implementation, as in --target http://127.0.0.1:8080",
		"--target 127.0.0.1:1 --probe http://127.0.0.1:1":                                 "--target 127.0.0.1:1: expected a URL with http or https and a host",
		"--target http://127.0.0.1:1 --probe http://127.0.0.1:1 --as Authorization":       "--as: expected a header line",
		"--target http://127.0.0.1:1 --probe http://127.0.0.1:1 --as X:${env:ABSENT}":     "--as: the variable ABSENT is not set",
		"--target http://127.0.0.1:1 --probe http://127.0.0.1:1 --profile visa":           "--profile visa: there is no such profile: write ietf, stripe, adyen, paypal, square or oasis",
		"--target http://127.0.0.1:1 --probe http://127.0.0.1:1 --profile square":         "its key is in the body",
		"--target http://127.0.0.1:1 --probe http://127.0.0.1:1 --other X-Api-Key:secret": "--other is the second caller: name the first one with --as",
	} {
		run(t, "", append([]string{"verify", "http"}, strings.Fields(args)...)...).check(t, 2, want)
	}
	run(t, "", "verify", "http", "--target", silent.URL, "--probe", silent.URL).check(t, 1, "ask the upstream at "+silent.URL, "404")
	upstream := httptest.NewServer(idemcheck.NewUpstream())
	t.Cleanup(upstream.Close)
	run(t, "", "verify", "http", "--target", silent.URL, "--probe", upstream.URL).check(t, 1, "is it behind the target")
}
