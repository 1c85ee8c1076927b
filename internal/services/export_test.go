package services

import "context"

// MoveTo makes the next start use another port.
func (s *Server) MoveTo(port int) { s.port = port }

// AskKafka returns nil if a node answers.
func AskKafka(ctx context.Context, addr string) error {
	_, err := kafkaMetadata(ctx, addr)
	return err
}
