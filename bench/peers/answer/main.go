// Command answer is a server of net/http that answers each request with the same grant and
// keeps nothing: answer ADDRESS.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const grant = `{"decision":"fresh","token":"1764408000000000000","lease_until":"2026-11-29T10:00:30.000000Z","attempt":1}`

func main() {
	server := &http.Server{
		Addr: os.Args[1], ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the harness notices a broken connection
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, grant) // it counts the answers
		}),
	}
	fmt.Fprintln(os.Stderr, "answer:", server.ListenAndServe())
	os.Exit(1)
}
