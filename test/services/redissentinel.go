package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// MasterName is the name of the master in a [RedisSentinel].
const MasterName = "semel"

// RedisSentinel is a master with a replica and three Sentinels. The Sentinels
// promote the replica when the master is away for more than ten seconds,
// because on a slow machine a running master may stop answering for a while.
// See [RedisSentinel.KillMaster].
type RedisSentinel struct {
	Master, Replica *Server // the roles at the start
	Sentinels       []*Server
}

// StartRedisSentinel starts five servers and returns when the Sentinels are
// able to fail over. Before that they would not notice the loss of the master.
// The options are those of master and replica, and nil is valid.
func StartRedisSentinel(ctx context.Context, opts *RedisOptions) (_ *RedisSentinel, err error) {
	o := RedisOptions{}
	if opts != nil {
		o = *opts
	}
	s := &RedisSentinel{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Master, err = StartRedis(ctx, &o); err != nil {
		return nil, err
	}
	o.Args = append(slices.Clone(o.Args), "--replicaof", "127.0.0.1 "+strconv.Itoa(s.Master.Port()))
	if s.Replica, err = StartRedis(ctx, &o); err != nil {
		return nil, err
	}
	for range 3 {
		sentinel, err := startSentinel(ctx, s.Master)
		if err != nil {
			return nil, err
		}
		s.Sentinels = append(s.Sentinels, sentinel)
	}
	return s, s.waitAware(ctx)
}

func startSentinel(ctx context.Context, master *Server) (*Server, error) {
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		return nil, err
	}
	k := redisKind("sentinel", master.kind.program)
	common := k.args
	k.args = func(dir string, port int) []string {
		return append([]string{"sentinel.conf", "--sentinel"}, common(dir, port)...)
	}
	conf := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s 2\nsentinel down-after-milliseconds %[1]s 10000\nsentinel failover-timeout %[1]s 3000\n",
		MasterName, host, port)
	return start(ctx, k, withFiles(map[string][]byte{"sentinel.conf": []byte(conf)}), nil)
}

func (s *RedisSentinel) waitAware(ctx context.Context) error {
	return until(ctx, "Sentinels that know each other and the replica", func(ctx context.Context) error {
		link, err := redisInfo(ctx, s.Replica.Addr(), "replication")
		if err != nil || link["master_link_status"] != "up" {
			return fmt.Errorf("the replica's link is %q: %v", link["master_link_status"], err)
		}
		for _, sentinel := range s.Sentinels {
			if _, err := RedisDo(ctx, sentinel.Addr(), "SENTINEL", "CKQUORUM", MasterName); err != nil {
				return err
			}
			state, err := redisInfo(ctx, sentinel.Addr(), "sentinel")
			if err != nil || !strings.HasSuffix(state["master0"], "slaves=1,sentinels=3") {
				return fmt.Errorf("%s knows %s: %v", sentinel.Addr(), state["master0"], err)
			}
		}
		return nil
	})
}

// Detach cuts the replica off from the master. The Sentinels normally reconnect
// it after a few seconds. They now wait until [RedisSentinel.KillMaster].
func (s *RedisSentinel) Detach(ctx context.Context) error {
	if err := s.set(ctx, "failover-timeout", "60000"); err != nil {
		return err
	}
	_, err := RedisDo(ctx, s.Replica.Addr(), "REPLICAOF", "127.0.0.1", "1")
	return err
}

// KillMaster kills the master, and lets the Sentinels notice after three
// seconds. They promote a replica that was cut off for at most ten times as
// long.
func (s *RedisSentinel) KillMaster(ctx context.Context) error {
	if err := s.Master.Kill(); err != nil {
		return err
	}
	return s.set(ctx, "down-after-milliseconds", "3000", "failover-timeout", "3000")
}

func (s *RedisSentinel) set(ctx context.Context, settings ...string) error {
	for _, sentinel := range s.Sentinels {
		if _, err := RedisDo(ctx, sentinel.Addr(), append([]string{"SENTINEL", "SET", MasterName}, settings...)...); err != nil {
			return fmt.Errorf("services: set %v of a Sentinel: %w", settings, err)
		}
	}
	return nil
}

// Current returns the server that the Sentinels call the master now.
func (s *RedisSentinel) Current(ctx context.Context) (*Server, error) {
	var seen []error
	for _, sentinel := range s.Sentinels {
		reply, err := RedisDo(ctx, sentinel.Addr(), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
		if err != nil {
			seen = append(seen, err)
			continue
		}
		for _, server := range []*Server{s.Master, s.Replica} {
			if fmt.Sprint(reply) == fmt.Sprintf("[127.0.0.1 %d]", server.Port()) {
				return server, nil
			}
		}
		seen = append(seen, fmt.Errorf("%s names %v", sentinel.Addr(), reply))
	}
	return nil, fmt.Errorf("services: no Sentinel names a master: %w", errors.Join(seen...))
}

// Addrs returns the addresses of the Sentinels.
func (s *RedisSentinel) Addrs() []string { return addrs(s.Sentinels) }

// Close kills all servers and removes their data.
func (s *RedisSentinel) Close() error { return closeAll(s.all()) }

func (s *RedisSentinel) all() []*Server {
	return append([]*Server{s.Master, s.Replica}, s.Sentinels...)
}
