package services

import (
	"context"
	"fmt"
	"io"
)

// MoveTo makes the next start use another port.
func (s *Server) MoveTo(port int) { s.port = port }

// ClaimPort claims a port as a start does, and returns an error if the port is
// claimed.
func ClaimPort(port int) (io.Closer, error) { return claimPort(port) }

// SharedMemory returns whether the shared memory that a PostgreSQL server has
// now exists at the time of the call.
func SharedMemory(s *Server) (exists func() bool, err error) {
	memory, err := postgresMemory(dataDir(s.dir))
	return memory.exists, err
}

// AskKafka returns nil if a node answers.
func AskKafka(ctx context.Context, addr string) error {
	_, err := kafkaMetadata(ctx, addr)
	return err
}

// WaitKafkaTopic returns when a node knows a topic and the leaders of its
// partitions.
func WaitKafkaTopic(ctx context.Context, addr, name string) error {
	return until(ctx, "topic "+name, func(ctx context.Context) error {
		metadata, err := kafkaMetadata(ctx, addr)
		if err != nil {
			return err
		}
		for _, topic := range metadata.Topics {
			if *topic.Topic == name && len(topic.Partitions) > 0 && topic.Partitions[0].Leader >= 0 {
				return nil
			}
		}
		return fmt.Errorf("%s does not know it", addr)
	})
}
