package suite

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/bench/internal/records"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestTheServiceCountsRequestsAndRefusesOthers(t *testing.T) {
	t.Parallel()
	m := newMeter(records.Input{Seed: 1, Records: 20})
	service := http.HandlerFunc(m.take)
	_, body := m.in.Append(nil, nil, 7)
	for _, c := range []struct {
		name, key string
		body      []byte
		status    int
		handled   int32
	}{
		{"a message", "a", body, http.StatusNoContent, 1},
		{"without a key", "", body, http.StatusBadRequest, 1},
		{"not of the input", "a", []byte(`{"seq":20,"type":"x"}`), http.StatusBadRequest, 1},
		{"the message again", "a", body, http.StatusNoContent, 2},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(c.body))
		r.Header.Set("Idempotency-Key", c.key)
		w := httptest.NewRecorder()
		service.ServeHTTP(w, r)
		if got := m.handled[7].Load(); w.Code != c.status || got != c.handled {
			t.Errorf("%s: status %d, handled %d times, want %d and %d", c.name, w.Code, got, c.status, c.handled)
		}
	}
	for i := range 20 {
		if i != 7 && m.in.Fresh(i) {
			m.handled[i].Add(1)
		}
	}
	if m.check(true) == nil {
		t.Error("a message that was handled twice was not noticed")
	}
}

// TestTheServiceWithKeysOfItsOwnKeepsAnswers repeats a request to the peer of
// http-proxy-postgres.
func TestTheServiceWithKeysOfItsOwnKeepsAnswers(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), servicestest.StartPostgres(t, nil).URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), orderKeys); err != nil {
		t.Fatal(err)
	}
	service := keepingOrder(pool)
	post := func(key string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", bytes.NewReader(httpBody))
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("X-Api-Key", "alice")
		w := httptest.NewRecorder()
		service(w, r)
		return w
	}
	for range 2 {
		if w := post("a"); w.Code != http.StatusCreated || w.Body.String() != `{"order":1}` {
			t.Errorf("the answer is %d %s", w.Code, w.Body)
		}
	}
	if _, err := pool.Exec(t.Context(), "UPDATE order_keys SET answer = NULL"); err != nil {
		t.Fatal(err)
	}
	if w := post("a"); w.Code != http.StatusConflict {
		t.Errorf("a request in flight has the answer %d %s", w.Code, w.Body)
	}
}
