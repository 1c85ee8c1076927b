package services

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// KafkaCluster is three nodes, each broker and controller. Topics have three
// replicas, and a write needs two replicas in sync. The cluster serves as long
// as two nodes run. If two nodes are down, neither is back before the other
// starts too.
type KafkaCluster struct {
	Nodes []*Server
}

// StartKafkaCluster starts three nodes and returns when each of them knows the
// others. Nil options are valid; they are those of [StartKafka].
func StartKafkaCluster(ctx context.Context, opts *KafkaOptions) (*KafkaCluster, error) {
	install, err := findKafka(opts)
	if err != nil {
		return nil, err
	}
	for range portTries {
		c, err := startKafkaCluster(ctx, install)
		if !errors.Is(err, errPortTaken) {
			return c, err
		}
	}
	return nil, fmt.Errorf("services: start three nodes of %s: %w", Kafka43, errPortTaken)
}

func startKafkaCluster(ctx context.Context, install *kafkaInstall) (*KafkaCluster, error) {
	ports := make([]int, 3)
	first := firstPort + rand.IntN(lastPort-firstPort+1-len(ports))
	for i := range ports {
		ports[i] = first + i
	}
	c := &KafkaCluster{Nodes: make([]*Server, len(ports))}
	failed := make([]error, len(ports))
	// The nodes start concurrently, because none is ready before a majority
	// runs.
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	cluster := newKafkaID()
	var all sync.WaitGroup
	for i := range ports {
		all.Go(func() {
			c.Nodes[i], failed[i] = startKafkaNode(ctx, install, kafkaNode{cluster: cluster, id: i + 1, ports: ports})
			if failed[i] != nil {
				giveUp()
			}
		})
	}
	all.Wait()
	err := errors.Join(failed...)
	if err == nil {
		err = c.WaitWhole(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// WaitWhole returns when each node knows all others and every replica is in
// sync, for example after a node was killed and restarted. Without a deadline
// it waits at most a minute.
func (c *KafkaCluster) WaitWhole(ctx context.Context) error {
	return until(ctx, "a whole cluster", func(ctx context.Context) error {
		for _, node := range c.Nodes {
			metadata, err := kafkaMetadata(ctx, node.Addr())
			if err != nil {
				return err
			}
			if known := len(metadata.Brokers); known != len(c.Nodes) {
				return fmt.Errorf("%s knows %d nodes", node.Addr(), known)
			}
			for _, topic := range metadata.Topics {
				for _, p := range topic.Partitions {
					if len(p.ISR) < len(p.Replicas) {
						return fmt.Errorf("%s: replicas %v of partition %d of %s are in sync, of %v", node.Addr(), p.ISR, p.Partition, *topic.Topic, p.Replicas)
					}
				}
			}
		}
		return nil
	})
}

// Addrs returns the bootstrap addresses of the nodes.
func (c *KafkaCluster) Addrs() []string { return addrs(c.Nodes) }

// Close kills all nodes and removes their data.
func (c *KafkaCluster) Close() error { return closeAll(c.Nodes) }

// kafkaReady returns nil if the node answers and lists itself.
func kafkaReady(ctx context.Context, addr string, node kafkaNode) error {
	metadata, err := kafkaMetadata(ctx, addr)
	if err != nil {
		return err
	}
	if id := metadata.ClusterID; id == nil || *id != node.cluster {
		return errors.New("a node of another cluster answers")
	}
	listed := slices.ContainsFunc(metadata.Brokers, func(b kmsg.MetadataResponseBroker) bool {
		return int(b.NodeID) == node.id && net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))) == addr
	})
	if !listed {
		return errors.New("it does not list itself yet")
	}
	return nil
}

// kafkaMetadata asks one node for all brokers and topics it knows.
func kafkaMetadata(ctx context.Context, addr string) (*kmsg.MetadataResponse, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	request := kmsg.NewPtrMetadataRequest()
	request.SetVersion(8) // the last version whose header has no tags
	if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, request, 0)); err != nil {
		return nil, err
	}
	var head [8]byte // length of the rest, and the number of the request
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	const most = 16 << 20
	length := binary.BigEndian.Uint32(head[:4])
	if length < 4 || length > most {
		return nil, fmt.Errorf("an answer of %d bytes", length)
	}
	body := make([]byte, length-4)
	if _, err := io.ReadFull(conn, body); err != nil {
		return nil, err
	}
	response := request.ResponseKind().(*kmsg.MetadataResponse)
	return response, response.ReadFrom(body)
}
