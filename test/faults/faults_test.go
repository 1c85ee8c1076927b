package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// target is one server with a proxy in front of it.
type target struct {
	t      *testing.T
	server *services.Server
	proxy  *proxy
	// ask asks a server at an address, which is this one's or that of the
	// proxy, for something that is new after each of its starts.
	ask func(ctx context.Context, address string) (string, error)
}

func newTarget(t *testing.T, server *services.Server, ask func(context.Context, string) (string, error)) *target {
	t.Helper()
	return &target{t: t, server: server, proxy: newProxy(t, server.Addr()), ask: ask}
}

func redisTarget(t *testing.T) *target {
	t.Helper()
	return newTarget(t, startSynced(t), func(ctx context.Context, address string) (string, error) {
		info, err := services.RedisDo(ctx, strings.TrimPrefix(address, "redis://"), "INFO", "server")
		if err != nil {
			return "", err
		}
		return field(info.(string), "run_id"), nil
	})
}

func postgresTarget(t *testing.T, cleanup pgstore.Cleanup) *target {
	t.Helper()
	server := servicestest.StartPostgres(t, nil)
	migrate(t, server, cleanup)
	return newTarget(t, server, func(ctx context.Context, address string) (string, error) {
		return query(ctx, address, `SELECT pg_postmaster_start_time()::text`)
	})
}

// field returns one line of what INFO of Redis says.
func field(info, name string) string {
	_, rest, _ := strings.Cut(info, name+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

// query returns the one text that a statement answers.
func query(ctx context.Context, address, statement string) (answer string, err error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return answer, conn.QueryRow(ctx, statement).Scan(&answer)
}

// identity asks the server itself.
func (s *target) identity() string {
	s.t.Helper()
	var id string
	eventually(s.t, "the server answers", func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		defer cancel()
		var err error
		id, err = s.ask(ctx, s.server.URL())
		return err == nil
	})
	return id
}

// last lets a fault last.
func (s *target) last(d time.Duration) {
	s.t.Helper()
	if err := pause(s.t.Context(), d); err != nil {
		s.t.Fatal(err)
	}
}

// fault hurts a server once, and ends. It returns what proves that it happened,
// and fails the test if nothing does.
type fault struct {
	name   string
	happen func(s *target) (proof string)
	// silent: the work need not notice it. A guard whose claim got no answer
	// asks again by itself.
	silent bool
}

// faultsOfAll are the faults of any server and of the way to it.
var faultsOfAll = []fault{
	{name: "replies are lost at once", happen: func(s *target) string { return s.loseReplies(0) }, silent: true},
	{name: "replies are lost in the middle of the work", happen: func(s *target) string { return s.loseReplies(5000) }, silent: true},
	{name: "connections are reset", happen: func(s *target) string {
		return s.swallow(toxic{Type: "reset_peer", Stream: "downstream"}, 300*time.Millisecond)
	}},
	{name: "requests vanish", happen: func(s *target) string {
		return s.swallow(toxic{Type: "timeout", Stream: "upstream", Attributes: map[string]any{"timeout": 0}}, 1500*time.Millisecond)
	}},
	{name: "replies vanish", happen: func(s *target) string {
		return s.swallow(toxic{Type: "timeout", Stream: "downstream", Attributes: map[string]any{"timeout": 0}}, 1500*time.Millisecond)
	}},
	{name: "replies come late", happen: (*target).delay, silent: true},
	{name: "connections are refused", happen: (*target).refuse},
	{name: "the server stops and continues", happen: (*target).stopAndGoOn},
	{name: "the server is killed and starts again", happen: (*target).killAndStart},
}

// loseReplies lets so many bytes of replies through on each connection, and
// then closes it: the server has done what it was asked for.
func (s *target) loseReplies(after int) string {
	return s.swallow(toxic{Type: "limit_data", Stream: "downstream", Attributes: map[string]any{"bytes": after}}, 400*time.Millisecond)
}

// swallow puts a toxic on the way that lets less out than comes in.
func (s *target) swallow(x toxic, d time.Duration) string {
	s.t.Helper()
	h := s.proxy.harm(x)
	defer h.end()
	eventually(s.t, "something is swallowed", func() bool { return h.swallowed() > 0 })
	s.last(d)
	return fmt.Sprintf("%d bytes %s swallowed", h.swallowed(), x.Stream)
}

func (s *target) delay() string {
	s.t.Helper()
	const latency = 200 * time.Millisecond
	h := s.proxy.harm(toxic{Type: "latency", Stream: "downstream", Attributes: map[string]any{"latency": latency.Milliseconds(), "jitter": 50}})
	defer h.end()
	began := time.Now()
	if _, err := s.ask(s.t.Context(), s.proxy.url(s.server.URL())); err != nil {
		s.t.Errorf("a slow server does not answer: %v", err)
	}
	took := time.Since(began)
	if took < latency/2 {
		s.t.Errorf("an answer took %v: the fault did not happen", took)
	}
	s.last(time.Second)
	return fmt.Sprintf("an answer took %v", took.Round(time.Millisecond))
}

func (s *target) refuse() string {
	s.t.Helper()
	s.proxy.inner.Stop()
	conn, err := net.Dial("tcp", s.proxy.inner.Listen)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		s.t.Errorf("dialling: %v; want it refused", err)
	}
	s.last(500 * time.Millisecond)
	if err := s.proxy.inner.Start(); err != nil {
		s.t.Fatal(err)
	}
	return err.Error()
}

func (s *target) stopAndGoOn() string {
	s.t.Helper()
	before := s.identity()
	if err := s.server.Pause(); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "the server is stopped", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(s.server.PID()) + "/stat")
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	ctx, cancel := context.WithTimeout(s.t.Context(), loadLease+time.Second)
	_, err := s.ask(ctx, s.server.URL())
	cancel()
	if err == nil {
		s.t.Error("a stopped server answers: the fault did not happen")
	}
	if err := s.server.Continue(); err != nil {
		s.t.Fatal(err)
	}
	if after := s.identity(); after != before {
		s.t.Errorf("the server that continues is another: %s, before %s", after, before)
	}
	return fmt.Sprintf("no answer for longer than a lease: %v", err)
}

func (s *target) killAndStart() string {
	s.t.Helper()
	before := s.identity()
	if err := s.server.Kill(); err != nil {
		s.t.Fatal(err)
	}
	s.last(300 * time.Millisecond)
	if err := s.server.Restart(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	after := s.identity()
	if after == before {
		s.t.Errorf("the server is the same as before, %s: the fault did not happen", after)
	}
	return fmt.Sprintf("it is %s, and was %s", after, before)
}

// runOutOfMemory is the fault of a Redis alone.
var runOutOfMemory = fault{name: "maxmemory is reached", happen: func(s *target) string {
	s.t.Helper()
	do := func(command ...string) any {
		answer, err := services.RedisDo(s.t.Context(), s.server.Addr(), command...)
		if err != nil {
			s.t.Fatal(err)
		}
		return answer
	}
	refused := func() string { return field(do("INFO", "errorstats").(string), "errorstat_OOM") }
	before := refused()
	do("CONFIG", "SET", "maxmemory", "1")
	eventually(s.t, "the server refuses for want of memory", func() bool { return refused() != before })
	s.last(300 * time.Millisecond)
	do("CONFIG", "SET", "maxmemory", "0")
	return "errors OOM: " + refused()
}}

// hurt is a fault of one of the servers.
type hurt struct {
	fault
	at *target
	// what is the server's part in the store.
	what string
}

func hurts(what string, at *target, faults ...fault) []hurt {
	var list []hurt
	for _, f := range faults {
		list = append(list, hurt{f, at, what})
	}
	return list
}

// TestFaultsOfServersLoseNoMessageAndRepeatNoEffect injects faults in random order, one after the other, while
// workers run. After each fault it waits until no work is left from the time of the fault.
func TestFaultsOfServersLoseNoMessageAndRepeatNoEffect(t *testing.T) {
	for _, s := range []struct {
		name, kind string
		modes      []mode
		cleanup    pgstore.Cleanup
	}{
		{onRedis, onRedis, []mode{retry, hold}, ""},
		{onCompact, onCompact, []mode{retry, hold}, ""},
		{onPostgres, onPostgres, []mode{retry, hold, sameTx}, pgstore.CleanupDelete},
		{"postgres message-time", onPostgres, []mode{retry, hold, sameTx}, pgstore.CleanupMessageTime},
		{onDual, onDual, []mode{retry, hold}, pgstore.CleanupDelete},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			through, direct := setting{Kind: s.kind}, setting{Kind: s.kind}
			if s.cleanup == pgstore.CleanupMessageTime {
				through.Began = time.Now().UnixMilli()
				direct.Began = through.Began
			}
			var todo []hurt
			if s.kind != onPostgres {
				at := redisTarget(t)
				direct.Redis, through.Redis = at.server.URL(), at.proxy.url(at.server.URL())
				todo = append(todo, hurts("redis", at, append(faultsOfAll, runOutOfMemory)...)...)
			}
			if s.kind == onPostgres || s.kind == onDual {
				at := postgresTarget(t, s.cleanup)
				execute(t, at.server.URL(), effectsTable)
				direct.Postgres, through.Postgres = at.server.URL(), at.proxy.url(at.server.URL())
				todo = append(todo, hurts("postgres", at, faultsOfAll...)...)
			}
			defer keepCleaning(t, direct, tolerant)()
			l := newLoad(t, through, s.modes, loadLease)
			order := random(t)
			stop := l.start()
			for range *rounds {
				order.Shuffle(len(todo), func(a, b int) { todo[a], todo[b] = todo[b], todo[a] })
				for _, h := range todo {
					l.noticed()
					proof := h.happen(h.at)
					l.waitForIdle()
					failed, slowest := l.noticed()
					t.Logf("%s: %s: %s; %d calls failed, the slowest delivery took %v", h.what, h.name, proof, failed, slowest.Round(time.Millisecond))
					// What is above the durable store may fail unnoticed.
					above := s.kind == onDual && h.what == "redis"
					if failed == 0 && slowest < time.Second && !h.silent && !above {
						t.Error("the work did not notice: the fault did not reach it")
					}
				}
			}
			stop()
			l.wantSound(direct)
		})
	}
}
