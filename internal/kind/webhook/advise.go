package webhook

import (
	"errors"
	"net"
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
	if strings.Contains(err.Error(), "answered 401") {
		return &diagnose.Error{Cause: strings.TrimPrefix(diagnose.Line(err.Error()), "unavailable: "), Remedy: "correct the credentials in " + path + ".headers"}
	}
	return nil
}
