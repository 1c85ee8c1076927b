package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/services"
)

// fault is what is wrong with one key in the output.
type fault struct {
	what string
	key  int   // -1: with a whole partition
	in   int32 // the partition of the input that it came from
	out  int32 // the one of the output that it is in; -1: in none
}

// What of a fault.
const (
	lost       = "lost"
	twice      = "there twice"
	disordered = "out of order"
	changed    = "read differently during the run and afterwards"
)

// compare checks that each key was read once, and those of one partition of the
// input in their order.
func compare(t *testing.T, who string, r *reader, keys int) {
	t.Helper()
	if list := faultsOf(t, r, keys); len(list) > 0 {
		t.Errorf("%s: of %d keys %s", who, keys, counted(list))
	}
}

// faultsOf says what a reader has that it should not have, or lacks.
func faultsOf(t *testing.T, r *reader, keys int) (list []fault) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	partitioner := kgo.StickyKeyPartitioner(nil).ForTopic("in")
	from := func(n int) int32 {
		return int32(partitioner.Partition(&kgo.Record{Key: []byte(strconv.Itoa(n))}, inPartitions))
	}
	seen := make([]int, keys)
	for out, values := range r.lists {
		var last [inPartitions]int
		for i := range last {
			last[i] = -1
		}
		for _, value := range values {
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 || n >= keys {
				t.Fatalf("%q was never written", value)
			}
			in := from(n)
			if seen[n]++; seen[n] > 1 {
				list = append(list, fault{twice, n, in, int32(out)})
			}
			if n < last[in] {
				list = append(list, fault{disordered, n, in, int32(out)})
			}
			last[in] = max(last[in], n)
		}
	}
	for n, count := range seen {
		if count == 0 {
			list = append(list, fault{lost, n, from(n), -1})
		}
	}
	return list
}

// unequal returns the partitions that two readers read differently.
func unequal(a, b *reader) (list []fault) {
	for _, r := range []*reader{a, b} {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	for out := range a.lists {
		if !slices.Equal(a.lists[out], b.lists[out]) {
			list = append(list, fault{changed, -1, -1, int32(out)})
		}
	}
	return list
}

// counted says how many faults there are of each kind, with some of them.
func counted(list []fault) string {
	of := map[string][]fault{}
	for _, f := range list {
		of[f.what] = append(of[f.what], f)
	}
	var text []string
	for _, what := range slices.Sorted(maps.Keys(of)) {
		some := of[what][:min(len(of[what]), 5)]
		var places []string
		for _, f := range some {
			places = append(places, fmt.Sprintf("%d from in-%d in out-%d", f.key, f.in, f.out))
		}
		text = append(text, fmt.Sprintf("%d are %s (such as %s)", len(of[what]), what, strings.Join(places, ", ")))
	}
	return strings.Join(text, "; ")
}

// markers are the partitions, such as out-1, to which Kafka wrote no marker of a
// transaction that it called complete.
type markers map[string]bool

func lostMarkers(t *testing.T, server *services.Server) markers {
	t.Helper()
	list, err := services.LostMarkers(server)
	must(t, err)
	m := markers{}
	for _, transaction := range list {
		for _, name := range transaction.Partitions {
			m[name] = true
		}
	}
	return m
}

func (m markers) of(topic string, partition int32) bool {
	return m[fmt.Sprint(topic, "-", partition)]
}

// unsettle reports whether the group may be unable to continue. Without a marker of
// the offsets no member may read on from them, and without one of the keys no member
// can read these.
func (m markers) unsettle() bool {
	for name := range m {
		if topic := name[:strings.LastIndexByte(name, '-')]; topic == "__consumer_offsets" || topic == changelog {
			return true
		}
	}
	return false
}

// changelog is the topic of the keys of the programs here.
const changelog = group + "-keys"

// unexcused returns the faults that the markers do not explain.
//
// Without a marker of the output, the partition is not read any further, or the next marker of
// the producer ends both its transactions. Committed records are then aborted with the later
// transaction, or aborted ones committed. Without one of the keys of a partition of the input,
// these may be unknown although their outputs are there, or known although theirs are not.
// Nothing explains a key that was never written.
func (m markers) unexcused(list []fault) []fault {
	return slices.DeleteFunc(slices.Clone(list), func(f fault) bool {
		return f.out >= 0 && (m.of("out", f.out) || m.of(changelog, f.in))
	})
}

// excused reports whether markers that Kafka lost explain all that is wrong.
// Otherwise the test fails.
func excused(t *testing.T, server *services.Server, wrong []fault) bool {
	t.Helper()
	var all []int32
	for out := range int32(outPartitions) {
		all = append(all, out)
	}
	written := uncommitted(t.Context(), t, server.Addr(), "out", all...)
	for i, f := range wrong {
		if out, ok := written[strconv.Itoa(f.key)]; ok && f.what == lost {
			wrong[i].out = out
		}
	}
	m := lostMarkers(t, server)
	names := slices.Sorted(maps.Keys(m))
	if rest := m.unexcused(wrong); len(rest) > 0 {
		t.Errorf("of the keys %s; that Kafka lost markers of %v does not explain of these: %s", counted(wrong), names, counted(rest))
		return false
	}
	t.Logf("Kafka lost markers of %v; with them, of the keys %s", names, counted(wrong))
	return true
}

// uncommitted returns which bodies are in some partitions of a topic, committed or
// not, and in which of them.
func uncommitted(ctx context.Context, t *testing.T, addr, topic string, partitions ...int32) map[string]int32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.KeepControlRecords())
	must(t, err)
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	must(t, err)
	must(t, ends.Error())
	from, left := map[int32]kgo.Offset{}, map[int32]int64{}
	for _, n := range partitions {
		if end, _ := ends.Lookup(topic, n); end.Offset > 0 {
			from[n], left[n] = kgo.NewOffset().AtStart(), end.Offset
		}
	}
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	found := map[string]int32{}
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		must(t, ctx.Err())
		for r := range fetches.RecordsAll() {
			if !r.Attrs.IsControl() {
				found[string(r.Value)] = r.Partition
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		}
	}
	return found
}

func TestTruncationMarkersExcuseMissingRecordsOfTheirPartitionOnly(t *testing.T) {
	t.Parallel()
	m := markers{"out-1": true, changelog + "-0": true, "__consumer_offsets-7": true}
	for _, f := range []struct {
		fault
		excused bool
	}{
		{fault{lost, 1, 1, 1}, true},
		{fault{lost, 2, 1, 2}, false},  // another partition
		{fault{lost, 3, 1, -1}, false}, // it was never written
		{fault{lost, 4, 0, 2}, true},   // its keys are known, its output was aborted
		{fault{lost, 5, 0, -1}, false},
		{fault{twice, 6, 1, 0}, false},
		{fault{twice, 7, 1, 1}, true},
		{fault{twice, 8, 0, 0}, true}, // its key was unknown
		{fault{disordered, 9, 1, 0}, false},
		{fault{disordered, 10, 1, 1}, true},
		{fault{changed, -1, -1, 0}, false},
		{fault{changed, -1, -1, 1}, true},
	} {
		if got := len(m.unexcused([]fault{f.fault})) == 0; got != f.excused {
			t.Errorf("%s is excused: %t, want %t", counted([]fault{f.fault}), got, f.excused)
		}
	}
	for name, unsettles := range map[string]bool{"out-1": false, "once-parked-0": false, changelog + "-1": true, "__consumer_offsets-7": true} {
		if got := (markers{name: true}).unsettle(); got != unsettles {
			t.Errorf("%s keeps the group from continuing: %t, want %t", name, got, unsettles)
		}
	}
}

func TestFaultsAreFoundWithTheirPartitions(t *testing.T) {
	t.Parallel()
	whole := &reader{lists: [outPartitions][]string{{"0", "1", "4"}, {"2", "5"}, {"3"}}}
	if got := faultsOf(t, whole, 6); len(got) > 0 {
		t.Errorf("of output that is as it must be: %s", counted(got))
	}
	other := &reader{lists: [outPartitions][]string{{"0", "1", "4", "1"}, {"2"}, {"3"}}}
	got := map[string]fault{}
	for _, f := range append(faultsOf(t, other, 6), unequal(whole, other)...) {
		got[fmt.Sprint(f.what, " ", f.key, " in ", f.out)] = f
	}
	for _, want := range []string{"there twice 1 in 0", "lost 5 in -1", changed + " -1 in 0", changed + " -1 in 1"} {
		if _, ok := got[want]; !ok {
			t.Errorf("not found: %s", want)
		}
		delete(got, want)
	}
	for name, f := range got { // whether 1 and 4 are of one partition is the partitioner's to say
		if f.what != disordered {
			t.Errorf("found as well: %s", name)
		}
	}
}
