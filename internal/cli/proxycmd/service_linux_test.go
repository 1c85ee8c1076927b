package proxycmd_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// countingService is a service that counts how often it ran for each key. A request with the
// path /wait waits until the test releases it, and one with /hang until the proxy dies.
type countingService struct {
	*httptest.Server
	release chan struct{}
	reached chan struct{}

	mu   sync.Mutex
	runs map[string]int
}

// newCountingService starts a service.
func newCountingService(t *testing.T) *countingService {
	u := &countingService{release: make(chan struct{}), reached: make(chan struct{}, 16), runs: map[string]int{}}
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

// ServeHTTP implements http.Handler.
func (u *countingService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	u.mu.Lock()
	u.runs[r.Header.Get("Idempotency-Key")]++
	u.mu.Unlock()
	switch r.URL.Path {
	case "/wait":
		u.reached <- struct{}{}
		<-u.release
	case "/hang":
		u.reached <- struct{}{}
		<-r.Context().Done()
		return
	}
	w.Header().Set("Location", "/orders/7")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, r.Method+" "+r.URL.Path+" "+string(body))
}

// count returns how often the service ran for a key.
func (u *countingService) count(key string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.runs[key]
}
