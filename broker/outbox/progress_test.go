package outbox

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pglogrepl"
)

// TestThePositionFollowsAcknowledgements acknowledges rows of random transactions in a
// random order, and compares the position with a model that remembers everything.
func TestThePositionFollowsAcknowledgements(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		type known struct {
			t     *txn
			rows  int
			end   pglogrepl.LSN
			ended bool
		}
		var p progress
		all := []*known{{ended: true}} // the beginning
		var flying []*known            // once for each row
		var open *known
		var at pglogrepl.LSN
		check := func(what string) {
			t.Helper()
			unsettled, want := 0, all[len(all)-1].end
			for i, k := range all {
				if k.ended && k.rows == 0 {
					continue
				}
				if unsettled++; unsettled == 1 {
					want = all[i-1].end
				}
			}
			if got := p.position(); got != want {
				t.Fatalf("after %s: the position is %v; want %v, with %d transactions unsettled", what, got, want, unsettled)
			}
			kept := 0
			for of := p.first; of != nil; of = of.after {
				kept++
			}
			if kept > 2*unsettled {
				t.Fatalf("%d transactions are kept for %d that are unsettled", kept, unsettled)
			}
		}
		for range 400 {
			at += pglogrepl.LSN(1 + random.IntN(50))
			switch n := random.IntN(10); {
			case open == nil && n < 3:
				open = &known{t: p.begin(uint64(at))}
				all = append(all, open)
				check("begin")
			case open == nil && n < 5: // a keepalive, or a transaction without rows
				p.pass(at)
				all[len(all)-1].end = at
				check("pass")
			case open != nil && n < 4:
				rows := 1 + random.IntN(3)
				p.add(open.t, rows)
				open.rows += rows
				for range rows {
					flying = append(flying, open)
				}
				check("add")
			case open != nil && n < 6:
				p.end(open.t, at)
				open.end, open.ended = at, true
				open = nil
				check("end")
			case len(flying) > 0:
				i := random.IntN(len(flying))
				k := flying[i]
				flying = slices.Delete(flying, i, i+1)
				k.rows--
				p.ack(k.t)
				check("ack")
			}
		}
	}
}
