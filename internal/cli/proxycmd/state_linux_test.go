package proxycmd_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/semel-dev/semel/test/programtest"
)

// A caller asks a proxy for the state of its own keys, requests wait for the first
// answer, and the requests of one caller are limited.
func TestProxyTellsTheStateOfKeysAndLimitsRequests(t *testing.T) {
	t.Parallel()
	service, dir := newCountingService(t), t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { embedded: { path: keys } } }
admin: { listen: "off" }
proxy:
  listen: 127.0.0.1:0
  upstream: `+service.URL+`
  store: keys
  scope: header:X-Api-Key
  access_log: true
  wait: 1m
  max_per_caller: 3
  max_keys_per_caller: 2
  max_waiters: 100
  max_waiters_per_key: 1
`)
	const caller, alice, bob = "X-Api-Key", "key-of-alice", "key-of-bob"
	proxy := startProxy(t, file)
	state := func(key, who, want string) {
		t.Helper()
		got, err := send(http.MethodGet, proxy.url+"/.well-known/idempotency/"+key, "", "", caller, who)
		var said struct {
			State  string
			Status int
		}
		if err == nil {
			err = json.Unmarshal([]byte(got.body), &said)
		}
		if err != nil || got.status != 200 || said.State != want || (said.Status == 201) != (want == "done") {
			t.Errorf("the state of %s for %s is %+v, %v; want %s", key, who, got, err, want)
		}
	}
	state("secret%2F1", alice, "absent")
	var running sync.WaitGroup
	answered := make(chan answer, 4)
	ask := func(key string) {
		running.Go(func() {
			got, err := send(http.MethodPost, proxy.url+"/wait", key, "", caller, alice)
			if err != nil {
				t.Error(err)
			}
			answered <- got
		})
	}
	ask("secret/1")
	<-service.reached
	state("secret%2F1", alice, "in-flight")
	state("secret%2F1", bob, "absent")
	ask("secret/1") // one of these two waits
	ask("secret/1")
	(<-answered).problem(t, http.StatusConflict, "in-flight")
	ask("secret/2")
	<-service.reached
	post(t, proxy.url+"/wait", "secret/3", "", caller, alice).problem(t, http.StatusServiceUnavailable, "overloaded")
	post(t, proxy.url+"/orders", "secret/3", "", caller, bob)
	close(service.release)
	running.Wait()
	for range 3 {
		if got := <-answered; got.status != http.StatusCreated {
			t.Errorf("the answer is %+v", got)
		}
	}
	if n := service.count("secret/1"); n != 1 {
		t.Errorf("the request ran %d times", n)
	}
	state("secret%2F1", alice, "done")
	post(t, proxy.url+"/orders", "secret/4", "", caller, alice).problem(t, http.StatusServiceUnavailable, "overloaded")
	if got, err := send(http.MethodGet, proxy.url+"/.well-known/idempotency/secret%2F1", "", ""); err != nil || got.status != http.StatusUnauthorized {
		t.Errorf("without a caller: %+v, %v", got, err)
	}
	if got, err := send(http.MethodGet, proxy.url+"/.well-known/idempotency/", "", "", caller, alice); err != nil || got.status != http.StatusNotFound {
		t.Errorf("without a key: %+v, %v", got, err)
	}
	if log := proxy.logs(t, `"path":"/.well-known/idempotency/"`); strings.Contains(log, "secret") {
		t.Errorf("the access log has keys: %s", log)
	}
}

// Clients do not see why callers cannot be checked, so the log says it.
func TestProxyLogsWhyCallersCannotBeChecked(t *testing.T) {
	t.Parallel()
	service, dir := newCountingService(t), t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { memory: {} } }
admin: { listen: "off" }
proxy: { listen: 127.0.0.1:0, upstream: "`+service.URL+`", store: keys, scope: "jwt:sub", jwt_keys: missing.json }
`)
	proxy := startProxy(t, file)
	const token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
	for range 3 {
		got := post(t, proxy.url, "order-1", "", "Authorization", "Bearer "+token)
		if got.problem(t, http.StatusServiceUnavailable, "scope-unavailable"); strings.Contains(got.body, "missing.json") {
			t.Errorf("the client sees %s", got.body)
		}
	}
	proxy.stop(t, os.Interrupt)
	if log := proxy.log(); strings.Count(log, "missing.json: no such file") != 1 || strings.Contains(log, token) {
		t.Errorf("the log is %s", log)
	}
	if n := service.count("order-1"); n != 0 {
		t.Errorf("the request ran %d times", n)
	}
}
