package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/internal/peertest"
)

// cutAt returns the address of a proxy that cuts the connection when a client sends its
// first COMMIT, after or before the server gets it.
func cutAt(t *testing.T, address string, passes bool) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var cut atomic.Bool
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(client, server) // ends with the connection
				_ = client.Close()
			}()
			go func() {
				defer client.Close()
				defer server.Close()
				buffer := make([]byte, 64<<10)
				for {
					n, err := client.Read(buffer)
					if err != nil {
						return
					}
					if bytes.Contains(buffer[:n], []byte("Q\x00\x00\x00\x0bcommit")) && !cut.Swap(true) {
						if passes {
							_ = client.Close() // before the server can answer
							_, _ = server.Write(buffer[:n])
						}
						return
					}
					if _, err := server.Write(buffer[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	u.Host = listener.Addr().String()
	return u.String()
}

// TestServerAnswersAreClassifiedAsDocumented has the rows of PostgreSQL in the table of
// broker/ANSWERS.md.
func TestServerAnswersAreClassifiedAsDocumented(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE kept (body text);
		CREATE FUNCTION fails(code text, body text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'm' USING ERRCODE = code; END $$`); err != nil {
		t.Fatal(err)
	}
	deliver := func(t *testing.T, at, statement string) error {
		sink, err := postgres.Open(t.Context(), at, &postgres.Options{Statement: statement, Args: []string{"body"}})
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Close(context.Background())
		return peertest.DeliverOne(t, sink, "{}")
	}
	states := func(codes ...string) func(t *testing.T) error {
		var list []func(t *testing.T) error
		for _, code := range codes {
			list = append(list, func(t *testing.T) error { return deliver(t, address, fmt.Sprintf("SELECT fails('%s', $1)", code)) })
		}
		return peertest.Same(list...)
	}
	commit := func(passes bool) func(t *testing.T) error {
		return func(t *testing.T) error { return deliver(t, cutAt(t, address, passes), "INSERT INTO kept VALUES ($1)") }
	}
	peertest.RunAnswers(t, "PostgreSQL", []peertest.Answer{
		{Name: "no connection, a cut connection before the commit; SQLSTATE 08, 25, 26, 28, 3D, 3F, 42, 53, 57, 58, XX", Means: peertest.Server, Deliver: peertest.Same(
			states("08006", "25006", "26000", "28P01", "3D000", "3F000", "42501", "42703", "53100", "53300", "57P01", "57P03", "58030", "XX000"),
			func(t *testing.T) error { return deliver(t, address, "INSERT INTO absent VALUES ($1)") },
		)},
		{Name: "a lock, a deadlock or a time-out that holds up all messages (40001, 40P01, 55P03, 57014)", Means: peertest.Server, Deliver: states("55P03", "57014")},
		{Name: "a cut connection during the commit", Means: peertest.ServerInDoubt, Deliver: peertest.Same(commit(true), commit(false))},
		{Name: "SQLSTATE 22 (data), 23 (constraints) without 23503", Means: peertest.MessageForGood, Deliver: states("22001", "22P02", "23505", "23514")},
		{Name: "23503 (the referenced row may still come), P0001 (`RAISE`) and all others", Means: peertest.Message, Deliver: states("23503", "P0001", "0A000")},
	})
}
