package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// numbered returns lines with the ids from a number up to another one.
func numbered(from, to int) string {
	var text strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&text, "{\"id\":%d,\"text\":\"some more bytes\"}\n", i)
	}
	return text.String()
}

// Blocks are parsed out of order, and each share of fresh lines changes how long a
// commit takes.
func TestTheOrderOfTheInputIsKept(t *testing.T) {
	t.Parallel()
	const n = 2000
	ids := numbered(0, n)
	first := numbered(0, 1)
	for name, in := range map[string]struct{ text, want string }{
		"all fresh":             {ids, ids},
		"all duplicates":        {strings.Repeat(first, n), first},
		"fresh then duplicates": {ids + ids, ids},
		"duplicates then fresh": {strings.Repeat(first, n) + ids, ids},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, store := range []string{"", "store"} {
				b := setup(t)
				opts := jsonl(Options{Inputs: []string{b.file("in", in.text)}, Output: b.path("out"), Threads: 8, blockSize: 256, commitBytes: 4096})
				if store != "" {
					opts.Store = b.path(store)
				}
				_, report := b.must(opts)
				b.equal("output", b.content("out"), in.want)
				if want := int64(strings.Count(in.text, "\n")); report.Read != want || report.BytesIn != int64(len(in.text)) {
					t.Errorf("%+v, wanted %d lines", report, want)
				}
			}
		})
	}
}

// failsOnce fails one write and accepts all others.
type failsOnce struct {
	bytes.Buffer
	writes, at int
}

func (w *failsOnce) Write(data []byte) (int, error) {
	if w.writes++; w.writes == w.at {
		return 0, io.ErrClosedPipe
	}
	return w.Buffer.Write(data)
}

func TestDedupWritesNothingAfterAFailedWrite(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := numbered(0, 2000)
	in := b.file("in", text)
	for _, at := range []int{1, 2, 50} {
		out := &failsOnce{at: at}
		_, _, err := b.run(t.Context(), jsonl(Options{Inputs: []string{in}, Stdout: out, Threads: 8, blockSize: 256}))
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Fatalf("error %v", err)
		}
		if out.writes != at || !strings.HasPrefix(text, out.String()) {
			t.Errorf("%d writes, of which number %d failed", out.writes, at)
		}
	}
}

// meter counts the bytes that were read and not yet written, and remembers the most of
// them. Each write gives other goroutines time to read more.
type meter struct {
	from          io.Reader
	read, written atomic.Int64
	most          int64
}

func (m *meter) Read(data []byte) (int, error) {
	n, err := m.from.Read(data)
	m.read.Add(int64(n))
	return n, err
}

func (m *meter) Write(data []byte) (int, error) {
	for range 1000 {
		runtime.Gosched()
	}
	m.most = max(m.most, m.read.Load()-m.written.Load())
	m.written.Add(int64(len(data)))
	return len(data), nil
}

func TestMemoryHoldsOneVeryLongLineAtATime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const lines, size = 32, 256 << 10
	var text bytes.Buffer
	for i := range lines {
		text.WriteString(strings.Repeat(string(rune('A'+i)), size-1) + "\n")
	}
	m := &meter{from: &text}
	_, report := b.must(Options{Format: Text, Stdin: m, Stdout: m, Threads: 8, blockSize: 1024})
	if report.Fresh != lines {
		t.Errorf("%+v", report)
	}
	// A block doubles until a line fits.
	if most := int64(2*size + 64<<10); m.most > most {
		t.Errorf("%d bytes were in memory, more than %d", m.most, most)
	}
}

// changing runs once with hook called before the second commit, when most of the input
// is not read yet.
func (b *bundle) changing(text string, hook func(path string)) (out string, report Report, err error) {
	b.Helper()
	in := b.file("in", text)
	opts := jsonl(Options{
		Inputs: []string{in}, Output: b.path("out"), Store: b.path("store"),
		Threads: 4, blockSize: 1024, commitBytes: 4096,
	})
	var seals atomic.Int64
	opts.failAt = func(step string) error {
		if step == "seal" && seals.Add(1) == 2 {
			hook(in)
		}
		return nil
	}
	_, report, err = b.run(b.Context(), opts)
	return b.content("out"), report, err
}

func TestInputThatGrowsWhileItIsReadIsReadToItsNewEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text, more := numbered(0, 3000), numbered(2900, 3100)
	out, report, err := b.changing(text, func(path string) {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		if _, err := io.WriteString(file, more); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.equal("output", out, numbered(0, 3100))
	if report.Duplicate != 100 || report.BytesIn != int64(len(text)+len(more)) {
		t.Errorf("%+v", report)
	}
}

func TestInputThatShrinksWhileItIsReadEndsTheRunWithWholeLines(t *testing.T) {
	t.Parallel()
	text := numbered(0, 3000)
	for name, size := range map[string]int{"between lines": len(numbered(0, 2500)), "in a line": len(text) - 7, "to nothing": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			out, report, err := b.changing(text, func(path string) {
				if err := os.Truncate(path, int64(size)); err != nil {
					t.Error(err)
				}
			})
			// A block that was read ends in a line that is now torn, or does not.
			var line *LineError
			if err != nil && !errors.As(err, &line) || size == len(numbered(0, 2500)) && err != nil {
				t.Fatalf("error %v", err)
			}
			if !strings.HasPrefix(text, out) || !strings.HasSuffix(out, "\n") || strings.Count(out, "\n") != int(report.Fresh) {
				t.Fatalf("output of %d bytes, %+v", len(out), report)
			}
			if size > 0 && len(out) != strings.LastIndex(text[:size], "\n")+1 {
				t.Errorf("output of %d bytes after a cut to %d", len(out), size)
			}
		})
	}
}

// brokenPipe accepts some bytes and then fails like a pipe whose reader has
// left.
type brokenPipe struct {
	bytes.Buffer
	room int
}

func (p *brokenPipe) Write(data []byte) (int, error) {
	n := min(len(data), p.room)
	p.room -= n
	p.Buffer.Write(data[:n])
	if n < len(data) {
		return n, io.ErrClosedPipe
	}
	return n, nil
}

func TestKeysOfLinesThatWereNotWrittenAreNotRemembered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	o := &oracle{onMissing: MissingReject, seen: map[string]any{}}
	text := randomLines(random(t), 3000, 2000, false)
	o.input(text)
	opts := jsonl(Options{
		Inputs: []string{b.file("in", text)}, Store: b.path("store"),
		blockSize: 512, commitBytes: 4096,
	})
	written := map[string]bool{}
	for room := 1000; ; room *= 2 {
		pipe := &brokenPipe{room: room}
		opts.Stdout = pipe
		_, _, err := b.run(t.Context(), opts)
		for line := range strings.Lines(pipe.String()) {
			written[line] = true
		}
		if err == nil {
			break
		}
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(o.fresh.String()) {
		if !written[line] {
			t.Fatalf("line %q is lost", line)
		}
	}
}
