package redis_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/redis"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/redisstore"
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

// A client that has given up for a while shows its last error, with the remedy of that error.
func TestAServerThatIsDownHasTheRemedyOfItsLastError(t *testing.T) {
	t.Parallel()
	address, err := net.ResolveTCPAddr("tcp", "127.0.0.1:6379")
	if err != nil {
		t.Fatal(err)
	}
	store := &redis.Store{URL: schema.NewAddress("redis://127.0.0.1:6379")}
	silent := &redisstore.SilentError{Since: time.Unix(0, 0), Last: &net.OpError{Op: "dial", Addr: address, Err: syscall.ECONNREFUSED}}
	const want = "no answer since 1970-01-01T00:00:00Z: no server listens at 127.0.0.1:6379: connection refused: is the server up, and the port right?"
	if said := store.Advise(nil, nil, "stores.s.redis", silent); said == nil || said.Error() != want || said.ForAll() == nil {
		t.Errorf("%v", said)
	}
	silent.Last = fmt.Errorf("no answer within 3s: %w", semel.ErrOutcomeUnknown) // the server is frozen
	const frozen = "no answer since 1970-01-01T00:00:00Z: no Redis server answers at 127.0.0.1:6379: is the server up, can this machine reach it, and is it the right kind of server?"
	if said := store.Advise(nil, nil, "stores.s.redis", fmt.Errorf("redisstore: ready: %w", silent)); said == nil || said.Error() != frozen || said.ForAll() == nil {
		t.Errorf("%v", said)
	}
	direct := fmt.Errorf("ready: %w: %w", semel.ErrStoreUnavailable, silent.Last) // the first one that met it
	if said := store.Advise(nil, nil, "stores.s.redis", direct); said == nil || "no answer since 1970-01-01T00:00:00Z: "+said.Error() != frozen {
		t.Errorf("%v", said)
	}
	if said := store.Advise(nil, nil, "stores.s.redis", &redisstore.SilentError{Last: io.ErrShortWrite}); said != nil {
		t.Errorf("%v", said)
	}
}
