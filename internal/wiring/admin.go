package wiring

import (
	"crypto/tls"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
)

// ServerTLS reads the files that secure a listener; it returns nil if there are
// none. Its error wraps semel.ErrInvalidRequest.
func ServerTLS(spec *config.ServerTLS) (*tls.Config, error) {
	c, err := serverTLS(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, semel.ErrInvalidRequest)
	}
	return c, nil
}
