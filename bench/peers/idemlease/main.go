// Command idemlease sends requests with new keys to a handler behind idemlease's middleware,
// in process: idemlease N. It prints the requests per second, and the bytes allocated for
// each, as the benchmark http-middleware measures them for Semel.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/repenguin22/idemlease/httpidem"
	"github.com/repenguin22/idemlease/memstore"
)

func main() {
	n, err := strconv.Atoi(os.Args[1])
	if err == nil {
		err = run(n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "idemlease:", err)
		os.Exit(1)
	}
}

func run(n int) error {
	executed := 0
	handler := httpidem.New(memstore.New())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		executed++
		_, _ = io.Copy(io.Discard, r.Body) // it is in memory
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"order":1}`) // the same
	}))
	body := bytes.Repeat([]byte("x"), 1<<10)
	answers := sync.Pool{New: func() any { return httptest.NewRecorder() }}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for i := range n {
		r := httptest.NewRequest(http.MethodPost, "/orders", bytes.NewReader(body))
		r.Header.Set("Idempotency-Key", "order-"+strconv.Itoa(i))
		w := answers.Get().(*httptest.ResponseRecorder)
		*w = httptest.ResponseRecorder{Body: w.Body, Code: http.StatusOK}
		w.Body.Reset()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusCreated {
			return fmt.Errorf("the answer is %d %s", w.Code, w.Body)
		}
		answers.Put(w)
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if executed != n {
		return fmt.Errorf("%d of %d requests were executed", executed, n)
	}
	fmt.Println(float64(n)/took.Seconds(), float64(after.TotalAlloc-before.TotalAlloc)/float64(n))
	return nil
}
