package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel/internal/retry"
)

const (
	// confirmEvery is how often the position is confirmed to the server, if it has changed.
	// aliveEvery is how often the server gets a message, and is asked for an answer: it ends a
	// connection after 60 s.
	confirmEvery, aliveEvery = 250 * time.Millisecond, 10 * time.Second
	// setUpFor limits the requests before a session.
	setUpFor = 30 * time.Second
	// leastPause and mostPause are between two attempts to begin a session.
	leastPause, mostPause = 100 * time.Millisecond, 5 * time.Second
)

// own runs one session after the other until ctx ends, or until an operator must act.
func (s *WALSource) own(ctx context.Context) {
	pause, waits := leastPause, false
	for ctx.Err() == nil {
		worked, err := s.read(ctx)
		if ctx.Err() != nil {
			return
		}
		by, standsBy := errors.AsType[*standby](err)
		_, broken := errors.AsType[*SlotError](err)
		broken = broken && !refused(err, "53300") // connections become free again
		s.mu.Lock()
		s.trouble = err
		if broken {
			s.failed = err
		}
		s.mu.Unlock()
		switch {
		case broken:
			hurry(s.wake)
			return
		case standsBy:
			if !waits {
				s.event(by.Error(), nil)
			}
			pause = time.Second
		default:
			if worked {
				pause = leastPause
			}
			s.event("the slot is not read for now", err)
		}
		waits = standsBy
		_ = retry.Sleep(ctx, retry.Around(pause, 0.25))
		pause = min(2*pause, mostPause)
	}
}

// creating means that the slot is being created.
type creating struct{ since time.Time }

// Error implements error.
func (c *creating) Error() string { return "the replication slot is being created" }

// describe says for what a new slot waits, or returns nil if it has just begun.
func (c *creating) describe(ctx context.Context, s *slot) error {
	if time.Since(c.since) < time.Second {
		return nil
	}
	var pid int32
	var age time.Duration
	switch err := s.pool.QueryRow(ctx, oldestSQL).Scan(&pid, &age); {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("outbox: %w", c)
	case err != nil:
		return fmt.Errorf("outbox: %w", err)
	}
	return &SlotError{
		Cause:  fmt.Sprintf("replication slot %s is being created, which waits for transactions that have written: the oldest (pid %d) is open for %s", s.name, pid, age.Round(time.Second)),
		Remedy: fmt.Sprintf("wait, or end it: SELECT pg_terminate_backend(%d)", pid),
	}
}

// read reads the slot until the connection is lost. It reports whether it has read. The
// error is a *standby if another process reads the slot.
func (s *WALSource) read(ctx context.Context) (worked bool, err error) {
	asking, cancel := context.WithTimeout(ctx, setUpFor)
	defer cancel()
	st, err := s.slot.setUp(asking)
	if err != nil {
		return false, err
	}
	if err := s.rebind(asking, st); err != nil {
		return false, err
	}
	if st.pid != 0 {
		return false, s.slot.owner(asking, st.pid, s.owner)
	}
	if !st.used {
		s.mu.Lock()
		s.trouble = &creating{time.Now()}
		s.mu.Unlock()
		if err := s.slot.create(ctx, st); err != nil { // it may wait for hours
			return false, err
		}
		if err := s.slot.settle(ctx); err != nil {
			return false, err
		}
	}
	// What the snapshot does not have is in the log, or was delivered by the process that
	// had the slot in between.
	ending, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	of, err := s.begin(ctx, lost)
	if err != nil {
		return false, fmt.Errorf("look at the table: %w", err)
	}
	conn, err := s.start(ctx, st.version)
	if err != nil {
		return false, err
	}
	closed := sync.OnceFunc(func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // the server frees the slot in any case
	})
	defer closed()
	if _, err := s.pool.Exec(ctx, s.slot.used, s.slot.name); err != nil { // now the slot is there to stay
		return false, err
	}
	r := &receiver{session: of, conn: conn, types: pgtype.NewMap(), relations: map[uint32]map[string]column{}, near: of.sees.max, heard: time.Now(), checked: time.Now()}
	s.mu.Lock()
	s.session, s.trouble = of, nil
	s.mu.Unlock()
	hurry(s.wake)
	s.event(fmt.Sprintf("reads replication slot %s, and %d rows that are in the table", s.slot.name, of.list.count), nil)
	err = r.run(ending)
	if ctx.Err() == nil {
		closed() // before the wait, so that another process may have the slot
		s.mu.Lock()
		s.session, s.trouble = nil, err
		s.mu.Unlock()
		of.end(ctx)
	}
	return true, err
}

// start begins to read the slot. The error is a *standby if another process reads it.
func (s *WALSource) start(ctx context.Context, version int) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, setUpFor)
	defer cancel()
	conn, err := s.slot.connect(ctx, s.owner)
	if err != nil {
		return nil, err
	}
	options := []string{"proto_version '1'", "publication_names '" + s.slot.name + "'"}
	if version >= 140000 {
		options = append(options, "binary 'true'")
	}
	err = pglogrepl.StartReplication(ctx, conn, pgx.Identifier{s.slot.name}.Sanitize(), 0, pglogrepl.StartReplicationOptions{PluginArgs: options})
	if err == nil {
		return conn, nil
	}
	_ = conn.Close(ctx) // the first error is the one that matters
	if !refused(err, "55006") {
		return nil, fmt.Errorf("read replication slot %s: %w", s.slot.name, err)
	}
	st, err := s.slot.state(ctx)
	if err != nil {
		return nil, err
	}
	return nil, s.slot.owner(ctx, st.pid, s.owner)
}

// column is the place and the type of a column.
type column struct {
	at  int
	oid uint32
}

// receiver receives what a session reads from the log. Only its goroutine uses it.
type receiver struct {
	*session
	conn      *pgconn.PgConn
	types     *pgtype.Map
	relations map[uint32]map[string]column // those of the outbox
	near      uint64                       // the number of the last transaction

	// These are about the transaction that is being received.
	inside, skip bool
	xid          uint64
	txn          *txn // nil until it has a row

	said     pglogrepl.LSN // the position that was confirmed last
	reported time.Time     // when
	look     time.Time     // when to look at the position again
	heard    time.Time     // when the server said something
	checked  time.Time     // when it was tried whether the server stays
}

// run receives until ctx ends or the connection is lost.
func (r *receiver) run(ctx context.Context) error {
	for {
		if err := cmp.Or(r.confirm(false), r.serverStays(aliveEvery)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			_ = r.confirm(true) // if it does not arrive, rows come again, and are not in the table
			return context.Cause(ctx)
		}
		if r.full() {
			_ = retry.SleepOrWake(ctx, time.Until(r.look), r.s.room)
			r.heard = time.Now()
			continue
		}
		waiting, cancel := context.WithDeadline(ctx, r.look)
		message, err := r.conn.ReceiveMessage(waiting)
		cancel()
		switch {
		case err == nil:
			r.heard = time.Now()
			if err := r.take(message); err != nil {
				return err
			}
		case time.Since(r.heard) > silence:
			return fmt.Errorf("the connection was lost: the server has not answered for %v", silence)
		case !pgconn.Timeout(err) && ctx.Err() == nil:
			return fmt.Errorf("the connection was lost: %w", err)
		}
	}
}

// confirm tells the server the position, if it is time.
func (r *receiver) confirm(now bool) error {
	if !now && time.Now().Before(r.look) {
		return nil
	}
	r.look = time.Now().Add(confirmEvery)
	low := r.progress.position()
	if !now && low == r.said && time.Since(r.reported) < aliveEvery {
		return nil
	}
	r.said, r.reported = low, time.Now()
	if err := pglogrepl.SendStandbyStatusUpdate(context.Background(), r.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: low, ReplyRequested: true}); err != nil {
		return fmt.Errorf("confirm the position: %w", err)
	}
	return nil
}

// serverStays returns an error if the server shuts down. It waits until everything is
// confirmed or the connection is closed, so a message that is retried would hold it up. It
// has closed other connections by then and refuses new ones.
func (r *receiver) serverStays(every time.Duration) error {
	if time.Since(r.checked) < every {
		return nil
	}
	r.checked = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.s.pool.Ping(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the server takes no connections: %w", err)
	}
	return nil
}

// full reports whether enough rows wait to be read. The server then waits too, and still gets
// the position.
func (r *receiver) full() bool {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return len(r.buffer) >= mostBuffered || r.bytes >= mostBufferedBytes || r.behind >= mostBehind
}

// take handles a message of the server.
func (r *receiver) take(message pgproto3.BackendMessage) error {
	switch m := message.(type) {
	case *pgproto3.ErrorResponse:
		err := pgconn.ErrorResponseToPgError(m)
		if refused(err, "42704") {
			return &SlotError{Cause: "publication " + r.s.slot.name + " was created later than what the slot returns now: " + err.Message, Remedy: r.s.slot.again(), Err: err}
		}
		return err
	case *pgproto3.CopyDone:
		return errors.New("the server ended it")
	case *pgproto3.CopyData:
		switch {
		case len(m.Data) == 0:
		case m.Data[0] == pglogrepl.PrimaryKeepaliveMessageByteID:
			return r.takeKeepalive(m.Data[1:])
		case m.Data[0] == pglogrepl.XLogDataByteID:
			return r.takeData(m.Data[1:])
		}
	}
	return nil
}

func (r *receiver) takeKeepalive(data []byte) error {
	alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data)
	if err != nil {
		return err
	}
	if !r.inside {
		r.progress.pass(alive.ServerWALEnd)
	}
	if alive.ReplyRequested { // in a shutdown it asks again and again
		return cmp.Or(r.confirm(true), r.serverStays(time.Second))
	}
	return nil
}

// takeData takes a change. The server sends a transaction when it is committed, so its rows
// may be delivered before its end has come.
func (r *receiver) takeData(data []byte) error {
	log, err := pglogrepl.ParseXLogData(data)
	if err != nil {
		return err
	}
	switch pglogrepl.MessageType(log.WALData[0]) {
	case pglogrepl.MessageTypeBegin, pglogrepl.MessageTypeCommit, pglogrepl.MessageTypeRelation, pglogrepl.MessageTypeInsert:
	default:
		return nil
	}
	change, err := pglogrepl.Parse(log.WALData)
	if err != nil {
		return err
	}
	switch c := change.(type) {
	case *pglogrepl.BeginMessage:
		r.xid = whole(c.Xid, r.near)
		r.near, r.inside, r.txn = r.xid, true, nil
		r.skip = r.sees.has(r.xid, c.FinalLSN)
	case *pglogrepl.RelationMessage:
		r.takeRelation(c)
	case *pglogrepl.InsertMessage:
		return r.takeRow(c)
	case *pglogrepl.CommitMessage:
		if r.inside = false; r.txn != nil {
			r.progress.end(r.txn, c.TransactionEndLSN)
			hurry(r.s.wake)
		} else {
			r.progress.pass(c.TransactionEndLSN)
		}
	}
	return nil
}

// takeRelation remembers the columns of the outbox. Other tables of the publication do not
// matter.
func (r *receiver) takeRelation(m *pglogrepl.RelationMessage) {
	delete(r.relations, m.RelationID)
	if (pgx.Identifier{m.Namespace, m.RelationName}).Sanitize() != r.s.slot.table {
		return
	}
	columns := map[string]column{}
	for i, c := range m.Columns {
		columns[c.Name] = column{i, c.DataType}
	}
	r.relations[m.RelationID] = columns
}

// takeRow takes a row, unless it is in the table for the reader: it was there when the
// session began, or has to wait for a time.
func (r *receiver) takeRow(m *pglogrepl.InsertMessage) error {
	columns := r.relations[m.RelationID]
	if columns == nil || r.skip {
		return nil
	}
	values := tuple{m.Tuple.Columns, columns, r.types}
	if at, ok := columns["deliver_at"]; ok && values.of[at.at].DataType != pglogrepl.TupleDataTypeNull {
		return nil
	}
	got, err := scan(values)
	if err != nil {
		return err
	}
	if r.txn == nil {
		r.txn = r.progress.begin(r.xid)
	}
	r.progress.add(r.txn, 1)
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.buffer = append(r.buffer, received{got, r.txn})
	r.bytes += got.item.Bytes()
	if len(r.buffer) >= r.s.opts.Batch {
		hurry(r.s.wake)
	}
	return nil
}

// tuple has the values of a row as the log has them.
type tuple struct {
	of      []*pglogrepl.TupleDataColumn
	columns map[string]column
	types   *pgtype.Map
}

// Scan implements scanner. The log does not have the shard, which is a generated column.
func (t tuple) Scan(dest ...any) error {
	for i, name := range [...]string{"", "seq", "id", "aggregate", "topic", "payload", "headers", "created"} {
		if name == "" {
			continue
		}
		at, ok := t.columns[name]
		if !ok {
			return fmt.Errorf("the publication does not have the column %s", name)
		}
		value, format := t.of[at.at], int16(pgtype.TextFormatCode)
		if value.DataType == pglogrepl.TupleDataTypeBinary {
			format = pgtype.BinaryFormatCode
		}
		if err := t.types.Scan(at.oid, format, value.Data, dest[i]); err != nil {
			return fmt.Errorf("column %s: %w", name, err)
		}
	}
	return nil
}
