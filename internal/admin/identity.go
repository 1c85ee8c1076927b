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

// credentials returns those of the header Authorization of a request.
func credentials(r *http.Request) (user, secret string, ok bool) {
	if user, secret, ok = r.BasicAuth(); ok && user != "" {
		return user, secret, true
	}
	secret, ok = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return "", secret, ok
}

// authorized requires the credentials of admin.auth, except for the liveness
// probe. Those of a viewer are for reading.
func authorized(auth *config.Auth, tries *Tries, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" {
			next.ServeHTTP(w, r)
			return
		}
		who, wait := tries.Identify(auth, r)
		switch {
		case wait > 0:
			w.Header().Set("Retry-After", RetryAfter(wait))
			answerText(w, http.StatusTooManyRequests, "too many failed logins of this user\n")
			return
		case who.Role == Nobody:
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
		user, secret, _ := credentials(r)
		if Known(auth, user, secret).Role < Operator {
			answerText(w, http.StatusForbidden, "the answers have bodies of messages, which a viewer does not see\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}
