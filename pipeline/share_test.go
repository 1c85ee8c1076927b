package pipeline

import (
	"slices"
	"testing"
	"time"
)

func TestBatchLimitLeavesWorkForOtherWorkers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ wanted, workers, items, want int }{
		{0, 4, 0, 500}, {2000, 4, 0, 2000}, {2000, 4, 1000, 250}, {2000, 10, 4, 1}, {2000, 1, 1000, 1000},
	} {
		o := Options{Workers: c.workers, MaxItems: c.items}
		if o.defaults(SinkTraits{Batch: c.wanted}); o.Batch != c.want {
			t.Errorf("%+v: batches of %d", c, o.Batch)
		}
	}

	const workers, size = 4, 10_256
	partition := NewPartition("partition")
	f := &feed{}
	for _, groups := range []uint64{1, 8} {
		s := newScheduler(100, 8*size, 8*size/workers)
		var items []*Item
		for i := range uint64(8) {
			it := &Item{Partition: partition, Group: (i*groups/8)<<1 | 1}
			it.Message.Body = make([]byte, size-256)
			items = append(items, it)
		}
		s.add(s.entries(nil, items, f, time.Now()))
		for took := 0; took < len(items); {
			batch, _, _ := s.take(nil, 100, true)
			if len(batch) != 2 {
				t.Fatalf("%d groups: a batch of %d messages, which is not the share of one in %d workers", groups, len(batch), workers)
			}
			took += len(batch)
			for _, it := range batch {
				it.done = true
			}
			s.settle(batch)
		}
		if n, bytes := s.size(); n != 0 || bytes != 0 {
			t.Errorf("%d messages of %d bytes are left", n, bytes)
		}
	}
}

func TestBatchStaysWithinItsByteLimit(t *testing.T) {
	t.Parallel()
	for all, want := range map[int64]int64{64: 16, 2: 1} {
		if o := (Options{Workers: 4, MaxBytes: all}); o.batchBytes() != want {
			t.Errorf("%d bytes: batches of %d bytes", all, o.batchBytes())
		}
	}

	partition := NewPartition("partition")
	for _, c := range []struct {
		groups uint64
		sizes  []int
		want   []int
	}{
		{1, []int{400, 500, 300, 2000, 300, 300, 300, 300}, []int{2, 1, 1, 3, 1}},
		{8, []int{400, 500, 300, 2000, 300, 300, 300, 300}, []int{2, 1, 1, 3, 1}},
	} {
		s := newScheduler(100, 1<<20, 1000)
		var items []*Item
		for i, size := range c.sizes {
			it := &Item{Partition: partition, Group: (uint64(i)%c.groups)<<1 | 1}
			it.Message.Body = make([]byte, size-256)
			items = append(items, it)
		}
		s.add(s.entries(nil, items, &feed{}, time.Now()))
		s.close()
		var got []int
		for batch, _, _ := s.take(nil, 100, true); batch != nil; batch, _, _ = s.take(nil, 100, true) {
			got = append(got, len(batch))
			for _, it := range batch {
				it.done = true
			}
			s.settle(batch)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d groups: batches of %v messages, want %v", c.groups, got, c.want)
		}
	}
}
