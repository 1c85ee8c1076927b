package kafka

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// Times of the rules by which messages are kept.
const (
	keepGrace = 500 * time.Millisecond
	keepSize  = time.Second
)

// keepRules are the rules by which messages are kept. The clock moves nothing, so that the
// input alone says which messages take effect.
func keepRules() (map[string]*stream.Keep, error) {
	at, err := key.ParseRule(".at")
	if err != nil {
		return nil, err
	}
	version, err := key.ParseRule(".version")
	return map[string]*stream.Keep{
		"first":  {First: at, Grace: keepGrace, Idle: semel.Forever},
		"last":   {Last: stream.Tumbling(keepSize), Grace: keepGrace, Idle: semel.Forever},
		"newest": {Newest: version},
	}, err
}

// keepMessages returns a loop for each rule, with a group and topics of its own.
func keepMessages(o *kafkatxn.TransactorOptions) (list []*kafkatxn.TransactorOptions, err error) {
	rules, err := keepRules()
	for name, keep := range rules {
		opts := *o
		opts.Group, opts.Output.Topic, opts.Parked, opts.Keep = group+"-"+name, "out-"+name, "parked-"+name, keep
		opts.State.Dir += "-" + name
		opts.Member.TransactionalID = o.Member.Instance + "-" + name // or the loops fence each other
		list = append(list, &opts)
	}
	return list, err
}

// kept is a message of the test.
type kept struct {
	Number, Version int
	At              int64
	key             string
	when, offset    int64
}

func read(t *testing.T, r *kgo.Record) kept {
	t.Helper()
	m := kept{key: string(r.Key), when: r.Timestamp.UnixMilli(), offset: r.Offset}
	must(t, json.Unmarshal(r.Value, &m))
	return m
}

// expected returns the numbers of the messages of a partition that a rule keeps. The
// messages are in the order of their offsets. late are those that come too late for it.
func expected(rule string, messages []kept) (want []int, late map[int]bool) {
	type slot struct {
		key   string
		start int64
	}
	best, watermark := map[slot]kept{}, int64(0)
	late = map[int]bool{}
	for _, m := range messages {
		in, when := slot{key: m.key}, m.when
		var better func(other kept) bool
		switch rule {
		case "first":
			when = m.At
			watermark = max(watermark, when-keepGrace.Milliseconds())
			late[m.Number] = when < watermark
			better = func(other kept) bool { return when < other.At }
		case "last":
			in.start = when - when%keepSize.Milliseconds()
			watermark = max(watermark, when-keepGrace.Milliseconds())
			late[m.Number] = in.start+keepSize.Milliseconds() <= watermark
			better = func(other kept) bool {
				return cmp.Or(cmp.Compare(when, other.when), cmp.Compare(m.offset, other.offset)) > 0
			}
		case "newest":
			better = func(other kept) bool { return m.Version > other.Version }
		}
		if other, ok := best[in]; late[m.Number] || ok && !better(other) {
			continue
		}
		best[in] = m
		if rule == "newest" {
			want = append(want, m.Number)
		}
	}
	for in, m := range best {
		if rule == "first" && m.At < watermark || rule == "last" && in.start+keepSize.Milliseconds() <= watermark {
			want = append(want, m.Number)
		}
	}
	slices.Sort(want)
	return want, late
}

// eachKeyIsKeptOnce has two programs keep messages by each rule,
// while they and the broker are stopped, killed and suspended. The input says which
// messages take effect, each exactly once.
func eachKeyIsKeptOnce(t *testing.T) {
	seed, random := chooseSeed(t)
	ends, times, n := allEnds+ownEnds, *kills, *messages/2
	if testing.Short() {
		ends, times, n = "kill-broker kill-program"+ownEnds, 1, 10_000
	}
	events := shuffled(random, ends, times)
	untilRunSays(t, seed, func(seed uint64) bool { return keepOnABroker(t, n, events, seed) })
}

// keepOnABroker reports whether the run says something.
func keepOnABroker(t *testing.T, messages int, events []string, seed uint64) bool {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 5))
	rules, err := keepRules()
	must(t, err)
	outputs := []string{"in"}
	var groups []string
	for name := range rules {
		groups = append(groups, group+"-"+name)
		outputs = append(outputs, "out-"+name, "parked-"+name)
	}
	run := newCrashRun(t, random, outputs...)
	defer run.client.Close()
	run.create(t, inPartitions, nil, "in")
	for name := range rules {
		run.create(t, outPartitions, nil, "out-"+name)
		run.create(t, 1, nil, "parked-"+name)
	}
	run.start(t, func(s *settings) { s.Keep = true })

	number := 0
	produce := func(name string, when time.Time) {
		r := &kgo.Record{Key: []byte(name), Timestamp: when,
			Value: fmt.Appendf(nil, `{"number":%d,"at":%d,"version":%d}`, number, when.UnixMilli(), random.IntN(1000))}
		number++
		run.produce(t, r)
	}
	write := func(n int) {
		for range n {
			when := time.Now().Add(-time.Duration(random.IntN(400)) * time.Millisecond)
			if random.IntN(300) == 0 {
				when = when.Add(-time.Minute)
			}
			// Most keys come several times, close to each other, and some of them again.
			produce(fmt.Sprint("k", number/20, "-", random.IntN(8)), when)
			if random.IntN(10) == 0 {
				produce(fmt.Sprint("k", random.IntN(number/20+1), "-", random.IntN(8)), when)
			}
		}
		must(t, run.client.Flush(t.Context()))
	}
	run.meet(t, events, messages, write)
	ends := time.Now().Add(time.Minute) // of all that is held
	for i := range 20 * inPartitions {  // some in each partition
		produce(fmt.Sprint("end", i), ends)
	}
	must(t, run.client.Flush(t.Context()))

	input := map[int32][]kept{}
	found := map[string]map[int]int{} // how often each message is in each topic
	poll := func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		run.client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			m := read(t, r)
			if r.Topic == "in" {
				input[r.Partition] = append(input[r.Partition], m)
				return
			}
			if found[r.Topic] == nil {
				found[r.Topic] = map[int]int{}
			}
			found[r.Topic][m.Number]++
		})
	}
	want, late := map[string][]int{}, map[string]map[int]bool{}
	count := func() (n int) {
		for _, list := range input {
			n += len(list)
		}
		return n
	}
	if !within(settleFor, func() bool { poll(); return count() >= number }) {
		t.Fatalf("%d messages of %d were read", count(), number)
	}
	if len(input) != inPartitions {
		t.Fatalf("messages are in %d partitions", len(input))
	}
	for name := range rules {
		late[name] = map[int]bool{}
		for _, list := range input {
			numbers, those := expected(name, list)
			want[name] = append(want[name], numbers...)
			maps.Copy(late[name], those)
		}
		slices.Sort(want[name])
	}
	missing := func() (list []string) {
		for name, numbers := range want {
			for _, n := range numbers {
				if found["out-"+name][n] == 0 {
					list = append(list, fmt.Sprint(n, " by ", name))
				}
			}
		}
		return list
	}
	run.wait(t, func() bool {
		poll()
		return len(missing()) == 0
	})
	for range 3 { // what should not be there
		poll()
	}
	wrong := missing()
	for name := range rules {
		for n, times := range found["out-"+name] {
			if _, ok := slices.BinarySearch(want[name], n); times != 1 || !ok {
				wrong = append(wrong, fmt.Sprintf("%d by %s, %d times, wanted: %t", n, name, times, ok))
			}
		}
		for n, times := range found["parked-"+name] {
			if times != 1 || !late[name][n] {
				wrong = append(wrong, fmt.Sprintf("%d parked by %s, %d times, late: %t", n, name, times, late[name][n]))
			}
		}
	}
	if len(wrong) > 0 {
		return run.fail(t, groups, "%d are missing or too much, such as %q", len(wrong), wrong[:min(len(wrong), 10)])
	}
	run.end(t, syscall.SIGTERM)
	for name := range rules {
		t.Logf("%s: of %d messages %d are kept and %d parked", name, number, len(want[name]), len(found["parked-"+name]))
		if len(want[name]) < number/20 || name != "newest" && len(found["parked-"+name]) == 0 {
			t.Error("these are too few")
		}
	}
	return true
}
