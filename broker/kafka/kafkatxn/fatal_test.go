package kafkatxn

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
)

func TestOnlyARefusalThatLastsEndsATransactor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("login: %w", kerr.SaslAuthenticationFailed), true},
		{fmt.Errorf("no token: %w: %w", semel.ErrInvalidRequest, kerr.SaslAuthenticationFailed), true},
		{fmt.Errorf("no answer from the issuer: %w: %w", semel.ErrStoreUnavailable, kerr.SaslAuthenticationFailed), false},
		{semel.ErrStoreUnavailable, false},
	} {
		if got := fatal(c.err); got != c.want {
			t.Errorf("%v: fatal %v, want %v", c.err, got, c.want)
		}
	}
}
