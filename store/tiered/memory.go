package tiered

import (
	"sync"

	"github.com/semel-dev/semel"
)

// Limits of the claims that a stack remembers. A forgotten claim costs a read
// of the durable store and nothing else.
const (
	mostGrants = 1 << 16
	// longestKey is the maximum length of a remembered key, in bytes.
	longestKey = 1 << 10
)

// grant is a claim that was granted through this stack.
type grant struct {
	key   semel.Key
	token semel.Token
}

// grants maps a bounded number of claims to their fingerprints. When it is full
// it drops an arbitrary claim. It is safe for concurrent use.
type grants struct {
	mu sync.Mutex // guards m
	m  map[grant]semel.Fingerprint
}

// add remembers a claim, unless its key is very long.
func (g *grants) add(key semel.Key, token semel.Token, print semel.Fingerprint) {
	if len(key.Scope)+len(key.ID) > longestKey {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.m) >= mostGrants {
		for any := range g.m {
			delete(g.m, any)
			break
		}
	}
	if g.m == nil {
		g.m = make(map[grant]semel.Fingerprint)
	}
	g.m[grant{key, token}] = print
}

// take removes a claim and returns its fingerprint.
func (g *grants) take(key semel.Key, token semel.Token) (semel.Fingerprint, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	print, known := g.m[grant{key, token}]
	delete(g.m, grant{key, token})
	return print, known
}
