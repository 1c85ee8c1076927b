package pipeline

import (
	"testing"
)

func TestALargeBatchLeavesWorkForTheOthers(t *testing.T) {
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
	lane := NewLane("lane")
	f := &feed{}
	for _, groups := range []uint64{1, 8} {
		s := newScheduler(100, 8*size, workers)
		var items []*Item
		for i := range uint64(8) {
			it := &Item{Lane: lane, source: f, group: (i*groups/8)<<1 | 1}
			it.Message.Body = make([]byte, size-256)
			items = append(items, it)
		}
		s.add(items)
		for took := 0; took < len(items); {
			batch, _ := s.take(nil, 100, true)
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
