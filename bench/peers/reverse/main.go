// Command reverse is a plain httputil.ReverseProxy: reverse ADDRESS UPSTREAM.
package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "reverse:", err)
		os.Exit(1)
	}
}

// run serves until the process is killed.
func run(address, upstream string) error {
	target, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256 // the default of two would open a connection for most requests
	return http.Serve(listener, &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport: transport,
	})
}
