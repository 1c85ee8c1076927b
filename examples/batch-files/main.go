// Command batch-files is a nightly job: it sends each new line of some files to a
// service, in batches. After a kill, or on files that overlap with those of
// yesterday, it sends only what was not sent.
//
//	go run ./examples/batch-files examples/events.jsonl
//	go run ./examples/batch-files -url http://… /exports/*.jsonl
//
// A batch whose answer did not arrive is sent again, so the service must recognise
// an event_id that it has. To only remove duplicates from files, use semel dedup.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

type job struct {
	guard *semel.Guard
	url   string
	lines [][]byte
	calls []semel.Call
	count map[semel.Decision]int
	bad   int
}

func main() {
	dir := flag.String("dir", "./sent", "the directory of the keys")
	url := flag.String("url", "", "the service that takes the lines; without it, they are only printed")
	size := flag.Int("batch", 100, "the number of lines in a batch")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *url, *size, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir, url string, size int, files []string) error {
	store, err := logstore.Open(dir, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	// The window is longer than a file stays among the exports.
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Window: 30 * 24 * time.Hour})
	if err != nil {
		return err
	}
	j := &job{guard: guard, url: url, count: map[semel.Decision]int{}}
	for _, name := range files {
		if err := j.file(ctx, name, size); err != nil {
			return fmt.Errorf("%s: %w: start the job again to send the rest", name, err)
		}
	}
	fmt.Fprintf(os.Stderr, "sent %d, already sent %d\n", j.count[semel.Fresh], j.count[semel.Duplicate])
	if j.bad > 0 {
		return fmt.Errorf("%d lines were not sent: correct them and start the job again", j.bad)
	}
	return nil
}

func (j *job) file(ctx context.Context, name string, size int) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var event struct {
			ID string `json:"event_id"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil || event.ID == "" {
			log.Printf("%s:%d: the line has no event_id", name, n)
			j.bad++
			continue
		}
		j.lines = append(j.lines, bytes.Clone(lines.Bytes()))
		j.calls = append(j.calls, semel.Call{Key: semel.Key{Scope: "nightly", ID: event.ID}})
		if len(j.calls) == size {
			if err := j.send(ctx); err != nil {
				return err
			}
		}
	}
	return errors.Join(lines.Err(), j.send(ctx))
}

// send sends the lines of a batch that no earlier batch has sent.
func (j *job) send(ctx context.Context) error {
	outcomes := j.guard.DoBatch(ctx, j.calls, func(ctx context.Context, fresh []*semel.BatchItem) error {
		var body bytes.Buffer
		for _, item := range fresh {
			body.Write(j.lines[item.Index])
			body.WriteByte('\n')
		}
		return j.post(ctx, &body)
	})
	j.lines, j.calls = j.lines[:0], j.calls[:0]
	for _, out := range outcomes {
		if !semel.MayAck(out.Err) {
			return out.Err
		}
		j.count[out.Decision]++
	}
	return nil
}

// post is the effect.
func (j *job) post(ctx context.Context, body *bytes.Buffer) error {
	if j.url == "" {
		_, err := body.WriteTo(os.Stdout)
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, j.url, body)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", j.url, response.Status)
	}
	return nil
}
