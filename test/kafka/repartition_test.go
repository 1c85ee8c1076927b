package kafka

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestCopiesInSeveralPartitionsAreDeduplicated writes messages whose copies are in several
// partitions under several record keys. Without a stage that has them meet the
// program refuses to start; with it, two runs of the program write each key once,
// while they and the broker are killed. The messages may be inside others.
func TestCopiesInSeveralPartitionsAreDeduplicated(t *testing.T) {
	seed, random := chooseSeed(t)
	total, events := *messages/5, sampled(random)
	shapes := envelopes()
	names := slices.Sorted(maps.Keys(shapes))
	name := cmp.Or(os.Getenv("SEMEL_ENVELOPE"), names[random.IntN(len(names))])
	t.Logf("SEMEL_ENVELOPE=%s", name)
	for try := 1; !copiesMeet(t, seed, random, total, events, shapes[name]); try++ {
		if try == 3 {
			t.Fatal("Kafka lost markers in each of three runs")
		}
	}
}

// shape is how messages are inside the records of a topic.
type shape struct {
	config string // of the pipeline
	wrap   func(id int, body []byte) *kgo.Record
}

// envelopes are shapes of messages in Kafka, and one without an envelope.
func envelopes() map[string]shape {
	ce := func(name, value string) kgo.RecordHeader {
		return kgo.RecordHeader{Key: "ce_" + name, Value: []byte(value)}
	}
	now := time.Now()
	at := now.UTC().Format(time.RFC3339)
	return map[string]shape{
		"none": {"key: { id: .id }", func(_ int, body []byte) *kgo.Record { return &kgo.Record{Value: body} }},
		"cloudevents": {"unwrap: cloudevents", func(id int, body []byte) *kgo.Record {
			return &kgo.Record{Value: fmt.Appendf(nil, `{"specversion":"1.0","type":"order","source":"/shop","id":"e%d","time":%q,"data":%s}`, id, at, body)}
		}},
		"cloudevents-binary": {"unwrap: cloudevents", func(id int, body []byte) *kgo.Record {
			return &kgo.Record{Value: body, Headers: []kgo.RecordHeader{ce("specversion", "1.0"), ce("type", "order"), ce("source", "/shop"), ce("id", fmt.Sprint("e", id))}}
		}},
		"debezium": {"unwrap: debezium\n    key: { id: .id }", func(id int, body []byte) *kgo.Record {
			return &kgo.Record{Value: fmt.Appendf(nil, `{"payload":{"before":null,"after":%s,"source":{"name":"shop","db":"shop","table":"orders","lsn":%d,"ts_ms":%d},"op":"c"}}`, body, id, now.UnixMilli())}
		}},
		"sns": {"unwrap: sns", func(id int, body []byte) *kgo.Record {
			return &kgo.Record{Value: fmt.Appendf(nil, `{"Type":"Notification","MessageId":"m%d","TopicArn":"arn:aws:sns:eu-west-1:1:orders","Message":%q,"Timestamp":%q}`, id, body, at)}
		}},
	}
}

// copiesMeet reports false, and judges nothing, if Kafka lost markers of transactions
// without which a reader of the input, the copies or the output cannot continue.
func copiesMeet(t *testing.T, seed uint64, random *rand.Rand, total int, events []string, of shape) bool {
	t.Helper()
	broker := servicestest.StartKafka(t, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()), kgo.DefaultProduceTopic("in"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.UnknownTopicRetries(-1), kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }), kgo.MaxBufferedRecords(5000))
	must(t, err)
	defer client.Close()
	adm := kadm.NewClient(client)
	const partitions = 4
	_, err = adm.CreateTopic(t.Context(), partitions, 1, nil, "in")
	must(t, err)
	_, err = adm.CreateTopic(t.Context(), outPartitions, 1, nil, "out")
	must(t, err)
	in := &input{random: rand.New(rand.NewPCG(seed, 1))}
	write := func(n int) {
		t.Helper()
		var failed error
		for range n {
			id := in.next()
			r := of.wrap(id, fmt.Appendf(nil, `{"id":"%d"}`, id))
			r.Partition, r.Key = int32(in.random.IntN(partitions)), []byte(strconv.Itoa(in.random.IntN(100)))
			client.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
				if err != nil {
					failed = err // promises are called one after the other
				}
			})
		}
		must(t, client.Flush(t.Context()))
		must(t, failed)
	}
	config := func(i int, group, stage, out string) string {
		return fmt.Sprintf(`
pipelines:
  once:
    source: { kafka: { brokers: [%q], topics: [in], group: %s, instance: once-%d, session_timeout: 1s%s } }
    %s
    window: 1h
    sink: { kafka: { brokers: [%q], topic: %s } }
    in_flight: { max: 750 }
    parallel: 1
`, broker.Addr(), group, i, stage, of.config, broker.Addr(), out)
	}
	share := total / (len(events) + 1)
	write(share)

	semel := built(t)
	_, err = adm.CreateTopic(t.Context(), outPartitions, 1, nil, "unread")
	must(t, err)
	for try := 1; ; try++ {
		// It looks at messages for a few seconds, in which a slow broker may deliver too few:
		// then it continues until the test ends it.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		without := newDaemon(t, semel, config(0, fmt.Sprint("without-", try), "", "unread"))
		out, err := exec.CommandContext(ctx, semel, "run", without.config, "--admin", "off").CombinedOutput()
		slow := ctx.Err() != nil
		cancel()
		if err != nil && strings.Contains(string(out), "have one id") && strings.Contains(string(out), "repartition: true") {
			break
		}
		if !slow || try == 5 {
			t.Fatalf("without the stage it ended with %v:\n%s", err, out)
		}
	}

	during := newReader(t, broker.Addr())
	defer during.close()
	var programs [2]*daemon
	for i := range programs {
		programs[i] = newDaemon(t, semel, config(i, group, ", repartition: true", "out"))
		programs[i].start(t)
	}
	for _, event := range events {
		within(time.Duration(random.IntN(1500))*time.Millisecond, func() bool { return false })
		happen(t, event, broker, programs[random.IntN(2)], random)
		write(share)
	}
	began, lost := time.Now(), markers(nil)
	settled := func() bool {
		return during.read() >= in.keys && isSettled(t.Context(), adm, group+"-repartition", "in")
	}
	if !within(settleFor, func() bool {
		if time.Since(began) > 30*time.Second {
			lost = lostMarkers(t, broker)
		}
		return len(lost) > 0 || settled()
	}) {
		t.Errorf("%d of %d keys came out, or not all was copied", during.read(), in.keys)
	}
	if len(lost) > 0 && !settled() {
		t.Logf("Kafka lost markers of %v", slices.Sorted(maps.Keys(lost)))
		for _, d := range programs {
			d.end(t, syscall.SIGKILL)
		}
		return false
	}
	for _, d := range programs {
		d.end(t, syscall.SIGTERM)
	}
	after := newReader(t, broker.Addr())
	defer after.close()
	if !within(settleFor, func() bool { return after.read() >= in.keys }) {
		t.Errorf("a reader afterwards has %d of %d keys", after.read(), in.keys)
	}
	within(time.Second, func() bool { return false }) // what should not be there may still come
	for _, r := range []*reader{during, after} {
		r.mu.Lock()
		seen := map[string]int{}
		for _, list := range r.lists {
			for _, value := range list {
				var body struct{ ID string }
				must(t, json.Unmarshal([]byte(value), &body))
				seen[body.ID]++
			}
		}
		twice := 0
		for _, n := range seen {
			if n > 1 {
				twice++
			}
		}
		if len(seen) != in.keys || twice > 0 {
			t.Errorf("of %d keys %d came out, %d of them more than once", in.keys, len(seen), twice)
		}
		r.mu.Unlock()
	}
	t.Logf("%d messages, %d keys, %v", share*(len(events)+1), in.keys, events)
	return true
}
