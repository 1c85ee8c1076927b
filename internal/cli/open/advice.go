package open

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
)

// advices are remedies for errors on the way to a server, chosen by a text in the
// error. The first match is used.
var advices = [...]struct{ sign, advice string }{
	{"WRONGPASS", "check the user and the password"},
	{"NOAUTH", "the server needs a password"},
	{"password authentication failed", "check the user and the password"},
	{"no such host", "check the name of the host"},
	{"connection refused", "is the server up, and the port right?"},
	{"network is unreachable", "can this machine reach it?"},
	{"no route to host", "can this machine reach it?"},
	{"x509: ", "check the certificates and their host names"},
	{"tls: ", "does the server speak TLS at this port?"},
	{"unexpected message", "is it the right kind of server?"},
	{"EOF", "the server closed the connection: is it the right kind of server, and does it need TLS?"},
	{"(SQLSTATE ", ""}, // the server has stated the problem itself
	{"i/o timeout", "is the server up, can this machine reach it, and is it the right kind of server?"},
	{"timeout: ", "is the server up, can this machine reach it, and is it the right kind of server?"},
	{"deadline exceeded", "is the server up, can this machine reach it, and is it the right kind of server?"},
}

// stalled adds the servers' addresses and a remedy to an error of servers that
// had answered before.
func stalled(ctx context.Context, stores []*config.Store, err error) error {
	servers := addresses(stores)
	if ctx.Err() != nil || servers == "" || !errors.Is(err, semel.ErrOutcomeUnknown) {
		return Advise(ctx, stores, err)
	}
	return fmt.Errorf("%w: the server stopped answering: check it, and run the same command again, which is safe (%s)", err, servers)
}

// Advise adds the servers' addresses and a remedy to an error of servers.
func Advise(ctx context.Context, stores []*config.Store, err error) error {
	if ctx.Err() != nil || !errors.Is(err, semel.ErrStoreUnavailable) && !errors.Is(err, semel.ErrOutcomeUnknown) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	servers := addresses(stores)
	if servers == "" {
		return err
	}
	text := err.Error()
	for _, a := range advices {
		if strings.Contains(text, a.sign) {
			if a.advice == "" {
				return err
			}
			return fmt.Errorf("%w: %s (%s)", err, a.advice, servers)
		}
	}
	return err
}

// addresses returns the server addresses of stores, without passwords.
func addresses(stores []*config.Store) string {
	var list []string
	for _, s := range stores {
		if address := s.Spec.About().Address; address != "" {
			list = append(list, s.Name+" is "+address)
		}
	}
	return strings.Join(list, "; ")
}
