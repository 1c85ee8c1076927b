package runcmd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestOutboxReachesSQS sends rows through a queue into a table. One is too large for the
// queue. One is sent again under its id: a FIFO queue drops it, and the consumer drops what
// a standard queue delivers.
func TestOutboxReachesSQS(t *testing.T) {
	programtest.SetAWS(t, nil)
	url := programtest.Servers.SQS(t)
	api := awssqs.New(awssqs.Options{Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"wal_level": "logical"}})
	for _, mode := range []string{"table", "wal"} {
		for name, end := range map[string]string{"standard": "", "FIFO": ".fifo"} {
			t.Run(mode+" "+name, func(t *testing.T) {
				queue := programtest.NewSQSQueue(t, api, end, nil)
				outboxToSQS(t, server, mode, queue)
			})
		}
	}
}

func outboxToSQS(t *testing.T, server *services.Server, mode string, queue *programtest.SQSQueue) {
	address := servicestest.NewDatabase(t, server.URL())
	source, sink := "store: db", fmt.Sprintf("queue: %q", queue.URL)
	account, name := filepath.Split(queue.URL)
	if mode == "wal" {
		source = "store: db, mode: wal, slot: " + strings.ReplaceAll(servicestest.Topic(), "-", "_")
		sink = fmt.Sprintf("account: %q, queue: { from: source, allow: [%s] }", account, name)
	}
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(`stores:
  db: { postgres: { dsn: %q } }
pipelines:
  events:
    source: { outbox: { %s } }
    key: { id: property:message-id }
    sink: { sqs: { %s } }
    parked: { store: db }
  consume:
    source: { sqs: { queue: %q } }
    key: { id: header:semel-key }
    window: 28d
    store: db
    sink: { postgres: { store: db, table: received, columns: { id: key, message_group: record-key, message_id: property:message-id, kind: header:kind, body: body } } }
    parked: { store: db }
`, address, source, sink, queue.URL))
	programtest.Exec(t, address, "CREATE TABLE received (n bigint GENERATED ALWAYS AS IDENTITY, id uuid, message_group text, message_id text, kind text, body text)")
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "outbox")
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	row := func(aggregate, body string) outbox.Message {
		return outbox.Message{Aggregate: aggregate, Topic: name, Headers: []semel.Header{{Name: "kind", Value: []byte("test")}}, Payload: []byte(body)}
	}
	again := row("a", "a0")
	again.ID = "018f3c5a-0000-7000-8000-000000000001"
	msgs := []outbox.Message{again, row("b", "b0"), row("b", strings.Repeat("x", 1<<20+1)), row("", "alone")}
	for i := range 20 {
		msgs = append(msgs, row("a", fmt.Sprint("a", i+1)), row("b", fmt.Sprint("b", i+1)))
	}
	writeEvents(t, pool, msgs...)
	programtest.Exec(t, address, "CREATE TABLE written AS SELECT seq, id, aggregate, convert_from(payload, 'UTF8') AS body FROM semel_outbox")
	stop := programtest.Background(t, "run", file, "--admin", "off")
	programtest.BecomesTrue(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 0 AND (SELECT count(*) FROM received) = 43")
	writeEvents(t, pool, again)
	programtest.BecomesTrue(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
	for late := time.Now().Add(5 * time.Minute); queue.Left() > 0; <-time.After(50 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("the queue still has %d messages", queue.Left())
		}
	}
	if got := stop(); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	group, id := "NULL", "NULL" // a standard queue has neither
	if queue.Fifo {
		group = "coalesce(aggregate, id::text)"
		// Scope and id, and the digest of pipeline, scope, id, group and number of redrives.
		id = "'events:' || id || '#' || translate(encode(substr(sha256(convert_to(format('6:events6:events36:%s%s:%s1:0', id, octet_length(" + group + "), " + group + "), 'UTF8')), 1, 16), 'base64'), '+/=', '-_')"
		if n := programtest.QueryValue[int](t, pool, "SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY aggregate ORDER BY seq) AS before FROM written JOIN received USING (id)) AS o WHERE n < before"); n > 0 {
			t.Errorf("%d messages are before one that their aggregate has before them", n)
		}
	}
	if n := programtest.QueryValue[int](t, pool, fmt.Sprintf(`SELECT count(*) FROM written JOIN received AS r USING (id, body)
		WHERE r.kind = 'test' AND r.message_group IS NOT DISTINCT FROM %s AND r.message_id IS NOT DISTINCT FROM %s`, group, id)); n != 43 || programtest.QueryValue[int](t, pool, "SELECT count(*) FROM received") != 43 {
		t.Errorf("%d messages of 43 are as their rows", n)
	}
	if got := programtest.Run(t, "", "parked", "ls", "--config", file); strings.Count(got.Stdout, "MessageTooLong") != 1 || strings.Contains(got.Stdout, "consume") {
		t.Errorf("%+v", got)
	}
}
