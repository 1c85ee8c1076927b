package logstore

import (
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore/internal/digestmap"
)

// claims are the keys that are claimed or unknown.
type claims struct {
	digestmap.Map[claim]
	origins bool // a claim had an origin
}

// put sets the claim of a digest.
func (all *claims) put(d *semel.Digest, c *claim) {
	all.origins = all.origins || c.shown().origin != ""
	all.Put(d, c)
}

// bytes is the approximate memory of the claims.
func (all *claims) bytes() int64 { return int64(all.Len()) * claimBytes }

// dropAbandoned drops the abandoned claims. If one of them is in the log, an open drops
// it again, until its segment is deleted.
func (all *claims) dropAbandoned(now int64) (dropped int64) {
	for d, c := range all.All() {
		if c.isAbandoned(now) {
			all.Remove(d)
			dropped++
		}
	}
	return dropped
}

// abandoned is how long after its lease the store remembers a claim without Hold. A
// late holder has that time to complete it. Claims of keys that never return do
// not pile up.
const abandoned = time.Hour

// claim is the state of a key that is claimed or unknown. A key is in the
// claims or in the index, never in both.
type claim struct {
	token       semel.Token
	nonce       uint64
	name        string
	first       int64
	leaseEnd    int64
	attempt     uint32
	hold        bool // becomes unknown when the lease ends
	kept        bool // with Options.DurableClaims
	unknown     bool
	durable     bool // in the log, at pos
	pos         uint64
	fingerprint semel.Fingerprint
	detail      *detail // nil if it is empty
}

// detail is the part of a claim that most claims lack.
type detail struct {
	key    semel.Key // with Options.KeepIDs
	origin string
}

// shown returns the detail of a claim, which may be empty.
func (c *claim) shown() detail {
	if c.detail == nil {
		return detail{}
	}
	return *c.detail
}

// claimBytes is the approximate memory of a claim and its name.
const claimBytes = 192

// holderMost limits how many bytes of a holder's name are stored. The name is
// for people only.
const holderMost = 256

// lasts reports whether the claim's lease applies after a reopen as well. Each
// change of that lease must then be in the log before it is answered.
func (c *claim) lasts() bool { return c.durable && !c.unknown && (!c.hold || c.kept) }

// isAbandoned reports whether a claim's lease ended so long ago that the store
// forgets the claim.
func (c *claim) isAbandoned(now int64) bool {
	return !c.hold && !c.unknown && now-c.leaseEnd > int64(abandoned)
}

// state returns the claim's state at a time.
func (c *claim) state(now int64) semel.State {
	if c.unknown || c.hold && now >= c.leaseEnd {
		return semel.Unknown
	}
	return semel.Claimed
}

func (c *claim) owned(o semel.Owner) bool {
	return c.nonce == o.Nonce && shortName(c.name) == shortName(o.Name) && o != semel.Owner{}
}

// shortName returns the part of a holder's name that is stored.
func shortName(name string) string { return name[:min(len(name), holderMost)] }

func (c *claim) grant() semel.Claim {
	return semel.Claim{Token: c.token, Attempt: int(c.attempt), LeaseEnd: timeOf(c.leaseEnd)}
}

// rich returns the encoded form of a claim.
func (c *claim) rich() rich {
	return rich{
		token: c.token, nonce: c.nonce, attempt: c.attempt, unknown: c.unknown, retry: !c.hold, kept: c.kept,
		first: c.first, until: c.leaseEnd, fingerprint: c.fingerprint,
		holder: shortName(c.name), key: c.shown().key, origin: c.shown().origin,
	}
}

// room returns an upper bound of the bytes that the claim adds to the log.
func (c *claim) room() int {
	d := c.shown()
	return richLeast + holderMost + len(d.key.Scope) + len(d.key.ID) + len(d.origin)
}
