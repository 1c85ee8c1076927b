package admin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A probe of Kubernetes names the address of the pod, and a scrape the service.
func TestAdminServerChecksTheHostHeader(t *testing.T) {
	t.Parallel()
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for _, c := range []struct {
		listen, public, local, host string
		want                        int
	}{
		{"0.0.0.0:4195", "", "10.1.2.3:4195", "10.1.2.3:4195", 200},
		{":4195", "", "[::ffff:10.1.2.3]:4195", "10.1.2.3", 200},
		{"[::]:4195", "", "[fe80::1%eth0]:4195", "[fe80::1]:4195", 200},
		{"0.0.0.0:4195", "", "10.1.2.3:4195", "10.1.2.4:4195", 421},
		{"0.0.0.0:4195", "", "10.1.2.3:4195", "semel:4195", 421},
		{"0.0.0.0:4195", "http://semel:4195", "10.1.2.3:4195", "semel:4195", 200},
		{"0.0.0.0:4195", "https://[2001:db8::1]/", "10.1.2.3:4195", "[2001:db8::1]", 200},
		{"metrics.internal:4195", "", "10.1.2.3:4195", "Metrics.Internal.:4195", 200},
		{":4195", "", "10.1.2.3:4195", "[", 421},
		{":4195", "", "10.1.2.3:4195", ":4195", 421},
		{":4195", "", "10.1.2.3:4195", "", 200},
	} {
		local, err := net.ResolveTCPAddr("tcp", c.local)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, local), http.MethodGet, "/livez", nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		expected(c.listen, c.public, ok).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%+v: %d", c, w.Code)
		}
	}
}
