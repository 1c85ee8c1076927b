package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/bench/internal/machine"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/test/services"
)

// grownServer is a store in a server.
type grownServer struct {
	server         *services.Server
	batch, workers int
	// open connects to the server.
	open func(ctx context.Context) (semel.Store, func() error, error)
	// settle waits until nothing that was answered is lost by a SIGKILL.
	settle func(ctx context.Context) error
	// room returns memory and disk in MiB.
	room func(ctx context.Context) (memory, disk float64, err error)

	store semel.Store
	end   func() error
}

func (g *grownServer) connect(ctx context.Context) (err error) {
	g.store, g.end, err = g.open(ctx)
	return err
}

func (g *grownServer) fill(ctx context.Context, from, to, last int) (float64, error) {
	return fillNumbers(ctx, g.store, from, to, last, g.batch, g.workers)
}

func (g *grownServer) late(ctx context.Context, keys int) (time.Duration, error) {
	return lateNumber(ctx, g.store, keys)
}

func (g *grownServer) sizes(ctx context.Context) (memory, disk float64, err error) {
	return g.room(ctx)
}

func (g *grownServer) restart(ctx context.Context, keys int, cold bool) (time.Duration, error) {
	if err := g.settle(ctx); err != nil {
		return 0, err
	}
	if err := errors.Join(g.end(), g.server.Kill()); err != nil {
		return 0, err
	}
	if cold {
		if err := evict(g.server.Dir()); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	if err := g.server.Restart(ctx); err != nil {
		return 0, err
	}
	if err := g.connect(ctx); err != nil {
		return 0, err
	}
	err := answersNumbers(ctx, g.store, keys, cold)
	return time.Since(start), err
}

func (g *grownServer) close() error {
	if g.end == nil {
		return g.server.Close()
	}
	return errors.Join(g.end(), g.server.Close())
}

func growPostgres(ctx context.Context) (growing, error) {
	server, err := startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	var pool *pgxpool.Pool
	g := &grownServer{server: server, batch: 1000, workers: 2}
	g.settle = func(context.Context) error { return nil }
	g.open = func(ctx context.Context) (semel.Store, func() error, error) {
		config, err := pgxpool.ParseConfig(server.URL())
		if err != nil {
			return nil, nil, err
		}
		config.MaxConns = 2
		if pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
			return nil, nil, err
		}
		end := func() error { pool.Close(); return nil }
		if _, err := pgstore.Migrate(ctx, pool, nil); err != nil {
			return nil, nil, errors.Join(err, end())
		}
		store, err := pgstore.New(ctx, pool, &prepared)
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		return store, end, nil
	}
	g.room = func(ctx context.Context) (memory, disk float64, err error) {
		if err := pool.QueryRow(ctx, sizeOnDisk, "semel%").Scan(&disk); err != nil {
			return 0, 0, err
		}
		memory, err = shareMiB(server.PID())
		return memory, disk / (1 << 20), err
	}
	return g, joinClose(g.connect(ctx), g)
}

func growRedis(ctx context.Context) (growing, error) {
	server, err := startRedis(ctx)
	if err != nil {
		return nil, err
	}
	g := &grownServer{server: server, batch: redisBatch, workers: redisBatchers}
	g.open = func(ctx context.Context) (semel.Store, func() error, error) {
		store, end, err := openRedis(ctx, server.Addr(), &redisstore.Options{})
		return store, end, err
	}
	g.settle = func(ctx context.Context) error { return redisWritten(ctx, server.Addr()) }
	g.room = func(ctx context.Context) (memory, disk float64, err error) {
		if err := redisWritten(ctx, server.Addr()); err != nil {
			return 0, 0, err
		}
		if memory, err = peakMiB(server.PID()); err != nil {
			return 0, 0, err
		}
		bytes, err := blocks(server.Dir())
		return memory, float64(bytes) / (1 << 20), err
	}
	return g, joinClose(g.connect(ctx), g)
}

// joinClose closes what was opened if there is an error.
func joinClose(err error, g growing) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, g.close())
}

// redisWritten waits until the server has written all that it answered, and rewrites no file.
func redisWritten(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, kafkaLimit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		reply, err := services.RedisDo(ctx, addr, "INFO", "persistence")
		if err != nil {
			return err
		}
		text := fmt.Sprint(reply)
		idle := true
		for _, field := range []string{"aof_buffer_length", "aof_pending_bio_fsync", "aof_rewrite_in_progress", "aof_rewrite_scheduled"} {
			idle = idle && strings.Contains(text, field+":0")
		}
		if idle {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("suite: Redis has not written its file: %s", text)
		}
	}
}

// family returns a process and all its descendants.
func family(pid int) ([]int, error) {
	list := []int{pid}
	children, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "task", strconv.Itoa(pid), "children"))
	if err != nil {
		return nil, err
	}
	for _, text := range strings.Fields(string(children)) {
		child, err := strconv.Atoi(text)
		if err != nil {
			return nil, err
		}
		of, err := family(child)
		if err != nil && !gone(err) {
			return nil, err
		}
		list = append(list, of...)
	}
	return list, nil
}

// gone reports whether a process has just ended.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// shareMiB returns the proportional share of memory of a process and all its descendants.
func shareMiB(pid int) (sum float64, err error) {
	list, err := family(pid)
	if err != nil {
		return 0, err
	}
	for _, pid := range list {
		text, err := machine.Field(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
		if err != nil && !gone(err) {
			return 0, err
		}
		if err != nil {
			continue
		}
		var kib float64
		if _, err := fmt.Sscanf(text, "%f kB", &kib); err != nil {
			return 0, err
		}
		sum += kib / 1024
	}
	return sum, nil
}
