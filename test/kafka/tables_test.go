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

// joinRows returns a loop that joins messages with changing rows, and a loop whose rows were all
// there before the first program. Each has a group and topics of its own.
func joinRows(o *kafkatxn.TransactorOptions) ([]*kafkatxn.TransactorOptions, error) {
	id, err := key.ParseRule(".n")
	by, err2 := key.ParseRule(".c")
	var list []*kafkatxn.TransactorOptions
	for _, table := range []*stream.Table{
		{Topic: "moving", By: by, Local: true, Missing: stream.MissingWait},
		{Topic: "static", By: by, Missing: stream.MissingPark},
	} {
		opts := *o
		opts.Key.Rule, opts.Group, opts.Output.Topic, opts.Parked = id, group+"-"+table.Topic, "out-"+table.Topic, "parked-"+table.Topic
		opts.State.Dir += "-" + table.Topic
		opts.Member.TransactionalID = o.Member.Instance + "-" + table.Topic // or the loops fence each other
		opts.Tables = []*stream.Table{table}
		opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
			row, err := table.Row(&d.Message)
			body := strings.TrimSuffix(string(d.Body), "}") + `,"row":` + string(row) + "}"
			return []byte(body), true, err
		}
		list = append(list, &opts)
	}
	return list, errors.Join(err, err2)
}

// noJoinGoesBack has two programs join messages with rows, while
// they and the broker are stopped, killed and suspended. Each message is joined exactly
// once. No message is joined before its table is read to its end, and none with an older
// row than an earlier message of the same customer.
func noJoinGoesBack(t *testing.T) {
	seed, random := chooseSeed(t)
	ends, times, n := allEnds+" suspend-program", *kills, *messages/2
	if testing.Short() {
		ends, times, n = "kill-broker kill-program suspend-program", 1, 10_000
	}
	events := shuffled(random, ends, times)
	untilRunSays(t, seed, func(seed uint64) bool { return joinOnABroker(t, n, events, seed) })
}

// joinOnABroker reports whether the run says something.
func joinOnABroker(t *testing.T, messages int, events []string, seed uint64) bool {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 6))
	outputs := []string{"out-moving", "out-static", "parked-moving", "parked-static"}
	run := newCrashRun(t, random, outputs...)
	defer run.client.Close()
	compacted := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
	run.create(t, inPartitions, nil, "in")
	run.create(t, inPartitions, compacted, "moving", "static")
	run.create(t, outPartitions, nil, outputs...)
	produce := func(topic, key string, value []byte) {
		run.produce(t, &kgo.Record{Topic: topic, Key: []byte(key), Value: value})
	}
	for i := range fillers { // the rows that count come last
		produce("static", fmt.Sprint("filler", i), []byte("0"))
	}
	for i := range tableKeys {
		produce("static", fmt.Sprint("c", i), []byte("1"))
	}
	must(t, run.client.Flush(t.Context()))
	run.start(t, func(s *settings) { s.Tables = true })

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
				must(t, run.client.Flush(t.Context()))
			}
			body := fmt.Appendf(nil, `{"n":%d,"c":%q}`, number, c)
			produce("in", c, body)
			if random.IntN(5) == 0 {
				produce("in", c, body)
			}
		}
		must(t, run.client.Flush(t.Context()))
	}
	run.meet(t, events, messages, write)

	type output struct {
		N, Row int
		C      string
	}
	found, parked := map[string][]output{}, 0
	poll := func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		run.client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
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
	run.wait(t, func() bool {
		poll()
		return all()
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
		return run.fail(t, []string{group + "-moving", group + "-static"}, "%q", wrong)
	}
	run.end(t, syscall.SIGTERM)
	t.Logf("%d messages were joined with %d rows that changed %d times", number, tableKeys, version)
	return true
}
