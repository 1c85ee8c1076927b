package httpidem_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/store/memstore"
)

func ExampleNew() {
	store, err := memstore.New(nil) // logstore, redisstore or pgstore survive a restart
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold})
	if err != nil {
		log.Fatal(err)
	}
	charge := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("charging")
		io.WriteString(w, "receipt 1")
	})
	handler, err := httpidem.New(guard, charge, &httpidem.Options{
		// The caller must be known before: here, a handler in front has checked the password.
		Scope: func(r *http.Request) (string, error) { user, _, _ := r.BasicAuth(); return user, nil },
	})
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	for range 2 {
		r, err := http.NewRequest(http.MethodPost, server.URL+"/charges", strings.NewReader("10 EUR"))
		if err != nil {
			log.Fatal(err)
		}
		r.SetBasicAuth("alice", "secret")
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Printf("%s, replayed: %q\n", body, resp.Header.Get(httpidem.Replayed))
	}
	// Output:
	// charging
	// receipt 1, replayed: ""
	// receipt 1, replayed: "true"
}

func ExampleNewTransport() {
	tries := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries++; tries == 1 {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		fmt.Fprintf(w, "receipt for a key of %d bytes", len(r.Header.Get("Idempotency-Key")))
	}))
	defer server.Close()
	transport, err := httpidem.NewTransport(nil, nil)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	resp, err := client.Post(server.URL+"/charges", "text/plain", strings.NewReader("10 EUR"))
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", body)
	// Output: receipt for a key of 28 bytes
}

func ExampleNewState() {
	store, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	state, err := httpidem.NewState(guard, &httpidem.Options{Scope: httpidem.AnyCaller}) // the options of New
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(httpidem.StatePattern, state)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/.well-known/idempotency/8e03978e", nil))
	fmt.Println(w.Code, w.Body)
	// Output: 200 {"state":"absent"}
}
