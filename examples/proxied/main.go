// Command proxied shows semel proxy between a service that knows nothing of keys, in any
// language, and a client that repeats requests without a second effect. Run in three
// terminals:
//
//	go run ./examples/proxied serve
//	semel proxy --upstream http://127.0.0.1:9000 --scope header:X-Api-Key --store ./order-keys
//	go run ./examples/proxied order 41 42 43
//
// Run the client again, stop the proxy in between, or kill it: each order is booked once.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/semel-dev/semel/httpidem"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9000", "address of the service")
	proxy := flag.String("proxy", "http://127.0.0.1:8080", "URL of semel proxy, for the client")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "proxied [flags] serve\nproxied [flags] order ID…")
		flag.PrintDefaults()
	}
	flag.Parse()
	var err error
	switch {
	case flag.Arg(0) == "serve":
		err = serve(*listen)
	case flag.Arg(0) == "order" && flag.NArg() > 1:
		err = order(*proxy, flag.Args()[1:])
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serve books an order for each request. It would book an order twice if it came twice.
func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has left
		}
		fmt.Printf("booked order %s\n", id)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %s is booked", id)
	}))
}

// order sends orders, each with a key that is the same whenever the order is sent. The
// transport repeats a request whose answer does not come.
func order(proxy string, ids []string) error {
	transport, err := httpidem.NewTransport(nil, &httpidem.TransportOptions{Tries: 20})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	for _, id := range ids {
		r, err := http.NewRequest(http.MethodPost, proxy+"/orders", strings.NewReader(id))
		if err != nil {
			return err
		}
		r.Header.Set("Idempotency-Key", "order-"+id)
		r.Header.Set("X-Api-Key", "demo") // it says who the client is
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err != nil:
			return err
		case httpidem.ProblemOf(answer) == httpidem.OutcomeUnknown:
			fmt.Printf("%s: the proxy died while the service worked. Look whether it is booked.\n", id)
		case answer.Header.Get(httpidem.Replayed) != "":
			fmt.Printf("%s: %s (kept answer)\n", id, text)
		default:
			fmt.Printf("%s: %s\n", id, text)
		}
	}
	return nil
}
