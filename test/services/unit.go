package services

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Unit is a server or group of servers with a name, for demonstrations and for
// tests that share servers with other processes.
type Unit struct {
	Name, About string
	// Variable is the environment variable for the address, or for several
	// addresses with commas between them.
	Variable string
	// Needs are the packages of the unit.
	Needs []string
	// Default says that the unit is started if no name is given.
	Default bool
	// on is the unit that this one follows or stands in front of.
	on    string
	start func(ctx context.Context, on *Server) (*Started, error)
}

// Started is a running unit. Addr is the value of the unit's variable.
type Started struct {
	Unit    Unit
	Addr    string
	servers []*Server
}

// Close kills the servers and removes their data.
func (s *Started) Close() error { return closeAll(s.servers) }

// Units lists all units.
func Units() []Unit {
	return []Unit{
		postgresUnit(Postgres15, "PostgreSQL 15", "SEMEL_TEST_POSTGRES", true),
		postgresUnit(Postgres18, "PostgreSQL 18", "SEMEL_TEST_POSTGRES_18", false),
		{
			Name: "standby", About: "a PostgreSQL 15 that follows postgres-15", Variable: "SEMEL_TEST_POSTGRES_STANDBY",
			Needs: []string{Postgres15}, Default: true, on: Postgres15,
			start: func(ctx context.Context, on *Server) (*Started, error) {
				return single(StartStandby(ctx, on, nil))
			},
		},
		{
			Name: PgBouncer, About: "a pool in front of postgres-15, in transaction mode", Variable: "SEMEL_TEST_PGBOUNCER",
			Needs: []string{PgBouncer, Postgres15}, Default: true, on: Postgres15,
			start: func(ctx context.Context, on *Server) (*Started, error) {
				return single(StartPgBouncer(ctx, on, nil))
			},
		},
		redisUnit(Redis70, "Redis 7.0", "SEMEL_TEST_REDIS", true),
		redisUnit(Redis82, "Redis 8.2", "SEMEL_TEST_REDIS_8_2", false),
		redisUnit(Valkey9, "Valkey 9", "SEMEL_TEST_VALKEY_9", false),
		{
			Name: RedisBloom, About: "a Redis 7.0 with the BF commands", Variable: "SEMEL_TEST_REDIS_BLOOM",
			Needs: []string{Redis70, RedisBloom}, Default: true,
			start: func(ctx context.Context, _ *Server) (*Started, error) {
				return single(StartRedis(ctx, &RedisOptions{Bloom: true}))
			},
		},
		{
			Name: "redis-cluster", About: "a cluster of three Redis 7.0", Variable: "SEMEL_TEST_REDIS_CLUSTER",
			Needs: []string{Redis70}, Default: true,
			start: func(ctx context.Context, _ *Server) (*Started, error) {
				cluster, err := StartRedisCluster(ctx, nil)
				if err != nil {
					return nil, err
				}
				return &Started{Addr: strings.Join(cluster.Addrs(), ","), servers: cluster.Nodes}, nil
			},
		},
		{
			Name: "redis-sentinel", About: "a Redis 7.0 with a replica and three Sentinels; their master is " + MasterName, Variable: "SEMEL_TEST_REDIS_SENTINEL",
			Needs: []string{Redis70}, Default: true,
			start: func(ctx context.Context, _ *Server) (*Started, error) {
				s, err := StartRedisSentinel(ctx, nil)
				if err != nil {
					return nil, err
				}
				return &Started{Addr: strings.Join(s.Addrs(), ","), servers: s.all()}, nil
			},
		},
		{
			Name: NATS2, About: "a NATS 2 with JetStream", Variable: "SEMEL_TEST_NATS",
			Needs: []string{NATS2}, Default: true,
			start: func(ctx context.Context, _ *Server) (*Started, error) {
				return single(StartNATS(ctx, nil))
			},
		},
		{
			Name: RabbitMQ3, About: "a RabbitMQ 3.10 of one node", Variable: "SEMEL_TEST_RABBITMQ",
			Needs: []string{RabbitMQ3}, Default: true,
			start: func(ctx context.Context, _ *Server) (*Started, error) {
				return single(StartRabbitMQ(ctx, nil))
			},
		},
		{
			Name: ElasticMQ, About: "an ElasticMQ, which answers as Amazon SQS does", Variable: "SEMEL_TEST_SQS",
			Needs: []string{ElasticMQ}, Default: true,
			start: func(ctx context.Context, _ *Server) (*Started, error) {
				return single(StartElasticMQ(ctx))
			},
		},
		{
			Name: Kafka43, About: "a Kafka 4.3 of one node", Variable: "SEMEL_TEST_KAFKA",
			Needs: []string{Kafka43}, Default: true,
			start: func(ctx context.Context, _ *Server) (*Started, error) {
				return single(StartKafka(ctx, &KafkaOptions{HeapMiB: kafkaHeapMiB}))
			},
		},
		{
			Name: "kafka-cluster", About: "a cluster of three Kafka 4.3", Variable: "SEMEL_TEST_KAFKA_CLUSTER",
			Needs: []string{Kafka43},
			start: func(ctx context.Context, _ *Server) (*Started, error) {
				cluster, err := StartKafkaCluster(ctx, nil)
				if err != nil {
					return nil, err
				}
				return &Started{Addr: strings.Join(cluster.Addrs(), ","), servers: cluster.Nodes}, nil
			},
		},
	}
}

func postgresUnit(version, about, variable string, byDefault bool) Unit {
	return Unit{
		Name: version, About: about, Variable: variable, Needs: []string{version}, Default: byDefault,
		start: func(ctx context.Context, _ *Server) (*Started, error) {
			return single(StartPostgres(ctx, &PostgresOptions{Version: version, Settings: map[string]string{"max_connections": manyConnections}}))
		},
	}
}

// Tests of many packages share a unit, and these are for all of them.
const (
	manyConnections = "500"
	kafkaHeapMiB    = 512
)

func redisUnit(version, about, variable string, byDefault bool) Unit {
	return Unit{
		Name: version, About: about, Variable: variable, Needs: []string{version}, Default: byDefault,
		start: func(ctx context.Context, _ *Server) (*Started, error) {
			return single(StartRedis(ctx, &RedisOptions{Version: version}))
		},
	}
}

func single(server *Server, err error) (*Started, error) {
	if err != nil {
		return nil, err
	}
	return &Started{Addr: server.URL(), servers: []*Server{server}}, nil
}

// SelectUnits returns the units with these names, each after the unit it
// depends on. Without names it returns the default units, and for the name
// "all" all units.
func SelectUnits(names []string) ([]Unit, error) {
	all := Units()
	wanted := map[string]bool{}
	for _, name := range names {
		i := slices.IndexFunc(all, func(u Unit) bool { return u.Name == name })
		if i < 0 && name != "all" {
			return nil, fmt.Errorf("services: there is no %q", name)
		}
		if i >= 0 {
			wanted[name], wanted[all[i].on] = true, true
		}
	}
	everything := slices.Contains(names, "all")
	return slices.DeleteFunc(all, func(u Unit) bool {
		return !everything && !wanted[u.Name] && (len(names) > 0 || !u.Default)
	}), nil
}

// SelectPackages returns the names of the packages for these names of units or
// packages. Without names it returns those of the ordinary tests, and for the
// name "all" all packages.
func SelectPackages(names []string) ([]string, error) {
	var selected []string
	for _, p := range Packages() {
		if slices.Contains(names, "all") || len(names) == 0 && p.Default {
			selected = append(selected, p.Name)
		}
	}
	for _, name := range names {
		if name == "all" {
			continue
		}
		if i := slices.IndexFunc(Units(), func(u Unit) bool { return u.Name == name }); i >= 0 {
			selected = append(selected, Units()[i].Needs...)
			continue
		}
		if _, err := packageNamed(name); err != nil {
			return nil, err
		}
		selected = append(selected, name)
	}
	slices.Sort(selected)
	return slices.Compact(selected), nil
}

// StartUnits starts units in the order of [SelectUnits]. If one does not start,
// the others are closed.
func StartUnits(ctx context.Context, units []Unit) ([]*Started, error) {
	var running []*Started
	byName := map[string]*Server{}
	for _, unit := range units {
		started, err := unit.start(ctx, byName[unit.on])
		if err != nil {
			return nil, errors.Join(err, CloseUnits(running))
		}
		started.Unit = unit
		running = append(running, started)
		byName[unit.Name] = started.servers[0]
	}
	return running, nil
}

// CloseUnits closes units, the last one first.
func CloseUnits(running []*Started) error {
	var failed []error
	for _, started := range slices.Backward(running) {
		failed = append(failed, started.Close())
	}
	return errors.Join(failed...)
}
