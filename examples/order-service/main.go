// Command order-service serves POST /orders. The key of the request, the row of the order
// and the event for other services are one transaction of PostgreSQL. A request that is
// repeated makes one order and one event, even if this process dies at any moment.
//
//	go run ./examples/order-service
//	curl -i 127.0.0.1:8091/orders -H 'X-Customer: alice' -H 'Idempotency-Key: k-1' -d '{"order_id":"o1","amount":"49.90"}'
//
// It needs the tables of the scenario order-service of semel init, whose pipelines take
// the event from there: see docs/guides/one-key.md.
package main

import (
	"context"
	"encoding/json"
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
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/caller"
	"github.com/semel-dev/semel/httpidem/pgidem"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/store/pgstore"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8091", "the address to serve")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, os.Getenv("DATABASE_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen, database string) error {
	store, err := pgstore.Connect(ctx, database, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	guard, err := pgstore.NewGuard(store, nil) // keys are remembered for 24 hours
	if err != nil {
		return err
	}
	customer, err := caller.Header("X-Customer") // set by a server in front, which checked it
	if err != nil {
		return err
	}
	orders, err := pgidem.New(guard, http.HandlerFunc(order), &httpidem.Options{Scope: customer, Profile: httpidem.Profile{Required: true}})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", orders)
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

// order writes an order and its event. Both commit with the key of the request and the
// kept answer, after order has returned.
func order(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var o struct {
		ID     string `json:"order_id"`
		Amount string `json:"amount"`
	}
	if err != nil || json.Unmarshal(body, &o) != nil || o.ID == "" {
		http.Error(w, "a JSON object with order_id and amount is required", http.StatusBadRequest)
		return
	}
	ctx, tx, customer := r.Context(), pgidem.Tx(r.Context()), r.Header.Get("X-Customer")
	_, err = tx.Exec(ctx, "INSERT INTO orders (id, customer, amount) VALUES ($1, $2, $3)", o.ID, customer, o.Amount)
	if err == nil {
		// The event has the key of the request, which everything behind it keeps.
		// The header itself may have quotes around the key, or parameters behind it.
		requested, _ := httpidem.KeyOf(ctx)
		err = outbox.Write(ctx, tx, outbox.Message{
			Aggregate: o.ID, Topic: "orders", Payload: body,
			Headers: []semel.Header{{Name: "semel-key", Value: []byte(requested.ID)}},
		})
	}
	if err != nil {
		log.Print(err)
		http.Error(w, "try again with the same key", http.StatusInternalServerError) // rolls back
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, "order", o.ID)
}
