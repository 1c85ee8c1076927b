package suite

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// commands lists the benchmarks of commands that run once.
func commands(e Env) []Benchmark {
	n := e.size(200, 10)
	return []Benchmark{{
		Name:        "once",
		Work:        fmt.Sprintf("%s calls of semel once for true, each with a new key, on one embedded store with fsync: always: how much longer the median call takes than the median flock FILE true, which run in turn with them", count(n)),
		peerVersion: limit("15 ms"),
		prepare:     e.buildSemel,
		ours: func(ctx context.Context) (map[string]float64, error) {
			more, err := e.overFlock(ctx, n)
			return map[string]float64{"once": float64(more.Microseconds()) / 1000}, err
		},
		figures: []figure{{name: "once", unit: "ms", lessIsBetter: true, target: 1, limit: 15}},
	}}
}

// overFlock returns how much longer a call takes than flock.
func (e *Env) overFlock(ctx context.Context, n int) (time.Duration, error) {
	dir, err := e.fresh("once")
	if err != nil {
		return 0, err
	}
	var calls, locks []time.Duration
	measure := func(list *[]time.Duration, name string, args ...string) error {
		start := time.Now()
		output, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		if *list = append(*list, time.Since(start)); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, output)
		}
		return nil
	}
	for i := range n {
		err := errors.Join(
			measure(&calls, e.work("bin", "semel"), "once", "--quiet", "--store", filepath.Join(dir, "keys"), "--key", fmt.Sprint(i), "--", "true"),
			measure(&locks, "flock", filepath.Join(dir, "lock"), "true"))
		if err != nil {
			return 0, err
		}
	}
	slices.Sort(calls)
	slices.Sort(locks)
	return calls[n/2] - locks[n/2], nil
}
