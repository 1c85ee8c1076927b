package kafka

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// sampled returns what happens while messages are moved: with -short, only the worst.
func sampled(random *rand.Rand) (events []string) {
	if testing.Short() {
		return shuffled(random, "kill-broker kill-program", 1)
	}
	return shuffled(random, allEnds, max(*kills-1, 2))
}

// TestRunFromKafkaToKafkaWritesEachKeyOnce has two runs of the program move
// messages from one file each, without a store.
func TestRunFromKafkaToKafkaWritesEachKeyOnce(t *testing.T) {
	t.Parallel()
	program := built(t)
	seed, random := chooseSeed(t)
	total, events := *messages*3/10, sampled(random)
	moveOnce(t, total, events, seed, func(t *testing.T, addr string, i int) process {
		t.Helper()
		return newOnce(t, program, addr, i)
	})
}

// newOnce is a run of the program from Kafka to Kafka.
func newOnce(t *testing.T, program, addr string, i int) *daemon {
	t.Helper()
	return newDaemon(t, program, fmt.Sprintf(`
pipelines:
  once:
    source: { kafka: { brokers: [%q], topics: [in], group: %s, instance: once-%d, session_timeout: 1s } }
    key: { id: record-key }
    window: 1h
    sink: { kafka: { brokers: [%q], topic: out } }
    in_flight: { max: 750 }
    parallel: 1
`, addr, group, i, addr))
}

// TestGroupsThatTheBrokerDividesKeepEachKeyOnce moves messages to rows by two
// runs of the program, whose partitions the broker assigns (KIP-848). A row and its key are one
// transaction, so a second row means a message that two runs had concurrently and that was not
// held back.
func TestGroupsThatTheBrokerDividesKeepEachKeyOnce(t *testing.T) {
	t.Parallel()
	seed, random := chooseSeed(t)
	// In such a group the broker says when a member is dead, which for a name that
	// is kept is also how long the next run waits for it after a kill.
	broker := servicestest.StartKafka(t, &services.KafkaOptions{Properties: map[string]string{"group.consumer.session.timeout.ms": "1000"}})
	database := servicestest.StartPostgres(t, nil)
	feed := newFeeding(t, broker.Addr(), seed)
	programs := startRows(t, broker, database, "protocol: consumer")

	total, events := *messages/5, sampled(random)
	share := total / (len(events) + 1)
	for _, event := range events {
		feed.write(t, share)
		within(time.Duration(random.IntN(1500))*time.Millisecond, func() bool { return false })
		i := random.IntN(2)
		t.Logf("%s %s %d", time.Now().Format("15:04:05.000"), event, i)
		happen(t, event, broker, programs[i], random)
	}
	feed.write(t, total-share*len(events))
	feed.settled(t, "rows")
	for _, d := range programs {
		d.end(t, syscall.SIGTERM)
	}
	wantRows(t, database, feed)
	t.Logf("%d messages, %d keys, %v", total, len(feed.amounts), events)
}
