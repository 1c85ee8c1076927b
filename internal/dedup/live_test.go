//go:build unix

package dedup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// zstandard packs text into one frame.
func zstandard(text string) string {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	defer z.Close()
	return string(z.EncodeAll([]byte(text), nil))
}

// live is a run that reads from one pipe and writes to another.
type live struct {
	*bundle
	feed, drain *os.File
	stdin       *os.File
	cancel      context.CancelCauseFunc
	ended       chan error
}

func startLive(t *testing.T, opts Options) *live {
	t.Helper()
	l := &live{bundle: setup(t), ended: make(chan error, 1)}
	var stdout *os.File
	var err error
	if l.stdin, l.feed, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	if l.drain, stdout, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	l.cancel = cancel
	opts.Stdin, opts.Stdout = l.stdin, stdout
	go func() {
		_, _, err := l.run(ctx, opts)
		stdout.Close()
		l.ended <- err
	}()
	t.Cleanup(func() {
		l.feed.Close()
		l.stdin.Close()
		l.drain.Close()
	})
	return l
}

func (l *live) write(data string) {
	l.Helper()
	if _, err := io.WriteString(l.feed, data); err != nil {
		l.Fatal(err)
	}
}

// interrupt ends the run with the cause, after the run has read everything.
func (l *live) interrupt() {
	l.Helper()
	for readable(l.stdin) {
		runtime.Gosched()
	}
	cause := errors.New("interrupted")
	l.cancel(cause)
	select {
	case err := <-l.ended:
		var refused *RefusedError
		if !errors.Is(err, cause) || errors.As(err, &refused) {
			l.Fatalf("error %v", err)
		}
	case <-time.After(time.Minute):
		l.Fatal("the run does not end")
	}
}

func TestDedupOfAPausingInputCanBeInterruptedAnywhere(t *testing.T) {
	t.Parallel()
	packed, frame := gzipped(strings.Repeat("{\"id\":1}\n", 100)), zstandard("{\"id\":1}\n{\"id\":2}\n")
	for name, test := range map[string]struct {
		data   string
		format Format
	}{
		"nothing": {"", Auto}, "line": {"{\"id\":1}\n{", Auto},
		"gzip magic": {packed[:1], Auto}, "gzip header": {packed[:3], Auto}, "gzip data": {packed[:20], Auto},
		"gzip trailer": {packed[:len(packed)-3], Auto}, "second gzip header": {packed + packed[:5], Auto},
		"mark": {"\xef", Auto}, "mark in gzip": {gzipped("\xef\xbb"), Auto},
		"zstd magic": {frame[:3], Auto}, "zstd header": {frame[:5], Auto}, "zstd frame": {frame[:len(frame)-2], Auto},
		"second zstd header": {frame + frame[:3], Auto}, "skippable zstd frame": {"\x50\x2a\x4d\x18\x09\x00", Auto},
		"CSV header": {"id,na", CSV}, "quoted CSV header": {"id,\"na\n", CSV}, "CSV header in gzip": {gzipped("id,na"), CSV},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := startLive(t, Options{Keys: []string{".id"}, Format: test.format})
			l.write(test.data)
			l.interrupt()
		})
	}
}

func TestKeysBecomeDurableWhileTheInputPauses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var commits atomic.Int64
	committed := make(chan struct{})
	l := startLive(t, jsonl(Options{
		Store: dir + "/store", Threads: 1, commitEvery: time.Millisecond,
		failAt: func(step string) error {
			// The third commit after the first line has its key. The first two may
			// have been sealed before it.
			if step == "record" && commits.Load() > 0 && commits.Add(1) == 4 {
				close(committed)
			}
			return nil
		},
	}))
	line := "{\"id\":1}\n"
	l.write(line)
	if _, err := io.ReadFull(l.drain, make([]byte, len(line))); err != nil {
		t.Fatal(err)
	}
	commits.Store(1)
	select {
	case <-committed:
	case <-time.After(time.Minute):
		t.Fatal("the key is not committed while the input pauses")
	}
	l.interrupt()
}

func TestCompressedMembersOfAPausingInputAreProcessedOneByOne(t *testing.T) {
	t.Parallel()
	for name, pack := range map[string]func(string) string{"gzip": gzipped, "zstd": zstandard} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := startLive(t, Options{Keys: []string{".id"}})
			buf := make([]byte, 100)
			early := ""
			for i := range 4 {
				line := fmt.Sprintf("{\"id\":%d}\n", i)
				member := pack(line)
				next := pack(fmt.Sprintf("{\"id\":%d}\n", i+1))[:3*(i%2)]
				l.write(strings.TrimPrefix(member, early) + next)
				early = next
				n, err := l.drain.Read(buf)
				if err != nil || string(buf[:n]) != line {
					t.Fatalf("read %q, %v: not the line %q", buf[:n], err, line)
				}
			}
			l.interrupt()
		})
	}
}

func TestCompressedDataIsReadAsItsToolsDo(t *testing.T) {
	t.Parallel()
	line, other := "{\"id\":1}\n", "{\"id\":2}\n"
	zeros := strings.Repeat("\x00", 1000)
	skip := "\x5a\x2a\x4d\x18\x03\x00\x00\x00abc"
	for name, data := range map[string]string{
		"gzip with padding":          gzipped(line) + gzipped(other) + zeros,
		"gzip with padding between":  gzipped(line) + zeros + gzipped(other),
		"empty gzip member":          gzipped("") + gzipped(line) + gzipped("") + gzipped(other),
		"zstd after skippable frame": skip + zstandard(line+other),
		"zstd with skippable frames": zstandard(line) + skip + skip + zstandard(other) + skip,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			out, _ := b.must(Options{Keys: []string{".id"}, Inputs: []string{b.file("in", data)}})
			b.equal("output", out, line+other)
		})
	}
	for name, data := range map[string]string{
		"gzip and something else": gzipped(line) + "abcdefghijkl",
		"gzip and half a header":  gzipped(line) + gzipped(other)[:4],
		"gzip header cut in name": "\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\x03name",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			if _, _, err := b.run(t.Context(), Options{Keys: []string{".id"}, Inputs: []string{b.file("in", data)}}); err == nil || !strings.Contains(err.Error(), "gzip data") {
				t.Fatalf("error %v", err)
			}
		})
	}
}

func TestLineOfAPausingInputIsWrittenImmediately(t *testing.T) {
	t.Parallel()
	for _, pack := range []bool{false, true} {
		b := setup(t)
		stdin, feed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer stdin.Close()
		drain, stdout, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer drain.Close()
		var in io.Writer = feed
		flush := func() error { return nil }
		if pack {
			z := gzip.NewWriter(feed)
			in, flush = z, z.Flush
		}
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			_, _, err := b.run(ctx, jsonl(Options{Stdin: stdin, Stdout: stdout, Store: b.path("store")}))
			ended <- err
			stdout.Close()
		}()
		buf := make([]byte, 100)
		for i := range 3 {
			line := fmt.Sprintf("{\"id\":%d}\n", i)
			if _, err := io.WriteString(in, line+line+`{"id":`); err != nil {
				t.Fatal(err)
			}
			if err := flush(); err != nil {
				t.Fatal(err)
			}
			n, err := drain.Read(buf)
			if err != nil || string(buf[:n]) != line {
				t.Fatalf("read %q, %v: not the line that was written", buf[:n], err)
			}
			if _, err := fmt.Fprintf(in, "%d}\n", i); err != nil {
				t.Fatal(err)
			}
		}
		// The input stays open, so only an interruption ends the run.
		cause := errors.New("interrupted")
		cancel(cause)
		if err := <-ended; !errors.Is(err, cause) {
			t.Fatalf("error %v", err)
		}
		feed.Close()
	}
}
