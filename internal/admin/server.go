package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
)

const (
	// Off is the address that disables the admin server.
	Off = "off"
	// DefaultAddress is the default address of the admin server.
	DefaultAddress = "127.0.0.1:4195"
)

// Listen listens at an address for the admin server of a configuration. insecure allows an
// address that other machines can reach without admin.auth. It returns nil if the address is
// [Off].
func Listen(address string, conf *config.Admin, insecure bool) (net.Listener, error) {
	if address == Off {
		return nil, nil
	}
	if number, err := strconv.ParseUint(address, 10, 16); err == nil {
		return nil, fmt.Errorf("admin address %s: write 127.0.0.1:%d, or off: %w", address, number, semel.ErrInvalidRequest)
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("admin address %s: write it like 127.0.0.1:4195, or off: %w", address, semel.ErrInvalidRequest)
	}
	if conf.Auth == nil && !insecure && !isLoopback(address) {
		return nil, fmt.Errorf("admin address %s can be reached from other machines, and admin.auth is missing: write admin.auth, listen on 127.0.0.1, or pass --insecure-no-auth: %w", address, semel.ErrInvalidRequest)
	}
	secure, err := conf.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("admin server: %w: is it that of another semel run? write another one with --admin ADDRESS", err)
		}
		return nil, fmt.Errorf("admin server: %w", err)
	}
	if secure != nil {
		secure.NextProtos = []string{"http/1.1"}
		listener = tls.NewListener(listener, secure)
	}
	return listener, nil
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// NewServer returns the admin server of a process, for the address that it listens on. Probes
// and metrics are for every client, unless admin.auth is set. Questions read keys and
// messages, so their clients must have its credentials.
func NewServer(p *Process, address string, conf *config.Admin) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answerText(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", p.readyz)
	mux.HandleFunc("GET "+StatusPath, p.statusz)
	mux.Handle("GET /metrics", p.Metrics)
	var handler http.Handler
	if auth := conf.Auth; auth != nil {
		mux.HandleFunc("GET "+JournalPath, p.journalz)
		mux.Handle("POST "+QuestionPath, &host{Process: p, store: p.Store})
		handler = authorized(auth, mux)
	} else {
		refuse := func(w http.ResponseWriter, _ *http.Request) {
			answerText(w, http.StatusForbidden, "the process shows keys only to clients with credentials, and admin.auth is not set in its configuration\n")
		}
		mux.HandleFunc(QuestionPath, refuse)
		mux.HandleFunc(JournalPath, refuse)
		handler = identified(mux)
	}
	return &http.Server{
		Handler:           expected(address, conf.PublicURL, handler),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
	}
}

// NewSocketServer returns the server of a process for the socket in the directory of a store;
// see [ListenIn]. It refuses every user but the one of this process and root, who may change
// keys. store is the store of questions that name none.
func NewSocketServer(p *Process, store func() (semel.Store, error)) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+StatusPath, p.statusz)
	mux.HandleFunc("GET "+JournalPath, p.journalz)
	mux.Handle("POST "+QuestionPath, &host{Process: p, changes: true, store: func(name string) (semel.Store, error) {
		if name == "" {
			return store()
		}
		return p.Store(name)
	}})
	return onlyOwner(mux)
}

// authorized requires the credentials of admin.auth, except for the liveness
// probe.
func authorized(auth *config.Auth, next http.Handler) http.Handler {
	same := func(a, b string) bool {
		x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
		return subtle.ConstantTimeCompare(x[:], y[:]) == 1
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, basic := r.BasicAuth()
		token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case r.URL.Path == "/livez":
		case basic && auth.Username != "" && same(user, auth.Username) && same(password, auth.Password.Reveal()):
		case bearer && !auth.Token.IsZero() && same(token, auth.Token.Reveal()):
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="semel"`)
			answerText(w, http.StatusUnauthorized, "not authorized\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}
