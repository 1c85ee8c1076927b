package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/services"
)

// countWindows makes a program count and add up messages in windows.
func countWindows(o *kafkatxn.TransactorOptions) error {
	id, err := key.ParseRule(".id")
	by, err2 := key.ParseRule(".g")
	values, err3 := stream.Values(stream.Value{Name: "n", Of: "count"}, stream.Value{Name: "s", Of: "sum .id"})
	o.Key.Rule, o.Parked = id, "parked"
	o.Aggregate = &stream.Aggregate{By: by, Over: stream.Tumbling(time.Second), Func: values, Grace: 500 * time.Millisecond, Idle: 2 * time.Second}
	return errors.Join(err, err2, err3)
}

// eachWindowHasOneResult has two programs count messages in
// windows, while they and the broker are stopped, killed and suspended. Each message is
// in one result or parked as late, and each window of a group has one result.
func eachWindowHasOneResult(t *testing.T) {
	seed, random := chooseSeed(t)
	ends, times, n := allEnds+ownEnds, *kills, *messages
	if testing.Short() {
		ends, times, n = "kill-broker kill-program"+ownEnds, 1, 20_000
	}
	events := shuffled(random, ends, times)
	untilRunSays(t, seed, func(seed uint64) bool { return countOnABroker(t, n, events, seed, false) })
}

// eachMixedWindowHasOneResult is the same with groups that are in all
// partitions, which a stage brings together.
func eachMixedWindowHasOneResult(t *testing.T) {
	seed, random := chooseSeed(t)
	ends, times, n := allEnds+ownEnds, *kills, *messages/2
	if testing.Short() {
		ends, times, n = allEnds, 1, 10_000
	}
	events := shuffled(random, ends, times)
	untilRunSays(t, seed, func(seed uint64) bool { return countOnABroker(t, n, events, seed, true) })
}

// countOnABroker reports whether the run says something.
func countOnABroker(t *testing.T, messages int, events []string, seed uint64, mixed bool) bool {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 4))
	run := newCrashRun(t, random, "out", "parked")
	defer run.client.Close()
	run.create(t, inPartitions, nil, "in")
	run.create(t, outPartitions, nil, "out")
	run.create(t, 1, nil, "parked")
	run.start(t, func(s *settings) { s.Windows, s.Mixed = true, mixed })

	ids, sum := 0, 0
	var past []*kgo.Record // to write again
	write := func(n int) {
		for range n {
			r := &kgo.Record{}
			if len(past) > 0 && random.IntN(5) == 0 {
				*r = kgo.Record{Key: past[0].Key, Value: past[0].Value, Timestamp: past[0].Timestamp}
				past = past[1:]
			} else {
				group := fmt.Sprint("g", random.IntN(10))
				r.Key, r.Value, r.Timestamp = []byte(group), fmt.Appendf(nil, `{"id":%d,"g":%q}`, ids, group), time.Now().Add(-time.Duration(random.IntN(600))*time.Millisecond)
				if mixed {
					r.Key = fmt.Appendf(nil, "%d", random.IntN(100))
				}
				if random.IntN(500) == 0 {
					r.Timestamp = r.Timestamp.Add(-time.Minute)
				}
				sum += ids
				ids++
				if random.IntN(3) == 0 {
					past = append(past, &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: r.Timestamp})
				}
			}
			run.produce(t, r)
		}
		must(t, run.client.Flush(t.Context()))
	}
	run.meet(t, events, messages, write)

	found := counts{late: map[int]bool{}, results: map[string]bool{}}
	run.wait(t, func() bool {
		found.read(t, run.client)
		return found.n+found.parked >= ids
	})
	if found.n+found.parked != ids || found.sum != sum || len(found.twice) > 0 {
		return run.fail(t, []string{group, group + "-repartition"}, "%d messages with the sum %d are in results, and %d are parked; want %d and %d in all. Two results: %q", found.n, found.sum, found.parked, ids, sum, found.twice)
	}
	if found.parked == 0 || len(found.results) == 0 {
		t.Errorf("%d messages are parked, and there are %d results", found.parked, len(found.results))
	}
	run.end(t, syscall.SIGTERM)
	if found.read(t, run.client); len(found.twice) > 0 || found.n+found.parked != ids {
		t.Errorf("%d messages after the end, want %d. Two results: %q", found.n+found.parked, ids, found.twice)
	}
	t.Logf("%d messages, %d results, %d late, %v", ids, len(found.results), found.parked, events)
	return true
}

// showState logs what the broker has of groups and open transactions.
func showState(t *testing.T, adm *kadm.Client, groups ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lags, err := adm.Lag(ctx, groups...)
	for name, lag := range lags {
		t.Logf("group %s is %s with %d members", name, lag.State, len(lag.Members))
		for _, l := range lag.Lag.Sorted() {
			t.Logf("  %s/%d committed %d of %d, %v", l.Topic, l.Partition, l.Commit.At, l.End.Offset, l.Err)
		}
	}
	open, err2 := adm.DescribeTransactions(ctx)
	for _, one := range open.Sorted() {
		t.Logf("transaction %s is %s since %s with %v", one.TxnID, one.State, time.UnixMilli(one.StartTimestamp).Format("15:04:05.000"), one.Topics)
	}
	producers, err3 := adm.DescribeProducers(ctx, nil)
	for topic, of := range producers {
		for number, p := range of.Partitions {
			for _, one := range p.ActiveProducers {
				if one.CurrentTxnStartOffset >= 0 {
					t.Logf("producer %d has an open transaction in %s/%d from %d on", one.ProducerID, topic, number, one.CurrentTxnStartOffset)
				}
			}
		}
	}
	t.Log(errors.Join(err, err2, err3))
}

// ownEnds are what else happens to programs that are written in Go.
const ownEnds = " suspend-program lose-directory"

// meets has something happen to a program or its broker.
func (r *running) meets(t *testing.T, event string, server *services.Server, random *rand.Rand) {
	t.Helper()
	switch event {
	case "suspend-program":
		suspend(t, r)
	case "lose-directory": // the brokers alone have what it needs
		r.end(t, syscall.SIGKILL)
		dirs, err := filepath.Glob(r.StateDir + "*")
		must(t, err)
		for _, dir := range dirs {
			must(t, os.RemoveAll(dir))
		}
		r.start(t)
	default:
		happen(t, event, server, r, random)
	}
}

// suspend stops a program for longer than its session, so that another has its
// partitions when it continues.
func suspend(t *testing.T, r *running) {
	t.Helper()
	must(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	within(3*time.Second, func() bool { return false })
	must(t, r.cmd.Process.Signal(syscall.SIGCONT))
}

// counts are the messages that were found behind the programs.
type counts struct {
	n, sum, parked int
	late           map[int]bool
	results        map[string]bool
	twice          []string
}

// read reads all records that exist.
func (c *counts) read(t *testing.T, client *kgo.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
		if r.Topic == "parked" {
			var m struct{ ID int }
			must(t, json.Unmarshal(r.Value, &m))
			if !c.late[m.ID] { // a repeat of a late message is late too
				c.late[m.ID] = true
				c.parked++
				c.sum += m.ID
			}
			return
		}
		var got struct {
			Key, Start string
			Values     struct{ N, S int }
		}
		must(t, json.Unmarshal(r.Value, &got))
		name := got.Key + " " + got.Start
		if c.results[name] {
			c.twice = append(c.twice, name)
		}
		c.results[name] = true
		c.n += got.Values.N
		c.sum += got.Values.S
	})
}
