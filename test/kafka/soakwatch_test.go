package kafka

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// tally counts what is committed of topics, by its body.
type tally struct {
	mu     sync.Mutex
	counts map[string]map[string]int
}

func newTally(t *testing.T, addr string, topics ...string) *tally {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topics...), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }))
	must(t, err)
	y := &tally{counts: map[string]map[string]int{}}
	for _, topic := range topics {
		y.counts[topic] = map[string]int{}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			y.mu.Lock()
			for record := range fetches.RecordsAll() {
				y.counts[record.Topic][string(record.Value)]++
			}
			y.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		client.Close()
	})
	return y
}

// tallied compares what was counted of one topic with what must be there.
type tallied struct {
	topic         string
	counts        map[string]int
	wanted, twice int
	lost          []string // bodies
}

// of waits until a topic has so many bodies, or some time is over, and copies what
// was counted.
func (y *tally) of(topic string, bodies int) *tallied {
	within(time.Minute, func() bool {
		y.mu.Lock()
		defer y.mu.Unlock()
		return len(y.counts[topic]) >= bodies
	})
	y.mu.Lock()
	defer y.mu.Unlock()
	return &tallied{topic: topic, counts: maps.Clone(y.counts[topic])}
}

func (c *tallied) want(body string) {
	switch n := c.counts[body]; {
	case n == 0:
		c.lost = append(c.lost, body)
	case n > 1:
		c.twice++
	}
	c.wanted++
}

// more returns how many bodies are there that were not wanted.
func (c *tallied) more() int { return len(c.counts) - (c.wanted - len(c.lost)) }

func (c *tallied) String() string {
	return fmt.Sprintf("%s: of %d messages %d are lost, %d there twice; %d were never written", c.topic, c.wanted, len(c.lost), c.twice, c.more())
}

// sample is what a program used at a quiet moment.
type sample struct {
	resident, heap float64 // bytes
	goroutines     float64
}

func (s sample) String() string {
	return fmt.Sprintf("%.1f MiB resident, %.1f MiB heap, %.0f goroutines", s.resident/(1<<20), s.heap/(1<<20), s.goroutines)
}

// sample looks at the steady program when all is settled. Of the heap it takes
// the least of a few looks, which is the nearest to the memory in use after a
// collection, and of the rest the middle one.
func (s *soak) sample() {
	s.t.Helper()
	var resident, heap, goroutines []float64
	for range 5 {
		values := s.metrics()
		resident = append(resident, values["process_resident_memory_bytes"])
		heap = append(heap, values["go_memstats_heap_alloc_bytes"])
		goroutines = append(goroutines, values["go_goroutines"])
		within(200*time.Millisecond, func() bool { return false })
	}
	next := sample{median(resident), slices.Min(heap), median(goroutines)}
	if next.resident == 0 || next.heap == 0 || next.goroutines == 0 {
		s.t.Fatalf("metrics of memory and goroutines are missing: %v", next)
	}
	s.samples = append(s.samples, next)
}

// metrics asks the steady program for those without labels.
func (s *soak) metrics() map[string]float64 {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, settleFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.steady.address(s.t)+"/metrics", nil)
	must(s.t, err)
	response, err := http.DefaultClient.Do(req)
	must(s.t, err)
	defer response.Body.Close()
	values := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			values[name] = value
		}
	}
	must(s.t, lines.Err())
	return values
}

// address is where the admin server listens, which the log of this start says.
func (d *daemon) address(t *testing.T) (address string) {
	t.Helper()
	if !within(settleFor, func() bool {
		log, err := os.ReadFile(d.log)
		must(t, err)
		for line := range strings.Lines(string(log[d.logged:])) {
			var entry struct{ Msg, Address string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "admin server" {
				address = entry.Address
			}
		}
		return address != ""
	}) {
		t.Fatal("the log does not say where the admin server listens")
	}
	return address
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// What a value may grow by between two thirds of a run: by a fifth, and by this,
// which is what the runtime and a client that reconnects come and go with.
const (
	residentSlack  = 16 << 20
	heapSlack      = 8 << 20
	goroutineSlack = 16
)

// wantFlat fails the test if the median of the last third of the samples is
// above that of the second third by more than what it may grow by. The first
// third is left out: keys gather until the first of them expire.
func wantFlat(t *testing.T, samples []sample) {
	t.Helper()
	for _, v := range []struct {
		name        string
		slack, unit float64
		of          func(sample) float64
	}{
		{"resident memory, MiB", residentSlack, 1 << 20, func(s sample) float64 { return s.resident }},
		{"heap, MiB", heapSlack, 1 << 20, func(s sample) float64 { return s.heap }},
		{"goroutines", goroutineSlack, 1, func(s sample) float64 { return s.goroutines }},
	} {
		values := make([]float64, len(samples))
		for i, s := range samples {
			values[i] = v.of(s)
		}
		first, second, last, flat := thirds(values, v.slack)
		t.Logf("%s: medians of the thirds %.1f, %.1f, %.1f; from %.1f to %.1f in %d samples",
			v.name, first/v.unit, second/v.unit, last/v.unit, slices.Min(values)/v.unit, slices.Max(values)/v.unit, len(values))
		if !flat {
			t.Errorf("%s grew from %.1f to %.1f", v.name, second/v.unit, last/v.unit)
		}
	}
}

// thirds returns the medians of the thirds of a run, and whether the last is at
// most a fifth and slack above the second.
func thirds(values []float64, slack float64) (first, second, last float64, flat bool) {
	n := len(values)
	first, second, last = median(values[:n/3]), median(values[n/3:2*n/3]), median(values[2*n/3:])
	return first, second, last, last <= 1.2*second+slack
}

func TestSoakWatchDistinguishesGrowthFromNoise(t *testing.T) {
	series := func(f func(i int) float64) []float64 {
		values := make([]float64, 90)
		for i := range values {
			values[i] = f(i)
		}
		return values
	}
	for name, c := range map[string]struct {
		values []float64
		flat   bool
	}{
		"a level":             {series(func(int) float64 { return 100 }), true},
		"a level with spikes": {series(func(i int) float64 { return 100 + float64(i%4/3*500) }), true},
		"one that is reached": {series(func(i int) float64 { return min(100, float64(4*i)) }), true},
		"growth all along":    {series(func(i int) float64 { return 40 + float64(2*i) }), false},
		"growth at the end":   {series(func(i int) float64 { return 100 + max(0, float64(i-60))*4 }), false},
	} {
		if _, second, last, flat := thirds(c.values, 10); flat != c.flat {
			t.Errorf("%s: flat is %v, from %v to %v", name, flat, second, last)
		}
	}
}
