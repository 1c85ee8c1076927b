package app

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// fakeKafka starts a broker in this process with the topics in and out. It
// returns the broker and its address.
func fakeKafka(t *testing.T) (*kfake.Cluster, string) {
	t.Helper()
	address := servicestest.FreeAddr(t) // free again once the cluster is closed
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in", "out", "in-parked"),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) { return net.Listen(network, address) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster, address
}

// transaction is a running Kafka-to-Kafka pipeline.
type transaction struct {
	config.Runnable
	settled chan struct{} // gets one value for each message
	mu      sync.Mutex
	decided map[semel.Decision]int
	end     context.CancelFunc
	ended   chan error
}

func (r *transaction) Observe(semel.Event) {}

func (r *transaction) ObservePipeline(e pipeline.Event) {
	switch e.Kind {
	case pipeline.EventDecided:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.decided[e.Decision] += e.Count
	case pipeline.EventSettled:
		for range e.Count {
			r.settled <- struct{}{}
		}
	}
}

// transact runs a pipeline with additional fields in its configuration.
func transact(t *testing.T, address, more string) *transaction {
	t.Helper()
	f := parse(t, `pipelines:
  p:
    source: { kafka: { brokers: [%q], topics: [in], group: g, retention: 1d } }
    key: { id: record-key }
    window: 1h
    sink: { kafka: { brokers: [%q], topic: out } }
%s`, address, address, more)
	r := &transaction{settled: make(chan struct{}, 100), decided: map[semel.Decision]int{}, ended: make(chan error, 1)}
	stores := NewStores(f, nil)
	p, err := OpenPipeline(t.Context(), f, f.Pipelines[0], stores, &PipelineOptions{Observer: r})
	if err != nil {
		t.Fatal(err)
	}
	r.Runnable = p
	ctx, cancel := context.WithCancel(t.Context())
	r.end = cancel
	go func() { r.ended <- p.Run(ctx) }()
	t.Cleanup(func() { _ = stores.Close() })
	return r
}

func (r *transaction) stop(t *testing.T) {
	t.Helper()
	r.end()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

// readiness waits until Ready returns an error with this text, or nil for "".
func (r *transaction) readiness(t *testing.T, want string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := r.Ready(ctx)
		cancel()
		if want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after a minute it is ready: %v, want %q", err, want)
		}
	}
}

func TestLateRecordsInATransactionFollowOnLate(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for name, c := range map[string]struct{ more, out, parked string }{
		"by default": {"", "late new", ""},
		"run":        {"    on_late: run\n", "late new", ""},
		"park":       {"    on_late: park\n", "new", "late"},
		"drop":       {"    on_late: drop\n", "new", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, address := fakeKafka(t)
			client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumeTopics("out", "in-parked"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			now := time.Now()
			for _, r := range []*kgo.Record{{Key: []byte("new"), Timestamp: now}, {Key: []byte("late"), Timestamp: now.Add(-2 * time.Minute)}} {
				r.Topic = "in"
				if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			r := transact(t, address, "    transaction: { time: event, grace: 1m }\n    parallel: 1\n"+c.more)
			for range 2 {
				<-r.settled
			}
			r.stop(t)
			if r.decided[semel.Late] != 1 || r.decided[semel.Fresh] != 1 {
				t.Errorf("decided %v, want one late and one fresh", r.decided)
			}
			got := map[string][]string{}
			for n := len(strings.Fields(c.out + " " + c.parked)); n > 0; {
				fetches := client.PollFetches(t.Context())
				if err := fetches.Err(); err != nil {
					t.Fatal(err)
				}
				for _, r := range fetches.Records() {
					got[r.Topic] = append(got[r.Topic], string(r.Key))
					n--
				}
			}
			for topic, want := range map[string]string{"out": c.out, "in-parked": c.parked} {
				slices.Sort(got[topic])
				if is := strings.Join(got[topic], " "); is != want {
					t.Errorf("%s has %q, want %q", topic, is, want)
				}
			}
		})
	}
}

func TestATransactionIsReadyWhileItsBrokersAnswer(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	cluster, address := fakeKafka(t)
	r := transact(t, address, "")
	r.readiness(t, "")
	cluster.Close()
	r.readiness(t, "kafka: ")
	r.end()
	<-r.ended // without a broker it may end with an error
	r = transact(t, address, "")
	r.readiness(t, "refused")
	r.stop(t)
}
