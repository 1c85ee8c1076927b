package kafkatxn

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestAfterACutTheStateIsTheSame commits records whose times run forward and
// backward, cuts the changelog off where it can be, builds the state again from
// what is left at random moments, and compares all answers with those of a model
// that forgets nothing early.
func TestAfterACutTheStateIsTheSame(t *testing.T) {
	t.Parallel()
	for _, window := range []time.Duration{time.Millisecond, 10 * time.Second, 40 * 24 * time.Hour} {
		for _, grace := range []time.Duration{0, 3 * window / 2} {
			seed := newSeed(t)
			t.Run(fmt.Sprintf("%v and %v", window, grace), func(t *testing.T) {
				t.Parallel()
				random := rand.New(rand.NewPCG(seed, 0))
				w := testWindowing(t, window, grace, true)
				m := &model{w: w, first: map[int]int64{}}
				step := max(window.Milliseconds()/50, 1)
				var changelog [][]byte
				start, cut := 0, 0
				load := func() *state {
					st := newState(cluster.Partition{Topic: "in", Number: 0}, topicID{7}, w)
					for i := start; i < len(changelog); i++ {
						c, err := parseChangelog(changelog[i])
						kafkatest.Must(t, err)
						st.apply(&c, 0)
						st.passed(changelog[i], int64(i+1))
					}
					return st
				}
				st := load()
				base, offset := int64(1_000_000_000_000), int64(0)
				for range 4000 {
					for range random.IntN(8) {
						base += random.Int64N(step + 1)
						when := base - random.Int64N(2*(w.grace.Milliseconds()+1)) // some are late
						key := random.IntN(200)
						d := testDigest(key)
						want, got := m.decide(key, when), st.decide(&d, when, offset)
						if got != want {
							t.Fatalf("key %d at %d of stream time %d: got %d, want %d", key, when, m.streamTime, got, want)
						}
						if got == fresh {
							st.learn(&d, when, offset)
						}
						offset++
					}
					values := st.records()
					if len(values) == 0 {
						continue
					}
					for _, value := range values {
						changelog = append(changelog, bytes.Clone(value))
						st.passed(value, int64(len(changelog)))
					}
					st.commit()
					if at, ok := st.cuts.take(st.committedTime); ok {
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
					if len(st.cuts.marks) > cutsOf+3 {
						t.Fatalf("%d marks", len(st.cuts.marks))
					}
				}
				if start == 0 {
					t.Error("nothing was cut off")
				}
				live := 0
				for _, value := range changelog[start:] {
					c, err := parseChangelog(value)
					kafkatest.Must(t, err)
					if c.streamTime > m.streamTime-st.cuts.keep {
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

// timed returns n records in one partition, a second from one to the next.
func timed(begin time.Time, from, n int) []*kgo.Record {
	list := kafkatest.Numbered(from, n, 1)
	for i, r := range list {
		r.Timestamp = begin.Add(time.Duration(from+i) * time.Second)
	}
	return list
}

// firstOffset returns the first offset that is left of a changelog.
func (b *bubble) firstOffset() int64 {
	for _, p := range b.Cluster.PartitionInfos("g-keys") {
		return p.LogStartOffset
	}
	return -1
}

// TestAChangelogByEventTimeIsCutOff lets a window and its grace pass by event time,
// restarts without a local copy, and writes all again, with a standby and without.
func TestAChangelogByEventTimeIsCutOff(t *testing.T) {
	t.Parallel()
	for _, standby := range []bool{false, true} {
		t.Run(fmt.Sprintf("standby %v", standby), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				begin := time.Now().Add(-time.Hour)
				opts := b.options()
				opts.Window, opts.EventTime = 60*time.Second, &EventTime{Grace: 20 * time.Second, OnLate: pipeline.Drop}
				p := b.start(opts)
				var s *program
				promote := func() {}
				if standby {
					s, promote = b.startStandby(opts)
				}
				for i := range 30 {
					b.Write(timed(begin, 10*i, 10)...)
					p.Wait(10*(i+1), kafkatest.Settled)
					time.Sleep(time.Second)
				}
				time.Sleep(time.Minute)
				first := b.firstOffset()
				if first < 20 {
					t.Errorf("the changelog begins at %d: it was not cut off", first)
				}
				if standby {
					s.copies()
					p.Kill()
					<-p.Done
					promote()
					p = s
				} else {
					p.Stop()
					p = b.start(opts)
				}
				// Stream time is 299 s. What is older than 279 is late unless its key is
				// known, as are those from 219 on.
				b.Write(timed(begin, 0, 320)...)
				p.Wait(320, kafkatest.Settled)
				p.Stop()
				b.Exactly(320)
				duplicate, late := p.Events.Decisions(semel.Duplicate), p.Events.Decisions(semel.Late)
				if duplicate < 80 || duplicate > 81 || duplicate+late != 300 {
					t.Errorf("%d duplicates and %d late, want 80 or 81 and the rest", duplicate, late)
				}
			})
		})
	}
}

// TestACutThatIsRefusedHarmsNothing answers what deletes records with an error.
func TestACutThatIsRefusedHarmsNothing(t *testing.T) {
	t.Parallel()
	for _, refusal := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.PolicyViolation, kerr.NotLeaderForPartition} {
		t.Run(refusal.Message, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				handle := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteRecords}, Err: refusal, Count: 1})
				opts := b.options()
				opts.Window, opts.EventTime = 10*time.Second, &EventTime{}
				begin := time.Now().Add(-time.Hour)
				p := b.start(opts)
				for i := range 60 {
					b.Write(timed(begin, 10*i, 10)...)
					p.Wait(10*(i+1), kafkatest.Settled)
					time.Sleep(time.Second)
				}
				p.Stop()
				b.Exactly(600)
				if handle.Hits() == 0 {
					t.Error("it was never refused")
				}
				if b.firstOffset() == 0 {
					t.Error("the next cut was not made")
				}
			})
		})
	}
}

// TestAStandbyThatIsOvertakenByACutGoesOn cuts the changelog off while a standby
// cannot read.
func TestAStandbyThatIsOvertakenByACutGoesOn(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Window, opts.EventTime = 20*time.Second, &EventTime{OnLate: pipeline.Drop}
		begin := time.Now().Add(-time.Hour)
		p := b.start(opts)
		s, promote := b.startStandby(opts)
		b.Write(timed(begin, 0, 10)...)
		p.Wait(10, kafkatest.Settled)
		s.copies()
		s.Line.Sever(true)
		for i := range 20 {
			b.Write(timed(begin, 10+10*i, 10)...)
			p.Wait(20+10*i, kafkatest.Settled)
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Second)
		if b.firstOffset() < 10 {
			t.Errorf("the changelog begins at %d", b.firstOffset())
		}
		s.Line.Mend()
		s.copies()
		p.Kill()
		<-p.Done
		promote()
		b.Write(timed(begin, 180, 40)...)
		s.Wait(40, kafkatest.Settled)
		s.Stop()
		b.Exactly(220)
		if got := s.Events.Restored(t); got != 0 {
			t.Errorf("%d keys were read at the take-over", got)
		}
	})
}
