package pipeline

import "container/heap"

// ring is a queue with two ends.
type ring struct {
	items []*Item // its length is a power of two, or 0
	first int
	n     int
}

func (r *ring) len() int { return r.n }

func (r *ring) at(i int) *(*Item) { return &r.items[(r.first+i)&(len(r.items)-1)] }

func (r *ring) grow() {
	if r.n < len(r.items) {
		return
	}
	items := make([]*Item, max(2*len(r.items), 64))
	for i := range r.n {
		items[i] = *r.at(i)
	}
	r.items, r.first = items, 0
}

func (r *ring) pushBack(it *Item) {
	r.grow()
	*r.at(r.n) = it
	r.n++
}

func (r *ring) pushFront(it *Item) {
	r.grow()
	r.first = (r.first - 1) & (len(r.items) - 1)
	r.items[r.first] = it
	r.n++
}

func (r *ring) popFront() *Item {
	it := r.items[r.first]
	r.items[r.first] = nil
	r.first = (r.first + 1) & (len(r.items) - 1)
	r.n--
	return it
}

// laterHeap orders items by when they are due.
type laterHeap []*Item

func (h *laterHeap) push(it *Item) { heap.Push(h, it) }
func (h *laterHeap) pop() *Item    { return heap.Pop(h).(*Item) }

// Len implements heap.Interface.
func (h laterHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h laterHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

// Swap implements heap.Interface.
func (h laterHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *laterHeap) Push(x any) { *h = append(*h, x.(*Item)) }

// Pop implements heap.Interface.
func (h *laterHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return it
}
