package memstore

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
)

// shard holds the keys whose digests begin with one byte. A live key has one of
// the two forms. A key with a record may also have an expired compact form.
type shard struct {
	mu sync.Mutex // guards all fields below, except the Prefetch of the tables
	// done has the compact keys.
	done table.Shard[struct{}]
	// index has the numbers of the records. Its entries do not expire.
	index   table.Shard[uint32]
	records slab
	// shortest is the shortest window of the compact keys since the shard last
	// had none.
	shortest time.Duration
	recent   recentCompletions
	// holder is the holder of the last kept record, so that most records share one copy.
	holder string
	// dataBytes is the length of all texts.
	dataBytes int64
	// counted is this shard's share of the store's count.
	counted int
}

// size is the number of keys, with expired keys that are not yet forgotten.
func (sh *shard) size() int { return sh.done.Len() + sh.records.live }

// record returns the live record of a key and its number, or nil.
func (sh *shard) record(d *semel.Digest, now int64) (*record, uint32) {
	if sh.records.live == 0 {
		return nil, 0
	}
	n, _, ok := sh.index.Find(d, 0)
	if !ok {
		return nil, 0
	}
	r := sh.records.at(n)
	if r.goneAt(now) {
		sh.drop(r, n)
		return nil, 0
	}
	return r, n
}

// add makes a record for a key without one.
func (sh *shard) add(d *semel.Digest, now int64) *record {
	sh.forgetSome(now)
	n, r := sh.records.alloc()
	r.digest, r.firstSeen = *d, now
	sh.index.Set(d, n, 0, table.Forever)
	return r
}

// forgetSome examines two records, in turn, and drops them if they have
// expired. Each insertion does so. Therefore expired records are never many
// more than live ones, and no call waits for a sweep.
func (sh *shard) forgetSome(now int64) {
	for range 2 {
		if sh.records.live == 0 {
			return
		}
		if sh.records.hand >= sh.records.top {
			sh.records.hand = 0
		}
		n := sh.records.hand
		sh.records.hand++
		if r := sh.records.at(n); r.state != semel.Absent && r.goneAt(now) {
			sh.drop(r, n)
		}
	}
}

// drop forgets a record.
func (sh *shard) drop(r *record, n uint32) {
	sh.dataBytes -= int64(len(r.text))
	sh.index.Delete(&r.digest)
	sh.records.release(n)
}

// setHolder stores the owner of a claim.
func (sh *shard) setHolder(r *record, owner semel.Owner) {
	if sh.holder != owner.Name {
		sh.holder = strings.Clone(owner.Name)
	}
	r.holder, r.nonce = sh.holder, owner.Nonce
}

// setText stores the text of a record: a beginning of its old one, and more.
func (sh *shard) setText(r *record, begin, more []byte) {
	sh.dataBytes -= int64(len(r.text))
	r.text = append(append(make([]byte, 0, len(begin)+len(more)), begin...), more...)
	sh.dataBytes += int64(len(r.text))
}

// setKey stores the readable key.
func (sh *shard) setKey(r *record, key semel.Key) {
	sh.setText(r, []byte(key.Scope), []byte(key.ID))
	r.scopeLen, r.idLen = uint32(len(key.Scope)), uint32(len(key.ID))
}

// setOrigin stores where the delivery came from that got the claim.
func (sh *shard) setOrigin(r *record, origin string) {
	if string(r.origin()) != origin {
		sh.setText(r, r.text[:r.scopeLen+r.idLen], []byte(origin))
		r.originLen = uint16(len(origin))
	}
}

// setResult stores the result of an effect.
func (sh *shard) setResult(r *record, result semel.Result) {
	r.kind = result.Kind
	if len(result.Data) > 0 {
		sh.setText(r, r.text[:r.head()], result.Data)
	}
}

// setDone stores a key in the compact form. by is as in completion.
func (sh *shard) setDone(d *semel.Digest, now moment, expiry table.Tick, window time.Duration, by uint64) {
	sh.done.Set(d, struct{}{}, now.tick, expiry)
	sh.noteDone(d, expiry, window, by)
}

// noteDone is called after a compact key was inserted.
func (sh *shard) noteDone(d *semel.Digest, expiry table.Tick, window time.Duration, by uint64) {
	if sh.done.Len() == 1 || window < sh.shortest {
		sh.shortest = window
	}
	if by != 0 {
		sh.recent.add(completion{by, recentKey(d), expiry})
	}
}

// sweep forgets all expired keys and returns how many there were.
func (sh *shard) sweep(now moment) int {
	forgotten := sh.done.Sweep(now.tick)
	for n := range sh.records.top {
		if n >= sh.records.top {
			break // dropping the last record also cleared the slab
		}
		if r := sh.records.at(n); r.state != semel.Absent && r.goneAt(now.nanos) {
			sh.drop(r, n)
			forgotten++
		}
	}
	return forgotten
}

// clear forgets everything.
func (sh *shard) clear() {
	sh.done.Clear()
	sh.index.Clear()
	sh.records = slab{}
	sh.recent = recentCompletions{}
	sh.shortest, sh.dataBytes = 0, 0
	sh.holder = ""
}

// recentCompletions are the last completions, and claims with Done, whose keys
// have the compact form. With them the store recognises a repetition.
type recentCompletions struct {
	ring []completion
	next int
}

type completion struct {
	// by is the token or, for a claim with Done, a hash of the owner. 0 means
	// no owner.
	by uint64
	// key is a part of the digest, which tells keys of one shard apart.
	key uint64
	// expiry distinguishes this life of the key from a later one.
	expiry table.Tick
}

// recentKept is the number of completions that each shard remembers.
const recentKept = 256

func (t *recentCompletions) add(c completion) {
	if len(t.ring) < recentKept {
		t.ring = append(t.ring, c)
		return
	}
	t.ring[t.next] = c
	t.next = (t.next + 1) % recentKept
}

func (t *recentCompletions) has(c completion) bool { return c.by != 0 && slices.Contains(t.ring, c) }

// forget forgets the completions of a key.
func (t *recentCompletions) forget(key uint64) {
	for i := range t.ring {
		if t.ring[i].key == key {
			t.ring[i].by = 0
		}
	}
}
