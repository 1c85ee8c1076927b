package repartition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// records have null and empty keys and values, and headers that look like those of copies.
func records() []*kgo.Record {
	at := time.UnixMilli(1_700_000_000_123)
	return []*kgo.Record{
		{Key: []byte("a"), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h"}, {Key: Header, Value: []byte("mine")}}, Topic: "in", Partition: 2, Offset: 1 << 40, Timestamp: at},
		{Key: []byte("tombstone"), Topic: "in", Timestamp: at},
		{Key: []byte("empty"), Value: []byte{}, Topic: "in", Timestamp: at},
		{Value: []byte("null key"), Topic: "other", Partition: 1, Offset: 9, Timestamp: time.UnixMilli(0)},
		{Key: []byte{}, Value: []byte("empty key"), Headers: []kgo.RecordHeader{{Key: Header}}, Topic: "in", Timestamp: at},
		{Key: []byte{0, 0xff}, Value: []byte("bytes"), Topic: "in", Timestamp: time.UnixMilli(-1)},
	}
}

func clone(r *kgo.Record) *kgo.Record {
	copied := *r
	copied.Headers = append([]kgo.RecordHeader(nil), r.Headers...)
	return &copied
}

func shown(r *kgo.Record) string {
	return fmt.Sprintf("%s/%d@%d %#v %#v %d %q", r.Topic, r.Partition, r.Offset, r.Key, r.Value, r.Timestamp.UnixMilli(), r.Headers)
}

func TestACopyBecomesItsRecordAgain(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_800_000_000_000)
	var originals Originals
	for _, r := range records() {
		for _, id := range []string{"", "order-1"} {
			copied := clone(r)
			Wrap(copied, "g-repartition", 3, []byte(id), now)
			if copied.Topic != "g-repartition" || copied.Partition != 3 || !copied.Timestamp.Equal(now) || string(copied.Key) != id || (copied.Key == nil) != (id == "") || string(copied.Value) != string(r.Value) {
				t.Errorf("the copy of %s with id %q is %s", shown(r), id, shown(copied))
			}
			copied.Offset = 77 // in the topic of copies
			originals.Unwrap(copied)
			if got, want := shown(copied), shown(r); got != want {
				t.Errorf("the record is\n%s\nwant\n%s", got, want)
			}
		}
	}
}

func TestRecordsThatAreNotCopiesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	header := func(data ...byte) *kgo.Record {
		return &kgo.Record{Topic: "in", Key: []byte("k"), Headers: []kgo.RecordHeader{{Key: Header, Value: data}}}
	}
	longName := make([]byte, originHeadSize)
	longName[0], longName[2] = originVersion, 200 // a name that is longer than the header
	future := make([]byte, originHeadSize)
	future[0] = originVersion + 1
	var originals Originals
	for name, r := range map[string]*kgo.Record{
		"without headers": {Topic: "in"}, "another last header": {Topic: "in", Headers: []kgo.RecordHeader{{Key: Header}, {Key: "h"}}},
		"an empty header": header(), "a short header": header(originVersion), "another version": header(future...), "a cut name": header(longName...),
	} {
		want := shown(r)
		if originals.Unwrap(r); shown(r) != want {
			t.Errorf("%s: %s, want %s", name, shown(r), want)
		}
	}
}

func TestAProgressRecordIsToldFromCopies(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_800_000_000_000)
	r := Progress("g-repartition", 3, []byte("times"), now)
	if !IsProgress(r) || r.Topic != "g-repartition" || r.Partition != 3 || string(r.Value) != "times" || !r.Timestamp.Equal(now) {
		t.Errorf("%s", shown(r))
	}
	for _, r := range records() {
		Wrap(r, "g-repartition", 3, []byte("id"), now)
		if IsProgress(r) {
			t.Errorf("a copy is a progress record: %s", shown(r))
		}
	}
}

// TestAHeldRecordIsReadAgain holds a record that was read, and the original of a copy that
// was read in another topic.
func TestAHeldRecordIsReadAgain(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		for _, in := range []cluster.Partition{{Topic: r.Topic, Number: r.Partition}, {Topic: "g-repartition", Number: 5}} {
			offset := r.Offset
			if in.Topic != r.Topic {
				offset = 77
			}
			b := AppendHeld(nil, in, offset, r)
			got, at, err := ParseHeld(in, b)
			if err != nil || at != offset || shown(got) != shown(r) {
				t.Errorf("the record is\n%s at %d, %v; want\n%s at %d", shown(got), at, err, shown(r), offset)
			}
			for n := range len(b) {
				if got, _, err := ParseHeld(in, b[:n:n]); err == nil && shown(got) == shown(r) {
					t.Errorf("%d of %d bytes are %s", n, len(b), shown(got))
				}
			}
			if _, _, err := ParseHeld(in, append(b[:len(b):len(b)], 1, 2, 3, 4, 5, 6, 7)); in.Topic != r.Topic && !errors.Is(err, ErrHeld) {
				t.Errorf("bytes behind the record: %v", err)
			}
		}
	}
	if _, _, err := ParseHeld(cluster.Partition{Topic: "in"}, nil); !errors.Is(err, ErrHeld) {
		t.Errorf("no bytes: %v", err)
	}
}

func rule(t *testing.T, text string) *key.Rule {
	t.Helper()
	r, err := key.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestCopiesWithOneIDAreInOnePartition places records by their ids, by their group keys,
// by their record keys and by where they are.
func TestCopiesWithOneIDAreInOnePartition(t *testing.T) {
	t.Parallel()
	const partitions = 16
	body := func(text string) *kgo.Record {
		return &kgo.Record{Topic: "in", Partition: 21, Value: []byte(text), Timestamp: time.UnixMilli(5000)}
	}
	fails := errors.New("the filter fails")
	filterMap := func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
		if bytes.Contains(d.Body, []byte("fail")) {
			return nil, false, fails
		}
		return d.Body, !bytes.Contains(d.Body, []byte("out")), nil
	}
	for name, c := range map[string]struct {
		opts PartitionerOptions
		r    *kgo.Record
		id   string
		by   string // what decides the partition; "" if the record's own does
		when int64
		err  error
	}{
		"by the id":                   {PartitionerOptions{}, body(`{"id":"a"}`), "a", "a", 5000, nil},
		"without an id, by the key":   {PartitionerOptions{}, &kgo.Record{Topic: "in", Key: []byte("k"), Value: []byte(`{}`), Timestamp: time.UnixMilli(5000)}, "", "k", 5000, nil},
		"without an id or key":        {PartitionerOptions{}, body(`{}`), "", "", 5000, nil},
		"by the group key":            {PartitionerOptions{By: rule(t, ".g")}, body(`{"id":"a","g":"shop"}`), "a", "shop", 5000, nil},
		"without a group key, by id":  {PartitionerOptions{By: rule(t, ".g")}, body(`{"id":"a"}`), "a", "a", 5000, nil},
		"by a time in the body":       {PartitionerOptions{Time: rule(t, ".at"), Unit: stream.Seconds}, body(`{"id":"a","at":7}`), "a", "a", 7000, nil},
		"with a time that is no time": {PartitionerOptions{Time: rule(t, ".at"), Unit: stream.Seconds}, body(`{"id":"a","at":"x"}`), "a", "a", -1, nil},
		"a filter that fails, by id":  {PartitionerOptions{By: rule(t, ".g")}, body(`{"id":"a","g":"fail"}`), "a", "a", 5000, fails},
		"a record that is filtered":   {PartitionerOptions{By: rule(t, ".g")}, body(`{"id":"a","g":"out"}`), "a", "a", 5000, nil},
	} {
		c.opts.Rule, c.opts.Topic, c.opts.Partitions, c.opts.Scope = rule(t, ".id"), "g-repartition", partitions, "orders"
		c.opts.FilterMap = filterMap
		p := NewPartitioner(c.opts)
		id, partition, when, err := p.Choose(t.Context(), c.r)
		want := c.r.Partition % partitions
		if c.by != "" {
			want = p.Of([]byte(c.by))
		}
		if string(id) != c.id || (id == nil) != (c.id == "") || partition != want || when != c.when || !errors.Is(err, c.err) {
			t.Errorf("%s: id %q, partition %d, time %d, %v; want %q, %d, %d, %v", name, id, partition, when, err, c.id, want, c.when, c.err)
		}
	}
	p := NewPartitioner(PartitionerOptions{Rule: rule(t, ".id"), Hash: true, Topic: "g-repartition", Partitions: partitions})
	one, _, _, _ := p.Choose(t.Context(), body(`{"a":1}`))
	first := string(one)
	two, _, _, _ := p.Choose(t.Context(), body(`{"a":2}`))
	second := string(two)
	again, _, _, _ := p.Choose(t.Context(), body(`{"a":1}`))
	if first == "" || first == second || string(again) != first {
		t.Errorf("the hashes of bodies are %q, %q and %q", first, second, again)
	}
	seen := map[int32]bool{}
	for i := range 100 {
		seen[p.Of([]byte(fmt.Sprint(i)))] = true
	}
	if len(seen) < partitions/2 {
		t.Errorf("100 ids are in %d partitions", len(seen))
	}
}
