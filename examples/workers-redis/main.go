// Command workers-redis works on jobs of a Redis stream. Start it several times:
// each job is done once. If a process dies, another takes its job over when the
// lease ends, with a higher fencing token. The target refuses a lower one, so a
// process that was only paused cannot overwrite its successor.
//
//	REDIS_URL=redis://127.0.0.1:6379 go run ./examples/workers-redis
//	redis-cli XADD jobs '*' id invoice-7
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/redisstore"
)

const group = "workers"

type worker struct {
	guard  *semel.Guard
	client rueidis.Client
	name   string
	stream string
	lease  time.Duration
	work   time.Duration
}

func main() {
	w := &worker{name: "worker-" + strconv.Itoa(os.Getpid())}
	flag.StringVar(&w.stream, "stream", "jobs", "the stream with the jobs")
	flag.DurationVar(&w.lease, "lease", 30*time.Second, "how long a dead process holds its job")
	flag.DurationVar(&w.work, "work", time.Second, "how long a job takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := w.run(ctx, os.Getenv("REDIS_URL")); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func (w *worker) run(ctx context.Context, url string) error {
	store, err := redisstore.Connect(ctx, url, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	w.guard, err = semel.NewGuard(store, &semel.GuardOptions{Name: w.name, Lease: w.lease})
	if err != nil {
		return err
	}
	w.client, err = redisstore.NewClient(ctx, url, nil)
	if err != nil {
		return err
	}
	defer w.client.Close()
	err = w.client.Do(ctx, w.client.B().XgroupCreate().Key(w.stream).Group(group).Id("0").Mkstream().Build()).Error()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return err
	}
	fmt.Println("waiting for jobs in stream", w.stream)
	for {
		jobs, err := w.next(ctx)
		if err != nil {
			return err
		}
		for _, job := range jobs {
			if err := w.handle(ctx, job); err != nil {
				return err
			}
		}
	}
}

// next returns a job that another worker has kept for longer than a lease, or a
// new one, or none after a second. Redis delivers each at least once.
func (w *worker) next(ctx context.Context) ([]rueidis.XRangeEntry, error) {
	kept, err := w.client.Do(ctx, w.client.B().Xautoclaim().Key(w.stream).Group(group).Consumer(w.name).
		MinIdleTime(strconv.FormatInt(w.lease.Milliseconds(), 10)).Start("0").Count(1).Build()).ToArray()
	if err != nil {
		return nil, err
	}
	if jobs, err := kept[1].AsXRange(); err != nil || len(jobs) > 0 {
		return jobs, err
	}
	read, err := w.client.Do(ctx, w.client.B().Xreadgroup().Group(group, w.name).Count(1).
		Block(1000).Streams().Key(w.stream).Id(">").Build()).AsXRead()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	return read[w.stream], err
}

// handle does a job, and acknowledges it when that is permitted.
func (w *worker) handle(ctx context.Context, job rueidis.XRangeEntry) error {
	key := semel.Key{Scope: "jobs", ID: job.FieldValues["id"]}
	out, err := w.guard.Do(ctx, key, func(ctx context.Context, claim semel.Claim) ([]byte, error) {
		return nil, w.effect(ctx, key.ID, claim)
	})
	switch {
	case errors.Is(err, semel.ErrInvalidKey):
		fmt.Println("dropped", job.ID, "it has no id") // no retry helps
	case !semel.MayAck(err):
		fmt.Println("later", key.ID, err) // it stays pending and comes again
		return ctx.Err()
	default:
		fmt.Println(out.Decision, key.ID)
	}
	return w.client.Do(ctx, w.client.B().Xack().Key(w.stream).Group(group).Id(job.ID).Build()).Error()
}

// finish is the target: it keeps the highest token and refuses a lower one.
var finish = rueidis.NewLuaScript(`
if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'token') or '0') then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'by', ARGV[2])
return redis.call('HINCRBY', KEYS[1], 'times', 1)`)

// effect works, and writes the result under the claim's token. ctx ends when the
// lease may have been lost.
func (w *worker) effect(ctx context.Context, id string, claim semel.Claim) error {
	fmt.Println("started", id, "attempt", claim.Attempt)
	select {
	case <-time.After(w.work):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	times, err := finish.Exec(ctx, w.client, []string{w.stream + ":result:" + id}, []string{fmt.Sprint(claim.Token), w.name}).AsInt64()
	if err == nil && times == 0 {
		return fmt.Errorf("a later holder has finished %s: %w", id, semel.ErrLeaseLost)
	}
	return err
}
