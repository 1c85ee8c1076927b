package kafkatxn

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// stateExtent returns the first offset and the size of the records that the topic of windows still
// has.
func (b *bubble) stateExtent() (first int64, size int) {
	b.Helper()
	for _, p := range b.Cluster.PartitionInfos("g-state") {
		first = p.LogStartOffset
	}
	kafkatest.Must(b.T, kafka.ReadAll(b.Context(), b.Reach(), []string{"g-state"}, func(r *kgo.Record) bool {
		size += len(r.Value)
		return true
	}))
	return first, size
}

// TestTheTopicOfOpenWindowsStaysShort changes a few groups again and again while the
// windows of all stay open. Processes end before the topic is cut, and after. The last one has
// written most of what must be cut.
func TestTheTopicOfOpenWindowsStaysShort(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]func(b *bubble) TransactorOptions{
		"windows": func(b *bubble) TransactorOptions { return b.counting(24*time.Hour, 0, semel.Forever) },
		"held": func(b *bubble) TransactorOptions {
			return b.keeping(stream.Keep{Last: stream.Tumbling(24 * time.Hour), Idle: semel.Forever})
		},
		"newest": func(b *bubble) TransactorOptions { return b.keeping(stream.Keep{Newest: ruleFor(b.T, ".v")}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				// Its records are small, so that the first transaction has several.
				kafkatest.Must(t, b.Cluster.CreateTopic("g-state", 1, map[string]string{"max.message.bytes": "1000", "retention.ms": "-1"}))
				opts := options(b)
				opts.slack = 2000
				base := time.Now().Add(-25 * time.Hour).Truncate(24 * time.Hour)
				id, sums := 0, map[string]int{}
				write := func(p *program, groups int) {
					before := kafkatest.Settled(p.Events)
					var list []*kgo.Record
					for n := range groups {
						id++
						group := "group " + strconv.Itoa(n)
						key := group
						if name == "windows" {
							key = strconv.Itoa(id)
						}
						sums[group] += id
						list = append(list, counted(0, key, group, id, base.Add(time.Duration(id)*time.Millisecond)))
					}
					b.Write(list...)
					p.Wait(before+groups, kafkatest.Settled)
				}
				p := b.start(opts)
				write(p, 40)
				for i := range 400 {
					write(p, 3)
					switch {
					case i >= 150:
						// the last one continues
					case i%50 == 10:
						time.Sleep(2 * trimEvery) // in a bubble
					case i%50 == 20: // before the next cut
						p.Kill()
						<-p.Done
						p = b.start(opts)
					case i%50 == 45:
						time.Sleep(2 * trimEvery)
						p.Stop()
						p = b.start(opts)
					}
				}
				gauges, err := p.tr.Gauges(b.Context())
				kafkatest.Must(t, err)
				state := -1
				for _, g := range gauges {
					if g.Name == "dedup.state.bytes" {
						state = int(g.Value)
					}
				}
				time.Sleep(2 * trimEvery)
				p.Stop()
				first, size := b.stateExtent()
				if first < 300 || state <= 0 || size > 2000+4*state+2000 {
					t.Errorf("the topic begins at %d and has %d bytes, and the state has %d", first, size, state)
				}
				p = b.start(opts)
				defer p.Stop()
				if name == "newest" {
					before := p.Events.Decisions(semel.Superseded)
					for n := range 40 {
						b.Write(counted(0, "group "+strconv.Itoa(n), "g", 0, base))
					}
					p.Wait(40, kafkatest.Settled)
					if got := p.Events.Decisions(semel.Superseded) - before; got != 40 {
						t.Errorf("%d old versions are superseded, want 40", got)
					}
					return
				}
				b.Write(counted(0, "end", "end", 0, base.Add(24*time.Hour)))
				if name == "held" {
					p.Wait(40, func(e *kafkatest.Events) int { return e.Decisions(semel.Fresh) })
					return
				}
				p.Wait(1, kafkatest.Settled)
				for _, r := range b.results() {
					if r.Values.S != sums[r.Key] {
						t.Errorf("%s: %d, want %d", r.Key, r.Values.S, sums[r.Key])
					}
					delete(sums, r.Key)
				}
				if len(sums) > 0 {
					t.Errorf("no results: %s", fmt.Sprint(sums))
				}
			})
		})
	}
}

// TestOnlyTheOwnerHasGauges has two members of two partitions. The first one keeps a copy of the
// partition that it gives away.
func TestOnlyTheOwnerHasGauges(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.counting(time.Hour, 0, semel.Forever)
		opts.State.Standby = true
		first := b.start(opts)
		b.Write(counted(0, "1", "a", 1, time.Now()), counted(1, "2", "b", 1, time.Now()))
		first.Wait(2, kafkatest.Settled)
		opts.Member.Instance = "second"
		second := b.start(opts)
		time.Sleep(time.Minute) // in a bubble
		for i, p := range []*program{first, second} {
			gauges, err := p.tr.Gauges(b.Context())
			kafkatest.Must(t, err)
			open := 0
			for _, g := range gauges {
				if g.Name == "dedup.windows.open" {
					open++
				}
			}
			if open != 1 {
				t.Errorf("member %d has the gauges of %d partitions, want 1", i, open)
			}
		}
		first.Stop()
		second.Stop()
	})
}

// TestAStandbyHasTheWindows lets a standby follow, and then deletes what only it has. Then
// the owner dies.
func TestAStandbyHasTheWindows(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]func(b *bubble) TransactorOptions{
		"windows": func(b *bubble) TransactorOptions { return b.counting(time.Hour, 0, semel.Forever) },
		"held": func(b *bubble) TransactorOptions {
			return b.keeping(stream.Keep{Last: stream.Tumbling(time.Hour), Idle: semel.Forever})
		},
	} {
		for _, overtaken := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, overtaken by a cut %t", name, overtaken), func(t *testing.T) {
				t.Parallel()
				inBubble(t, 1, func(b *bubble) {
					opts := options(b)
					opts.slack = 300
					owner := b.start(opts)
					s, promote := b.startStandby(opts)
					base, id := time.Now().Add(-2*time.Hour).Truncate(time.Hour), 0
					write := func(p *program, group string, at time.Time) {
						id++
						key := group
						if name == "windows" {
							key = strconv.Itoa(id)
						}
						before := kafkatest.Settled(p.Events)
						b.Write(counted(0, key, group, 1, at.Add(time.Duration(id)*time.Millisecond)))
						p.Wait(before+1, kafkatest.Settled)
					}
					for n := range 20 {
						write(owner, "group "+strconv.Itoa(n), base)
					}
					s.copies()
					if overtaken {
						s.Line.Sever(true)
						for n := range 100 {
							write(owner, "group "+strconv.Itoa(n%20), base)
						}
						time.Sleep(3 * trimEvery)
						s.Line.Mend()
						s.copies()
					}
					owner.Kill()
					<-owner.Done
					b.acceptLoss("g") // otherwise it is noticed that only the standby has all
					admin := kadm.NewClient(b.Client)
					ends, err := admin.ListEndOffsets(b.Context(), "g-state")
					kafkatest.Must(t, err)
					end, _ := ends.Lookup("g-state", 0)
					last := kadm.Offsets{}
					last.AddOffset("g-state", 0, end.Offset-2, -1) // one record and the marker are left
					_, err = admin.DeleteRecords(b.Context(), last)
					kafkatest.Must(t, err)
					promote()
					write(s, "end", base.Add(time.Hour))
					want := 20
					if name == "held" {
						s.Wait(want, func(e *kafkatest.Events) int { return e.Count(pipeline.EventDelivered) })
					}
					s.Stop()
					if got := len(b.Read("out")); got != want {
						t.Errorf("%d results, want %d", got, want)
					}
				})
			})
		}
	}
}
