// Command http-handler serves POST /charges. Each client key charges once: a
// repeated request gets the stored receipt, and one that comes while the first
// is under way gets 409.
//
//	go run ./examples/http-handler
//	curl -i 127.0.0.1:8090/charges -H 'Idempotency-Key: k-1' -d '{"customer":"alice","cents":4990}'
//
// This stores the receipt alone. The middleware of package httpidem also stores the
// status and headers of the first response, and puts the client's identity into the
// scope. It serves routes on which the key is optional, too: see
// docs/guides/idempotency-key.md. For several processes, replace logstore by pgstore
// or redisstore.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "the address to serve")
	dir := flag.String("dir", "./charged", "the directory of the keys")
	provider := flag.String("provider", "", "the URL of the payment provider; without it, charges are only printed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *dir, *provider); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen, dir, provider string) error {
	store, err := logstore.Open(dir, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	guard, err := semel.NewGuard(store, nil) // keys are remembered for 24 hours
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charges", &charges{guard, provider})
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Shutdown(context.Background()) // waits for requests that are under way
	}
}

type charges struct {
	guard    *semel.Guard
	provider string
}

func (c *charges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	id := r.Header.Get("Idempotency-Key")
	if err != nil || id == "" {
		http.Error(w, "a body and the header Idempotency-Key are required", http.StatusBadRequest)
		return
	}
	digest := sha256.Sum256(body) // shows that a key comes with another body
	call := semel.Call{Key: semel.Key{Scope: "charges", ID: id}, Fingerprint: semel.Fingerprint(digest[:16])}
	// A client that gives up must not stop a charge that has begun.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 30*time.Second)
	defer cancel()
	out, err := c.guard.DoCall(ctx, call, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
		return c.charge(ctx, id, body)
	})
	var permanent *semel.PermanentError
	switch {
	case err == nil:
		w.Header().Set("Semel-Decision", out.Decision.String())
		_, _ = w.Write(out.Result.Data) // a client that misses the answer asks again
	case errors.As(err, &permanent):
		http.Error(w, permanent.Error(), http.StatusPaymentRequired)
	case errors.Is(err, semel.ErrMismatch):
		http.Error(w, "the key was used with another body", http.StatusUnprocessableEntity)
	case errors.Is(err, semel.ErrInFlight):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "a request with this key is under way", http.StatusConflict)
	default:
		log.Println(err)
		http.Error(w, "try again with the same key", http.StatusServiceUnavailable)
	}
}

// charge is the effect. The provider gets the key too: if this process dies before
// the charge is on record, the next request with this key charges again, and only
// the provider can recognise it.
func (c *charges) charge(ctx context.Context, id string, body []byte) ([]byte, error) {
	if c.provider == "" {
		fmt.Printf("charging %s\n", body)
		return []byte("receipt for " + id), nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.provider, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Idempotency-Key", id)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err // it may have charged: the next request with this key tries again
	}
	defer response.Body.Close()
	receipt, err := io.ReadAll(response.Body)
	switch {
	case response.StatusCode == http.StatusPaymentRequired:
		return nil, semel.Permanent(errors.New("the card was declined"))
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the provider answered %s", response.Status)
	}
	return receipt, err
}
