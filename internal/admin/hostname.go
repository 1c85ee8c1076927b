package admin

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/semel-dev/semel/internal/config"
)

// expected refuses requests whose Host is none of the server's own: a web page can
// let its own name point to this machine, and then read the answers (DNS
// rebinding). A server's own hosts are loopback names and addresses, the host that
// it listens on, the address that the connection came to, and the host of public.
// A request without Host comes from no browser.
func expected(listen, public string, next http.Handler) http.Handler {
	own := []string{plainHost(listen)}
	if u, err := url.Parse(public); err == nil && u.Host != "" {
		own = append(own, plainHost(u.Host))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := plainHost(r.Host)
		known := r.Host == "" || config.IsLoopback(host) || sameAddress(host, r.Context().Value(http.LocalAddrContextKey))
		for _, name := range own {
			known = known || host != "" && host == name
		}
		if !known {
			answerText(w, http.StatusMisdirectedRequest, fmt.Sprintf("%q is not a host of this admin server: use its address, or set admin.public_url to the URL that you use\n", host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// plainHost returns the host of HOST:PORT in lower case, without brackets and final
// dot.
func plainHost(address string) string {
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

// identified refuses changes without the credentials of admin.auth, also on
// loopback: every user of the machine, and every web page in a browser on it, can
// send requests there.
func identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			answerText(w, http.StatusForbidden, "this request needs credentials: set admin.auth\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}
