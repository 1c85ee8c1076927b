package pipeline

import (
	"context"
	"reflect"
	"testing"
	"time"
)

func TestItemBlocksAreReusedAfterAllTheirItemsAreSettled(t *testing.T) {
	var b Blocks
	spend := func(items []Item) {
		for i := range items {
			if items[i].block.release() {
				items[i].block.reuse()
				return
			}
		}
		t.Fatal("the block is not spent")
	}
	first := b.Items(100)
	first[7].Message.Body, first[7].Tries = []byte("of the first"), 3
	if again := b.Items(100); &again[0] == &first[0] {
		t.Fatal("a block was given twice")
	}
	spend(first)
	for _, n := range []int{107, 52} {
		if other := b.Items(n); &other[0] == &first[0] {
			t.Errorf("%d items are in a block for 100", n)
		}
	}
	again := b.Items(53)
	if &again[0] != &first[0] {
		t.Fatal("a spent block was not used again")
	}
	for i := range first {
		want := Item{}
		if i < len(again) {
			want.block = first[i].block
		} else {
			first[i].block = nil
		}
		if !reflect.DeepEqual(first[i], want) {
			t.Errorf("item %d is %+v, want nothing in it", i, first[i])
		}
	}
	spend(again)
	var many [][]Item
	for range 2 * maxIdleItems / 1000 { // more than stay idle
		many = append(many, b.Items(1000))
	}
	for _, items := range many {
		spend(items)
	}
	if b.items > maxIdleItems || b.items < maxIdleItems*9/10 {
		t.Errorf("%d items wait, want about %d", b.items, maxIdleItems)
	}
	spend(b.Items(2 * maxIdleItems))
	if len(b.idle) != 1 || b.items < 2*maxIdleItems {
		t.Errorf("%d blocks of %d items wait, want the large one alone", len(b.idle), b.items)
	}
}

// TestMemoryOfAbandonedItemsIsNotReused closes the partition of two items of a group
// while a worker has the first one. The second item goes to the session if the session
// holds something for it. It leaves its chain together with the first.
func TestMemoryOfAbandonedItemsIsNotReused(t *testing.T) {
	for _, held := range []bool{false, true} {
		var b Blocks
		items := b.Items(2)
		partition := NewPartition("partition")
		for i := range items {
			items[i].Partition, items[i].Group = partition, 1
		}
		s := newScheduler(10, 1<<20, 1<<20)
		s.add(s.entries(nil, []*Item{&items[0], &items[1]}, &feed{}, time.Now()))
		batch, _, _ := s.take(nil, 1, true)
		if held {
			items[1].Held = "a claim"
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := partition.Close(ended); err == nil {
			t.Fatal("Close did not wait for the worker")
		}
		s.forget()
		for _, it := range s.orphans {
			it.Held = nil // Abandon does this first, and then reads more of the item
		}
		batch[0].done = true
		s.settle(batch)
		if idle := len(b.idle) > 0; idle == held {
			t.Errorf("held %v: the block is reused: %v", held, idle)
		}
	}
}
