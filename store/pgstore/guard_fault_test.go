package pgstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

const (
	raceAddress  = "SEMEL_TEST_RACE" // address of the database, for a process of the race
	raceMessages = 400
)

// TestManyProcessesRunEachEffectOnce races goroutines of two processes for the
// same messages, each process in its own order.
func TestManyProcessesRunEachEffectOnce(t *testing.T) {
	t.Parallel()
	if address := os.Getenv(raceAddress); address != "" {
		race(t, openDesk(t, pool(t, address), &Options{LockWait: mostLockWait}, nil))
		return
	}
	address := shared.Database(t)
	d := deskAt(t, address, nil, nil)
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestManyProcessesRunEachEffectOnce$", "-test.count=1")
			command.Env = append(os.Environ(), raceAddress+"="+address)
			if output, err := command.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
	wait.Wait()
	var messages, most int
	if err := d.pool.QueryRow(t.Context(), "SELECT count(*), max(count) FROM effects").Scan(&messages, &most); err != nil {
		t.Fatal(err)
	}
	if messages != raceMessages || most != 1 {
		t.Errorf("%d effects, at most %d times; want %d once", messages, most, raceMessages)
	}
}

func race(t *testing.T, d *desk) {
	start := seed(t)
	var wait sync.WaitGroup
	for w := range 8 {
		order := rand.New(rand.NewPCG(start, uint64(w))).Perm(raceMessages)
		wait.Go(func() {
			for n, i := range order {
				id := fmt.Sprint("race ", i)
				var err error
				if n%2 == 0 {
					_, err = d.DoTx(t.Context(), key(id), counting(id))
				} else {
					_, err = d.queueOne(t.Context(), semel.Call{Key: key(id)}, func(b *pgx.Batch) { b.Queue(count, id) })
				}
				if err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
		})
	}
	wait.Wait()
}

// TestLostSessionsRepeatNoEffectAndReportEachOne ends server sessions at random
// moments. Each worker has its own messages, so that it knows what each answer
// must mean.
func TestLostSessionsRepeatNoEffectAndReportEachOne(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	d := deskAt(t, address, nil, nil)
	watcher := openDesk(t, pool(t, address+"&application_name=watcher"), nil, nil)
	killer, err := pgx.Connect(t.Context(), address+"&application_name=watcher")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = killer.Close(context.Background()) }()
	start := seed(t)
	const workers, messages = 8, 100
	var left atomic.Int32
	left.Store(workers)
	var failures, doubts, found atomic.Int32
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			defer left.Add(-1)
			for i := range messages {
				id := fmt.Sprintf("message %d of %d", i, w)
				sure := true // whether it is certain that nothing was committed
				for done := false; !done; {
					out, err := tryOnce(t.Context(), d, w%3, id)
					switch {
					case err == nil && out.Decision == semel.Duplicate:
						found.Add(1) // a commit whose answer was lost
						done = true
					case err == nil:
						done = true
						if out.Decision != semel.Fresh {
							t.Errorf("%s: %s", id, out.Decision)
						}
					case semel.Classify(err) == semel.ClassUnknown:
						doubts.Add(1)
						sure = false
					default:
						failures.Add(1)
						if semel.Classify(err) != semel.ClassRetryable {
							t.Errorf("%s: %v", id, err)
						}
						if sure && watcher.effects(t, id) != 0 {
							t.Errorf("%s is committed, and the answer is: %v", id, err)
						}
					}
				}
			}
		})
	}
	random, kills := rand.New(rand.NewPCG(start, 0)), 0
	for left.Load() > 0 {
		rows, _ := killer.Query(t.Context(), "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'watcher' AND backend_type = 'client backend'")
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
		if err != nil {
			t.Fatal(err)
		}
		if len(pids) > 0 {
			if _, err := killer.Exec(t.Context(), "SELECT pg_terminate_backend($1), pg_sleep($2)", pids[random.IntN(len(pids))], 0.005*random.Float64()); err != nil {
				t.Fatal(err)
			}
			kills++
		}
	}
	wait.Wait()
	t.Logf("%d sessions ended: %d failures, %d doubts, %d commits found", kills, failures.Load(), doubts.Load(), found.Load())
	if failures.Load() == 0 {
		t.Error("no session was lost, or each left it open whether it had committed")
	}
	for w := range workers {
		for i := range messages {
			watcher.wantEffects(t, fmt.Sprintf("message %d of %d", i, w), 1)
		}
	}
}

// tryOnce decides a message in one of three ways.
func tryOnce(ctx context.Context, d *desk, way int, id string) (semel.Outcome, error) {
	switch way {
	case 0:
		return d.DoTx(ctx, key(id), counting(id))
	case 1:
		return d.queueOne(ctx, semel.Call{Key: key(id)}, func(b *pgx.Batch) { b.Queue(count, id) })
	}
	out := d.DoTxBatch(ctx, []semel.Call{{Key: key(id)}}, TxBatchFunc(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) (err error) {
		fresh[0].Data, err = counting(id)(ctx, tx)
		return err
	}))
	return out[0].Outcome, out[0].Err
}

// fault is what a proxy does to a client's next message.
type fault int32

const (
	none fault = iota
	loseRequest
	loseAnswer // after the server has answered
)

// proxy is a proxy between clients and a server.
type proxy struct {
	address string
	next    atomic.Int32 // the next fault
	refuse  atomic.Bool  // refuse new connections
	struck  atomic.Int32 // faults that happened
}

// newProxy starts a proxy in front of the server of a pool's address.
func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{address: listener.Addr().String()}
	var wait sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); _ = listener.Close(); wait.Wait() })
	wait.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			if p.refuse.Load() {
				_ = client.Close()
				continue
			}
			wait.Go(func() { p.carry(ctx, client, server) })
		}
	})
	return p
}

// carry copies bytes both ways until one side ends.
func (p *proxy) carry(ctx context.Context, client net.Conn, server string) {
	defer func() { _ = client.Close() }()
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = client.Close(), upstream.Close() })()
	var swallow atomic.Bool
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		defer func() { _, _ = client.Close(), upstream.Close() }()
		answers := bufio.NewReader(upstream)
		for {
			if _, err := answers.Peek(1); err != nil || swallow.Load() {
				return
			}
			b, _ := answers.Peek(answers.Buffered())
			if _, err := client.Write(b); err != nil {
				return
			}
			_, _ = answers.Discard(len(b))
		}
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			_ = upstream.Close()
			return
		}
		switch fault(p.next.Swap(int32(none))) {
		case loseRequest:
			p.struck.Add(1)
			_ = upstream.Close()
			return
		case loseAnswer:
			p.struck.Add(1)
			swallow.Store(true)
		}
		if _, err := upstream.Write(buffer[:n]); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return
		}
	}
}

func (p *proxy) strike(f fault) { p.next.Store(int32(f)) }

// behindProxy opens one guard behind a proxy, and one that connects directly.
func behindProxy(t *testing.T) (*proxy, *desk, *desk) {
	t.Helper()
	address := shared.Database(t)
	// The server may take long to see that a connection was lost in the middle of a
	// transaction.
	opts := &Options{LockWait: mostLockWait}
	direct := deskAt(t, address, opts, nil)
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	server := fmt.Sprintf("%s:%d", config.ConnConfig.Host, config.ConnConfig.Port)
	p := newProxy(t, server)
	return p, openDesk(t, pool(t, strings.Replace(address, server, p.address, 1)), opts, nil), direct
}

func TestCallIsRepeatedAfterALostAnswerToTheCommit(t *testing.T) {
	t.Parallel()
	p, d, direct := behindProxy(t)
	ctx := t.Context()
	// After this, the next test's connection knows all statements, and the next
	// message to the server is the commit.
	warm := func() {
		for i := range 3 {
			id := fmt.Sprint("warm ", i, time.Now().UnixNano())
			if _, err := d.DoTx(ctx, key(id), counting(id)); err != nil {
				t.Fatal(err)
			}
		}
	}
	cases := []struct {
		fault    fault
		refuse   bool
		decision semel.Decision
		runs     int
		target   error
	}{
		{loseAnswer, false, semel.Duplicate, 1, nil},
		{loseRequest, false, semel.Fresh, 2, nil},
		{loseAnswer, true, semel.Undecided, 1, semel.ErrOutcomeUnknown},
		{loseRequest, true, semel.Undecided, 1, semel.ErrOutcomeUnknown},
	}
	for i, c := range cases {
		for _, results := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d, result: %t", i, results), func(t *testing.T) {
				p.refuse.Store(false)
				warm()
				id := fmt.Sprintf("case %d, result: %t", i, results)
				result, runs, struck := "", 0, p.struck.Load()
				if results && c.target == nil {
					result = "result of " + id
				}
				out, err := d.DoTx(ctx, key(id), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
					data, err := counting(id)(ctx, tx)
					if !results {
						data = nil
					}
					if runs++; runs == 1 {
						p.refuse.Store(c.refuse)
						d.pool.Reset() // otherwise waiting connections would be let through
						p.strike(c.fault)
					}
					return data, err
				})
				want(t, out, err, c.decision, result, c.target)
				if runs != c.runs || p.struck.Load() != struck+1 {
					t.Errorf("the effect ran %d times, want %d; %d faults", runs, c.runs, p.struck.Load()-struck)
				}
				// Whatever the answer was, the next delivery finds the truth.
				out, err = direct.DoTx(ctx, key(id), counting(id))
				if err != nil {
					t.Error(err)
				}
				if committed := c.fault == loseAnswer || !c.refuse; (out.Decision == semel.Duplicate) != committed {
					t.Errorf("the next delivery is %s", out.Decision)
				}
				direct.wantEffects(t, id, 1)
			})
		}
	}
}

func TestCallIsRepeatedAfterALostAnswerToStatements(t *testing.T) {
	t.Parallel()
	p, d, direct := behindProxy(t)
	for _, f := range []fault{loseAnswer, loseRequest} {
		makeOptimistic(t, d)
		for range 3 {
			if _, err := optimisticWays["TxQueueFunc"](t.Context(), d, semel.Call{Key: key(fmt.Sprint("warm ", time.Now().UnixNano()))}); err != nil {
				t.Fatal(err)
			}
		}
		id, struck := fmt.Sprint("fault ", f), p.struck.Load()
		var once sync.Once
		out, err := d.queueOne(t.Context(), semel.Call{Key: key(id)}, func(b *pgx.Batch) {
			b.Queue(count, id)
			once.Do(func() { p.strike(f) })
		})
		decision := semel.Duplicate
		if f == loseRequest {
			decision = semel.Fresh
		}
		want(t, out, err, decision, "", nil)
		direct.wantEffects(t, id, 1)
		if p.struck.Load() != struck+1 {
			t.Error("no answer was lost")
		}
	}
}

func TestTransactionsBehindPgBouncer(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	bouncer := servicestest.StartPgBouncer(t, server, nil)
	direct := deskAt(t, server.URL(), nil, nil)
	// Modes that leave nothing in the server's session, and the mode that Connect
	// chooses for an address without one.
	for _, mode := range []string{"", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		opts := &Options{LockWait: mostLockWait}
		var d *desk
		if mode == "" {
			d = connectedDesk(t, bouncer.URL(), opts)
		} else {
			d = openDesk(t, pool(t, bouncer.URL()+"&default_query_exec_mode="+mode), opts, nil)
		}
		everyWayTwice(t, d)
		makeOptimistic(t, d)
		everyWayTwice(t, d)
		var wait sync.WaitGroup
		for range 8 {
			wait.Go(func() {
				for i := range 20 {
					id := fmt.Sprint(mode, i)
					if _, err := tryOnce(t.Context(), d, i%3, id); err != nil {
						t.Errorf("%s: %v", id, err)
					}
				}
			})
		}
		wait.Wait()
		for i := range 20 {
			direct.wantEffects(t, fmt.Sprint(mode, i), 1)
		}
	}
}

// connectedDesk opens a guard with Connect on existing tables.
func connectedDesk(t *testing.T, address string, opts *Options) *desk {
	t.Helper()
	s, err := Connect(t.Context(), address, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	g, err := NewGuard(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &desk{g, s, s.pool}
}

func TestConnectPreparesByNameOnlyIfConfigured(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	deskAt(t, address, nil, nil)
	for _, c := range []struct {
		more  string
		opts  *Options
		want  pgx.QueryExecMode
		named bool
	}{
		{"", nil, pgx.QueryExecModeCacheDescribe, false},
		{"", &Options{}, pgx.QueryExecModeCacheDescribe, false},
		{"", &Options{Prepare: true}, pgx.QueryExecModeCacheStatement, true},
		{"&default_query_exec_mode=cache_statement", nil, pgx.QueryExecModeCacheStatement, true},
		{"&default_query_exec_mode=exec", nil, pgx.QueryExecModeExec, false},
		{"&default_query_exec_mode=exec", &Options{Prepare: true}, pgx.QueryExecModeExec, true},
	} {
		d := connectedDesk(t, address+c.more, c.opts)
		if mode := d.pool.Config().ConnConfig.DefaultQueryExecMode; mode != c.want {
			t.Errorf("%q, %+v: the mode is %v, want %v", c.more, c.opts, mode, c.want)
		}
		everyWayTwice(t, d)
		if prepares := d.store.opts.Prepare; prepares != (c.opts != nil && c.opts.Prepare || c.want == pgx.QueryExecModeCacheStatement) {
			t.Errorf("%q, %+v: the store's own statements are prepared by name: %t", c.more, c.opts, prepares)
		}
		named := 0
		for _, conn := range d.pool.AcquireAllIdle(t.Context()) {
			var n int
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''", pgx.QueryExecModeExec).Scan(&n); err != nil {
				t.Error(err)
			}
			named += n
			conn.Release()
		}
		if c.named != (named > 0) {
			t.Errorf("%q, %+v: %d statements have names", c.more, c.opts, named)
		}
	}
}
