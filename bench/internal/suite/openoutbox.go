package suite

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// openOutboxName is the name of the built peer.
const openOutboxName = "open-outbox"

// openOutbox returns the directory of a clone of open-outbox/relay, or "". No module proxy
// has that program, so that a person clones it and names the directory.
func openOutbox() string { return os.Getenv("SEMEL_BENCH_OPEN_OUTBOX") }

// commitOf names a peer by the commit of its clone.
func commitOf(dir, module string) func() (string, error) {
	return func() (string, error) {
		commit, err := exec.Command("git", "-C", dir, "rev-parse", "--short", "HEAD").Output()
		if err != nil {
			return "", fmt.Errorf("suite: the commit of %s: %w", dir, err)
		}
		return module + " " + strings.TrimSpace(string(commit)), nil
	}
}

// buildOpenOutbox builds the peer.
func (e *Env) buildOpenOutbox(dir string) func(context.Context) error {
	return func(ctx context.Context) error {
		return e.run(ctx, dir, "go", "build", "-o", e.work("bin", openOutboxName), "./cmd/relay")
	}
}

// openOutboxTables returns a function that creates the tables and indexes of the peer.
func openOutboxTables(clone string) func(ctx context.Context, dsn, dir string) error {
	return func(ctx context.Context, dsn, _ string) error {
		for _, name := range []string{"open-outbox.sql", "maintenance.sql"} {
			text, err := os.ReadFile(filepath.Join(clone, "schema", "postgres", name))
			if err != nil {
				return fmt.Errorf("suite: the schema of open-outbox: %w", err)
			}
			if err := inDatabase(ctx, dsn, string(text)); err != nil {
				return err
			}
		}
		return nil
	}
}

// fillOpenOutbox returns a function that creates the tables and writes n messages.
func (e *Env) fillOpenOutbox(clone string, n int) func(ctx context.Context, dsn, dir string) error {
	return func(ctx context.Context, dsn, dir string) error {
		if err := openOutboxTables(clone)(ctx, dsn, dir); err != nil {
			return err
		}
		// The payload does not start with a number, because this relay keeps no order.
		return inDatabase(ctx, dsn, fmt.Sprintf("INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload) SELECT gen_random_uuid(), '%s', (i %% %d)::text, convert_to(rpad('x' || i, %d, 'x'), 'UTF8') FROM generate_series(1, %d) i",
			kafkaOut, outboxAggregates, outboxBytes, n), "VACUUM ANALYZE openoutbox_events")
	}
}

// openOutboxTarget is the peer as its latency is measured.
func (e *Env) openOutboxTarget(clone string) latencyTarget {
	return latencyTarget{openOutboxTables(clone), func(ctx context.Context, tx pgx.Tx, aggregate string, payload []byte) error {
		_, err := tx.Exec(ctx, "INSERT INTO openoutbox_events (event_id, event_type, partition_key, payload) VALUES (gen_random_uuid(), $1, $2, $3)", kafkaOut, aggregate, payload)
		return err
	}, e.openOutboxRelay}
}

func (e *Env) openOutboxRelay(ctx context.Context, dsn, kafka, dir string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, e.work("bin", openOutboxName))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "STORAGE_TYPE=postgres", "STORAGE_URL="+dsn, "PUBLISHER_TYPE=kafka", "PUBLISHER_URL="+kafka,
		"BATCH_SIZE=1000", "POLL_INTERVAL=10ms", "KAFKA_COMPRESSION=none", "KAFKA_CONNECTION_TIMEOUT=10s", "SERVER_PORT=127.0.0.1:0",
		"RELAY_ID=bench", "OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none")
	return cmd, nil
}
