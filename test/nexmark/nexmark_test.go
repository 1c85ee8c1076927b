// Package nexmark runs queries of the Nexmark benchmark, as far as they need one stream of
// bids, through the program and a broker in the test process. A batch run in Go over the
// same bids computes the right answers.
package nexmark

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/kafkatest"
)

// partitions is the number of partitions of the bids.
const partitions = 3

// bid is an event of Nexmark, with an id.
type bid struct {
	ID      int       `json:"id"`
	Auction int64     `json:"auction"`
	Bidder  int64     `json:"bidder"`
	Price   int64     `json:"price"`
	Channel string    `json:"channel"`
	Time    time.Time `json:"dateTime"`
}

const (
	// late is how much older than an earlier bid a bid may be.
	late = 5 * time.Second
	// closing is the auction and bidder of bids that are no part of an answer. They close
	// the windows of all others.
	closing = 1 << 40
)

// bids returns random bids whose times are in three days before the present. Most are near
// each other, and there are pauses. No two of a bidder and auction have one time: then the one
// that is read last would count, and some are read twice.
func bids(random *rand.Rand, n int) (list []bid) {
	at, taken := time.Duration(0), map[string]bool{}
	for i := range n {
		at += time.Duration(random.IntN(2000)) * time.Millisecond
		if random.IntN(100) == 0 {
			at += time.Duration(random.IntN(int(3 * 24 * time.Hour * 100 / time.Duration(n)))).Truncate(time.Millisecond)
		}
		b := bid{
			ID: i, Auction: 1000 + random.Int64N(50), Bidder: 1000 + random.Int64N(20), Price: 1 + random.Int64N(10)*random.Int64N(1_000_000),
			Channel: []string{"Google", "Facebook", "Baidu", "Apple"}[random.IntN(4)],
		}
		for again := true; again; {
			b.Time = time.Unix(0, 0).Add(at - time.Duration(random.Int64N(int64(late)))).Truncate(time.Millisecond)
			of := fmt.Sprint(pair(&b), b.Time)
			again, taken[of] = taken[of], true
		}
		list = append(list, b)
	}
	base := time.Now().UTC().Truncate(24 * time.Hour).Add(-at - 3*24*time.Hour).Sub(time.Unix(0, 0))
	for i := range list {
		list[i].Time = list[i].Time.UTC().Add(base)
	}
	return list
}

// query is a query of Nexmark.
type query struct {
	name string
	// by returns the record key: messages with one group key are in one partition.
	by func(*bid) int64
	// key is the key of the pipeline; empty is the id of a bid. config are further fields.
	key, config string
	// side returns the records of the side input, the topic side. It may be nil.
	side func([]bid) []*kgo.Record
	// answer computes the right outputs, in any order.
	answer func([]bid) []any
}

func auction(b *bid) int64 { return b.Auction }
func bidder(b *bid) int64  { return b.Bidder }
func pair(b *bid) [2]int64 { return [2]int64{b.Bidder, b.Auction} }

// result is an output of an aggregate.
type result struct {
	Key    int64  `json:"key"`
	Start  string `json:"start"`
	End    string `json:"end"`
	Values any    `json:"values"`
}

func window(key int64, start, end time.Time, values any) result {
	return result{key, start.UTC().Format(time.RFC3339Nano), end.UTC().Format(time.RFC3339Nano), values}
}

// queries are those of https://github.com/nexmark/nexmark with the same numbers. q12 counts
// by the times of the bids instead of the clock. The ranks of q17 are sums of flags that
// its map computes. The last bids of q18 are those of each day.
var queries = []query{
	{
		name: "q1 currency", by: auction,
		config: `map: '{"auction": value.auction, "bidder": value.bidder, "price": double(value.price) * 0.908, "dateTime": value.dateTime}'`,
		answer: func(list []bid) (out []any) {
			for _, b := range list {
				out = append(out, map[string]any{"auction": b.Auction, "bidder": b.Bidder, "price": float64(b.Price) * 0.908, "dateTime": b.Time})
			}
			return out
		},
	},
	{
		name: "q2 selection", by: auction,
		config: `filter: 'value.auction % 7 == 0'
    map: '{"auction": value.auction, "price": value.price}'`,
		answer: func(list []bid) (out []any) {
			for _, b := range list {
				if b.Auction%7 == 0 {
					out = append(out, map[string]any{"auction": b.Auction, "price": b.Price})
				}
			}
			return out
		},
	},
	{
		name: "q11 user sessions", by: bidder,
		config: `aggregate: { by: .bidder, over: { session: 10s, max: 1d }, grace: 5s, idle: forever, values: { bids: count } }`,
		answer: func(list []bid) (out []any) {
			for _, of := range grouped(list, bidder) {
				from := 0
				for i := range of {
					if i+1 < len(of) && of[i+1].Time.Sub(of[i].Time) <= 10*time.Second {
						continue
					}
					out = append(out, window(of[0].Bidder, of[from].Time, of[i].Time, map[string]any{"bids": i + 1 - from}))
					from = i + 1
				}
			}
			return out
		},
	},
	{
		name: "q12 windows", by: bidder,
		config: `aggregate: { by: .bidder, over: { tumbling: 10s }, grace: 5s, idle: forever, values: { bids: count } }`,
		answer: func(list []bid) (out []any) {
			for _, of := range grouped(list, bidder) {
				for start, in := range byTime(of, 10*time.Second) {
					out = append(out, window(of[0].Bidder, start, start.Add(10*time.Second), map[string]any{"bids": len(in)}))
				}
			}
			return out
		},
	},
	{
		name: "q13 side input", by: auction, side: sideInput,
		config: sideTable("global", "latest"),
		answer: func(list []bid) []any { return joined(list, sideInput(list), false) },
	},
	{
		name: "q13 side input by partition", by: auction, side: sideInput,
		config: sideTable("local", "latest"),
		answer: func(list []bid) []any { return joined(list, sideInput(list), false) },
	},
	{
		name: "q13 side input of the time", by: auction, side: changingInput,
		config: sideTable("local", "record, history: 30d"),
		answer: func(list []bid) []any { return joined(list, changingInput(list), true) },
	},
	{
		name: "q17 auction statistics", by: auction,
		config: `map: '{"auction": value.auction, "price": value.price, "rank1": value.price < 10000 ? 1 : 0, "rank2": value.price >= 10000 && value.price < 1000000 ? 1 : 0, "rank3": value.price >= 1000000 ? 1 : 0}'
    aggregate: { by: .auction, over: { tumbling: 1d }, grace: 5s, idle: forever, values: { total: count, rank1: sum .rank1, rank2: sum .rank2, rank3: sum .rank3, min: min .price, max: max .price, sum: sum .price } }`,
		answer: func(list []bid) (out []any) {
			for _, of := range grouped(list, auction) {
				for start, in := range byTime(of, 24*time.Hour) {
					values := map[string]int64{"total": int64(len(in)), "rank1": 0, "rank2": 0, "rank3": 0, "min": in[0].Price, "max": in[0].Price, "sum": 0}
					for _, b := range in {
						switch {
						case b.Price < 10_000:
							values["rank1"]++
						case b.Price < 1_000_000:
							values["rank2"]++
						default:
							values["rank3"]++
						}
						values["min"], values["max"] = min(values["min"], b.Price), max(values["max"], b.Price)
						values["sum"] += b.Price
					}
					out = append(out, window(of[0].Auction, start, start.Add(24*time.Hour), values))
				}
			}
			return out
		},
	},
	{
		name: "q18 last bid", by: auction,
		key: "{ id: { all: [.bidder, .auction] }, keep: { last: { tumbling: 1d }, grace: 5s, idle: forever, late: drop } }", // a bid that comes again after its day is late
		answer: func(list []bid) (out []any) {
			for _, of := range grouped(list, pair) {
				for _, in := range byTime(of, 24*time.Hour) {
					out = append(out, in[len(in)-1])
				}
			}
			return out
		},
	},
	{
		name: "q18 each newer bid", by: auction,
		key: "{ id: { all: [.bidder, .auction] }, keep: { newest: .dateTime } }",
		answer: func(list []bid) (out []any) {
			newest := map[[2]int64]time.Time{}
			for _, b := range list {
				if of := pair(&b); b.Time.After(newest[of]) {
					newest[of] = b.Time
					out = append(out, b)
				}
			}
			return out
		},
	},
}

// sideTable joins bids with the side input. In Nexmark its key is the auction modulo 10000,
// which is the auction here. Bids without a row are no part of an inner join.
func sideTable(read, asOf string) string {
	return fmt.Sprintf(`tables: { side: { topic: side, by: .auction, read: %s, as_of: %s, missing: drop } }
    map: '{"auction": value.auction, "bidder": value.bidder, "price": value.price, "dateTime": value.dateTime, "value": tables.side.value}'`, read, asOf)
}

// sideInput returns two rows of most auctions, of which the second one counts, and deletes
// some rows.
func sideInput(list []bid) (rows []*kgo.Record) {
	for round := range 2 {
		for _, auction := range auctions(list) {
			if auction%5 > 0 {
				rows = append(rows, sideRow(auction, fmt.Sprintf(`{"value":"%d of %d"}`, round, auction), list[0].Time))
			}
		}
	}
	for _, auction := range auctions(list) {
		if auction%7 == 0 {
			rows = append(rows, sideRow(auction, "", list[0].Time))
		}
	}
	return rows
}

// changingInput returns a row of most auctions for each six hours, but for some hours in
// which none exists.
func changingInput(list []bid) (rows []*kgo.Record) {
	first := list[0].Time.Truncate(24 * time.Hour).Add(18 * time.Hour)
	for at := first; at.Before(list[len(list)-1].Time); at = at.Add(6 * time.Hour) {
		for _, auction := range auctions(list) {
			switch n := auction + int64(at.Sub(first)/(6*time.Hour)); {
			case auction%5 == 0:
			case n%4 == 0:
				rows = append(rows, sideRow(auction, "", at))
			default:
				rows = append(rows, sideRow(auction, fmt.Sprintf(`{"value":%d}`, n), at))
			}
		}
	}
	return rows
}

func sideRow(auction int64, body string, at time.Time) *kgo.Record {
	r := &kgo.Record{Topic: "side", Partition: int32(auction % partitions), Key: strconv.AppendInt(nil, auction, 10), Timestamp: at}
	if body != "" {
		r.Value = []byte(body)
	}
	return r
}

func auctions(list []bid) (of []int64) {
	for _, b := range list {
		of = append(of, b.Auction)
	}
	slices.Sort(of)
	return slices.Compact(of)
}

// joined joins bids with the newest rows, or those of their times.
func joined(list []bid, rows []*kgo.Record, ofTime bool) (out []any) {
	for _, b := range list {
		var row struct{ Value any }
		for _, r := range rows {
			if string(r.Key) != strconv.FormatInt(b.Auction, 10) || ofTime && r.Timestamp.After(b.Time) {
				continue
			}
			row.Value = nil
			if r.Value != nil {
				_ = json.Unmarshal(r.Value, &row) // it is JSON
			}
		}
		if row.Value != nil {
			out = append(out, map[string]any{"auction": b.Auction, "bidder": b.Bidder, "price": b.Price, "dateTime": b.Time, "value": row.Value})
		}
	}
	return out
}

// grouped returns the bids of each group, by their times.
func grouped[K comparable](list []bid, by func(*bid) K) map[K][]bid {
	groups := map[K][]bid{}
	for _, b := range list {
		groups[by(&b)] = append(groups[by(&b)], b)
	}
	for _, of := range groups {
		slices.SortStableFunc(of, func(a, b bid) int { return a.Time.Compare(b.Time) })
	}
	return groups
}

// byTime returns the bids of each window, by the start of the window.
func byTime(list []bid, size time.Duration) map[time.Time][]bid {
	of := map[time.Time][]bid{}
	for _, b := range list {
		of[b.Time.Truncate(size)] = append(of[b.Time.Truncate(size)], b)
	}
	return of
}

// TestNexmarkQueriesGiveTheRightAnswers gives each query its bids, some of them twice, and compares its outputs with
// the right answer.
func TestNexmarkQueriesGiveTheRightAnswers(t *testing.T) {
	t.Parallel()
	seed := kafkatest.NewSeed(t)
	for _, q := range queries {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			list := bids(rand.New(rand.NewPCG(seed, 0)), 3000)
			want := lines(t, q.answer(list))
			got := q.run(t, list, len(want), seed)
			missing, wrong := difference(want, got), difference(got, want)
			if len(missing)+len(wrong) > 0 {
				t.Errorf("%d of %d outputs are missing, such as %.300q; %d of %d are wrong, such as %.300q",
					len(missing), len(want), missing[:min(3, len(missing))], len(wrong), len(got), wrong[:min(3, len(wrong))])
			}
		})
	}
}

// run runs the program until it has written n outputs, and returns all.
func (q *query) run(t *testing.T, list []bid, n int, seed uint64) (out []string) {
	kafkatest.Real(t, partitions, func(b *kafkatest.Rig) {
		b.Write(q.records(list, rand.New(rand.NewPCG(seed, 1)))...)
		if q.side != nil {
			keeps := "2592000000"
			_, err := kadm.NewClient(b.Client).CreateTopic(b.Context(), partitions, 1,
				map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "min.compaction.lag.ms": &keeps, "delete.retention.ms": &keeps}, "side")
			kafkatest.Must(t, err)
			b.Write(q.side(list)...)
		}
		addr := b.Cluster.ListenAddrs()[0]
		config := fmt.Sprintf(`pipelines:
  query:
    source: { kafka: { brokers: [%q], topics: [in], group: query, retention: 7d } }
    key: %s
    window: 8d
    %s
    sink: { kafka: { brokers: [%q], topic: out, key_headers: false } }
    parked: { topic: aside }
    transaction: { interval: 20ms, state: %q }
`, addr, cmp.Or(q.key, "{ id: .id }"), q.config, addr, t.TempDir())
		file := filepath.Join(t.TempDir(), "semel.yaml")
		kafkatest.Must(t, os.WriteFile(file, []byte(config), 0o600))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		waiting, ended := context.WithTimeout(t.Context(), 5*time.Minute)
		defer ended()
		var said bytes.Buffer
		var program sync.WaitGroup
		program.Go(func() {
			defer ended()
			if status := cli.Main(ctx, kind.All(), []string{"run", file, "--admin", "off", "--log-level", "warn"}, nil, &said, &said, func(string) string { return "" }); status != 0 {
				t.Errorf("the exit status is %d", status)
			}
		})
		seen := await(waiting, t, b, n)
		stop()
		program.Wait()
		if seen < n {
			t.Fatalf("%d of %d outputs are there: %s", seen, n, &said)
		}
		for _, r := range b.Read("out") {
			if !closes(r.Value) {
				out = append(out, line(t, r.Value))
			}
		}
		if parked := b.Read("aside"); len(parked) > 0 {
			t.Errorf("%d records are parked, such as %s", len(parked), parked[0].Value)
		}
	})
	return out
}

// records returns the records of the bids. A tenth of the bids follow again, and then bids
// that close all windows.
func (q *query) records(list []bid, random *rand.Rand) (records []*kgo.Record) {
	add := func(b bid, partition int32) {
		body, _ := json.Marshal(b)
		records = append(records, &kgo.Record{
			Topic: "in", Partition: partition, Key: strconv.AppendInt(nil, q.by(&b), 10), Value: body, Timestamp: b.Time,
		})
	}
	for i, b := range list {
		add(b, int32(q.by(&b)%partitions))
		if random.IntN(10) == 0 {
			again := list[i-random.IntN(min(i+1, 100))]
			add(again, int32(q.by(&again)%partitions))
		}
	}
	for p := range int32(partitions) {
		id := closing + int64(p)
		add(bid{ID: int(id), Auction: id, Bidder: id, Time: list[len(list)-1].Time.Add(2 * 24 * time.Hour)}, p)
	}
	return records
}

// closes reports whether an output is of a bid that closes windows.
func closes(body []byte) bool {
	for p := range int64(partitions) {
		if bytes.Contains(body, strconv.AppendInt(nil, closing+p, 10)) {
			return true
		}
	}
	return false
}

// await waits until the program has written n outputs, and returns how many there are.
func await(ctx context.Context, t *testing.T, b *kafkatest.Rig, n int) (seen int) {
	t.Helper()
	client, err := kgo.NewClient(append(b.Reach(), kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	kafkatest.Must(t, err)
	defer client.Close()
	for seen < n && ctx.Err() == nil {
		for r := range client.PollFetches(ctx).RecordsAll() {
			if !closes(r.Value) {
				seen++
			}
		}
	}
	return seen
}

// lines returns values as JSON texts.
func lines(t *testing.T, values []any) (list []string) {
	t.Helper()
	for _, v := range values {
		body, err := json.Marshal(v)
		kafkatest.Must(t, err)
		list = append(list, line(t, body))
	}
	return list
}

// line returns JSON text with sorted members and equal numbers in one form.
func line(t *testing.T, body []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	text, err := json.Marshal(v)
	kafkatest.Must(t, err)
	return string(text)
}

// difference returns the texts of a that b lacks, each as often as it is missing.
func difference(a, b []string) (list []string) {
	left := map[string]int{}
	for _, text := range b {
		left[text]++
	}
	for _, text := range a {
		if left[text]--; left[text] < 0 {
			list = append(list, text)
		}
	}
	return list
}
