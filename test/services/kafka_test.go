package services_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// kafkaClient connects to nodes, with short pauses between attempts.
func kafkaClient(t *testing.T, addrs []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(addrs...),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// makeTopic creates a topic and returns when all nodes know it. The other nodes
// learn about it later than the first.
func makeTopic(t *testing.T, client *kgo.Client, copies int16) string {
	t.Helper()
	topic := servicestest.Topic()
	adm := kadm.NewClient(client)
	if _, err := adm.CreateTopic(t.Context(), 1, copies, nil, topic); err != nil {
		t.Fatal(err)
	}
	brokers, err := adm.ListBrokers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, broker := range brokers {
		addr := net.JoinHostPort(broker.Host, strconv.Itoa(int(broker.Port)))
		if err := services.WaitKafkaTopic(t.Context(), addr, topic); err != nil {
			t.Fatal(err)
		}
	}
	return topic
}

// put writes one record in its own transaction.
func put(ctx context.Context, client *kgo.Client, topic, value string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TryCommit)
}

// committed reads this many committed records from the start of a topic.
func committed(t *testing.T, addrs []string, topic string, n int) []string {
	t.Helper()
	client := kafkaClient(t, addrs, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var values []string
	for len(values) < n {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("read %q, then: %v", values, fetches.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

// TestKafka has one server for all that needs no second one, because each takes seconds to start.
// Java's directory for temporary files is that of the server, so that none is left.
func TestKafka(t *testing.T) {
	dir := ownTempDir(t)
	before := javaLeftovers(t)
	server := servicestest.StartKafka(t, nil)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, server *services.Server)
	}{
		{"a killed one has its records after restart", killedKafkaHasItsRecordsAfterRestart},
		{"a paused one does not answer until it continues", pausedKafkaDoesNotAnswerUntilItContinues},
		{"two share no topics", kafkasShareNoTopics},
		{"temporary files", leavesTemporaryFiles},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, server) })
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if left := contents(t, dir); len(left) > 0 {
		t.Errorf("it left %q", left)
	}
	if after := javaLeftovers(t); !slices.Equal(after, before) {
		t.Errorf("%q became %q", before, after)
	}
}

func killedKafkaHasItsRecordsAfterRestart(t *testing.T, server *services.Server) {
	client := kafkaClient(t, []string{server.Addr()}, kgo.TransactionalID("writer"))
	topic := makeTopic(t, client, 1)
	var want []string
	for round, end := range []func() error{server.Kill, server.Stop} {
		want = append(want, fmt.Sprint(round))
		if err := put(t.Context(), client, topic, want[round]); err != nil {
			t.Fatal(err)
		}
		committed(t, []string{server.Addr()}, topic, len(want)) // the marker is written too
		addr, pid := server.Addr(), server.PID()
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if server.Addr() != addr || server.PID() == pid {
			t.Errorf("restarted at %s as %d, was at %s as %d", server.Addr(), server.PID(), addr, pid)
		}
		if got := committed(t, []string{addr}, topic, len(want)); !slices.Equal(got, want) {
			t.Errorf("after restart %d: %q", round, got)
		}
	}
}

func kafkasShareNoTopics(t *testing.T, one *services.Server) {
	other := servicestest.StartKafka(t, &services.KafkaOptions{
		HeapMiB: 96, Properties: map[string]string{"message.max.bytes": "2000"},
	})
	clients := []*kgo.Client{
		kafkaClient(t, []string{one.Addr()}),
		kafkaClient(t, []string{other.Addr()}, kgo.ProducerBatchCompression(kgo.NoCompression())),
	}
	topic := makeTopic(t, clients[0], 1)
	topics, err := kadm.NewClient(clients[1]).ListTopics(t.Context())
	if err != nil || topics.Has(topic) {
		t.Errorf("the other one has %v, %v", topics.Names(), err)
	}
	topic = makeTopic(t, clients[1], 1)
	if err := clients[1].ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: make([]byte, 3000)}).FirstErr(); err == nil {
		t.Error("a property was not heeded")
	}
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", other.PID()))
	if err != nil || !strings.Contains(string(command), "-Xmx96m") {
		t.Errorf("started as %q, %v", command, err)
	}
}

func pausedKafkaDoesNotAnswerUntilItContinues(t *testing.T, server *services.Server) {
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := services.AskKafka(ctx, server.Addr()); err == nil {
		t.Error("it answered while paused")
	}
	if err := server.Continue(); err != nil {
		t.Fatal(err)
	}
	if err := services.AskKafka(t.Context(), server.Addr()); err != nil {
		t.Error(err)
	}
}

// leavesTemporaryFiles has Kafka unpack the library for zstd.
func leavesTemporaryFiles(t *testing.T, server *services.Server) {
	client := kafkaClient(t, []string{server.Addr()}, kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	topic := makeTopic(t, client, 1)
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: make([]byte, 10_000)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func javaLeftovers(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.so", "*hsperfdata_nobody/*"} {
		names, err := filepath.Glob(filepath.Join("/tmp", pattern))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, names...)
	}
	return found
}

func TestKafkaClusterServesWithoutOneNode(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and only benchmarks have a cluster: make test-full, or go test ./test/services -run " + t.Name())
	}
	t.Parallel()
	cluster := servicestest.StartKafkaCluster(t, nil)
	client := kafkaClient(t, cluster.Addrs(), kgo.TransactionalID("writer"))
	topic := makeTopic(t, client, 3)
	configs, err := kadm.NewClient(client).DescribeTopicConfigs(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if err := configs[0].Err; err != nil {
		t.Fatal(err)
	}
	least := slices.IndexFunc(configs[0].Configs, func(c kadm.Config) bool {
		return c.Key == "min.insync.replicas" && c.MaybeValue() == "2"
	})
	if least < 0 {
		t.Error("two replicas need not be in sync")
	}
	node := cluster.Nodes[0]
	if err := node.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), client, topic, "without"); err != nil {
		t.Fatal(err)
	}
	if err := node.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cluster.WaitWhole(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), client, topic, "with"); err != nil {
		t.Fatal(err)
	}
	if got := committed(t, cluster.Addrs(), topic, 2); !slices.Equal(got, []string{"without", "with"}) {
		t.Errorf("read %q", got)
	}
}

func TestKafkaStartErrorGivesTheReason(t *testing.T) {
	t.Parallel()
	for _, name := range []string{services.Java17, services.Kafka43} {
		servicestest.Program(t, name) // skips the test here if it is not installed
	}
	_, err := services.StartKafka(t.Context(), &services.KafkaOptions{Properties: map[string]string{"num.io.threads": "none"}})
	if err == nil || !strings.Contains(err.Error(), "num.io.threads") {
		t.Errorf("got %v", err)
	}
}
