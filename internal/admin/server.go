package admin

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
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
// messages, so their clients must have its credentials. All other paths belong to the page.
func NewServer(p *Process, address string, conf *config.Admin) *http.Server {
	mux := http.NewServeMux()
	guard := identified
	if conf.Auth != nil {
		guard = func(next http.Handler) http.Handler { return authorized(conf.Auth, &p.Tries, next) }
	}
	handle := func(pattern string, handler http.Handler) { mux.Handle(pattern, guard(handler)) }
	handle("/livez", onlyGet(func(w http.ResponseWriter, _ *http.Request) { answerText(w, http.StatusOK, "ok\n") }))
	handle("/readyz", onlyGet(p.readyz))
	handle(StatusPath, onlyGet(p.statusz))
	handle("/metrics", onlyGet(p.Metrics.ServeHTTP))
	if conf.Auth != nil {
		handle(JournalPath, onlyGet(p.journalz))
		handle("POST "+QuestionPath, operators(conf.Auth, &host{Process: p, store: p.Store}))
	} else {
		refuse := func(w http.ResponseWriter, _ *http.Request) {
			answerText(w, http.StatusForbidden, "the process shows keys only to clients with credentials, and admin.auth is not set in its configuration\n")
		}
		handle(QuestionPath, http.HandlerFunc(refuse))
		handle(JournalPath, http.HandlerFunc(refuse))
	}
	if p.Page != nil {
		mux.Handle("/", p.Page)
	} else {
		handle("/", http.NotFoundHandler())
	}
	return NewPageServer(mux, address, conf)
}

// NewPageServer returns a server for the address that it listens on. It refuses requests for
// other hosts.
func NewPageServer(handler http.Handler, address string, conf *config.Admin) *http.Server {
	return &http.Server{
		Handler:           expected(address, conf.PublicURL, handler),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
	}
}

// onlyGet refuses requests that are not for reading.
func onlyGet(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			answerText(w, http.StatusMethodNotAllowed, "only GET is allowed\n")
			return
		}
		next(w, r)
	})
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
