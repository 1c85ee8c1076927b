package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// StartPgBouncer starts a connection pool in front of a PostgreSQL server, in
// transaction mode: each transaction may get another connection. settings are
// lines of its configuration by name and override the defaults. The pool serves
// all databases, but only for the user postgres.
func StartPgBouncer(ctx context.Context, server *Server, settings map[string]string) (*Server, error) {
	program, err := Find(PgBouncer)
	if err != nil {
		return nil, err
	}
	lines := map[string]string{
		"listen_addr":     "127.0.0.1",
		"unix_socket_dir": "",
		"auth_type":       "trust",
		"auth_file":       "users",
		"admin_users":     "postgres",
		"pool_mode":       "transaction",
		"max_client_conn": "1000",
	}
	maps.Copy(lines, settings)
	return start(ctx, pgBouncerKind(program, server.Port(), lines), nil, nil)
}

func pgBouncerKind(program string, target int, lines map[string]string) kind {
	return kind{
		name:    PgBouncer,
		program: program,
		configure: func(dir string, port int) error {
			var conf strings.Builder
			database := "host=127.0.0.1 port=" + strconv.Itoa(target)
			fmt.Fprintf(&conf, "[databases]\n%s = %s dbname=postgres\n* = %s\n", filepath.Base(dir), database, database)
			fmt.Fprintf(&conf, "[pgbouncer]\nlisten_port = %d\n", port)
			for _, name := range slices.Sorted(maps.Keys(lines)) {
				fmt.Fprintf(&conf, "%s = %s\n", name, lines[name])
			}
			return errors.Join(
				writeFile(dir, "pgbouncer.ini", []byte(conf.String())),
				writeFile(dir, "users", []byte("\"postgres\" \"\"\n")),
			)
		},
		args: func(string, int) []string { return []string{"pgbouncer.ini"} },
		url:  postgresURL,
		ready: func(ctx context.Context, addr, dir string, _ int) error {
			// No other pool knows a database of this name.
			_, err := postgresDo(ctx, strings.Replace(postgresURL(addr), "/postgres?", "/"+filepath.Base(dir)+"?", 1), "SELECT 1")
			return err
		},
		stop:  syscall.SIGTERM,
		death: syscall.SIGKILL,
	}
}
