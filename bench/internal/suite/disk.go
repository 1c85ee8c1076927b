package suite

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

// atRest lists the benchmarks of an embedded store that has keys.
func atRest(e Env) []Benchmark {
	keys := e.size(1e7, 1e5)
	prepare := func(ctx context.Context) error { return e.fillStore(ctx, keys) }
	return []Benchmark{
		{
			Name:        "logstore-reopen",
			Work:        fmt.Sprintf("open a store of %s ids of 16 bytes whose files are not in the operating system's cache. Then, for each id, its live heap, and the disk blocks of its files after it was closed", count(keys)),
			peerVersion: limit("3 s, 14 B and 24 B"),
			prepare:     prepare,
			ours:        func(ctx context.Context) (map[string]float64, error) { return e.reopen(ctx, keys) },
			figures: []figure{
				{name: "logstore-reopen", unit: "s", lessIsBetter: true, target: 1, limit: 3},
				{name: "logstore-memory-per-id", unit: "B/id", lessIsBetter: true, target: 1, limit: 14},
				{name: "logstore-disk-per-id", unit: "B/id", lessIsBetter: true, target: 1, limit: 24},
			},
		},
		{
			Name:        "logstore-reopen-bound",
			Work:        fmt.Sprintf("open a store of %s ids as in logstore-reopen (peer: read the same files, equally cold, and compute the CRC-32C of all bytes, which opening cannot do without)", count(keys)),
			peerVersion: standard("read and hash/crc32"),
			prepare:     prepare,
			ours: func(ctx context.Context) (map[string]float64, error) {
				values, err := e.reopen(ctx, keys)
				return map[string]float64{"logstore-reopen-bound": values["logstore-reopen"]}, err
			},
			peer: func(context.Context) (map[string]float64, error) {
				took, err := e.readStore()
				return map[string]float64{"logstore-reopen-bound": took.Seconds()}, err
			},
			figures: []figure{{name: "logstore-reopen-bound", unit: "s", lessIsBetter: true}},
		},
	}
}

func (e *Env) fillStore(ctx context.Context, keys int) (err error) {
	dir, err := e.fresh("reopen")
	if err != nil {
		return err
	}
	s, err := logstore.Open(dir, nil)
	if err != nil {
		return err
	}
	_, err = claimAll(ctx, s, newIDs(keys, 16), claimBatch)
	return errors.Join(err, s.Close())
}

// reopen measures the time to open a store, its memory, and its disk space when closed.
func (e *Env) reopen(ctx context.Context, keys int) (map[string]float64, error) {
	dir := e.work("reopen")
	if err := evict(dir); err != nil {
		return nil, err
	}
	before := liveBytes()
	start := time.Now()
	s, err := logstore.Open(dir, nil)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	memory := liveBytes() - before
	err = errors.Join(knows(ctx, s, keys), s.Close())
	if err != nil {
		return nil, err
	}
	disk, err := blocks(dir)
	return map[string]float64{
		"logstore-reopen":        took.Seconds(),
		"logstore-memory-per-id": memory / float64(keys),
		"logstore-disk-per-id":   float64(disk) / float64(keys),
	}, err
}

// knows checks that the store has the ids of fillStore.
func knows(ctx context.Context, s *logstore.Store, count int) error {
	ids := newIDs(count, 16)
	keys := make([]semel.Key, 0, claimBatch)
	records := make([]semel.Record, claimBatch)
	for i := range claimBatch {
		keys = append(keys, semel.Key{Scope: "bench", ID: ids.at(i * (count / claimBatch))})
	}
	if err := s.Look(ctx, keys, records); err != nil {
		return err
	}
	for i, r := range records {
		if r.State != semel.Done {
			return fmt.Errorf("key %s is %v after opening", keys[i], r.State)
		}
	}
	return nil
}

func (e *Env) readStore() (time.Duration, error) {
	dir := e.work("reopen")
	if err := evict(dir); err != nil {
		return 0, err
	}
	start := time.Now()
	buffer := make([]byte, 1<<20)
	table := crc32.MakeTable(crc32.Castagnoli)
	err := eachFile(dir, func(f *os.File, _ fs.FileInfo) error {
		var sum uint32
		for {
			n, err := f.Read(buffer)
			sum = crc32.Update(sum, table, buffer[:n])
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	return time.Since(start), err
}

// evict drops the files of dir from the operating system's cache.
func evict(dir string) error {
	return eachFile(dir, func(f *os.File, _ fs.FileInfo) error {
		if err := f.Sync(); err != nil { // the system drops only clean pages
			return err
		}
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}

// blocks returns the disk space of the files of dir in bytes.
func blocks(dir string) (total int64, err error) {
	err = eachFile(dir, func(_ *os.File, info fs.FileInfo) error {
		total += info.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	return total, err
}

func eachFile(dir string, do func(*os.File, fs.FileInfo) error) error {
	return filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		return do(f, info)
	})
}
