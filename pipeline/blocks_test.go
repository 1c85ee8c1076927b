package pipeline

import (
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
