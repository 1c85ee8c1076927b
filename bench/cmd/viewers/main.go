// Command viewers measures what the page costs a busy pipeline: it runs a pipeline from files to
// files in rounds, with and without viewers of the overview who refresh it as its script does, and
// prints the medians.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel/bench/internal/lines"
	"github.com/semel-dev/semel/bench/internal/machine"
)

// refreshEvery is how often the script of the page refreshes it.
const refreshEvery = 2 * time.Second

// trial are the flags, and the files that each run uses.
type trial struct {
	rounds, lines, viewers int
	dir, binary, input     string
}

// sample is one run of the pipeline.
type sample struct {
	wall, processor time.Duration
	pages           int64
}

func main() {
	var t trial
	flag.IntVar(&t.rounds, "rounds", 5, "how many rounds")
	flag.IntVar(&t.lines, "lines", 5_000_000, "how many lines the pipeline reads")
	flag.IntVar(&t.viewers, "viewers", 20, "how many viewers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := t.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "viewers:", err)
		os.Exit(1)
	}
}

// run runs all rounds. In every other one, the run with viewers comes first.
func (t *trial) run(ctx context.Context) (err error) {
	if t.dir, err = os.MkdirTemp("", "viewers-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(t.dir)) }()
	t.binary, t.input = filepath.Join(t.dir, "semel"), filepath.Join(t.dir, "in.jsonl")
	build := exec.CommandContext(ctx, "go", "build", "-o", t.binary, "./cmd/semel")
	build.Dir, build.Stderr = "..", os.Stderr // go run -C bench
	if err := build.Run(); err != nil {
		return fmt.Errorf("build semel in the folder above bench: %w", err)
	}
	if _, err := lines.File(t.input, 20260101, t.lines); err != nil {
		return err
	}
	described, err := machine.Describe()
	if err != nil {
		return err
	}
	fmt.Printf("%d lines, %d viewers, one refresh in %v each; %s\n", t.lines, t.viewers, refreshEvery, described)
	var without, with []sample
	for round := range t.rounds {
		for side := range 2 {
			n, list := 0, &without
			if (round+side)%2 == 1 {
				n, list = t.viewers, &with
			}
			s, err := t.once(ctx, n)
			if err != nil {
				return err
			}
			*list = append(*list, s)
			fmt.Printf("round %d, %2d viewers: %6.2f s, %6.2f s of processor time, %d pages\n", round+1, n, s.wall.Seconds(), s.processor.Seconds(), s.pages)
		}
	}
	for _, of := range []struct {
		name string
		of   func(sample) time.Duration
	}{{"wall", func(s sample) time.Duration { return s.wall }}, {"processor", func(s sample) time.Duration { return s.processor }}} {
		a, b := median(without, of.of), median(with, of.of)
		fmt.Printf("median %s time: %.2f s without viewers, %.2f s with viewers: %+.1f %%\n", of.name, a.Seconds(), b.Seconds(), 100*(b.Seconds()/a.Seconds()-1))
	}
	return nil
}

func median(list []sample, of func(sample) time.Duration) time.Duration {
	var times []time.Duration
	for _, s := range list {
		times = append(times, of(s))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// once runs the pipeline until its input ends, while some viewers look at the overview.
func (t *trial) once(ctx context.Context, viewers int) (s sample, err error) {
	dir, err := os.MkdirTemp(t.dir, "run-")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	address, err := freeAddress()
	if err != nil {
		return s, err
	}
	file := filepath.Join(dir, "viewers.yaml")
	text := fmt.Sprintf(`admin: { listen: "%s" }
stores:
  ledger: { embedded: { path: ledger } }
pipelines:
  copy:
    source: { file: { paths: [%q] } }
    key: { id: .event_id }
    store: ledger
    window: forever
    sink: { file: { path: out.jsonl } }
`, address, t.input)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return s, err
	}
	run := exec.CommandContext(ctx, t.binary, "run", file)
	var log strings.Builder
	run.Stderr = &log
	began := time.Now()
	if err := run.Start(); err != nil {
		return s, err
	}
	looking, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	var pages atomic.Int64
	for i := range viewers {
		all.Go(func() {
			look(looking, "http://"+address+"/", time.Duration(i)*refreshEvery/time.Duration(viewers), &pages)
		})
	}
	err = run.Wait()
	s.wall, s.processor = time.Since(began), run.ProcessState.UserTime()+run.ProcessState.SystemTime()
	stop()
	all.Wait()
	if err != nil {
		return s, fmt.Errorf("semel run: %w: %s", err, log.String())
	}
	if s.pages = pages.Load(); viewers > 0 && s.pages == 0 {
		return s, errors.New("no viewer saw a page: choose more -lines")
	}
	return s, nil
}

// look opens a page and refreshes it, until ctx ends. A viewer keeps a connection, as a browser
// does.
func look(ctx context.Context, url string, after time.Duration, pages *atomic.Int64) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConns: 1}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	timer := time.NewTimer(after)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(refreshEvery)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			continue
		}
		request.Header.Set("Semel-Refresh", "1")
		answer, err := client.Do(request)
		if err != nil { // the process begins or ends
			continue
		}
		_, err = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close() // it was only read
		if err == nil && answer.StatusCode == http.StatusOK {
			pages.Add(1)
		}
	}
}

// freeAddress returns an address of loopback that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
