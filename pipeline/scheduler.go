package pipeline

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// scheduler holds the items under way: a source gave them, and they are not
// settled. It gives workers those that are ready, in the order of their groups,
// and bounds how many there are.
//
// A group is a chain of items in their order. Its head is ready, or is being
// processed with some of those behind it, or waits for its time. The others
// wait for the head.
type scheduler struct {
	maxCount   int
	maxBytes   int64
	batchBytes int64 // most of a batch, but that a larger item goes alone

	mu       sync.Mutex // after it, only the lock of a Lane is taken
	work     sync.Cond  // something is ready, or the end came
	room     sync.Cond  // something was settled, or the end came
	idle     int        // workers that wait
	ready    ring
	later    laterHeap
	groups   groups
	timer    *time.Timer
	count    int
	bytes    int64
	orphans  []*Item  // forgotten, and a session may hold something for them
	spent    []*block // to be used again, once the lock is not held
	closed   bool     // nothing more will be added
	draining bool     // nothing more will be taken

	paused  bool // from a failure of sink or store until a batch succeeds
	until   time.Time
	probing bool // one item is under way while paused
}

func newScheduler(maxCount int, maxBytes, batchBytes int64) *scheduler {
	s := &scheduler{maxCount: maxCount, maxBytes: maxBytes, batchBytes: batchBytes}
	s.work.L, s.room.L = &s.mu, &s.mu
	return s
}

// wait blocks until another item may be added. It returns false when the
// scheduler drains or ctx ended.
func (s *scheduler) wait(ctx context.Context) bool {
	defer context.AfterFunc(ctx, s.wake)()
	s.mu.Lock()
	defer s.mu.Unlock()
	for (s.count >= s.maxCount || s.bytes >= s.maxBytes) && !s.draining && ctx.Err() == nil {
		s.room.Wait()
	}
	return !s.draining && ctx.Err() == nil
}

// wake lets everybody who waits look again.
func (s *scheduler) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work.Broadcast()
	s.room.Broadcast()
}

// add takes items over.
func (s *scheduler) add(items []*Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var (
		lane   *Lane
		closed bool
		c      *chain // of the item before
	)
	for i, it := range items {
		if i%touchAhead == 0 {
			s.groups.touch(items[i:min(i+touchAhead, len(items))])
		}
		if it.Lane != lane {
			lane, closed = it.Lane, it.Lane.Closed()
		}
		if closed {
			it.done = true // the source delivers it to somebody else
			continue
		}
		it.size = it.Bytes()
		s.count++
		s.bytes += it.size
		it.Lane.queued++
		if pause := it.source.pause; pause != nil && !it.Lane.held && it.Lane.queued > s.maxCount/2 {
			it.Lane.held = true
			pause(it.Lane, true)
		}
		if c == nil || c.group != it.group {
			c = s.groups.at(it.group)
		}
		if c.head == nil {
			c.head, c.tail = it, it
			s.push(it)
			continue
		}
		c.tail.next = it
		c.tail = it
	}
}

// push makes a head ready.
func (s *scheduler) push(it *Item) {
	s.ready.pushBack(it)
	if s.idle > 0 {
		s.work.Signal()
	}
}

// close says that nothing more will be added.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.work.Broadcast()
}

// drain lets workers finish what they have and take nothing more.
func (s *scheduler) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining, s.closed = true, true
	s.work.Broadcast()
	s.room.Broadcast()
}

// take returns items to be processed, at most most and no more bytes than a batch
// may have; with ordered as many of a group as there are, and otherwise one. Or it
// returns those that were forgotten and that a session may hold something for. It
// blocks until there are some, and returns none at the end.
func (s *scheduler) take(into []*Item, most int, ordered bool) (batch, orphans []*Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		next := s.due()
		switch {
		case s.draining:
			return nil, nil
		case len(s.orphans) > 0:
			orphans, s.orphans = s.orphans, nil
			return nil, orphans
		case s.closed && s.count == 0:
			s.work.Broadcast()
			return nil, nil
		case s.paused && s.probing:
		case s.paused && time.Now().Before(s.until):
			next = earlier(next, s.until)
		case s.ready.len() > 0:
			if s.paused {
				most = 1
			}
			if batch := s.pick(into[:0], most, ordered); len(batch) > 0 {
				s.probing = s.paused
				return batch, nil
			}
			continue // all there was were of closed lanes
		}
		s.alarm(next)
		s.idle++
		s.work.Wait()
		s.idle--
	}
}

// due makes ready what has waited for its time, and returns when the next one
// has, or zero.
func (s *scheduler) due() time.Time {
	if len(s.later) == 0 {
		return time.Time{}
	}
	now := time.Now()
	for len(s.later) > 0 {
		if it := s.later[0]; it.due.After(now) {
			return it.due
		}
		s.ready.pushFront(s.later.pop())
	}
	return time.Time{}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// alarm has the workers look again at a time.
func (s *scheduler) alarm(at time.Time) {
	if at.IsZero() {
		return
	}
	left := max(time.Until(at), 0)
	if s.timer == nil {
		s.timer = time.AfterFunc(left, s.wake)
		return
	}
	s.timer.Reset(left)
}

func (s *scheduler) pick(batch []*Item, most int, ordered bool) []*Item {
	bytes := int64(0)
	for len(batch) < most && s.ready.len() > 0 && s.fits(*s.ready.at(0), bytes) {
		head := s.ready.popFront()
		if !s.begin(head) {
			s.advance(head.group, time.Time{})
			continue
		}
		batch = append(batch, head)
		bytes += head.size
		if ordered {
			batch, bytes = s.behind(head, batch, bytes, most)
		}
	}
	return batch
}

// behind adds what stands behind an item in its group and is to be processed with
// it.
func (s *scheduler) behind(head *Item, batch []*Item, bytes int64, most int) ([]*Item, int64) {
	more := 0
	for it := head.next; it != nil && len(batch) < most && s.fits(it, bytes); it = it.next {
		if it.waits() {
			break // it would hold up those before it again
		}
		switch {
		case it.done:
			continue
		case it.Lane == head.Lane:
			it.busy = true
			more++
		case !s.begin(it): // two groups with one number
			continue
		}
		batch = append(batch, it)
		bytes += it.size
	}
	if more > 0 {
		head.Lane.more(more)
	}
	return batch, bytes
}

// follow returns items that stand behind those of a batch, which are being
// processed, in the group of its last, as take does. It does not block, and returns
// none where others have waited longer.
func (s *scheduler) follow(into, batch []*Item, most int) []*Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	into = into[:0]
	s.due()
	if s.draining || s.paused || len(s.orphans) > 0 || s.ready.len() > 0 {
		return into
	}
	it := batch[len(batch)-1].next
	for it != nil && it.done {
		it = it.next
	}
	if it == nil || it.waits() || !s.begin(it) {
		return into
	}
	into, _ = s.behind(it, append(into, it), it.size, most) // the size bounds what is added, and that is all of the batch
	return into
}

// fits reports whether an item may join a batch that has so many bytes.
func (s *scheduler) fits(it *Item, bytes int64) bool {
	return bytes == 0 || bytes+it.size <= s.batchBytes
}

// begin reports whether an item may be processed.
func (s *scheduler) begin(it *Item) bool {
	if it.done {
		return false
	}
	if it.busy = it.Lane.begin(); !it.busy {
		s.drop(it)
	}
	return it.busy
}

// settle takes back what take gave: of each item, whether it is done with, and
// if not when it comes again. Its lane goes on.
func (s *scheduler) settle(items []*Item) {
	for _, k := range s.settleAll(items) {
		k.reuse()
	}
}

// settleAll is settle without what needs no lock: it returns the blocks that are
// spent.
func (s *scheduler) settleAll(items []*Item) []*block {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	ended := 0 // of the item's lane
	for i, it := range items {
		if i%touchAhead == 0 {
			s.groups.touch(items[i:min(i+touchAhead, len(items))])
		}
		ended++
		it.busy = false
		if it.done {
			s.uncount(it)
		} else if it.Lane.Closed() {
			s.drop(it)
		}
		last := i == len(items)-1
		if last || items[i+1].Lane != it.Lane {
			it.Lane.end(ended)
			ended = 0
		}
		if last || items[i+1].group != it.group {
			s.advance(it.group, now)
		}
	}
	if s.closed && s.count == 0 {
		s.work.Broadcast()
	}
	s.tellRoom()
	spent := s.spent
	s.spent = nil
	return spent
}

// tellRoom lets readers go on if there is room.
func (s *scheduler) tellRoom() {
	if s.count < s.maxCount && s.bytes < s.maxBytes {
		s.room.Broadcast()
	}
}

// forget drops what is of closed lanes and not being processed, at once: what
// waits for its time would wait with its claim held.
func (s *scheduler) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.groups.all() {
		for it := c.head; it != nil; it = it.next {
			if !it.busy && !it.done && it.Lane.Closed() { // in this order: who is busy with it sets done
				s.drop(it)
			}
		}
	}
	// A head that is dropped makes way. Each group has one place, in ready, in
	// later or with a worker, and keeps it.
	waiting := s.later
	s.later = nil
	for _, it := range waiting {
		if it.done {
			s.advance(it.group, time.Time{})
		} else {
			s.later.push(it)
		}
	}
	for range s.ready.len() {
		if it := s.ready.popFront(); it.done {
			s.advance(it.group, time.Time{})
		} else {
			s.ready.pushBack(it)
		}
	}
	s.work.Broadcast()
}

// advance finds the new head of a group and makes it ready, now or at its time.
func (s *scheduler) advance(group uint64, now time.Time) {
	c := s.groups.find(group)
	head := c.head
	for head != nil && head.done {
		settled := head
		head, settled.next = settled.next, nil // or whoever holds one holds all that followed
		if settled.block != nil && settled.hold == nil && settled.asked == nil && settled.block.spent() {
			s.spent = append(s.spent, settled.block)
		}
	}
	if head == nil {
		s.groups.remove(c)
		return
	}
	c.head = head
	if head.busy {
		return // who has it settles it
	}
	if head.due.After(now) && !now.IsZero() {
		s.later.push(head)
		if s.idle > 0 {
			s.work.Signal() // who waits sets the timer
		}
		return
	}
	s.push(head)
}

// drop forgets an item whose lane is closed.
func (s *scheduler) drop(it *Item) {
	it.done = true
	s.uncount(it)
	if it.hold != nil || it.asked != nil {
		it.block = nil // a session will look at it, whenever its chain lets it go
		s.orphans = append(s.orphans, it)
	}
	s.tellRoom()
}

// orphaned returns, once, the items that were forgotten although a session may
// hold something for them.
func (s *scheduler) orphaned() []*Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.orphans
	s.orphans = nil
	return list
}

func (s *scheduler) uncount(it *Item) {
	s.count--
	s.bytes -= it.size
	lane := it.Lane
	lane.queued--
	if lane.held && lane.queued <= s.maxCount*3/8 {
		lane.held = false
		it.source.pause(lane, false)
	}
}

// pause stops all work until a time. Then one item is tried, and its success
// lets all go on. It reports whether work was not paused before.
func (s *scheduler) pause(until time.Time) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = !s.paused
	s.paused, s.probing = true, false
	if until.After(s.until) {
		s.until = until
	}
	if s.idle > 0 {
		s.work.Signal()
	}
	return first
}

// resume ends a pause and reports whether there was one.
func (s *scheduler) resume() (was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was = s.paused
	s.paused, s.probing, s.until = false, false, time.Time{}
	if was {
		s.work.Broadcast()
	}
	return was
}

// unprobe lets another item be tried after one that told nothing of the sink
// and the store.
func (s *scheduler) unprobe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probing {
		s.probing = false
		s.work.Signal()
	}
}

// size returns how much is under way.
func (s *scheduler) size() (count int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.bytes
}

// leftovers takes out all items, in the order of their groups. Nobody works on
// one any more.
func (s *scheduler) leftovers() []*Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	var left []*Item
	for c := range s.groups.all() {
		for it := c.head; it != nil; it = it.next {
			if !it.done {
				it.done = true
				s.uncount(it)
				left = append(left, it)
			}
		}
	}
	s.groups, s.later, s.ready = groups{}, nil, ring{}
	return left
}

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
