package verifycmd_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/semel-dev/semel/httpidem/idemcheck"
	"github.com/semel-dev/semel/test/programtest"
)

func TestVerifyHTTPPassesARightServiceAndFailsAWrongOne(t *testing.T) {
	t.Parallel()
	upstream := programtest.StartVerifyUpstream(t)
	right := programtest.ProxyWithKeys(t, upstream, programtest.APIKey)
	t.Run("with keys", func(t *testing.T) {
		t.Parallel()
		got := programtest.Run(t, "", "verify", "http", "--target", right, "--probe", upstream, "--as", "X-Api-Key: alice", "--other", "X-Api-Key: bob", "--max-body", "1MiB")
		got.Check(t, 0, " passed  0 failed  ")
		for _, want := range []string{"\n15  passed   draft     a repetition gets the first answer\n", "\n19  n/a      choice    a repetition in flight can wait: the target does not wait\n"} {
			if !strings.Contains(got.Stdout, want) {
				t.Errorf("the table lacks %q:\n%s", want, got.Stdout)
			}
		}
	})
	t.Run("without keys", func(t *testing.T) {
		t.Parallel()
		got := programtest.Run(t, "", "verify", "http", "--target", upstream, "--probe", upstream, "--json")
		got.Check(t, 3, " failed  ")
		failed := map[int]string{}
		for line := range strings.Lines(got.Stdout) {
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

// A service without keys fails the items of its profile.
func TestVerifyHTTPChecksCallsOfTools(t *testing.T) {
	t.Parallel()
	upstream := programtest.StartVerifyUpstream(t)
	got := programtest.Run(t, "", "verify", "http", "--target", upstream, "--probe", upstream, "--profile", "mcp")
	got.Check(t, 3, " failed  ")
	for _, want := range []string{"63  failed   protocol  a repeated call gets the first result under its own id: ", "\n72  passed   protocol  other methods and notifications run each time\n", "\n78  n/a      security  callers do not share the keys of calls: "} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, got.Stdout)
		}
	}
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
		"--target http://127.0.0.1:1 --probe http://127.0.0.1:1 --profile visa":           "--profile visa: there is no such profile: ",
		"--target http://127.0.0.1:1 --probe http://127.0.0.1:1 --profile square":         "its key is in the body",
		"--target http://127.0.0.1:1 --probe http://127.0.0.1:1 --other X-Api-Key:secret": "--other is the second caller: name the first one with --as",
	} {
		programtest.Run(t, "", append([]string{"verify", "http"}, strings.Fields(args)...)...).Check(t, 2, want)
	}
	programtest.Run(t, "", "verify", "http", "--target", silent.URL, "--probe", silent.URL).Check(t, 1, "ask the upstream at "+silent.URL, "404")
	upstream := httptest.NewServer(idemcheck.NewUpstream())
	t.Cleanup(upstream.Close)
	programtest.Run(t, "", "verify", "http", "--target", silent.URL, "--probe", upstream.URL).Check(t, 1, "is it behind the target")
}
