// Command webhook-receiver takes webhooks that are signed as Stripe signs them,
// and stores each event as one PostgreSQL row. The key is the event's id, from the
// signed body. Duplicates get 200, and any other failure 500, so that the sender
// tries again. GitHub signs the body alone, in the header X-Hub-Signature-256.
//
//	DATABASE_URL=postgres://… WEBHOOK_SECRET=whsec_test go run ./examples/webhook-receiver
package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8091", "the address to serve")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen string) error {
	secret := os.Getenv("WEBHOOK_SECRET")
	if secret == "" {
		return fmt.Errorf("WEBHOOK_SECRET is not set")
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS webhook_events (id text, type text, body bytea)"); err != nil {
		return err
	}
	store, err := pgstore.New(ctx, pool, &pgstore.Options{Migrate: true})
	if err != nil {
		return err
	}
	defer store.Close()
	// Senders repeat a webhook for some days.
	guard, err := pgstore.NewGuard(store, &semel.GuardOptions{Window: 30 * 24 * time.Hour})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /webhooks", &receiver{guard, []byte(secret)})
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

type receiver struct {
	guard  *pgstore.Guard
	secret []byte
}

func (h *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "the body is too large or incomplete", http.StatusBadRequest)
		return
	}
	if !signed(body, r.Header.Get("Stripe-Signature"), h.secret, time.Now()) {
		http.Error(w, "the signature is wrong or too old", http.StatusUnauthorized)
		return
	}
	var event struct{ ID, Type string }
	if err := json.Unmarshal(body, &event); err != nil || event.ID == "" {
		http.Error(w, "the event has no id", http.StatusBadRequest)
		return
	}
	key := semel.Key{Scope: "webhooks", ID: event.ID}
	out, err := h.guard.DoTx(r.Context(), key, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := tx.Exec(ctx, "INSERT INTO webhook_events VALUES ($1, $2, $3)", event.ID, event.Type, body)
		return nil, err
	})
	if !semel.MayAck(err) {
		log.Println(event.ID, err)
		http.Error(w, "send it again later", http.StatusInternalServerError)
		return
	}
	fmt.Println(out.Decision, event.ID) // 200
}

// signed checks a header "t=UNIX,v1=HEX", in which HEX is the HMAC of "UNIX.BODY".
// The sender may use two secrets while it replaces one, and then sends two v1.
func signed(body []byte, header string, secret []byte, now time.Time) bool {
	var at string
	var signatures []string
	for field := range strings.SplitSeq(header, ",") {
		switch name, value, _ := strings.Cut(field, "="); name {
		case "t":
			at = value
		case "v1":
			signatures = append(signatures, value)
		}
	}
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false // an old signature could be a recorded request
	}
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s", at, body)
	sum := mac.Sum(nil)
	for _, s := range signatures {
		if got, err := hex.DecodeString(s); err == nil && hmac.Equal(got, sum) {
			return true
		}
	}
	return false
}
