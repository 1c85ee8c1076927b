package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/test/sampletest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// unverified has a broker append to a partition what a producer calls part of a
// transaction, though the coordinator does not know that the partition is. So the
// transaction has no end there, as when Kafka loses a marker.
//
// It has as many partitions of offsets as by default, so that those of the groups here
// are apart.
var unverified = map[string]string{"transaction.partition.verification.enable": "false", "offsets.topic.num.partitions": "50"}

// hang is a producer whose transactions have no end.
type hang struct {
	client *kgo.Client
	id     string
	epoch  int16
	pid    int64
}

// newHang begins as a program did whose transactions the coordinator knows. Brokers
// verify what later versions of the requests ask for.
func newHang(t *testing.T, addr, id string) *hang {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID(id), kgo.TransactionTimeout(10*time.Minute), kgo.MaxVersions(kversion.V3_5_0()))
	must(t, err)
	t.Cleanup(client.Close)
	h := &hang{client: client, id: id}
	h.pid, h.epoch, err = client.ProducerID(t.Context())
	must(t, err)
	return h
}

// write leaves a transaction open in a partition.
func (h *hang) write(t *testing.T, topic string, partition int32) {
	t.Helper()
	record := kmsg.Record{Value: []byte("open")}
	record.Length = int32(len(record.AppendTo(nil)) - 1) // the length itself takes a byte
	now := time.Now().UnixMilli()
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: 1 << 4, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: h.pid, ProducerEpoch: h.epoch, NumRecords: 1, Records: record.AppendTo(nil),
	}
	batch.Length = int32(len(batch.AppendTo(nil)) - 12)
	batch.CRC = int32(crc32.Checksum(batch.AppendTo(nil)[21:], crc32.MakeTable(crc32.Castagnoli)))
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID, req.Acks, req.TimeoutMillis = &h.id, -1, 10_000
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: partition, Records: batch.AppendTo(nil)}}}}
	answer, err := h.client.Broker(1).RetriableRequest(t.Context(), req)
	must(t, err)
	must(t, kerr.ErrorForCode(answer.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode))
}

// commit leaves offsets of a group in a transaction that is open.
func (h *hang) commit(t *testing.T, group, topic string, partition int32) {
	t.Helper()
	at := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	at.Partition, at.Offset = partition, 1
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = h.id, group, h.pid, h.epoch, -1
	req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: topic, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{at}}}
	answer, err := req.RequestWith(t.Context(), h.client)
	must(t, err)
	must(t, kerr.ErrorForCode(answer.Topics[0].Partitions[0].ErrorCode))
}

// TestATransactionWithoutAnEndIsNamedAndEnded leaves a transaction open without an end in
// each place that the program reads committed. The program says that it is not ready, and
// logs once the command that ends the transaction. doctor and txn ls name it as well, and
// after the command all continues.
func TestATransactionWithoutAnEndIsNamedAndEnded(t *testing.T) {
	t.Parallel()
	program := built(t)
	broker := servicestest.StartKafka(t, &services.KafkaOptions{Properties: unverified})
	for place, leaveOpen := range sampletest.Sampled(map[string]func(*hang, *stalling){
		"input": func(lost *hang, s *stalling) { lost.write(s.t, s.in, 0) },
		"input of a producer that continues": func(lost *hang, s *stalling) {
			lost.write(s.t, s.in, 0)
			must(s.t, lost.client.BeginTransaction())
			must(s.t, lost.client.ProduceSync(s.t.Context(), &kgo.Record{Topic: s.name + "-other"}).FirstErr())
		},
		"offsets":               func(lost *hang, s *stalling) { lost.commit(s.t, s.name, s.in, 0) },
		"keys":                  func(lost *hang, s *stalling) { lost.write(s.t, s.name+"-keys", 0) },
		"copies":                func(lost *hang, s *stalling) { lost.write(s.t, s.name+"-repartition", 0) },
		"offsets of the copies": func(lost *hang, s *stalling) { lost.commit(s.t, s.name+"-repartition", s.in, 0) },
	}, 3) {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			s := newStalling(t, program, broker.Addr(), servicestest.Topic(), strings.Contains(place, "copies"))
			s.write(0, 20)
			s.daemon.start(t)
			s.reads(20)
			s.daemon.end(t, syscall.SIGTERM)
			leaveOpen(newHang(t, broker.Addr(), "lost-"+s.name), s)
			s.write(20, 40)
			s.stalls()
		})
	}
}

// stalling is a pipeline from one partition to another.
type stalling struct {
	t             *testing.T
	name, in, out string
	addr          string
	client        *kgo.Client
	daemon        *daemon
}

func newStalling(t *testing.T, program, addr, name string, copies bool) *stalling {
	t.Helper()
	s := &stalling{t: t, name: name, in: name + "-in", out: name + "-out", addr: addr}
	var err error
	s.client, err = kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(s.in), kgo.UnknownTopicRetries(-1))
	must(t, err)
	t.Cleanup(s.client.Close)
	answer, err := kadm.NewClient(s.client).CreateTopics(t.Context(), 1, 1, nil, s.in, s.out, name+"-other")
	must(t, errors.Join(err, answer.Error()))
	stage := ""
	if copies {
		stage = ", repartition: true"
	}
	// A member whose session ends has no partition that is held up, and the next pause would be
	// another one. The name is the same after a restart, so no member waits for the session.
	s.daemon = newDaemon(t, program, fmt.Sprintf(`
pipelines:
  %s:
    source: { kafka: { brokers: [%q], topics: [%s], group: %s, instance: one, session_timeout: 30s%s } }
    key: { id: record-key }
    window: 1h
    sink: { kafka: { brokers: [%q], topic: %s } }
    parallel: 1
`, name, addr, s.in, name, stage, addr, s.out))
	s.daemon.admin = "127.0.0.1:0"
	return s
}

// write writes the keys from from to to-1, twice each.
func (s *stalling) write(from, to int) {
	s.t.Helper()
	for n := from; n < to; n++ {
		r := kgo.Record{Key: fmt.Append(nil, n), Value: fmt.Append(nil, n)}
		again := r
		must(s.t, s.client.ProduceSync(s.t.Context(), &r, &again).FirstErr())
	}
}

// reads checks that a reader gets the keys from 0 to keys-1 once each.
func (s *stalling) reads(keys int) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.addr), kgo.ConsumeTopics(s.out), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	must(s.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), soon)
	defer cancel()
	var got []string
	for len(got) < keys && ctx.Err() == nil {
		for r := range client.PollFetches(ctx).RecordsAll() {
			got = append(got, string(r.Value))
		}
	}
	var want []string
	for n := range keys {
		want = append(want, fmt.Sprint(n))
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("read %v, want %v", got, want)
	}
}

// ready returns what /readyz says.
func (s *stalling) ready(address string) (status int, text string) {
	s.t.Helper()
	answer, err := http.Get("http://" + address + "/readyz")
	must(s.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must(s.t, err)
	return answer.StatusCode, string(body)
}

// semel runs a verb, and returns its exit status and its output.
func (s *stalling) semel(args ...string) (status int, out string) {
	s.t.Helper()
	text, err := exec.CommandContext(s.t.Context(), s.daemon.program, args...).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(text)
	}
	must(s.t, err)
	return 0, string(text)
}

const (
	exitFound = 3
	// soon is how long a program may take that has next to nothing to do.
	soon = 2 * time.Minute
)

// stalls starts the program, and ends the transaction that holds it up.
func (s *stalling) stalls() {
	s.t.Helper()
	t := s.t
	s.daemon.start(t)
	address := s.daemon.address(t)
	said := ""
	if !within(soon, func() bool {
		var status int
		status, said = s.ready(address)
		return status == http.StatusServiceUnavailable && strings.Contains(said, "has more records")
	}) {
		t.Fatalf("it calls itself ready: %s", said)
	}
	_, command, ok := strings.Cut(strings.TrimSpace(said), "no coordinator will end it: semel ")
	if !ok {
		t.Fatalf("/readyz does not say what helps: %s", said)
	}
	wantPaused := func(want string) {
		t.Helper()
		answer, err := http.Get("http://" + address + "/metrics")
		must(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		must(t, err)
		if line := fmt.Sprintf("dedup_paused{pipeline=%q,reason=\"source\"} %s\n", s.name, want); !strings.Contains(string(body), line) {
			t.Errorf("/metrics has no %s", line)
		}
	}
	wantPaused("1")
	if status, out := s.semel("doctor", s.daemon.config); status != exitFound || !strings.Contains(out, command) {
		t.Errorf("doctor ended with %d and does not say %q:\n%s", status, command, out)
	}
	status, out := s.semel("kafka", "txn", "ls", "--config", s.daemon.config)
	if status != exitFound || strings.Count(out, "hangs since offset") != 1 {
		t.Errorf("ls ended with %d:\n%s", status, out)
	}
	if status, out := s.semel(strings.Fields(command)...); status != 0 {
		t.Fatalf("%s: %s", command, out)
	}
	s.reads(40)
	if !within(soon, func() bool { status, said = s.ready(address); return status == http.StatusOK }) {
		t.Errorf("it is not ready afterwards: %s", said)
	}
	wantPaused("0")
	if status, out := s.semel("kafka", "txn", "ls", "--config", s.daemon.config); status != 0 {
		t.Errorf("ls ended with %d afterwards:\n%s", status, out)
	}
	s.daemon.end(t, syscall.SIGTERM)
	log, err := os.ReadFile(s.daemon.log)
	must(t, err)
	if n := strings.Count(string(log[s.daemon.logged:]), `"msg":"paused"`); n != 1 || !strings.Contains(string(log), command) {
		t.Errorf("it logged %d pauses, want one with %q:\n%s", n, command, log[s.daemon.logged:])
	}
}

// endHanging ends the transactions that the programs of the group cannot get past, as
// `semel kafka txn abort` does.
func endHanging(t *testing.T, addr string) {
	t.Helper()
	admin, err := kafka.OpenAdmin(t.Context(), []kgo.Opt{kgo.SeedBrokers(addr)})
	must(t, err)
	defer func() { must(t, admin.Close()) }()
	list, err := admin.Open(t.Context(), kafka.Places{Topics: []string{"in", "out", changelog}, Groups: []string{group}})
	must(t, err)
	for _, o := range list {
		if o.Hanging {
			t.Logf("a transaction of %s hangs in %s/%d since offset %d", o.ID, o.Topic, o.Partition, o.Start)
			if err := admin.AbortHanging(t.Context(), o.Topic, o.Partition, o.Start); err != nil && !errors.Is(err, kafka.ErrNoTransaction) {
				t.Error(err)
			}
		}
	}
}
