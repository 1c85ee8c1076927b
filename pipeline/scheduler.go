package pipeline

import (
	"container/heap"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/semel-dev/semel"
)

// entry is an item in progress, with the private state of scheduler and outcome code.
// Entries are reused.
//
// The scheduler's lock guards next and busy. The other fields belong to the goroutine
// that has the entry: first the reader, then a worker while busy is set.
type entry struct {
	*Item
	feed *feed
	next *entry // the next entry of the group, or of the list gone or free
	size int64  // the item's Bytes
	busy bool   // a worker has it
	done bool   // it is settled, or was dropped because its partition is closed
	// again is set for a message that does not come for the first time: it failed, it
	// was not reached in an outage, its source delivers it again, or it is redriven.
	again bool
	// unprocessed is set if the session does not get the item: it has no key, it is
	// parked already, or the server may not deliver it again.
	unprocessed Reason
	read        time.Time // the time when the source returned it
	due         time.Time // the time of the next try, or zero
	failures    *failures // nil until a delivery failed
}

// waits reports whether the time of the next try has not come.
func (e *entry) waits() bool { return !e.due.IsZero() && time.Now().Before(e.due) }

// scheduler holds the entries in progress and limits their number. It gives ready
// entries to workers, and keeps the order of each group.
//
// The entries of a group are a chain. Its head is ready, or waits for its next try, or
// a worker has it, perhaps with some of the entries behind it. All others wait for the
// head. So each group is in exactly one place: in ready, in again, in later, or with a
// worker.
//
// Heads of again and of ready take turns. If messages that come again had to wait behind
// all that was read, an outage of a minute would delay its messages for as long as the
// backlog takes. If they always came first, many that fail would hold up all others.
type scheduler struct {
	maxCount   int
	maxBytes   int64
	batchBytes int64 // limits a batch; a larger item is a batch of its own

	mu       sync.Mutex // guards the fields below; only a Partition's lock is taken under it
	work     sync.Cond  // an entry is ready, or the scheduler was closed
	room     sync.Cond  // entries were settled, or the scheduler drains
	idle     int        // the number of workers that wait
	ready    ring
	again    ring // the ready heads that have entry.again
	turn     bool // the next head is that of again
	later    laterHeap
	working  int // the number of entries that workers have
	groups   groups
	timer    *time.Timer
	count    int
	bytes    int64
	orphans  []*Item          // dropped items for which the session holds something
	held     map[uint64]*feed // the groups whose last items the source holds
	unused   []*block         // to be reused when the lock is free
	gone     *entry           // the list of entries that left their chains since the last reclaim
	free     *entry           // the list of entries to be reused, all zero except for next
	closed   bool             // no entry will be added
	draining bool             // no entry will be taken

	paused  bool // since sink or store failed, until a batch or a probe succeeds
	until   time.Time
	probing bool // one item is being processed while paused, or a worker probes
}

func newScheduler(maxCount int, maxBytes, batchBytes int64) *scheduler {
	s := &scheduler{maxCount: maxCount, maxBytes: maxBytes, batchBytes: batchBytes}
	s.work.L, s.room.L = &s.mu, &s.mu
	return s
}

// wait blocks until another item of a feed may be added. It returns false if the scheduler
// drains or ctx ends, and how many items it gave back to the source. The reader of the feed
// calls it. The scheduler calls interrupt, unless it is nil, if the reader should call wait
// again before it has read something.
func (s *scheduler) wait(ctx context.Context, f *feed, interrupt func()) (more bool, back int) {
	defer context.AfterFunc(ctx, s.wake)()
	s.mu.Lock()
	defer s.mu.Unlock()
	f.interrupt = interrupt
	for !s.draining && ctx.Err() == nil {
		back += s.shed(f)
		if s.hasRoom() {
			return true, back
		}
		s.room.Wait()
	}
	return false, back
}

func (s *scheduler) hasRoom() bool { return s.count < s.maxCount && s.bytes < s.maxBytes }

// isPressed reports whether half of the limits is used, and work continues.
func (s *scheduler) isPressed() bool {
	return !s.paused && (s.count > s.maxCount/2 || s.bytes > s.maxBytes/2)
}

// shed gives items back to the source, if half of the limits are used: those behind an item
// that waits for its next try. Otherwise a group that fails would hold up all others. It
// returns their number.
func (s *scheduler) shed(f *feed) (back int) {
	if f.traits.Hold == nil || !s.isPressed() {
		return 0
	}
	for _, head := range s.later {
		if head.feed == f && head.next != nil {
			back += s.hold(head, f)
		}
	}
	s.reclaim()
	return back
}

// hold gives back the entries of a group behind the last one that the session knows.
func (s *scheduler) hold(head *entry, f *feed) int {
	last := head
	for e := head.next; e != nil; e = e.next {
		if e.busy || e.feed != f || e.Held != nil || e.Tries > 0 || e.failures != nil {
			last = e
		}
	}
	var items []*Item
	for e := last.next; e != nil; {
		if !e.done {
			s.uncount(e)
			items = append(items, e.Item)
		}
		next := e.next
		s.leave(e)
		e = next
	}
	last.next, s.groups.find(head.Group).tail = nil, last
	if len(items) == 0 {
		return 0
	}
	if s.held == nil {
		s.held = map[uint64]*feed{}
	}
	s.held[head.Group] = f
	for _, it := range items {
		it.wrap()
	}
	f.traits.Hold(items)
	return len(items)
}

// leave moves an entry from its chain to the list gone.
func (s *scheduler) leave(e *entry) {
	if e.block != nil && e.Held == nil && e.block.release() {
		s.unused = append(s.unused, e.block)
	}
	e.next, s.gone = s.gone, e
}

// wake wakes all readers and workers that wait.
func (s *scheduler) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work.Broadcast()
	s.room.Broadcast()
}

// entries appends an entry to into for each item of a feed.
func (s *scheduler) entries(into []*entry, items []*Item, f *feed, now time.Time) []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, it := range items {
		if s.free == nil {
			made := make([]entry, len(items)-i)
			for k := range made[1:] {
				made[k].next = &made[k+1]
			}
			s.free = &made[0]
		}
		e := s.free
		s.free, e.next = e.next, nil
		e.Item, e.feed, e.read = it, f, now
		e.again = f.parked || it.Returned || it.Message.Origin.Delivery > 1
		if it.place = f.traits.Place; it.Seen.IsZero() {
			it.Seen = now
		}
		into = append(into, e)
	}
	return into
}

// reclaim frees the entries that left their chains. The caller holds mu, and no other
// goroutine uses one of these entries.
func (s *scheduler) reclaim() {
	for s.gone != nil {
		e := s.gone
		s.gone = e.next
		*e = entry{next: s.free} // a free entry must keep nothing alive
		s.free = e
	}
}

// add takes over entries. It does not keep the slice.
func (s *scheduler) add(entries []*entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var (
		partition *Partition
		closed    bool
		c         *chain // the chain of the previous entry
	)
	for i, e := range entries {
		if i%touchAhead == 0 {
			s.groups.touch(entries[i:min(i+touchAhead, len(entries))])
		}
		if e.Partition != partition {
			partition, closed = e.Partition, e.Partition.Closed()
		}
		if closed { // the source delivers it to another process
			e.next, s.gone = s.gone, e
			continue
		}
		e.size = e.Bytes()
		s.count++
		s.bytes += e.size
		e.Partition.queued++
		if pause := e.feed.traits.Pause; pause != nil && !e.Partition.paused && e.Partition.queued > s.maxCount/2 {
			e.Partition.paused = true
			pause(e.Partition, true)
		}
		if c == nil || c.group != e.Group {
			c = s.groups.at(e.Group)
		}
		if c.head == nil {
			c.head, c.tail = e, e
			s.push(e)
			continue
		}
		c.tail.next = e
		c.tail = e
	}
	s.reclaim()
}

// push makes a head ready.
func (s *scheduler) push(e *entry) {
	if e.again {
		s.again.pushBack(e)
	} else {
		s.ready.pushBack(e)
	}
	if s.idle > 0 {
		s.work.Signal()
	}
}

// close ends the adding of entries.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.work.Broadcast()
}

// drain lets workers finish their batches and take no others.
func (s *scheduler) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining, s.closed = true, true
	s.work.Broadcast()
	s.room.Broadcast()
}

// take blocks until a batch is ready, until items were dropped for which the session holds
// something, or until the worker must probe. It must if a pause is over and no entry could end
// the pause. take returns one of the three, and none at the end. A batch has at most limit
// entries. With ordered, it may have several entries of a group.
func (s *scheduler) take(into []*entry, limit int, ordered bool) (batch []*entry, orphans []*Item, probe bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		next := s.due()
		switch {
		case s.draining:
			return nil, nil, false
		case len(s.orphans) > 0:
			orphans, s.orphans = s.orphans, nil
			return nil, orphans, false
		case s.closed && s.count == 0:
			s.work.Broadcast()
			return nil, nil, false
		case s.paused && s.probing:
		case s.paused && time.Now().Before(s.until):
			if next.IsZero() || s.until.Before(next) {
				next = s.until
			}
		case s.isReady():
			if s.paused {
				limit = 1
			}
			if batch := s.pick(into[:0], limit, ordered); len(batch) > 0 {
				s.probing = s.paused
				return batch, nil, false
			}
			continue // all ready entries were of closed partitions
		case s.paused && s.working == 0:
			s.probing = true
			return nil, nil, true
		}
		s.alarm(next)
		s.idle++
		s.work.Wait()
		s.idle--
	}
}

// due makes the entries ready whose time has come. It returns the time of the next
// entry, or zero.
func (s *scheduler) due() time.Time {
	if len(s.later) == 0 {
		return time.Time{}
	}
	now := time.Now()
	for len(s.later) > 0 {
		if e := s.later[0]; e.due.After(now) {
			return e.due
		}
		s.again.pushBack(s.later.pop())
	}
	return time.Time{}
}

// isReady reports whether a head is ready.
func (s *scheduler) isReady() bool { return s.ready.n+s.again.n > 0 }

// alarm wakes the workers at this time, unless it is zero.
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

// pick appends ready entries to a batch.
func (s *scheduler) pick(batch []*entry, limit int, ordered bool) []*entry {
	bytes := int64(0)
	for len(batch) < limit && s.isReady() {
		from := s.nextRing(len(batch))
		if from == nil || !s.fits(*from.at(0), bytes) {
			break
		}
		head := from.popFront()
		if !s.begin(head) {
			s.advance(head.Group, time.Time{})
			continue
		}
		s.turn = from == &s.ready
		batch = append(batch, head)
		bytes += head.size
		limit = min(limit, head.most())
		if ordered {
			batch, bytes = s.behind(head, batch, bytes, limit)
		}
	}
	return batch
}

// nextRing returns the ring whose first head is next, or nil if none may join a batch of n
// entries. A head whose batches must be smaller waits for the next batch.
func (s *scheduler) nextRing(n int) *ring {
	comesAgain := s.again.n > 0 && n < (*s.again.at(0)).most()
	switch {
	case comesAgain && (s.turn || s.ready.n == 0):
		return &s.again
	case s.ready.n > 0:
		return &s.ready
	}
	return nil
}

// most returns how many entries a batch with this one may have at most.
func (e *entry) most() int {
	if f := e.failures; f != nil && f.most > 0 && time.Now().Before(f.mostUntil) {
		return f.most
	}
	return math.MaxInt
}

// behind appends the entries behind head in its group that can be processed with it.
func (s *scheduler) behind(head *entry, batch []*entry, bytes int64, limit int) ([]*entry, int64) {
	more := 0
	for e := head.next; e != nil && len(batch) < limit && s.fits(e, bytes); e = e.next {
		if e.waits() || e.most() < limit {
			break // the batch would wait for it, or fail with it
		}
		switch {
		case e.done:
			continue
		case e.Partition == head.Partition:
			e.busy = true
			s.working++
			more++
		case !s.begin(e): // groups of two partitions share a number
			continue
		}
		batch = append(batch, e)
		bytes += e.size
	}
	if more > 0 {
		head.Partition.more(more)
	}
	return batch, bytes
}

// follow returns the entries behind the last one of a batch, in its group, while the
// batch is being processed. It does not block. It returns none if another group is
// ready, because that group has waited longer.
func (s *scheduler) follow(into, batch []*entry, limit int) []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	into = into[:0]
	s.due()
	if s.draining || s.paused || len(s.orphans) > 0 || s.isReady() {
		return into
	}
	e := batch[len(batch)-1].next
	for e != nil && e.done {
		e = e.next
	}
	if e == nil || e.waits() || e.most() < limit || !s.begin(e) {
		return into
	}
	into, _ = s.behind(e, append(into, e), e.size, limit)
	return into
}

// fits reports whether an entry may join a batch of this many bytes.
func (s *scheduler) fits(e *entry, bytes int64) bool {
	return bytes == 0 || bytes+e.size <= s.batchBytes
}

// begin marks an entry as busy. It returns false if the entry is done, or if its
// partition is closed.
func (s *scheduler) begin(e *entry) bool {
	if e.done {
		return false
	}
	if e.busy = e.Partition.begin(); !e.busy {
		s.drop(e)
		return false
	}
	s.working++
	return true
}

// settle takes entries back from a worker. Each is done, or has the time of its next
// try. Closing its partition no longer waits for it.
func (s *scheduler) settle(entries []*entry) {
	s.mu.Lock()
	now := time.Now()
	ended := 0 // entries of the same partition
	for i, e := range entries {
		if i%touchAhead == 0 {
			s.groups.touch(entries[i:min(i+touchAhead, len(entries))])
		}
		ended++
		e.busy, e.again = false, true
		s.working--
		if e.done {
			s.uncount(e)
		} else if e.Partition.Closed() {
			s.drop(e)
		}
		last := i == len(entries)-1
		if last || entries[i+1].Partition != e.Partition {
			e.Partition.end(ended)
			ended = 0
		}
		if last || entries[i+1].Group != e.Group {
			s.advance(e.Group, now)
		}
	}
	if s.closed && s.count == 0 {
		s.work.Broadcast()
	}
	s.signalRoom()
	s.reclaim()
	unused := s.unused
	s.unused = nil
	s.mu.Unlock()
	for _, k := range unused {
		k.reuse()
	}
}

// signalRoom wakes the readers if there is room, or if they may make some.
func (s *scheduler) signalRoom() {
	if s.hasRoom() || len(s.later) > 0 {
		s.room.Broadcast()
	}
	if !s.isPressed() {
		return
	}
	for _, head := range s.later {
		if f := head.feed; head.next != nil && f.interrupt != nil {
			f.interrupt() // its shard may be paused, so that its source reads nothing
			f.interrupt = nil
		}
	}
}

// forget drops the entries of closed partitions that no worker has. It also drops those
// that wait for their next try, because the session holds their claims until then.
func (s *scheduler) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.groups.all() {
		for e := c.head; e != nil; e = e.next {
			if !e.busy && !e.done && e.Partition.Closed() { // in this order: the worker that has it sets done
				s.drop(e)
			}
		}
	}
	// The next entry of the group replaces a head that was dropped.
	waiting := s.later
	s.later = nil
	for _, e := range waiting {
		if e.done {
			s.advance(e.Group, time.Time{})
		} else {
			s.later.push(e)
		}
	}
	for _, heads := range []*ring{&s.ready, &s.again} {
		for range heads.n {
			if e := heads.popFront(); e.done {
				s.advance(e.Group, time.Time{})
			} else {
				heads.pushBack(e)
			}
		}
	}
	s.reclaim()
	s.work.Broadcast()
}

// advance finds the new head of a group and makes it ready, now or at its time.
func (s *scheduler) advance(group uint64, now time.Time) {
	c := s.groups.find(group)
	head := c.head
	for head != nil && head.done {
		settled := head
		head = settled.next
		s.leave(settled)
	}
	if head == nil {
		s.groups.remove(c)
		if f := s.held[group]; f != nil {
			delete(s.held, group)
			f.traits.Resume(group)
		}
		return
	}
	c.head = head
	if head.busy {
		return // its worker settles it
	}
	if head.due.After(now) && !now.IsZero() {
		s.later.push(head)
		if s.idle > 0 {
			s.work.Signal() // the worker sets the timer
		}
		return
	}
	s.push(head)
}

// drop ends an entry whose partition is closed.
func (s *scheduler) drop(e *entry) {
	e.done = true
	s.uncount(e)
	if e.Held != nil {
		e.block = nil // the session still needs the item, so its block is not reused
		s.orphans = append(s.orphans, e.Item)
	}
	s.signalRoom()
}

// uncount subtracts an entry from the amount in progress.
func (s *scheduler) uncount(e *entry) {
	s.count--
	s.bytes -= e.size
	partition := e.Partition
	partition.queued--
	if partition.paused && partition.queued <= s.maxCount*3/8 {
		partition.paused = false
		e.feed.traits.Pause(partition, false)
	}
}

// pause stops all work until this time. Then workers get one item at a time, until
// resume is called.
func (s *scheduler) pause(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused, s.probing = true, false
	if until.After(s.until) {
		s.until = until
	}
	if s.idle > 0 {
		s.work.Signal()
	}
}

// resume ends a pause, if there is one.
func (s *scheduler) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		s.work.Broadcast()
	}
	s.paused, s.probing, s.until = false, false, time.Time{}
}

// unprobe lets a worker try another item, if the outcome of the last one says nothing
// about sink and store.
func (s *scheduler) unprobe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probing {
		s.probing = false
		s.work.Signal()
	}
}

// size returns the amount in progress.
func (s *scheduler) size() (count int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.bytes
}

// Progress says where the messages are that were read and are not settled.
type Progress struct {
	// Working messages are being processed, and Ahead were read and wait for their first
	// try, or for a message of their group.
	Working, Ahead int
	// Retrying messages failed, were not reached in an outage, or came again from their
	// source, and wait for their next try. Next is when that of the first is due, or zero if
	// it only waits for a worker.
	Retrying int
	Next     time.Time
}

// progress returns where the entries are.
func (s *scheduler) progress() Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := Progress{Working: s.working, Retrying: len(s.later) + s.again.n}
	p.Ahead = max(s.count-p.Working-p.Retrying, 0)
	if len(s.later) > 0 && s.again.n == 0 {
		p.Next = s.later[0].due
	}
	return p
}

// KeyProgress says where a message of a key is that was read and is not settled.
type KeyProgress struct {
	Key     semel.Key
	Working bool // it is being processed
	// Retrying: it waits for its next try, which is due at Next, or has its turn soon if Next is
	// zero. Otherwise it was read ahead.
	Retrying bool
	Next     time.Time
}

// find returns where the entries with some keys are.
func (s *scheduler) find(keys []semel.Key) (list []KeyProgress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.groups.all() {
		for e := c.head; e != nil; e = e.next {
			if !e.busy && e.done || !slices.Contains(keys, e.Call.Key) { // in this order: the worker that has it sets done
				continue
			}
			at := KeyProgress{Key: e.Call.Key, Working: e.busy}
			if at.Retrying = e.again && !e.busy; at.Retrying && e.waits() {
				at.Next = e.due
			}
			list = append(list, at)
		}
	}
	return list
}

// leftovers removes all entries. They keep the order of their groups. It also returns
// the dropped items for which the session holds something. No worker has an entry.
func (s *scheduler) leftovers() (left []*entry, orphans []*Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	for c := range s.groups.all() {
		for e := c.head; e != nil; e = e.next {
			if !e.done {
				e.done = true
				s.uncount(e)
				left = append(left, e)
			}
		}
	}
	orphans = s.orphans
	s.groups, s.later, s.ready, s.again, s.orphans = groups{}, nil, ring{}, ring{}, nil
	return left, orphans
}

// ring is a queue.
type ring struct {
	entries []*entry // its length is a power of two, or 0
	first   int
	n       int
}

func (r *ring) at(i int) **entry { return &r.entries[(r.first+i)&(len(r.entries)-1)] }

func (r *ring) grow() {
	if r.n < len(r.entries) {
		return
	}
	entries := make([]*entry, max(2*len(r.entries), 64))
	for i := range r.n {
		entries[i] = *r.at(i)
	}
	r.entries, r.first = entries, 0
}

func (r *ring) pushBack(e *entry) {
	r.grow()
	*r.at(r.n) = e
	r.n++
}

func (r *ring) popFront() *entry {
	e := r.entries[r.first]
	r.entries[r.first] = nil
	r.first = (r.first + 1) & (len(r.entries) - 1)
	r.n--
	return e
}

// laterHeap orders entries by the time of their next try.
type laterHeap []*entry

func (h *laterHeap) push(e *entry) { heap.Push(h, e) }
func (h *laterHeap) pop() *entry   { return heap.Pop(h).(*entry) }

// Len implements heap.Interface.
func (h laterHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h laterHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

// Swap implements heap.Interface.
func (h laterHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *laterHeap) Push(x any) { *h = append(*h, x.(*entry)) }

// Pop implements heap.Interface.
func (h *laterHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}
