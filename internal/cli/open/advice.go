package open

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
)

// stalled adds the servers' addresses and a remedy to an error of servers that
// had answered before.
func stalled(ctx context.Context, conf *config.File, stores []*config.Store, err error) error {
	servers := addresses(stores)
	if ctx.Err() != nil || servers == "" || !errors.Is(err, semel.ErrOutcomeUnknown) {
		return Advise(ctx, conf, stores, err)
	}
	return fmt.Errorf("%w: the server stopped answering: check it, and run the same command again, which is safe (%s)", err, servers)
}

// Advise says what an error of servers means, with a remedy and their addresses.
func Advise(ctx context.Context, conf *config.File, stores []*config.Store, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	said, ok := errors.AsType[*diagnose.Error](conf.AdviseStores(stores, err))
	if !ok {
		return err
	}
	servers := addresses(stores)
	if servers == "" || said.OfKind {
		return said
	}
	return fmt.Errorf("%w (%s)", said, servers)
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
