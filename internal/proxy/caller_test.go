package proxy

import (
	"net/http"
	"strings"
	"testing"
)

// The service behind the proxy trusts the header of forward_auth: no client can set it, or
// have it removed as a header of the connection.
func TestAClientCannotNameItself(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	h.Add("X-User", "mallory")
	h.Add("x-user", "eve")
	h.Add("Connection", "keep-alive, x-USER")
	h.Add("Connection", "X-User")
	if disown(h, "X-User"); h["X-User"] != nil || strings.Contains(strings.ToLower(strings.Join(h["Connection"], ",")), "user") {
		t.Errorf("the headers are %v", h)
	}
	if got := strings.TrimSpace(h["Connection"][0]); got != "keep-alive" {
		t.Errorf("Connection is %q", got)
	}
}
