package kafkatxn

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// startStandby starts a program that keeps copies and joins the group only when
// promote is called.
func (b *bubble) startStandby(opts TransactorOptions) (p *program, promote func()) {
	b.Helper()
	opts.State.Standby, opts.Member.Instance = true, "g-standby"
	hold := make(chan struct{})
	opts.hold = hold
	p = b.start(opts)
	return p, func() { close(hold) }
}

// copies waits until the standby of a program lacks nothing.
func (p *program) copies() {
	p.B.Helper()
	time.Sleep(5 * time.Second) // in a bubble
	if lag := p.Events.Lag(); lag != 0 {
		p.B.Fatalf("the standby is %d records behind", lag)
	}
}

// TestAStandbyTakesOverWhereItIs lets a standby follow a program that dies, in
// several conditions of the standby, and counts what it reads when it takes over.
func TestAStandbyTakesOverWhereItIs(t *testing.T) {
	t.Parallel()
	spoilt := func(spoil func(name string, data []byte) []byte) func(b *bubble, s *program, dir string) {
		return func(b *bubble, s *program, dir string) {
			eachFile(b.T, dir, func(name string, data []byte) { kafkatest.Must(b.T, os.WriteFile(name, spoil(name, data), 0o600)) })
		}
	}
	for name, c := range map[string]struct {
		noDir  bool
		behind bool // it lacks the last 40 keys
		spoil  func(b *bubble, s *program, dir string)
		read   int // keys at the take-over
	}{
		"up to date":                  {},
		"up to date, in memory alone": {noDir: true},
		"behind":                      {behind: true, read: 40},
		"behind, in memory alone":     {noDir: true, behind: true, read: 40},
		"started again":               {spoil: func(*bubble, *program, string) {}},
		"missing":                     {spoil: func(b *bubble, _ *program, dir string) { kafkatest.Must(b.T, os.RemoveAll(dir)) }},
		"torn":                        {spoil: spoilt(func(_ string, data []byte) []byte { return data[:len(data)-5] })},
		"rotten": {spoil: spoilt(func(_ string, data []byte) []byte {
			data[state.HeaderSize+state.FrameSize+70] ^= 1
			return data
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				owner := b.start(b.options())
				opts := b.options()
				if !c.noDir {
					opts.State.Dir = filepath.Join(t.TempDir(), "standby")
				}
				s, promote := b.startStandby(opts)
				b.Write(kafkatest.Numbered(0, 60, 2)...)
				owner.Wait(60, kafkatest.Settled)
				s.copies()
				if c.spoil != nil {
					s.Stop()
					c.spoil(b, s, opts.State.Dir)
					s, promote = b.startStandby(opts)
					s.copies()
				}
				if c.behind {
					s.Line.Sever(true)
				}
				b.Write(kafkatest.Numbered(60, 40, 2)...)
				owner.Wait(100, kafkatest.Settled)
				if !c.behind {
					s.copies()
				}
				owner.Kill()
				<-owner.Done
				b.Write(kafkatest.Numbered(0, 150, 2)...)
				time.Sleep(time.Minute) // the group forgets the owner, and gives its partitions immediately
				s.Line.Mend()
				promote()
				s.Wait(150, kafkatest.Settled)
				s.Stop()
				b.Exactly(150)
				if got := s.Events.Decisions(semel.Duplicate); got != 100 {
					t.Errorf("%d duplicates, want 100", got)
				}
				if got := s.Events.Restored(t); got != c.read {
					t.Errorf("%d keys were read when it took over, want %d", got, c.read)
				}
			})
		})
	}
}

// TestAStandbyIgnoresAbortedTransactions writes to the changelog in transactions that
// abort, before a standby takes over and while it does.
func TestAStandbyIgnoresAbortedTransactions(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.State.Dir = t.TempDir()
		owner := b.start(opts)
		s, promote := b.startStandby(b.options())
		b.Write(kafkatest.Numbered(0, 10, 1)...)
		owner.Wait(10, kafkatest.Settled)
		s.copies()
		zombie := b.zombie()
		defer zombie.Close()
		// Its first transaction is aborted, its second is open when the standby takes
		// over, and ends with its time-out.
		for i, from := range []int{10, 20} {
			kafkatest.Must(t, zombie.BeginTransaction())
			kafkatest.Must(t, zombie.ProduceSync(b.Context(), b.changelogOf(opts.State.Dir, from, 10)).FirstErr())
			if i == 0 {
				kafkatest.Must(t, zombie.EndTransaction(b.Context(), kgo.TryAbort))
				s.copies()
			}
		}
		owner.Kill()
		<-owner.Done
		promote()
		b.Write(kafkatest.Numbered(0, 30, 1)...)
		s.Wait(30, kafkatest.Settled)
		s.Stop()
		b.Exactly(30)
		if got := s.Events.Decisions(semel.Duplicate); got != 10 {
			t.Errorf("%d duplicates, want 10", got)
		}
	})
}

// zombie returns a client with a transaction of its own.
func (b *bubble) zombie() *kgo.Client {
	b.Helper()
	c, err := kgo.NewClient(append(b.Reach(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID("zombie"), kgo.TransactionTimeout(20*time.Second))...)
	kafkatest.Must(b.T, err)
	return c
}

// changelogOf returns a record of the changelog of partition 0 with the keys from
// to from+n-1, as its owner with that directory would have written it.
func (b *bubble) changelogOf(dir string, from, n int) *kgo.Record {
	b.Helper()
	var h keys.Header
	eachFile(b.T, dir, func(_ string, data []byte) {
		value, _, _, _ := state.FrameAt(data[state.HeaderSize:])
		c, err := keys.Parse(value)
		kafkatest.Must(b.T, err)
		h = c.Header
	})
	scoped := digest.New(h.Secret).Scope("s")
	var entries []keys.Entry
	for i := from; i < from+n; i++ {
		entries = append(entries, keys.Entry{Digest: scoped.String(strconv.Itoa(i)), Time: time.Now().UnixMilli(), Offset: int64(i)})
	}
	return &kgo.Record{Topic: "g-keys", Value: keys.Encode(&h, entries...)}
}

// TestAStandbyDropsRecordsThatTheBrokersLost lets the changelog end before what a standby
// has, and continue with other records.
func TestAStandbyDropsRecordsThatTheBrokersLost(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.State.Dir = t.TempDir()
		owner := b.start(b.options())
		s, _ := b.startStandby(opts)
		b.Write(kafkatest.Numbered(0, 10, 1)...)
		owner.Wait(10, kafkatest.Settled)
		s.copies()
		s.Stop()
		owner.Stop()
		// The last record of the copy is another one than the changelog has.
		eachFile(t, opts.State.Dir, func(name string, data []byte) {
			value, before, behind, ok := state.FrameAt(data[state.HeaderSize:])
			if !ok {
				t.Fatal("no frame")
			}
			c, err := keys.Parse(value)
			kafkatest.Must(t, err)
			scoped := digest.New(c.Secret).Scope("s")
			value = keys.Encode(&c.Header, keys.Entry{Digest: scoped.String("10"), Time: time.Now().UnixMilli(), Offset: 3})
			data = state.AppendFrame(data[:state.HeaderSize:state.HeaderSize], value, before, behind)
			kafkatest.Must(t, os.WriteFile(name, append(data, value...), 0o600))
		})
		owner = b.start(b.options())
		s, promote := b.startStandby(opts)
		s.copies()
		owner.Kill()
		<-owner.Done
		promote()
		b.Write(kafkatest.Numbered(0, 20, 1)...)
		s.Wait(20, kafkatest.Settled)
		s.Stop()
		b.Exactly(20)
	})
}

// TestASecretThatWasNotWrittenGivesWay gives two partitions to a program, and one of
// them to another program before anything is written. The first program keeps a copy of
// it, and gets it back later.
func TestASecretThatWasNotWrittenGivesWay(t *testing.T) {
	t.Parallel()
	inRealTime(t, 2, func(b *bubble) {
		start := func(instance string) *program {
			opts := b.options()
			opts.Member.Instance, opts.State.Standby = instance, true
			opts.Limits.Interval, opts.Timeouts.Session = 20*time.Millisecond, 5*time.Second
			return b.start(opts)
		}
		given := func(e *kafkatest.Events) int { return e.Count(pipeline.EventSourceChanged) }
		first := start("one")
		first.Wait(3, given) // it was given partitions, and two are up to date
		second := start("two")
		second.Wait(2, given)
		b.Write(kafkatest.Numbered(0, 100, 2)...)
		b.drained("g", "in")
		second.Stop()
		b.Write(kafkatest.Numbered(50, 100, 2)...)
		b.drained("g", "in")
		first.Stop()
		b.Exactly(150)
	})
}
