package kafka

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/sampletest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestProgramsAreKilled has two programs run each operator, while they and the broker are
// stopped and killed. With -short it draws two of the operators.
func TestProgramsAreKilled(t *testing.T) {
	for name, test := range sampletest.Sampled(map[string]func(t *testing.T){
		"and each key is kept once":            eachKeyIsKeptOnce,
		"and each window has one result":       eachWindowHasOneResult,
		"and each mixed window has one result": eachMixedWindowHasOneResult,
		"and no join goes back":                noJoinGoesBack,
	}, 2) {
		t.Run(name, test)
	}
}

// untilRunSays calls run with a seed until it reports that it says something. A run says
// nothing if the broker lost what it had confirmed.
func untilRunSays(t *testing.T, seed uint64, run func(seed uint64) bool) {
	t.Helper()
	for try := 1; !run(seed); try++ {
		if try == 6 {
			t.Fatal("Kafka called a transaction complete that is not in each of six runs")
		}
		t.Log("Kafka called a transaction complete that is not, so that this run says nothing: once more, with the next seed")
		seed++
	}
}

// crashRun is one run of two programs that read the topic in, while they and the broker
// are stopped, killed and suspended.
type crashRun struct {
	server   *services.Server
	client   *kgo.Client // writes to the topic in, and reads committed records of other topics
	adm      *kadm.Client
	random   *rand.Rand
	programs [2]*running
}

// newCrashRun starts a broker, and connects a client that reads topics. The caller closes
// the client.
func newCrashRun(t *testing.T, random *rand.Rand, topics ...string) *crashRun {
	t.Helper()
	server := servicestest.StartKafka(t, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Addr()), kgo.DefaultProduceTopic("in"), kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }), kgo.MaxBufferedRecords(5000),
		kgo.ConsumeTopics(topics...), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	must(t, err)
	return &crashRun{server: server, client: client, adm: kadm.NewClient(client), random: random}
}

// create creates topics. A broker that has just started answers before it can hold a topic.
func (c *crashRun) create(t *testing.T, partitions int32, settings map[string]*string, topics ...string) {
	t.Helper()
	for _, topic := range topics {
		var err error
		within(time.Minute, func() bool {
			_, err = c.adm.CreateTopic(t.Context(), partitions, 1, settings, topic)
			return !errors.Is(err, kerr.InvalidReplicationFactor)
		})
		if errors.Is(err, kerr.TopicAlreadyExists) { // the client asked again
			continue
		}
		must(t, err)
	}
}

// start starts the programs, with settings that set changes.
func (c *crashRun) start(t *testing.T, set func(s *settings)) {
	t.Helper()
	for i := range c.programs {
		c.programs[i] = newProgram(t, c.server.Addr(), i)
		set(&c.programs[i].settings)
		c.programs[i].start(t)
	}
}

// produce writes a record. The caller flushes the client.
func (c *crashRun) produce(t *testing.T, r *kgo.Record) {
	c.client.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
		if err != nil {
			t.Error(err)
		}
	})
}

// meet lets the programs and the broker meet the events, and calls write before and after
// each of them with a share of the messages.
func (c *crashRun) meet(t *testing.T, events []string, messages int, write func(n int)) {
	t.Helper()
	for _, event := range events {
		write(messages / (len(events) + 1) / 2)
		i := c.random.IntN(2)
		t.Logf("%s %s %d", time.Now().Format("15:04:05.000"), event, i)
		c.programs[i].meets(t, event, c.server, c.random)
		write(messages / (len(events) + 1) / 2)
	}
}

// wait calls done until it is true, until settleFor is over, or until the broker has lost
// what it had confirmed.
func (c *crashRun) wait(t *testing.T, done func() bool) {
	t.Helper()
	began := time.Now()
	within(settleFor, func() bool {
		return done() || time.Since(began) > 30*time.Second && len(lostMarkers(t, c.server)) > 0
	})
}

// fail ends the programs, reports what is wrong, and returns true. If the broker lost what
// it had confirmed, fail only returns false: the run says nothing.
func (c *crashRun) fail(t *testing.T, groups []string, format string, args ...any) bool {
	t.Helper()
	if len(lostMarkers(t, c.server)) > 0 {
		c.end(t, syscall.SIGKILL)
		return false
	}
	t.Errorf(format, args...)
	showState(t, c.adm, groups...)
	c.end(t, syscall.SIGQUIT) // what they do is in their logs
	return true
}

// end ends the programs by a signal.
func (c *crashRun) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	for _, p := range c.programs {
		p.end(t, signal)
	}
}
