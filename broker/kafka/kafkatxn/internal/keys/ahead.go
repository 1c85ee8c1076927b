package keys

import (
	"container/heap"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
)

// ahead are keys whose expiry is more than table.MaxAhead ticks away, which is more than a table can
// hold. They are of sources that are more than a retention ahead of the slowest one. The zero ahead
// is empty.
type ahead struct {
	keys  map[semel.Digest]aheadKey
	order aheadOrder // may have expiries that a key no longer has
}

type aheadKey struct {
	mark   uint64
	expiry table.Tick
}

type aheadOrder []aheadExpiry

type aheadExpiry struct {
	expiry table.Tick
	digest semel.Digest
}

func isAhead(now, expiry table.Tick) bool {
	return expiry != table.Forever && expiry-now > table.MaxAhead
}

// set adds a key, or replaces its mark and expiry.
func (a *ahead) set(d *semel.Digest, mark uint64, expiry table.Tick) {
	if a.keys == nil {
		a.keys = map[semel.Digest]aheadKey{}
	}
	a.keys[*d] = aheadKey{mark, expiry}
	heap.Push(&a.order, aheadExpiry{expiry, *d})
}

// take removes the keys that a table can hold, and passes them on.
func (a *ahead) take(now table.Tick, to func(d *semel.Digest, mark uint64, expiry table.Tick)) {
	for len(a.order) > 0 && !isAhead(now, a.order[0].expiry) {
		next := heap.Pop(&a.order).(aheadExpiry)
		if k, ok := a.keys[next.digest]; ok && k.expiry == next.expiry {
			delete(a.keys, next.digest)
			to(&next.digest, k.mark, k.expiry)
		}
	}
}

func (o aheadOrder) Len() int           { return len(o) }
func (o aheadOrder) Less(i, j int) bool { return o[i].expiry < o[j].expiry }
func (o aheadOrder) Swap(i, j int)      { o[i], o[j] = o[j], o[i] }
func (o *aheadOrder) Push(x any)        { *o = append(*o, x.(aheadExpiry)) }

func (o *aheadOrder) Pop() any {
	last := len(*o) - 1
	x := (*o)[last]
	*o = (*o)[:last]
	return x
}
