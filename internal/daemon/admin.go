package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
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

// Off is the admin address that disables the admin server.
const Off = "off"

// adminAddress is the address that the admin server listens on, or Off.
func (d *daemon) adminAddress() string {
	return cmp.Or(d.opts.Admin, d.file.Admin.Listen, DefaultAdmin)
}

// listenAdmin listens for the admin server. It returns nil if the server is off.
func (d *daemon) listenAdmin() (net.Listener, error) {
	address := d.adminAddress()
	chosen := d.opts.Admin != "" || address != DefaultAdmin
	if address == Off {
		return nil, nil
	}
	if number, err := strconv.ParseUint(address, 10, 16); err == nil {
		return nil, fmt.Errorf("admin address %s: write 127.0.0.1:%d, or off: %w", address, number, semel.ErrInvalidRequest)
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("admin address %s: write it like 127.0.0.1:4195, or off: %w", address, semel.ErrInvalidRequest)
	}
	if d.file.Admin.Auth == nil && !d.opts.InsecureNoAuth && !isLoopback(address) {
		return nil, fmt.Errorf("admin address %s can be reached from other machines, and admin.auth is missing: write admin.auth, listen on 127.0.0.1, or pass --insecure-no-auth: %w", address, semel.ErrInvalidRequest)
	}
	secure, err := d.file.Admin.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		if !chosen {
			d.log.Warn("no admin server: the address is taken, perhaps by another semel run; write --admin ADDRESS", "address", address, "error", err)
			return nil, nil
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("admin server: %w: is it that of another semel run? write another one with --admin ADDRESS", err)
		}
		return nil, fmt.Errorf("admin server: %w", err)
	}
	d.log.Info("admin server", "address", listener.Addr().String())
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

func (d *daemon) adminServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", d.readyz)
	mux.HandleFunc("GET "+StatusPath, d.statusz)
	mux.Handle("GET /metrics", d.metrics.handler())
	d.handleQuestions(mux)
	handler := identified(mux)
	if auth := d.file.Admin.Auth; auth != nil {
		handler = authorized(auth, mux)
	}
	handler = expected(d.adminAddress(), d.file.Admin.PublicURL, handler)
	return &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10}
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a probe that disconnected needs no answer
}

// readyz checks the source, sink and store of every pipeline, and the service.
func (d *daemon) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	var text strings.Builder
	status := http.StatusOK
	add := func(name string, err error) {
		if err == nil {
			fmt.Fprintf(&text, "%s: ready\n", name)
			return
		}
		status = http.StatusServiceUnavailable
		fmt.Fprintf(&text, "%s: not ready: %s\n", name, d.why(err))
	}
	for i := range d.states {
		add(d.states[i].name, d.states[i].ready(ctx))
	}
	if s := d.opts.Service; s != nil {
		add(s.Name, d.readyService(ctx))
	}
	answer(w, status, text.String())
}

// statusz answers with the status as JSON.
func (d *daemon) statusz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	text, err := json.Marshal(d.status(ctx))
	if err != nil {
		answer(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(append(text, '\n')) // a client that disconnected needs no answer
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
			answer(w, http.StatusUnauthorized, "not authorized\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}
