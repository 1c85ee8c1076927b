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
// forward and backward, cuts the changelog off where it can be, and builds the state again
// from the rest at random moments. It compares all answers with those of a model that
// forgets nothing early.
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
					t.Errorf("%d records are kept of which nothing counts, compared with %d", dead, live)
				}
			})
		}
	}
}

// TestAKeyThatIsAheadOfTheStreamIsKnownForItsWholeWindow has a partition of several sources, whose
// slowest one decides how far it has come. Another one is ahead by less or more than the window.
func TestAKeyThatIsAheadOfTheStreamIsKnownForItsWholeWindow(t *testing.T) {
	t.Parallel()
	for _, lead := range []int64{5_000, 15_000, 60_000} {
		for _, spill := range []int64{0, 20} {
			w := testWindowing(t, 10*time.Second, 0, true)
			var disk *faultfs.FS
			if spill > 0 {
				disk = faultfs.New()
			}
			log := testChangelog(t, w, new(int64), disk, nil, spill)
			st, base, offset := log.State, int64(1_000_000), 0
			st.Begin()
			first, again := testDigest(0), base+lead+9_000
			for reached := base; reached < again+20_000; reached += 100 {
				d, when := testDigest(offset), reached
				if offset%20 == 0 { // of the source that is ahead
					when += lead
				}
				if got := st.Decide(&d, reached, when, int64(offset)); got != Fresh {
					t.Fatalf("new key %d is %d", offset, got)
				}
				st.Learn(&d, when, int64(offset))
				if offset++; offset%5 > 0 {
					continue
				}
				log.Write(0)
				log.Commit()
				log.Delete(log.Cut())
				if reached < again {
					if got := st.Decide(&first, reached, again, 0); got != Again {
						t.Fatalf("ahead by %d ms, spill %d: after %d ms the first key is %d", lead, spill, reached-base, got)
					}
				} else if got := st.Decide(&first, reached, again+1_100, 0); got == Again || got == Duplicate {
					t.Fatalf("ahead by %d ms, spill %d: after %d ms the first key is still known", lead, spill, reached-base)
				}
				if offset%25 == 0 {
					st = log.Restart()
					st.Begin()
				}
			}
			if n := len(st.ahead.keys); n > int(lead/100/20)+2 || len(st.ahead.order) != n {
				t.Errorf("ahead by %d ms, spill %d: %d keys are ahead", lead, spill, n)
			}
		}
	}
}
