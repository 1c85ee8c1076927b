package admin

import (
	"fmt"
	"net/http"

	"github.com/semel-dev/semel/internal/listen"
)

// expected refuses requests whose Host is not one of the server's own hosts; see listen.Hosts.
func expected(address, public string, next http.Handler) http.Handler {
	own := listen.Hosts(address, public)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !own(r) {
			answerText(w, http.StatusMisdirectedRequest, fmt.Sprintf("%q is not a host of this admin server: use its address, or set admin.public_url to the URL that you use\n", listen.PlainHost(r.Host)))
			return
		}
		next.ServeHTTP(w, r)
	})
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
