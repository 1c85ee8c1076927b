package keyrecord

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
)

// auditLines is an audit log in memory.
type auditLines []string

func (l *auditLines) Audit(ctx context.Context, line []byte) error {
	*l = append(*l, string(line))
	return ctx.Err()
}

func TestAuditIsWrittenBeforeTheChangeAndSaysWhenItFailed(t *testing.T) {
	t.Parallel()
	var log auditLines
	ctx, cancel := context.WithCancel(t.Context())
	record := &semel.Record{Key: semel.Key{Scope: "s", ID: "i"}, State: semel.Done}
	err := Audited(ctx, &log, "rm", Me("why"), record, semel.Absent, OutcomeDone, func() error {
		if len(log) != 1 || !strings.HasSuffix(log[0], `"reason":"why"}`) {
			t.Errorf("before the change: %q", log)
		}
		cancel() // the outcome is recorded even if the user interrupts the change
		return fmt.Errorf("the disk is gone")
	})
	if err == nil || err.Error() != "the disk is gone" {
		t.Errorf("got %v", err)
	}
	if len(log) != 2 || !strings.HasSuffix(log[1], `"outcome":"failed","error":"the disk is gone"}`) {
		t.Errorf("audit log: %q", log)
	}
	err = Audited(ctx, &log, "rm", Me("why"), record, semel.Absent, OutcomeDone, func() error {
		t.Error("changed without a line in the audit log")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "audit log: nothing was changed") {
		t.Errorf("got %v", err)
	}
}
