// Command conformance checks implementations of the Idempotency-Key header beside each
// other, in front of the same service, and prints a table for docs/guides.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/fiber/v3/middleware/proxy"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/idemcheck"
	"github.com/semel-dev/semel/store/memstore"
)

// implementation serves on a listener, in front of a service, until the program ends.
type implementation struct {
	name  string
	serve func(l net.Listener, service *url.URL) error
}

// Limits of both implementations, where they have them.
const (
	maxBody     = 64 << 10
	maxResponse = 128 << 10
	lease       = time.Second
	timeout     = 2 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	columns := []implementation{{"Semel", serveSemel}, {"Fiber v3 `idempotency`", serveFiber}}
	reports := make([]*idemcheck.Report, len(columns))
	for i, c := range columns {
		var err error
		if reports[i], err = check(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	fmt.Print("| | item | demanded |")
	for _, c := range columns {
		fmt.Printf(" %s |", c.name)
	}
	fmt.Println("\n|---|---|---|" + strings.Repeat("---|", len(columns)))
	for i, item := range reports[0].Items {
		if reports[0].Items[i].Result == idemcheck.NotApplicable {
			continue
		}
		demanded := ""
		if item.Demanded {
			demanded = "yes"
		}
		fmt.Printf("| %d | %s | %s |", item.Number, item.Name, demanded)
		for _, r := range reports {
			fmt.Printf(" %s |", r.Items[i].Result)
		}
		fmt.Println()
	}
	return nil
}

// check checks an implementation with a service of its own.
func check(ctx context.Context, c implementation) (*idemcheck.Report, error) {
	service, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer service.Close()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer front.Close()
	address := func(l net.Listener) *url.URL { return &url.URL{Scheme: "http", Host: l.Addr().String()} }
	failed := make(chan error, 2)
	go func() { failed <- http.Serve(service, idemcheck.NewUpstream()) }()
	go func() { failed <- c.serve(front, address(service)) }()
	report, err := idemcheck.Run(ctx, idemcheck.Options{
		Targets: []*url.URL{address(front)}, Probe: address(service),
		Caller: basic("alice"), Other: basic("bob"),
		MaxBody: maxBody, MaxResponse: maxResponse, Lease: lease, Timeout: timeout,
	})
	select {
	case early := <-failed:
		return nil, errors.Join(err, early)
	default:
		return report, err
	}
}

// basic returns credentials of HTTP Basic authentication.
func basic(name string) http.Header {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(name, "secret")
	return r.Header
}

func serveSemel(l net.Listener, service *url.URL) error {
	store, err := memstore.New(nil)
	if err != nil {
		return err
	}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold, Lease: lease})
	if err != nil {
		return err
	}
	next, err := httpidem.NewProxy(&httpidem.ProxyOptions{Target: service, Timeout: timeout, Late: 5 * time.Second})
	if err != nil {
		return err
	}
	handler, err := httpidem.New(guard, next, &httpidem.Options{
		Scope:   func(r *http.Request) (string, error) { user, _, _ := r.BasicAuth(); return user, nil },
		MaxBody: maxBody, MaxResponse: maxResponse,
	})
	if err != nil {
		return err
	}
	return http.Serve(l, handler)
}

// serveFiber has the middleware with its own settings, except that keys may have any length and
// form, and that the header of the checks is guarded.
func serveFiber(l net.Listener, service *url.URL) error {
	app := fiber.New(fiber.Config{BodyLimit: maxBody})
	app.Use(idempotency.New(idempotency.Config{
		KeyHeader:         "Idempotency-Key",
		KeyHeaderValidate: func(string) error { return nil },
	}))
	app.All("/*", func(c fiber.Ctx) error {
		return proxy.DoTimeout(c, service.String()+c.OriginalURL(), timeout)
	})
	return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
}
