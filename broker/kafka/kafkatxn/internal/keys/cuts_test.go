package keys

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestStateBuiltFromATruncatedChangelogGivesTheSameAnswers commits records whose times run
// forward and backward, cuts the changelog off where it can be, builds the state again from
// what is left at random moments, and compares all answers with those of a model
// that forgets nothing early.
func TestStateBuiltFromATruncatedChangelogGivesTheSameAnswers(t *testing.T) {
	t.Parallel()
	for _, window := range []time.Duration{time.Millisecond, 10 * time.Second, 40 * 24 * time.Hour} {
		for i := range 4 {
			seed, grace, spill := kafkatest.NewSeed(t), time.Duration(i%2)*3*window/2, int64(i/2*100)
			t.Run(fmt.Sprintf("%v and %v, spill %d", window, grace, spill), func(t *testing.T) {
				t.Parallel()
				random := rand.New(rand.NewPCG(seed, 0))
				w := testWindowing(t, window, grace, true)
				m := &model{w: w, first: map[int]int64{}}
				step := max(window.Milliseconds()/50, 1)
				var disk *faultfs.FS
				if spill > 0 {
					disk = faultfs.New()
				}
				log := testChangelog(t, w, new(int64), disk, random, spill)
				st := log.State
				st.Begin()
				base, offset := int64(1_000_000_000_000), int64(0)
				for range 4000 {
					for range random.IntN(8) {
						base += random.Int64N(step + 1)
						when := base - random.Int64N(2*(w.Grace.Milliseconds()+1)) // some are late
						key := random.IntN(200)
						d := testDigest(key)
						want, got := m.decide(key, when), st.Decide(&d, when, when, offset)
						if got != want {
							t.Fatalf("key %d at %d of stream time %d: got %d, want %d", key, when, m.streamTime, got, want)
						}
						if got == Fresh {
							st.Learn(&d, when, offset)
						}
						offset++
					}
					if log.Write(0); len(log.Written()) == 0 {
						continue
					}
					log.Commit()
					if log.DeleteLater(); random.IntN(40) == 0 {
						st = log.Restart()
						st.Begin()
					}
					if len(st.cuts.marks) > cutsOf+3 {
						t.Fatalf("%d marks", len(st.cuts.marks))
					}
				}
				if log.Begin == 0 {
					t.Error("nothing was cut off")
				}
				live, dead := 0, 0
				for _, r := range log.Records {
					c, err := Parse(r.Value)
					kafkatest.Must(t, err)
					switch {
					case c.Kind == KindBarrier:
					case c.StreamTime > m.streamTime-st.cuts.keep:
						live++
					default:
						dead++
					}
				}
				if window > time.Millisecond && dead > live {
					t.Errorf("%d records are kept of which nothing counts, beside %d", dead, live)
				}
			})
		}
	}
}
