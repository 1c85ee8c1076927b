package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/semel-dev/semel/internal/config"
)

// Role is what a client may do. A higher role may do all that a lower one may.
type Role uint8

// These are the roles.
const (
	Nobody   Role = iota
	Viewer        // looks
	Operator      // also changes keys and messages
)

// Identity is who a client is.
type Identity struct {
	Name string
	Role Role
}

// Known returns the owner of a user name and its password, or of a token if user is "". The
// identity has the role Nobody if no credentials of the configuration match. auth may be nil.
func Known(auth *config.Auth, user, secret string) (who Identity) {
	same := func(a, b string) bool {
		x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
		return subtle.ConstantTimeCompare(x[:], y[:]) == 1
	}
	try := func(auth *config.Auth, role Role) {
		switch {
		case auth == nil || who.Role != Nobody:
		case user != "" && auth.Username != "" && same(user, auth.Username) && same(secret, auth.Password.Reveal()):
			who = Identity{user, role}
		case user == "" && !auth.Token.IsZero() && same(secret, auth.Token.Reveal()):
			who = Identity{"token of " + role.String(), role}
		}
	}
	try(auth, Operator)
	if auth != nil {
		try(auth.Viewer, Viewer)
	}
	return who
}

// String returns the name of a role.
func (r Role) String() string { return [...]string{"nobody", "viewer", "operator"}[r] }

// Identify returns who sent a request, by its header Authorization. tried reports whether it has
// one.
func Identify(auth *config.Auth, r *http.Request) (who Identity, tried bool) {
	if user, password, ok := r.BasicAuth(); ok && user != "" {
		return Known(auth, user, password), true
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return Known(auth, "", token), true
	}
	return Identity{}, r.Header.Get("Authorization") != ""
}

// authorized requires the credentials of admin.auth, except for the liveness
// probe. Those of a viewer are for reading.
func authorized(auth *config.Auth, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who, _ := Identify(auth, r); who.Role == Nobody && r.URL.Path != "/livez" {
			w.Header().Set("WWW-Authenticate", `Basic realm="semel"`)
			answerText(w, http.StatusUnauthorized, "not authorized\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// operators refuses clients that are not operators.
func operators(auth *config.Auth, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who, _ := Identify(auth, r); who.Role < Operator {
			answerText(w, http.StatusForbidden, "the answers have bodies of messages, which a viewer does not see\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}
