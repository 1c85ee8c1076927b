package services

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
)

// RedisOptions are the options of [StartRedis].
type RedisOptions struct {
	// Version is Redis70, Redis82 or Valkey9. Defaults to Redis70.
	Version string
	// Bloom loads the module with the BF commands. Defaults to false.
	Bloom bool
	// Files are written to the working directory of the server before it
	// starts, for example certificates or a list of users. Defaults to none.
	Files map[string][]byte
	// Args are added to the command line, such as "--maxmemory", "10mb", and
	// override earlier values. Defaults to no snapshots and an append-only file
	// that is never synced, which keeps all acknowledged writes when the server
	// is killed. "--appendfsync", "everysec" does not: while a sync runs, Redis
	// answers for up to two seconds before it writes.
	Args []string
}

// StartRedis starts one server and returns when it answers. Nil options are
// valid. If the server is not installed, the error wraps [ErrNotInstalled].
func StartRedis(ctx context.Context, opts *RedisOptions) (*Server, error) {
	o := RedisOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Version == "" {
		o.Version = Redis70
	}
	program, err := Find(o.Version)
	if err != nil {
		return nil, err
	}
	args := []string{"--save", "", "--appendonly", "yes", "--appendfsync", "no"}
	if o.Bloom {
		module, err := Find(RedisBloom)
		if err != nil {
			return nil, err
		}
		args = append(args, "--loadmodule", module)
	}
	return start(ctx, redisKind(o.Version, program), withFiles(o.Files), append(args, o.Args...))
}

// withFiles returns a preparation that writes these files.
func withFiles(files map[string][]byte) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		for name, content := range files {
			if err := writeFile(dir, name, content); err != nil {
				return err
			}
		}
		return nil
	}
}

func redisKind(name, program string) kind {
	return kind{
		name:    name,
		program: program,
		args: func(dir string, port int) []string {
			return []string{
				"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--daemonize", "no",
				// Without this the first synchronisation of a replica waits 5
				// s.
				"--repl-diskless-sync-delay", "0",
			}
		},
		url:   func(addr string) string { return "redis://" + addr },
		ready: redisReady,
		stop:  syscall.SIGTERM,
		death: syscall.SIGKILL,
	}
}

// redisReady fails while the server loads its data.
func redisReady(ctx context.Context, addr, _ string, pid int) error {
	if _, err := RedisDo(ctx, addr, "PING"); err != nil {
		return err
	}
	info, err := redisInfo(ctx, addr, "server")
	if err != nil {
		return err
	}
	if answered := info["process_id"]; answered != strconv.Itoa(pid) {
		return fmt.Errorf("process %s answers instead of %d", answered, pid)
	}
	return nil
}
