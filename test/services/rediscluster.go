package services

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// RedisCluster is a cluster of three masters that share the slots evenly. After
// a node is away for more than five seconds, the others consider it failed, and
// all of them refuse writes until it is back.
type RedisCluster struct {
	Nodes []*Server
}

// StartRedisCluster starts three servers and returns when each of them reports
// a complete cluster. Nil options are valid.
func StartRedisCluster(ctx context.Context, opts *RedisOptions) (_ *RedisCluster, err error) {
	o := RedisOptions{}
	if opts != nil {
		o = *opts
	}
	o.Args = append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "5000"}, o.Args...)
	c := &RedisCluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	const nodes, slots = 3, 16384
	for i := range nodes {
		node, err := StartRedis(ctx, &o)
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, node)
		first, last := i*slots/nodes, (i+1)*slots/nodes-1
		for _, command := range [][]string{
			{"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last)},
			{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)},
			{"CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(c.Nodes[0].Port())},
		} {
			if _, err := RedisDo(ctx, node.Addr(), command...); err != nil {
				return nil, fmt.Errorf("services: %v: %w", command, err)
			}
		}
	}
	return c, c.WaitWhole(ctx)
}

// WaitWhole returns when each node reports that all slots are served, for
// example after a node was killed and restarted. Without a deadline it waits at
// most a minute.
func (c *RedisCluster) WaitWhole(ctx context.Context) error {
	return until(ctx, "a whole cluster", func(ctx context.Context) error {
		for _, node := range c.Nodes {
			reply, err := RedisDo(ctx, node.Addr(), "CLUSTER", "INFO")
			if err != nil {
				return err
			}
			info := fmt.Sprint(reply)
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(len(c.Nodes))) {
				return fmt.Errorf("%s says %s", node.Addr(), strings.ReplaceAll(info, "\r\n", " "))
			}
		}
		return nil
	})
}

// Addrs returns the addresses of the nodes.
func (c *RedisCluster) Addrs() []string { return addrs(c.Nodes) }

// Close kills all nodes and removes their data.
func (c *RedisCluster) Close() error { return closeAll(c.Nodes) }
