package doctorcmd_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestDoctorNamesTLSErrorsWithTheirRemedy has real servers with and without TLS. Each is asked in the other
// way, with the wrong authority, and by a name that its certificate does not have.
func TestDoctorNamesTLSErrorsWithTheirRemedy(t *testing.T) {
	t.Parallel()
	dir, other := programtest.CertifiedDir(t), programtest.CertifiedDir(t)
	cert, key, wrong := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(other, "cert.pem")
	redisTLS, rabbitTLS := servicestest.FreeAddr(t), servicestest.FreeAddr(t)
	_, redisPort, _ := net.SplitHostPort(redisTLS)
	_, rabbitPort, _ := net.SplitHostPort(rabbitTLS)
	redis := programtest.SecureRedis(t, redisTLS, dir)
	nats, natsTLS := programtest.HostOf(t, programtest.Servers.NATS(t)), servicestest.StartNATS(t, &services.NATSOptions{Config: fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key)}).Addr()
	_, natsPort, _ := net.SplitHostPort(natsTLS)
	rabbit := servicestest.StartRabbitMQ(t, &services.RabbitMQOptions{Config: fmt.Sprintf(`{ssl_listeners, [{"127.0.0.1", %s}]}, {ssl_options, [{certfile, %q}, {keyfile, %q}, {verify, verify_none}]}`, rabbitPort, cert, key)}).Addr()
	postgres := servicestest.StartPostgres(t, nil)
	plain := programtest.Connect(t, postgres.URL())(t)
	var rules string
	if err := plain.QueryRow(t.Context(), "SHOW hba_file").Scan(&rules); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"COPY (SELECT 'hostssl all all all trust') TO '" + rules + "'", "SELECT pg_reload_conf()"} {
		if _, err := plain.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}

	for err := error(nil); err == nil; { // until the rules are in use
		conn, refused := pgx.Connect(t.Context(), postgres.URL())
		if err = refused; err == nil {
			err = conn.Close(t.Context())
		}
	}

	store := func(kind string) string { return "stores: { s: { " + kind + " } }" }
	source := func(kind string) string {
		return "stores: { m: { memory: {} } }\npipelines: { p: { store: m, source: { " + kind + " }, key: { id: .id }, sink: { file: { path: out } }, parked: { path: p } } }"
	}
	fromNATS := func(at, tls string) string {
		return source(fmt.Sprintf("nats: { servers: [%q], stream: s, consumer: c%s }", at, tls))
	}
	fromRabbit := func(at, tls string) string {
		return source(fmt.Sprintf("rabbitmq: { servers: [%q], queue: q%s }", at, tls))
	}
	const unknown = "the certificate of the server is signed by an unknown authority: name the file with the certificate of that authority in "
	for name, c := range map[string]struct{ config, want string }{
		"Redis, plain to TLS":       {store(fmt.Sprintf("redis: { url: \"redis://%s\" }", redisTLS)), "closed the connection: does it expect TLS? Then write rediss:// instead of redis:// in stores.s.redis.url. Otherwise: is it up, or going down?"},
		"Redis, TLS to plain":       {store(fmt.Sprintf("redis: { url: \"rediss://%s\" }", redis.Addr())), "the server at " + redis.Addr() + " does not answer with TLS: does it speak TLS at this port? If not, write redis:// instead of rediss:// in stores.s.redis.url. "},
		"Redis, wrong authority":    {store(fmt.Sprintf("redis: { url: \"rediss://%s\", tls: { ca: %s } }", redisTLS, wrong)), unknown + "stores.s.redis.tls.ca"},
		"Redis, wrong host":         {store(fmt.Sprintf("redis: { url: \"rediss://localhost:%s\", tls: { ca: %s } }", redisPort, cert)), "the certificate of the server is for another host: certificate is not valid for any names, but wanted to match localhost: correct the host in stores.s.redis.url, or give the server a certificate for it"},
		"NATS, no authority":        {fromNATS(natsTLS, ""), unknown + "source.nats.tls.ca"},
		"NATS, TLS to plain":        {fromNATS(nats, ", tls: { ca: "+cert+" }"), "the servers have no TLS: leave source.nats.tls out, or correct source.nats.servers"},
		"NATS, wrong authority":     {fromNATS(natsTLS, ", tls: { ca: "+wrong+" }"), unknown + "source.nats.tls.ca"},
		"NATS, wrong host":          {fromNATS("localhost:"+natsPort, ", tls: { ca: "+cert+" }"), "wanted to match localhost: correct the host in source.nats.servers"},
		"RabbitMQ, plain to TLS":    {fromRabbit(rabbitTLS, ""), "a server at " + rabbitTLS + " does not answer with AMQP: does it expect TLS? Then write source.rabbitmq.tls: {}. "},
		"RabbitMQ, TLS to plain":    {fromRabbit(rabbit, ", tls: { ca: "+cert+" }"), "a server at " + rabbit + " has no TLS at this port: leave source.rabbitmq.tls out, or correct source.rabbitmq.servers"},
		"RabbitMQ, wrong authority": {fromRabbit(rabbitTLS, ", tls: { ca: "+wrong+" }"), unknown + "source.rabbitmq.tls.ca"},
		"RabbitMQ, wrong host":      {fromRabbit("localhost:"+rabbitPort, ", tls: { ca: "+cert+" }"), "wanted to match localhost: correct the host in source.rabbitmq.servers"},
		"PostgreSQL, TLS to plain":  {store(fmt.Sprintf("postgres: { dsn: \"postgres://postgres@%s/postgres?sslmode=require\" }", postgres.Addr())), "the server has no TLS: switch it on there (ssl = on), or write sslmode=disable in stores.s.postgres.dsn if the network is safe"},
		"PostgreSQL, plain to TLS":  {store(fmt.Sprintf("postgres: { dsn: \"postgres://postgres@%s/postgres?sslmode=disable\" }", postgres.Addr())), "no encryption: write sslmode=require in stores.s.postgres.dsn, or let postgres connect without TLS (pg_hba.conf)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), c.config)
			if got := programtest.Run(t, "", "doctor", file); got.Status != term.ExitFailed || !strings.Contains(got.Stderr, c.want) {
				t.Errorf("status %d, %s\nwant %s", got.Status, got.Stderr, c.want)
			}
		})
	}
}
