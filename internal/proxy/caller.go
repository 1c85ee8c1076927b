package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/caller"
	"github.com/semel-dev/semel/internal/config"
)

// callerOf returns the function that says who sends a request.
func callerOf(p *config.Proxy) (func(*http.Request) (string, error), error) {
	i := &p.Identity
	switch p.Caller.Kind {
	case "global":
		return httpidem.AnyCaller, nil
	case "header":
		value, err := caller.Header(p.Caller.Name)
		if err != nil {
			return nil, err
		}
		return func(r *http.Request) (string, error) {
			text, err := value(r)
			if err != nil {
				return "", err
			}
			return config.HashedCaller(text), nil // it may be a secret
		}, nil
	case "api-key":
		return caller.APIKey(p.Caller.Name, i.APIKeys)
	case "jwt":
		return caller.JWT(&caller.JWTOptions{Keys: i.JWTKeys, Secret: []byte(i.JWTSecret.Reveal()), Claim: p.Caller.Name, Issuer: i.Issuer, Audience: i.Audience})
	case "basic":
		return credentials, nil
	case "mtls":
		return caller.MTLS(), nil
	case "forward":
		return caller.Forward(i.ForwardAuth, p.Caller.Name, nil)
	}
	return nil, fmt.Errorf("scope %s: %w", p.Caller, semel.ErrInvalidRequest)
}

// disown removes a header that only the service of forward_auth may set: the service behind
// the proxy trusts it. A client could also name it in Connection, and so have it removed.
func disown(h http.Header, name string) {
	h.Del(name)
	hops := h["Connection"]
	for i, list := range hops {
		kept := slices.DeleteFunc(strings.Split(list, ","), func(hop string) bool { return strings.EqualFold(strings.TrimSpace(hop), name) })
		hops[i] = strings.Join(kept, ",")
	}
}

// credentials returns the user of HTTP Basic authentication, with a digest of the
// password: the service checks the password, and a wrong one is another caller.
func credentials(r *http.Request) (string, error) {
	user, password, ok := r.BasicAuth()
	if !ok || user == "" || len(r.Header["Authorization"]) > 1 {
		return "", &httpidem.Denied{Detail: "The request needs one user name and password.", Challenge: `Basic realm="api", charset="UTF-8"`}
	}
	return config.UserCaller(user, password), nil
}

// logEvery is the least time between two lines that say why callers cannot be checked.
const logEvery = 10 * time.Second

// logUnchecked returns a scope that logs why callers cannot be checked: clients do not see
// the cause, and requests with a key fail.
func logUnchecked(scope func(*http.Request) (string, error), log *slog.Logger) func(*http.Request) (string, error) {
	var mu sync.Mutex
	var last time.Time
	var failed int
	return func(r *http.Request) (string, error) {
		name, err := scope(r)
		var denied *httpidem.Denied
		if !errors.As(err, &denied) || denied.Status != http.StatusServiceUnavailable || r.Context().Err() != nil {
			return name, err
		}
		mu.Lock()
		defer mu.Unlock()
		if failed++; time.Since(last) >= logEvery {
			log.Error("callers cannot be checked, and requests with a key get 503", "error", denied.Err, "requests", failed)
			last, failed = time.Now(), 0
		}
		return name, err
	}
}
