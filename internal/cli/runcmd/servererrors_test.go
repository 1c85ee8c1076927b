package runcmd_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestRunLogsErrorsOfServersWithTheirRemedy runs pipelines while something that they need is
// missing or wrong. The log and the probe name it, and the pipeline continues when
// it is fixed.
func TestRunLogsErrorsOfServersWithTheirRemedy(t *testing.T) {
	t.Parallel()
	kafka, database := programtest.Servers.Kafka(t), programtest.Servers.Database(t)
	admin := programtest.Connect(t, database)
	migrated := programtest.WriteFile(t, filepath.Join(t.TempDir(), "db.yaml"), fmt.Sprintf("stores: { db: { postgres: { dsn: %q } } }", database))
	programtest.Run(t, "", "migrate", "up", "--config", migrated, "--store-name", "db").Check(t, 0, "applied")
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	createTopic := func(name string) func(*testing.T) {
		return func(t *testing.T) {
			if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	sql := func(text string) func(*testing.T) {
		return func(t *testing.T) {
			if _, err := admin(t).Exec(t.Context(), text); err != nil {
				t.Fatal(err)
			}
		}
	}
	as := func(user, password, name string) string {
		u, err := url.Parse(database)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(user, password)
		if name != "" {
			u.Path = "/" + name
		}
		return u.String()
	}
	const (
		lines = "file: { paths: [in.jsonl], follow: true }"
		own   = "stores: { own: { embedded: { path: keys } } }"
	)
	pipe := func(store, source, sink, more string) string {
		if store != "" {
			store = ", store: " + store
		}
		return fmt.Sprintf("pipelines:\n  orders: { source: { %s }, key: { id: .id }%s, sink: { %s }%s }\n", source, store, sink, more)
	}
	db := fmt.Sprintf("stores: { db: { postgres: { dsn: %q } } }", database)
	topic := servicestest.Topic
	source, sink, parked, txn := topic(), topic(), topic(), topic()
	createTopic(txn)(t)
	rows := func(table string) string {
		return "postgres: { store: db, table: " + table + ", columns: { id: .id, amount: .amount } }"
	}
	created := func(table string) string { return "CREATE TABLE " + table + " (id text, amount int8)" }
	role := "app_" + strings.TrimSuffix(servicestest.Prefix(), ":")
	missing := "db_" + strings.TrimSuffix(servicestest.Prefix(), ":")
	redis := servicestest.StartRedis(t, nil)
	acl := func(password string) func(*testing.T) {
		return func(t *testing.T) {
			if _, err := services.RedisDo(t.Context(), redis.Addr(), "ACL", "SETUSER", "app", "on", ">"+password, "~*", "+@all"); err != nil {
				t.Fatal(err)
			}
		}
	}
	quiet := silentServer(t)
	hook := servicestest.FreeAddr(t)
	natsServer, rabbitServer := programtest.Servers.NATS(t), programtest.Servers.RabbitMQ(t)
	trusted, replaced, named := programtest.CertifiedDir(t), servicestest.FreeAddr(t), servicestest.FreeAddr(t)
	_, namedPort, _ := net.SplitHostPort(named)
	ca := filepath.Join(trusted, "cert.pem")
	var unknown *services.Server
	for _, c := range []struct {
		name   string
		before func(t *testing.T)
		config string
		log    []string // in one line of the log
		probe  []string
		not    []string // in no line
		fix    func(t *testing.T)
	}{
		{
			name: "missing target table", config: db + "\n" + pipe("db", lines, rows("absent"), ""),
			log:   []string{"paused", "reason=sink", `error="table absent does not exist: create it, or correct sink.postgres.table"`},
			probe: []string{"orders: not ready: the sink has not worked since 2", ": table absent does not exist: create it"},
			not:   []string{"migrate"},
			fix:   sql(created("absent")),
		},
		{
			name: "missing target table, keys elsewhere", config: strings.Replace(db, "stores: {", "stores: { own: { embedded: { path: keys } },", 1) + "\n" + pipe("own", lines, rows("absent2"), ""),
			log:   []string{"paused", "reason=sink", `error="table absent2 does not exist: create it, or correct sink.postgres.table"`},
			probe: []string{": table absent2 does not exist: create it"},
			not:   []string{"migrate"},
			fix:   sql(created("absent2")),
		},
		{
			name: "missing column", before: sql("CREATE TABLE narrow (id text)"), config: db + "\n" + pipe("db", lines, rows("narrow"), ""),
			log:   []string{"paused", "reason=sink", `error="table narrow has no column amount: add it, or correct sink.postgres.columns"`},
			probe: []string{"table narrow has no column amount"},
			not:   []string{"migrate"},
			fix:   sql("ALTER TABLE narrow ADD amount int8"),
		},
		{
			name: "missing table of a statement", config: db + "\n" + pipe("db", lines, `postgres: { store: db, statement: "INSERT INTO gone VALUES ($1)", args: [.id] }`, ""),
			log:   []string{"paused", "reason=sink", `error="table gone does not exist: create it, or correct sink.postgres.statement"`},
			probe: []string{"table gone does not exist"},
			not:   []string{"migrate"},
			fix:   sql("CREATE TABLE gone (id text)"),
		},
		{
			name: "no unique index", before: sql(created("plain")), config: db + "\n" + pipe("db", lines, strings.Replace(rows("plain"), "table:", "key: [id], table:", 1), ""),
			log:   []string{"paused", "reason=sink", `error="no unique index of table plain has the columns (id): CREATE UNIQUE INDEX ON plain (id), or correct sink.postgres.key"`},
			probe: []string{"no unique index of table plain"},
			fix:   sql("CREATE UNIQUE INDEX ON plain (id)"),
		},
		{
			name:   "no privilege",
			before: sql("CREATE ROLE " + role + " LOGIN; " + created("closed") + "; GRANT ALL ON ALL TABLES IN SCHEMA public TO " + role + "; REVOKE ALL ON closed FROM " + role),
			config: fmt.Sprintf("stores: { db: { postgres: { dsn: %q } } }", as(role, "", "")) + "\n" + pipe("db", lines, rows("closed"), ""),
			log:    []string{"paused", "reason=sink", "user " + role + ": permission denied for table closed: grant the privilege: GRANT INSERT ON closed TO " + role},
			probe:  []string{"permission denied for table closed"},
			fix:    sql("GRANT INSERT ON closed TO " + role),
		},
		{
			name: "missing role", config: fmt.Sprintf("stores: { db: { postgres: { dsn: %q } } }", as("nobody-"+role, "x", "")) + "\n" + pipe("db", lines, rows("t1"), ""),
			before: sql(created("t1")),
			log:    []string{"cannot start yet", "store db: ", "nobody-" + role, "does not exist: create the role", "or correct stores.db.postgres.dsn", "attempt=1 next="},
			probe:  []string{"orders: not ready: ", "create the role"},
			not:    []string{"store unavailable", "failed to connect"},
			fix:    sql(fmt.Sprintf("CREATE ROLE %q LOGIN SUPERUSER", "nobody-"+role)),
		},
		{
			name: "missing database", config: own + "\n" + pipe("own", lines, fmt.Sprintf("postgres: { dsn: %q, table: orders, columns: { id: .id } }", as("postgres", "x", missing)), ""),
			log:   []string{"cannot start yet", "sink: database " + missing + " does not exist: create it: createdb " + missing + ", or correct sink.postgres.dsn"},
			probe: []string{"database " + missing + " does not exist"},
			not:   []string{"store unavailable", "failed to connect"},
			fix: func(t *testing.T) {
				sql("CREATE DATABASE " + missing)(t)
				if _, err := programtest.Connect(t, as("postgres", "x", missing))(t).Exec(t.Context(), "CREATE TABLE orders (id text)"); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			name: "missing source topic", config: own + "\n" + pipe("own", fmt.Sprintf("kafka: { brokers: [%q], topics: [%s], group: %s }", kafka, source, source), "file: { path: out }", ", parked: { path: p }"),
			log:   []string{"not ready", "topic " + source + " does not exist: create it with kafka-topics.sh --create --topic " + source + " --bootstrap-server " + kafka + ", or correct source.kafka.topics"},
			probe: []string{"orders: not ready: source: topic " + source + " does not exist"},
			fix:   createTopic(source),
		},
		{
			name: "missing parked topic", before: createTopic(source + "-in"),
			config: own + "\n" + pipe("own", fmt.Sprintf("kafka: { brokers: [%q], topics: [%s-in], group: %[2]s-in }", kafka, source), "file: { path: out }", ", parked: { topic: "+source+"-parked }"),
			log:    []string{"cannot start yet", "parked: topic " + source + "-parked does not exist: create it with kafka-topics.sh --create --topic " + source + "-parked --bootstrap-server " + kafka + " --config retention.ms=-1, or correct parked.topic"},
			probe:  []string{"topic " + source + "-parked does not exist"},
			fix:    createTopic(source + "-parked"),
		},
		{
			name:   "missing NATS stream",
			config: own + "\n" + pipe("own", fmt.Sprintf("nats: { servers: [%q], stream: %s, consumer: c, create: true }", programtest.HostOf(t, natsServer), sink), "file: { path: out }", ", parked: { path: p }"),
			log:    []string{"cannot start yet", "source: there is no stream " + sink + ": create it with nats stream add " + sink + ", or set source.nats.subjects with create: true"},
			probe:  []string{": source: there is no stream " + sink},
			not:    []string{"store unavailable"},
			fix: func(t *testing.T) {
				if _, err := programtest.ConnectJetStream(t, natsServer).CreateStream(t.Context(), jetstream.StreamConfig{Name: sink, Subjects: []string{sink}}); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			name:   "missing RabbitMQ queue",
			config: own + "\n" + pipe("own", fmt.Sprintf("rabbitmq: { servers: [%q], queue: %s }", rabbitServer, sink), "file: { path: out }", ", parked: { path: p }"),
			log:    []string{"cannot start yet", "source: there is no queue " + sink + ": create it with rabbitmqadmin declare queue name=" + sink},
			probe:  []string{": source: there is no queue " + sink},
			not:    []string{"store unavailable"},
			fix: func(t *testing.T) {
				programtest.DeclareQueue(t, programtest.RabbitChannel(t, "amqp://guest:guest@"+rabbitServer), sink, amqp.QueueTypeQuorum, nil)
			},
		},
		{
			name: "missing sink topic", config: own + "\n" + pipe("own", lines, fmt.Sprintf("kafka: { brokers: [%q], topic: %s }", kafka, sink), ", parked: { path: p }"),
			log:   []string{"paused", "reason=sink", "topic " + sink + " does not exist: create it with kafka-topics.sh", "or correct sink.kafka.topic"},
			probe: []string{": topic " + sink + " does not exist"},
			fix:   createTopic(sink),
		},
		{
			name: "missing output topic of a transaction", config: pipe("", fmt.Sprintf("kafka: { brokers: [%q], topics: [%s], group: %s }", kafka, txn, txn), fmt.Sprintf("kafka: { brokers: [%q], topic: %s-out }", kafka, txn), ", window: 1h"),
			log:   []string{"topic " + txn + "-out does not exist: create it with kafka-topics.sh", "or correct sink.kafka.topic"},
			probe: []string{"topic " + txn + "-out does not exist"},
			fix:   createTopic(txn + "-out"),
		},
		{
			name: "missing parked topic", config: own + "\n" + pipe("own", lines, fmt.Sprintf("kafka: { brokers: [%q], topic: %s }", kafka, txn), ", parked: { topic: "+parked+" }"),
			log:   []string{"cannot start yet", "parked: topic " + parked + " does not exist: create it", "or correct parked.topic"},
			probe: []string{"topic " + parked + " does not exist"},
			fix:   createTopic(parked),
		},
		{
			name: "no broker", config: own + "\n" + pipe("own", lines, fmt.Sprintf("kafka: { brokers: [%q], topic: %s }", servicestest.FreeAddr(t), sink), ", parked: { path: p }"),
			log:   []string{"cannot start yet", "sink: no server listens at 127.0.0.1:", "connection refused: is the server up, and the port right?"},
			probe: []string{"no server listens at 127.0.0.1:"},
			not:   []string{"store unavailable"},
		},
		{
			name: "a broker that is PostgreSQL", config: own + "\n" + pipe("own", lines, fmt.Sprintf("kafka: { brokers: [%q], topic: %s }", programtest.HostOf(t, database), sink), ", parked: { path: p }"),
			log:   []string{"cannot start yet", "is it the right kind of server"},
			probe: []string{"is it the right kind of server"},
			not:   []string{"store unavailable"},
		},
		{
			name: "a broker that never answers", config: own + "\n" + pipe("own", fmt.Sprintf("kafka: { brokers: [%q], topics: [in], group: g }", quiet), "file: { path: out }", ", parked: { path: p }"),
			log:   []string{"cannot start yet", "no answer from " + quiet, "is it the right kind of server"},
			probe: []string{"no answer from " + quiet},
		},
		{
			name: "a database that never answers", config: fmt.Sprintf("stores: { db: { postgres: { dsn: \"postgres://app:x@%s/x?sslmode=disable\" } } }\n", quiet) + pipe("db", lines, "file: { path: out }", ", parked: { path: p }"),
			log:   []string{"cannot start yet", "no answer from " + quiet, "is it the right kind of server"},
			probe: []string{"no answer from " + quiet},
			not:   []string{`\n`, `\x0a`},
		},
		{
			name: "database down", config: fmt.Sprintf("stores: { db: { postgres: { dsn: \"postgres://app:x@%s/x\" } } }\n", servicestest.FreeAddr(t)) + pipe("db", lines, "file: { path: out }", ", parked: { path: p }"),
			log:   []string{"cannot start yet", "store db: no server listens at 127.0.0.1:", ": connection refused: is the server up, and the port right?"},
			probe: []string{"no server listens at 127.0.0.1:"},
			not:   []string{`\n`, `\x0a`, "dial tcp", "store unavailable"},
		},
		{
			name: "wrong Redis password", before: acl("right"), config: fmt.Sprintf("stores: { cache: { redis: { url: \"redis://app:wrong@%s\" } } }\n", redis.Addr()) + pipe("cache", lines, "file: { path: out }", ", parked: { path: p }"),
			log:   []string{"cannot start yet", "store cache: password refused for user app: check the user and the password in stores.cache.redis.url"},
			probe: []string{"password refused for user app"},
			not:   []string{"store unavailable"},
			fix:   acl("wrong"),
		},
		{
			name:   "Redis with a certificate of another authority",
			before: func(t *testing.T) { unknown = programtest.SecureRedis(t, replaced, programtest.CertifiedDir(t)) },
			config: fmt.Sprintf("stores: { cache: { redis: { url: \"rediss://%s\", tls: { ca: %s } } } }\n", replaced, ca) + pipe("cache", lines, "file: { path: out }", ", parked: { path: p }"),
			log:    []string{"cannot start yet", "store cache: the certificate of the server is signed by an unknown authority: name the file with the certificate of that authority in stores.cache.redis.tls.ca"},
			probe:  []string{"signed by an unknown authority"},
			not:    []string{"store unavailable"},
			fix: func(t *testing.T) { // the server gets the right certificate
				if _, err := services.RedisDo(t.Context(), unknown.Addr(), "CONFIG", "SET", "tls-cert-file", ca, "tls-key-file", filepath.Join(trusted, "key.pem")); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			name:   "Redis with a certificate for another host",
			before: func(t *testing.T) { programtest.SecureRedis(t, named, trusted) },
			config: fmt.Sprintf("stores: { cache: { redis: { url: \"rediss://localhost:%s\", tls: { ca: %s } } } }\n", namedPort, ca) + pipe("cache", lines, "file: { path: out }", ", parked: { path: p }"),
			log:    []string{"cannot start yet", "store cache: the certificate of the server is for another host: ", "wanted to match localhost: correct the host in stores.cache.redis.url, or give the server a certificate for it"},
			probe:  []string{"the certificate of the server is for another host"},
			not:    []string{"store unavailable"},
		},
		{
			name: "webhook without a name", config: own + "\n" + pipe("own", lines, `webhook: { url: "http://api.invalid/" }`, ", parked: { path: p }"),
			log:   []string{"paused", "reason=sink", "no such host: api.invalid: check the name in sink.webhook.url"},
			probe: []string{"the sink has not worked since 2", "no such host: api.invalid"},
		},
		{
			name: "webhook that never answers", config: own + "\n" + pipe("own", lines, fmt.Sprintf(`webhook: { url: "http://%s/", allow_private: true, timeout: 5m }`, quiet), ", parked: { path: p }"),
			log:   []string{"stalled", "http://" + quiet + "/"},
			probe: []string{"orders: not ready: stalled for ", "waiting for an answer from http://" + quiet + "/: is the service up?"},
		},
		{
			name: "webhook down", config: own + "\n" + pipe("own", lines, fmt.Sprintf(`webhook: { url: "http://%s/", allow_private: true }`, hook), ", parked: { path: p }"),
			log:   []string{"paused", "reason=sink", "no server listens at " + hook + ": connection refused: is the server up, and the port right?", "attempt=1 next="},
			probe: []string{"no server listens at " + hook},
			fix: func(t *testing.T) {
				listener, err := net.Listen("tcp", hook)
				if err != nil {
					t.Fatal(err)
				}
				server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}}
				server.Start()
				t.Cleanup(server.Close)
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.before != nil {
				c.before(t)
			}
			own, id := t.TempDir(), servicestest.Prefix() // the keys of all rows are in one database
			programtest.WriteFile(t, filepath.Join(own, "in.jsonl"), fmt.Sprintf("{\"id\":\"%s1\",\"amount\":7}\n{\"id\":\"%[1]s2\",\"amount\":8}\n", id))
			r := programtest.StartRun(t, programtest.WriteFile(t, filepath.Join(own, "c.yaml"), c.config))
			line := r.Line(c.log...)
			t.Log(line)
			r.Probe(http.StatusServiceUnavailable, c.probe...)
			for _, word := range c.not {
				if strings.Contains(r.Log.Text(), word) {
					t.Errorf("the log has %q", word)
				}
			}
			if c.fix != nil {
				c.fix(t)
				r.Probe(http.StatusOK, "orders: ready")
			}
		})
	}
}

// TestRunLooksForTheTableBeforeItSaysThatItRuns has no message: the first webhook would be late
// for this.
func TestRunLooksForTheTableBeforeItSaysThatItRuns(t *testing.T) {
	t.Parallel()
	database := programtest.Servers.Database(t)
	for name, keys := range map[string]string{"one transaction": "db", "two phases": "own"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`stores: { db: { postgres: { dsn: %q, prefix: %s_ } }, own: { embedded: { path: keys } } }
pipelines: { orders: { source: { http: { listen: %q } }, key: { id: .id }, store: %s, sink: { postgres: { store: db, table: absent_%[4]s, columns: { id: .id } } }, parked: { path: parked } } }
`, database, keys, servicestest.FreeAddr(t), keys))
			programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, 0, "applied")
			r := programtest.StartRun(t, file)
			r.Line("msg=running")
			text := r.Log.Text()
			if at := strings.Index(text, "sink: table absent_"+keys+" does not exist: create it, or correct sink.postgres.table"); at < 0 || at > strings.Index(text, "msg=running") {
				t.Errorf("the log does not begin with the missing table:\n%s", text)
			}
			r.Probe(http.StatusServiceUnavailable, "table absent_"+keys+" does not exist")
			if _, err := programtest.Connect(t, database)(t).Exec(t.Context(), "CREATE TABLE absent_"+keys+" (id text)"); err != nil {
				t.Fatal(err)
			}
			r.Probe(http.StatusOK, "orders: ready")
		})
	}
}

// TestRunLogsAPasswordThatChanged starts with a wrong password. Then the server's
// password changes while the pipeline runs.
func TestRunLogsAPasswordThatChanged(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	admin := programtest.Connect(t, server.URL())(t)
	sql := func(text string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	var rules string
	if err := admin.QueryRow(t.Context(), "SHOW hba_file").Scan(&rules); err != nil {
		t.Fatal(err)
	}
	programtest.WriteFile(t, rules, "local all all trust\nhost all postgres all trust\nhost all app all scram-sha-256\n")
	sql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'first'; CREATE TABLE orders (id text); SELECT pg_reload_conf()")
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n")
	config := func(password string) string {
		return fmt.Sprintf(`
stores: { db: { postgres: { dsn: "postgres://app:%s@%s/postgres?sslmode=disable" } } }
pipelines:
  orders: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: db, sink: { postgres: { store: db, table: orders, columns: { id: .id } } } }
`, password, server.Addr())
	}
	programtest.Run(t, "", "migrate", "up", "--config", programtest.WriteFile(t, filepath.Join(dir, "first.yaml"), config("first"))).Check(t, 0, "applied")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), config("second"))
	const refused = "password refused for user app: correct stores.db.postgres.dsn"
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, 1, refused)
	r := programtest.StartRun(t, file)
	r.Line("cannot start yet", "store db: "+refused, "attempt=1 next=")
	r.Probe(http.StatusServiceUnavailable, "orders: not ready: ", refused)
	sql("ALTER ROLE app PASSWORD 'second'")
	r.Probe(http.StatusOK, "orders: ready")
	before := strings.Count(r.Log.Text(), refused)
	sql("ALTER ROLE app PASSWORD 'third'")
	// A connection that was on its way may still get through.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(programtest.TroubleWithin); strings.Count(r.Log.Text(), refused) == before && time.Now().Before(late); <-tick.C {
		sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
	}
	r.Line("level=WARN", refused)
	r.Probe(http.StatusServiceUnavailable, refused)
	sql("ALTER ROLE app PASSWORD 'second'")
	r.Probe(http.StatusOK, "orders: ready")
	if text := r.Log.Text(); strings.Contains(text, "store unavailable") || strings.Contains(text, "second") || strings.Contains(text, "failed to connect") {
		t.Error(text)
	}
}

// TestRunLogsTheCommandThatCreatesMissingTables runs a pipeline before migrate, with its keys
// or its parked messages in a database that has no tables. It continues when they are there.
func TestRunLogsTheCommandThatCreatesMissingTables(t *testing.T) {
	t.Parallel()
	for store, parked := range map[string]string{"db": "path: p", "own": "store: db"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n")
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { db: { postgres: { dsn: %q } }, own: { embedded: { path: keys } } }
pipelines:
  orders: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: %s, sink: { file: { path: out } }, parked: { %s } }
`, programtest.Servers.Database(t), store, parked))
			r := programtest.StartRun(t, file)
			command := ": semel migrate up --config " + file + " --store-name db"
			line := r.Line("cannot start yet", "no table", command)
			if strings.Contains(line, "not migrated") || strings.Contains(line, "Options.Migrate") {
				t.Error(line)
			}
			r.Probe(http.StatusServiceUnavailable, "orders: not ready: ", command)
			programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, 0, "applied")
			r.Probe(http.StatusOK, "orders: ready")
		})
	}
}

// silentServer returns the address of a server that accepts connections, and never
// answers.
func silentServer(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns atomic.Pointer[[]net.Conn]
	conns.Store(&[]net.Conn{})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all := append(*conns.Load(), conn)
			conns.Store(&all)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		for _, conn := range *conns.Load() {
			_ = conn.Close()
		}
	})
	return listener.Addr().String()
}
