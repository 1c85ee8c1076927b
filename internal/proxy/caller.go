package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/config"
)

// errNoCaller means that a request does not say who sends it.
var errNoCaller = errors.New("the request has no credentials")

// callerOf returns the function that says who sends a request.
func callerOf(p *config.Proxy) (func(*http.Request) (string, error), error) {
	switch p.Caller.Kind {
	case "global":
		return httpidem.Global, nil
	case "header":
		return func(r *http.Request) (string, error) {
			values := r.Header.Values(p.Caller.Header)
			if len(values) != 1 || values[0] == "" {
				return "", errNoCaller
			}
			return digest(values[0]), nil
		}, nil
	case "basic":
		return func(r *http.Request) (string, error) {
			user, password, ok := r.BasicAuth()
			if !ok {
				return "", errNoCaller
			}
			return digest(user + "\x00" + password), nil
		}, nil
	case "mtls":
		return func(r *http.Request) (string, error) {
			if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
				return "", errNoCaller
			}
			return r.TLS.VerifiedChains[0][0].Subject.String(), nil
		}, nil
	}
	return nil, fmt.Errorf("scope %s: %w", p.Caller, semel.ErrInvalidRequest)
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}
