package redisstore

import (
	"context"

	"github.com/redis/rueidis"
)

// AuditName is the name, behind the prefix, of the list that has the audit log:
// who changed a key by hand, and why.
const AuditName = "audit"

// Audit appends a line to the audit log, which is as durable as all that this
// server keeps. Write it before the change it tells of: then no change goes
// without its line. It blocks for one round trip.
func (s *Store) Audit(ctx context.Context, line []byte) error {
	command := s.client.B().Rpush().Key(s.opts.Prefix + AuditName).Element(rueidis.BinaryString(line)).Build()
	return storeError("audit", s.client.Do(ctx, command).Error())
}
