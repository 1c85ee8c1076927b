package kafka

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/internal/services/servicestest"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

const (
	// tableKeys is how many keys the tables have. The rows of the table static are all
	// written before the first program starts.
	tableKeys = 200
	fillers   = 50_000
)

// joinRows returns a loop that joins messages with rows that change, and one that joins
// them with rows that were all there before the first program. Each has a group and topics
// of its own.
func joinRows(o *kafkatxn.TransactorOptions) ([]*kafkatxn.TransactorOptions, error) {
	id, err := key.ParseRule(".n")
	by, err2 := key.ParseRule(".c")
	var list []*kafkatxn.TransactorOptions
	for _, table := range []*stream.Table{
		{Topic: "moving", By: by, Local: true, Missing: stream.MissingWait},
		{Topic: "static", By: by, Missing: stream.MissingPark},
	} {
		opts := *o
		opts.Key, opts.Group, opts.Output, opts.Parked = id, group+"-"+table.Topic, "out-"+table.Topic, "parked-"+table.Topic
		opts.Local.Dir += "-" + table.Topic
		opts.Tables = []*stream.Table{table}
		opts.FilterMap = func(d pipeline.Delivery) ([]byte, bool, error) {
			row, err := table.Row(&d.Message)
			body := strings.TrimSuffix(string(d.Body), "}") + `,"row":` + string(row) + "}"
			return []byte(body), true, err
		}
		list = append(list, &opts)
	}
	return list, errors.Join(err, err2)
}

// TestProgramsAreKilledAndNoJoinGoesBack has two programs join messages with rows, while
// they and the broker are stopped, killed and suspended. Each message is joined exactly
// once. No message is joined before its table is read to its end, and none with an older
// row than an earlier message of the same customer.
func TestProgramsAreKilledAndNoJoinGoesBack(t *testing.T) {
	seed, random := chooseSeed(t)
	ends, times, n := allEnds+" suspend-program", *kills, *messages/2
	if testing.Short() {
		ends, times, n = "kill-broker kill-program suspend-program", 1, 10_000
	}
	events := shuffled(random, ends, times)
	for try := 1; !joinOnABroker(t, n, events, seed); try++ {
		if try == 6 {
			t.Fatal("Kafka called a transaction complete that is not in each of six runs")
		}
		t.Log("Kafka called a transaction complete that is not, so that this run says nothing: once more, with the next seed")
		seed++
	}
}

// joinOnABroker reports whether the run says something.
func joinOnABroker(t *testing.T, messages int, events []string, seed uint64) bool {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 6))
	server := servicestest.StartKafka(t, nil)
	outputs := []string{"out-moving", "out-static", "parked-moving", "parked-static"}
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Addr()), kgo.DefaultProduceTopic("in"), kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }), kgo.MaxBufferedRecords(5000),
		kgo.ConsumeTopics(outputs...), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	must(t, err)
	defer client.Close()
	adm := kadm.NewClient(client)
	compacted := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
	for topic, settings := range map[string]map[string]*string{"in": nil, "moving": compacted, "static": compacted} {
		_, err = adm.CreateTopic(t.Context(), inPartitions, 1, settings, topic)
		must(t, err)
	}
	for _, topic := range outputs {
		_, err = adm.CreateTopic(t.Context(), outPartitions, 1, nil, topic)
		must(t, err)
	}
	produce := func(topic, key string, value []byte) {
		client.Produce(t.Context(), &kgo.Record{Topic: topic, Key: []byte(key), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	for i := range fillers { // the rows that count come last
		produce("static", fmt.Sprint("filler", i), []byte("0"))
	}
	for i := range tableKeys {
		produce("static", fmt.Sprint("c", i), []byte("1"))
	}
	must(t, client.Flush(t.Context()))
	var programs [2]*running
	for i := range programs {
		programs[i] = newProgram(t, server.Addr(), i)
		programs[i].Tables = true
		programs[i].start(t)
	}

	number, version := 0, 0
	write := func(n int) {
		for until := number + n; number < until; number++ {
			c := fmt.Sprint("c", random.IntN(tableKeys))
			if number < tableKeys { // each customer has its first row just before its first message
				c = fmt.Sprint("c", number)
			}
			if number < tableKeys || random.IntN(20) == 0 {
				version++
				produce("moving", c, strconv.AppendInt(nil, int64(version), 10))
				must(t, client.Flush(t.Context()))
			}
			body := fmt.Appendf(nil, `{"n":%d,"c":%q}`, number, c)
			produce("in", c, body)
			if random.IntN(5) == 0 {
				produce("in", c, body)
			}
		}
		must(t, client.Flush(t.Context()))
	}
	for _, event := range events {
		write(messages / (len(events) + 1) / 2)
		i := random.IntN(2)
		t.Logf("%s %s %d", time.Now().Format("15:04:05.000"), event, i)
		if event == "suspend-program" {
			suspend(t, programs[i])
		} else {
			happen(t, event, server, programs[i], random)
		}
		write(messages / (len(events) + 1) / 2)
	}

	type output struct {
		N, Row int
		C      string
	}
	found, parked := map[string][]output{}, 0
	poll := func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if strings.HasPrefix(r.Topic, "parked") {
				parked++
				t.Logf("parked: %s, %s", r.Value, header(r, "semel-error"))
				return
			}
			var o output
			must(t, json.Unmarshal(r.Value, &o))
			found[r.Topic] = append(found[r.Topic], o)
		})
	}
	all := func() bool { return min(len(found["out-moving"]), len(found["out-static"])) >= number }
	began := time.Now()
	within(settleFor, func() bool {
		poll()
		return all() || time.Since(began) > 30*time.Second && len(lostMarkers(t, server)) > 0
	})
	for range 3 { // what should not be there
		poll()
	}
	var wrong []string
	if parked > 0 {
		wrong = append(wrong, fmt.Sprint(parked, " messages are parked, although they have rows"))
	}
	behind, last := 0, map[string]int{}
	for topic, list := range found {
		slices.SortFunc(list, func(a, b output) int { return cmp.Compare(a.N, b.N) })
		for i, o := range list {
			if o.N != i && len(wrong) < 10 {
				wrong = append(wrong, fmt.Sprintf("%s has message %d at the place of %d", topic, o.N, i))
			}
			if topic == "out-static" && o.Row != 1 {
				wrong = append(wrong, fmt.Sprintf("%v was joined with another row", o))
			}
			if topic != "out-moving" {
				continue
			}
			if o.Row < last[o.C] {
				behind++
			}
			last[o.C] = max(last[o.C], o.Row)
		}
		if len(list) != number {
			wrong = append(wrong, fmt.Sprintf("%s has %d outputs of %d messages", topic, len(list), number))
		}
	}
	if behind > 0 {
		wrong = append(wrong, fmt.Sprint(behind, " joins went back to an older row"))
	}
	if len(found) != 2 {
		wrong = append(wrong, fmt.Sprintf("there are outputs in %d topics", len(found)))
	}
	if len(wrong) > 0 {
		if len(lostMarkers(t, server)) > 0 {
			for _, p := range programs {
				p.end(t, syscall.SIGKILL)
			}
			return false
		}
		t.Errorf("%q", wrong)
		showState(t, adm, group+"-moving", group+"-static")
		for _, p := range programs {
			p.end(t, syscall.SIGQUIT) // what they do is in their logs
		}
		return true
	}
	for _, p := range programs {
		p.end(t, syscall.SIGTERM)
	}
	t.Logf("%d messages were joined with %d rows that changed %d times", number, tableKeys, version)
	return true
}
