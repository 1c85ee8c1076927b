package services

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// PostgresOptions are the options of [StartPostgres].
type PostgresOptions struct {
	// Version is Postgres15 or Postgres18. Defaults to Postgres15.
	Version string
	// Settings are configuration parameters by name. Defaults to those of the
	// server, with 200 connections and the time zone UTC.
	Settings map[string]string
}

// StartPostgres starts one server and returns when it answers. The server has
// an empty database "postgres" and the superuser "postgres" without a password.
// Nil options are valid. If the server is not installed, the error wraps
// [ErrNotInstalled].
func StartPostgres(ctx context.Context, opts *PostgresOptions) (*Server, error) {
	o := PostgresOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Version == "" {
		o.Version = Postgres15
	}
	program, err := Find(o.Version)
	if err != nil {
		return nil, err
	}
	prepare := func(ctx context.Context, dir string) error {
		template, err := postgresTemplate(ctx, program)
		if err != nil {
			return err
		}
		return asServer(exec.CommandContext(ctx, "cp", "-R", "--preserve=mode", template, dataDir(dir)))
	}
	return start(ctx, postgresKind(o.Version, program), prepare, settingArgs(o.Settings))
}

func dataDir(dir string) string { return filepath.Join(dir, "data") }

// postgresMemory returns the key and the id of the shared memory of a server
// that was killed. The 7th line of its postmaster.pid has them; a server that
// stops in order removes the file.
func postgresMemory(data string) (memory sharedMemory, err error) {
	content, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return memory, err
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) < 7 {
		return memory, fmt.Errorf("%s/postmaster.pid names no shared memory", data)
	}
	_, err = fmt.Sscan(lines[6], &memory.key, &memory.id)
	return memory, err
}

// sharedMemory is a System V segment. An id is used again, so both identify it.
type sharedMemory struct{ key, id int }

func settingArgs(settings map[string]string) []string {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

func postgresKind(name, program string) kind {
	return kind{
		name:    name,
		program: program,
		args: func(dir string, port int) []string {
			return append([]string{"-D", dataDir(dir), "-p", strconv.Itoa(port)}, settingArgs(map[string]string{
				"listen_addresses":        "127.0.0.1",
				"unix_socket_directories": "",
				"max_connections":         "200",
				"timezone":                "UTC",
				// The other method opens and syncs every file before the first
				// start after a kill, which takes seconds.
				"recovery_init_sync_method": "syncfs",
				// Its files go with the data, even after a kill.
				"dynamic_shared_memory_type": "mmap",
			})...)
		},
		url: postgresURL,
		ready: func(ctx context.Context, addr, dir string, _ int) error {
			return postgresReady(ctx, addr, dataDir(dir))
		},
		stop: syscall.SIGINT, // does not wait for clients
		// The server ends its children, which would survive a SIGKILL.
		death: syscall.SIGQUIT,
	}
}

func postgresURL(addr string) string {
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

func postgresReady(ctx context.Context, addr, data string) error {
	answered, err := postgresDo(ctx, postgresURL(addr), "SHOW data_directory")
	if err != nil {
		return err
	}
	if answered != data {
		return fmt.Errorf("the server of %s answers instead", answered)
	}
	return nil
}

// postgresDo runs statements on a new connection and returns the first value of
// the last statement that has one.
func postgresDo(ctx context.Context, server, sql string) (string, error) {
	conn, err := pgconn.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	results, err := conn.Exec(ctx, sql).ReadAll()
	err = errors.Join(err, conn.Close(ctx))
	var value string
	for _, result := range results {
		if len(result.Rows) > 0 && len(result.Rows[0]) > 0 {
			value = string(result.Rows[0][0])
		}
	}
	return value, err
}

// postgresTemplate returns a directory as initdb creates it, which is copied
// for each server. It is made once for each program and machine.
func postgresTemplate(ctx context.Context, program string) (string, error) {
	version, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", program, err)
	}
	return template("initdb", program+"\n"+string(version), func(dir string) error {
		initdb := exec.CommandContext(ctx, filepath.Join(filepath.Dir(program), "initdb"),
			"-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
		initdb.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
		return asServer(initdb)
	})
}

// CreateDatabase creates an empty database with a random name on the server of
// a postgres:// address, and returns the address of the database.
func CreateDatabase(ctx context.Context, server string) (string, error) {
	address, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("services: address of the server: %w", err)
	}
	name := "semel_" + strings.ToLower(rand.Text()[:12])
	if _, err := postgresDo(ctx, server, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return "", fmt.Errorf("services: create database: %w", err)
	}
	address.Path = "/" + name
	return address.String(), nil
}

// DropDatabase removes a database that CreateDatabase made, and ends its
// connections.
func DropDatabase(ctx context.Context, server, database string) error {
	address, err := url.Parse(database)
	if err != nil {
		return fmt.Errorf("services: address of the database: %w", err)
	}
	name := strings.TrimPrefix(address.Path, "/")
	if _, err := postgresDo(ctx, server, `DROP DATABASE IF EXISTS "`+strings.ReplaceAll(name, `"`, `""`)+`" WITH (FORCE)`); err != nil {
		return fmt.Errorf("services: drop database: %w", err)
	}
	return nil
}
