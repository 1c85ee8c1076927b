package listen

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/semel-dev/semel/internal/config"
)

// Hosts returns a function that reports whether the Host of a request is one of the server's
// own. Without this check, a web page could let its own name point to this machine, and then
// read the answers (DNS rebinding). A server's own hosts are loopback names and addresses, the
// host that it listens on, the address that the connection came to, and the host of public. A
// request without Host comes from no browser.
func Hosts(address, public string) func(*http.Request) bool {
	own := []string{PlainHost(address)}
	if u, err := url.Parse(public); err == nil && u.Host != "" {
		own = append(own, PlainHost(u.Host))
	}
	return func(r *http.Request) bool {
		host := PlainHost(r.Host)
		known := r.Host == "" || config.IsLoopback(host) || sameAddress(host, r.Context().Value(http.LocalAddrContextKey))
		for _, name := range own {
			known = known || host != "" && host == name
		}
		return known
	}
}

// PlainHost returns the host of HOST:PORT in lower case, without brackets and final
// dot.
func PlainHost(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}

// sameAddress reports whether a host is the address of the connection's own end.
func sameAddress(host string, local any) bool {
	of, ok := local.(net.Addr)
	if !ok {
		return false
	}
	end, err := netip.ParseAddrPort(of.String())
	address, wrong := netip.ParseAddr(host)
	return cmp.Or(err, wrong) == nil && address.Unmap() == end.Addr().Unmap().WithZone("")
}
