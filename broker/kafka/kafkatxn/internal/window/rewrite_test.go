package window

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
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
			random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
			agg := testAggregate(t, over, 0)
			agg.Grace = time.Hour
			log := newChangelog(t, agg, random)
			s, all, longest, moves := log.State, 0, 0, 0
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
					_, err := s.Add(&semel.Message{Body: fmt.Append(nil, i)}, fmt.Append(nil, "group ", n), when, when)
					kafkatest.Must(t, err)
				}
				size := len(log.Write(200))
				own, copied, largest := int64(state.Windows.HeaderSize()), int64(0), int64(0)
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
					log.Drop()
					continue
				}
				log.Commit()
				all, longest = all+size, max(longest, size)
				if most := testSlack + 4*s.Bytes() + 2*int64(longest); log.Bytes() > most {
					t.Fatalf("transaction %d: the changelog has %d bytes, and the state %d", i, log.Bytes(), s.Bytes())
				}
				ends := random.IntN(50)
				if ends != 0 {
					log.Delete(log.Cut())
				}
				if ends < 2 {
					before := dump(t, s)
					if s = log.Restart(); dump(t, s) != before {
						t.Fatalf("restored:\n%s\nlive:\n%s", dump(t, s), before)
					}
				}
			}
			if moves == 0 || int64(all) < 3*(testSlack+4*s.Bytes()) {
				t.Errorf("%d moves, %d bytes written in all, and the state has %d", moves, all, s.Bytes())
			}
		})
	}
}
