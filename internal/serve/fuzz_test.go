package serve_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/serve"
	"github.com/semel-dev/semel/store/memstore"
)

// Whatever a body is, the answer is JSON that the OpenAPI document describes, and a body
// that is refused has changed nothing.
func FuzzBodiesAreAnswered(f *testing.F) {
	verbs := []string{"claim", "complete", "release", "extend", "batch", "lookup", "list", "resolve", "remove"}
	for i, body := range []string{
		`{"scope":"p","id":1e400,"wait":"0s"}`, `{"scope":"p","id":"a","token":"18446744073709551616","result":{}}`, `{"scope":"p","id":[1,[2]],"token":"1"}`,
		`{"items":[{"scope":"p","id":"\ud800","token":"1"}],"lease":"1ns"}`, `{"items":[{"claim":{}},{"extend":null}]}`, `{"items":[1]}`,
		`{"cursor":"00000000000000000000000000000000"}`, `{"digest":"00000000000000000000000000000000","as":"done","reason":"x"}`, `{"scope_base64":"?","reason":"x"}`,
	} {
		f.Add(i, body)
	}
	c := newContract(f)
	f.Fuzz(func(t *testing.T, verb int, body string) {
		store, err := memstore.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		s := serve.New(serve.Options{Log: slog.New(slog.DiscardHandler)})
		if err := s.Open(store, semel.ObserverFunc(func(semel.Event) {})); err != nil {
			t.Fatal(err)
		}
		path := "/v1/" + verbs[uint(verb)%uint(len(verbs))]
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if strings.Contains(body, "wait") {
			return // it would take its time
		}
		s.ServeHTTP(w, r)
		answer := w.Body.Bytes()
		if !json.Valid(answer) || w.Code >= 500 && w.Code != http.StatusNotImplemented {
			t.Fatalf("%s %q: %d %s", path, body, w.Code, answer)
		}
		if w.Code != http.StatusOK {
			if err := c.exchange(http.MethodPost, path, nil, w.Code, w.Header().Get("Content-Type"), answer); err != nil {
				t.Error(err)
			}
			if counts, err := store.Count(t.Context()); err != nil || counts.Claimed+counts.Done+counts.Unknown > 0 {
				t.Errorf("%s %q was refused, and left %+v, %v", path, body, counts, err)
			}
		}
	})
}
