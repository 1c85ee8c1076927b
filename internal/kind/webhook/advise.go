package webhook

import (
	"errors"
	"net"
	"net/http"
	"strings"

	"github.com/semel-dev/semel/broker/webhook"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
)

// Advise implements config.Kind.
func (*Sink) Advise(_ *config.File, _ *config.Pipeline, path string, err error) *diagnose.Error {
	if of, ok := errors.AsType[*webhook.PrivateAddressError](err); ok {
		return &diagnose.Error{Cause: of.Address.String() + " is not a public address", Remedy: "correct " + path + ".url, or set " + path + ".allow_private", Public: true}
	}
	if of, ok := errors.AsType[*net.DNSError](err); ok && of.IsNotFound {
		return &diagnose.Error{Cause: "no such host: " + of.Name, Remedy: "check the name in " + path + ".url", Public: true}
	}
	if of, ok := errors.AsType[*webhook.StatusError](err); ok {
		return &diagnose.Error{Cause: strings.TrimPrefix(diagnose.Line(err.Error()), "unavailable: "), Shown: of.Public(), Remedy: answered(of.Code, path)}
	}
	return nil
}

// answered says what to do about a status of the target.
func answered(code int, path string) string {
	switch code {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired:
		return "correct the credentials in " + path + ".headers"
	case http.StatusForbidden:
		return "may the credentials in " + path + ".headers do that?"
	case http.StatusTooManyRequests:
		return "the service takes fewer requests: lower parallel"
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return "is the service behind that server up?"
	case http.StatusServiceUnavailable:
		return "is the service up?"
	}
	return "look into the log of the service"
}
