package examples_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// post sends a request and returns the status, the decision and the body.
func post(t *testing.T, url, body string, header ...string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(fmt.Sprint(response.StatusCode, " ", response.Header.Get("Semel-Decision"), " ", string(answer))), " ")
}

func TestHTTPHandlerChargesOnceForEachKey(t *testing.T) {
	t.Parallel()
	var lock sync.Mutex
	charged := map[string]int{}
	slow := make(chan struct{}) // each request of the key "slow" waits for a value
	arrived, left := make(chan struct{}, 2), make(chan struct{}, 2)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if key == "slow" {
			_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice the end of the client
			arrived <- struct{}{}
			select {
			case <-slow:
			case <-r.Context().Done():
				left <- struct{}{}
				return // the client was killed: nothing was charged
			}
		}
		lock.Lock()
		defer lock.Unlock()
		charged[key]++
		switch {
		case key == "declined":
			w.WriteHeader(http.StatusPaymentRequired)
		case key == "broken" && charged[key] == 1:
			w.WriteHeader(http.StatusInternalServerError)
		default:
			fmt.Fprintf(w, "receipt %d for %s", charged[key], key)
		}
	}))
	t.Cleanup(provider.Close)
	args := []string{"-listen", "127.0.0.1:0", "-dir", t.TempDir(), "-provider", provider.URL}

	handler := start(t, nil, "http-handler", args...)
	url := "http://" + handler.await("listening on ") + "/charges"
	for _, step := range []struct{ key, body, want string }{
		{"k-1", "49.90", "200 fresh receipt 1 for k-1"},
		{"k-1", "49.90", "200 duplicate receipt 1 for k-1"},
		{"k-1", "99.90", "422 the key was used with another body"},
		{"declined", "1", "402 the card was declined"},
		{"declined", "1", "402 the card was declined"},
		{"broken", "1", "503 try again with the same key"},
		{"broken", "1", "200 fresh receipt 2 for broken"},
	} {
		if got := post(t, url, step.body, "Idempotency-Key", step.key); got != step.want {
			t.Errorf("%s: %s, want %s", step.key, got, step.want)
		}
	}
	if got := post(t, url, "1"); !strings.HasPrefix(got, "400") {
		t.Errorf("without a key: %s", got)
	}

	// While a charge is under way, another request with its key gets 409. Then the
	// process dies.
	first := make(chan error, 1)
	go func() {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("5"))
		if err == nil {
			request.Header.Set("Idempotency-Key", "slow")
			_, err = http.DefaultClient.Do(request)
		}
		first <- err
	}()
	<-arrived
	if got := post(t, url, "5", "Idempotency-Key", "slow"); !strings.HasPrefix(got, "409") {
		t.Errorf("while the charge is under way: %s", got)
	}
	handler.kill()
	if err := <-first; err == nil {
		t.Error("the client of the killed process got an answer")
	}
	<-left // or the first charge could be made below

	handler = start(t, nil, "http-handler", args...)
	url = "http://" + handler.await("listening on ") + "/charges"
	close(slow)
	for _, want := range []string{"200 fresh receipt 1 for slow", "200 duplicate receipt 1 for slow"} {
		if got := post(t, url, "5", "Idempotency-Key", "slow"); got != want {
			t.Errorf("after the kill: %s, want %s", got, want)
		}
	}
	if got := post(t, url, "49.90", "Idempotency-Key", "k-1"); got != "200 duplicate receipt 1 for k-1" {
		t.Errorf("after the kill: %s", got)
	}
	handler.stop()
	if got := fmt.Sprint(charged); got != "map[broken:2 declined:1 k-1:1 slow:1]" {
		t.Errorf("the provider charged %s", got)
	}
}
