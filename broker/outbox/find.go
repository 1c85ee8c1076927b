package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// Waiting is a message that waits in an outbox.
type Waiting struct {
	semel.Message
	// DeliverAt is the time before which it is not delivered, or zero.
	DeliverAt time.Time
	// Owner is the relay that owns its shard, or "".
	Owner string
}

// mostFound bounds the answer of Find.
const mostFound = 100

// findSQL reads the whole table: no index has the ids, because a relay needs none.
const findSQL = `SELECT ` + columns + `, o.deliver_at, coalesce(CASE WHEN s.until > clock_timestamp() THEN s.owner END, '')
FROM {outbox} AS o LEFT JOIN {shards} AS s ON s.shard = o.shard
WHERE o.id = ANY ($1::uuid[]) OR o.headers->>'semel-key' = ANY ($2::text[])
ORDER BY o.seq LIMIT $3`

// Find returns the messages that wait in an outbox under one of some ids, or for one of
// these keys by their header semel-key: at most 100, in their order. It reads the whole
// table, and blocks until then. Errors are those of [Open].
func Find(ctx context.Context, dsn string, names pgstore.Names, ids []string) (list []Waiting, err error) {
	conn, sql, err := once(ctx, dsn, names)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	rows, err := conn.Query(ctx, sql.find, uuidsOf(ids), ids, mostFound)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(from pgx.CollectableRow) (Waiting, error) {
		var w Waiting
		var at pgtype.Timestamptz
		r, err := scan(from, &at, &w.Owner)
		if err != nil {
			return w, err
		}
		w.Message = r.item.Message
		if at.Valid {
			w.DeliverAt = timeOf(at, never)
		}
		return w, nil
	})
}

// uuidsOf returns the ids that are UUIDs.
func uuidsOf(ids []string) [][16]byte {
	uuids := [][16]byte{}
	for _, id := range ids {
		if uuid, err := key.ParseUUID(id); err == nil {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// idsOf returns the ids of rows.
func idsOf(items []*pipeline.Item) [][16]byte {
	ids := make([]string, len(items))
	for i, it := range items {
		ids[i] = it.Message.ID
	}
	return uuidsOf(ids)
}
