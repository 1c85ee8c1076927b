package keystate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestStateBuiltFromATruncatedChangelogGivesTheSameAnswers commits records whose times run
// forward and backward, cuts the changelog off where it can be, builds the state again from
// what is left at random moments, and compares all answers with those of a model
// that forgets nothing early.
func TestStateBuiltFromATruncatedChangelogGivesTheSameAnswers(t *testing.T) {
	t.Parallel()
	for _, window := range []time.Duration{time.Millisecond, 10 * time.Second, 40 * 24 * time.Hour} {
		for _, grace := range []time.Duration{0, 3 * window / 2} {
			seed := kafkatest.NewSeed(t)
			t.Run(fmt.Sprintf("%v and %v", window, grace), func(t *testing.T) {
				t.Parallel()
				random := rand.New(rand.NewPCG(seed, 0))
				w := testWindowing(t, window, grace, true)
				m := &model{w: w, first: map[int]int64{}}
				step := max(window.Milliseconds()/50, 1)
				var changelog [][]byte
				start, cut := 0, 0
				load := func() *State {
					st := New(cluster.Partition{Topic: "in", Number: 0}, TopicID{7}, w)
					for i := start; i < len(changelog); i++ {
						c, err := Parse(changelog[i])
						kafkatest.Must(t, err)
						st.Apply(&c, 0)
						st.Passed(changelog[i], int64(i+1))
					}
					return st
				}
				st := load()
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
					values := st.Records()
					if len(values) == 0 {
						continue
					}
					for _, value := range values {
						changelog = append(changelog, bytes.Clone(value))
						st.Passed(value, int64(len(changelog)))
					}
					st.Commit()
					if at, ok := st.Cuts.Take(st.CommittedTime); ok {
						if int(at) < cut || int(at) >= len(changelog) {
							t.Fatalf("a cut at %d after one at %d, of %d records", at, cut, len(changelog))
						}
						cut = int(at)
					}
					if random.IntN(3) == 0 {
						start = cut // it is made later, or never
					}
					if random.IntN(40) == 0 {
						st = load()
					}
					if len(st.Cuts.marks) > cutsOf+3 {
						t.Fatalf("%d marks", len(st.Cuts.marks))
					}
				}
				if start == 0 {
					t.Error("nothing was cut off")
				}
				live := 0
				for _, value := range changelog[start:] {
					c, err := Parse(value)
					kafkatest.Must(t, err)
					if c.StreamTime > m.streamTime-st.Cuts.keep {
						live++
					}
				}
				if dead := len(changelog) - start - live; window > time.Millisecond && dead > live {
					t.Errorf("%d records are kept of which nothing counts, beside %d", dead, live)
				}
			})
		}
	}
}
