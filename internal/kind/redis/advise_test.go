package redis_test

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/redis"
	"github.com/semel-dev/semel/internal/schema"
)

// A server that expects TLS closes a connection without it.
func TestAClosedConnectionHintsAtTLS(t *testing.T) {
	t.Parallel()
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	for _, c := range []struct {
		store *redis.Store
		err   error
		want  string // "" if it hints at nothing
	}{
		{&redis.Store{URL: schema.NewAddress("redis://h:6379")}, reset, "rediss:// instead of redis:// in stores.s.redis.url"},
		{&redis.Store{URL: schema.NewAddress("redis://h:6379")}, io.EOF, "rediss://"},
		{&redis.Store{Cluster: []string{"h:6379"}}, reset, "stores.s.redis.tls: {}"},
		{&redis.Store{URL: schema.NewAddress("rediss://h:6379")}, reset, ""},
		{&redis.Store{Cluster: []string{"h:6379"}, TLS: &config.TLS{}}, reset, ""},
	} {
		said := c.store.Advise(nil, nil, "stores.s.redis", c.err)
		if c.want == "" && said != nil || c.want != "" && (said == nil || !strings.Contains(said.Remedy, c.want)) {
			t.Errorf("%v is explained as %v, want %q", c.err, said, c.want)
		}
	}
}
