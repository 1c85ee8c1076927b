package windows

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/changes"
	"github.com/semel-dev/semel/stream"
)

// TestAChangelogIsBoundedWhileWindowsStayOpen changes a few of many groups again and
// again. Some transactions are dropped, and some processes end: before their changelog is
// cut, or after. A transaction copies about as many bytes as it writes for itself, or one
// group.
func TestAChangelogIsBoundedWhileWindowsStayOpen(t *testing.T) {
	t.Parallel()
	for _, over := range []stream.Window{stream.Tumbling(time.Hour), stream.Hopping(time.Hour, 10*time.Minute), stream.Session(time.Minute, time.Hour)} {
		t.Run(fmt.Sprint(over), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(newSeed(t), 0))
			agg := testAggregate(t, over, 0)
			agg.Grace = time.Hour
			log := newChangelog(t, agg, 1000, random)
			s, all, longest, moves := log.restart(t), 0, 0, 0
			for i := range 3000 {
				groups := 3
				if i == 0 {
					groups = 100
				}
				for n := range groups {
					if i > 0 {
						n = random.IntN(10)
					}
					when := 3_600_000_000 + random.Int64N(3_600_000)
					if _, err := s.Add(&semel.Message{Body: fmt.Append(nil, i)}, fmt.Append(nil, "group ", n), when, when); err != nil {
						t.Fatal(err)
					}
				}
				written := changesOf(t, s, 200)
				own, copied, largest := int64(changes.Windows.HeaderSize()), int64(0), int64(0)
				for key, p := range s.entries {
					own += weigh(key, []pane{*p})
				}
				for _, m := range s.moved {
					old := slices.DeleteFunc(slices.Clone(m.group.panes), func(p pane) bool { return p.at != m.at || p.txn == s.txn })
					copied, largest = copied+weigh(m.group.key, old), max(largest, weigh(m.group.key, old))
				}
				if copied > 2*(own+largest) { // the sizes are estimates
					t.Fatalf("transaction %d: it has %d bytes, and copied %d", i, own, copied)
				}
				moves += len(s.moved)
				if i > 0 && random.IntN(5) == 0 {
					s.Drop()
					continue
				}
				log.commit(t, s, written)
				size := len(slices.Concat(written...))
				all, longest = all+size, max(longest, size)
				if most := 1000 + 4*s.Bytes() + 2*int64(longest); s.log.Size() > most {
					t.Fatalf("transaction %d: the changelog has %d bytes, and the state %d", i, s.log.Size(), s.Bytes())
				}
				ends := random.IntN(50)
				if ends != 0 {
					log.deleteBefore(log.useless)
				}
				if ends < 2 {
					before := dump(t, s)
					if s = log.restart(t); dump(t, s) != before {
						t.Fatalf("restored:\n%s\nlive:\n%s", dump(t, s), before)
					}
				}
			}
			if moves == 0 || int64(all) < 3*(1000+4*s.Bytes()) {
				t.Errorf("%d moves, %d bytes written in all, and the state has %d", moves, all, s.Bytes())
			}
		})
	}
}
