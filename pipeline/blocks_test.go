package pipeline

import (
	"context"
	"reflect"
	"testing"
)

func TestBlocksAreUsedAgainWhenAllTheirItemsAreSpent(t *testing.T) {
	var b Blocks
	spend := func(items []Item) {
		for i := range items {
			if items[i].block.spent() {
				items[i].block.reuse()
				return
			}
		}
		t.Fatal("the block is not spent")
	}
	first := b.Items(100)
	first[7].Message.Body, first[7].done = []byte("of the first"), true
	if again := b.Items(100); &again[0] == &first[0] {
		t.Fatal("a block was given twice")
	}
	spend(first)
	for _, n := range []int{101, 49} {
		if other := b.Items(n); &other[0] == &first[0] {
			t.Errorf("%d items are in a block of 100", n)
		}
	}
	again := b.Items(50)
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
	for range 2 * idleBlocks { // more than are kept
		spend(b.Items(3))
	}
	var many [][]Item
	for range 2 * idleBlocks {
		many = append(many, b.Items(5))
	}
	for _, items := range many {
		spend(items)
	}
	if n := len(b.idle); n != idleBlocks {
		t.Errorf("%d blocks wait, want %d", n, idleBlocks)
	}
}

// TestWhatASessionAbandonsIsNotUsedAgain: two items of a group of which a worker
// has the first, and their lane is closed. The second goes to the session if that
// holds something for it, and leaves its chain with the first.
func TestWhatASessionAbandonsIsNotUsedAgain(t *testing.T) {
	for _, held := range []bool{false, true} {
		var b Blocks
		items := b.Items(2)
		lane := NewLane("lane")
		for i := range items {
			items[i].Lane, items[i].source, items[i].group = lane, &feed{}, 1
		}
		s := newScheduler(10, 1<<20, 1<<20)
		s.add([]*Item{&items[0], &items[1]})
		batch, _ := s.take(nil, 1, true)
		if held {
			items[1].hold = &hold{}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := lane.Close(ended); err == nil {
			t.Fatal("the lane waited for nobody")
		}
		s.forget()
		for _, it := range s.orphaned() {
			it.hold = nil // as Abandon begins, and then looks at more of the item
		}
		batch[0].done = true
		s.settle(batch)
		if idle := len(b.idle) > 0; idle == held {
			t.Errorf("held %v: the block is to be used again: %v", held, idle)
		}
	}
}
