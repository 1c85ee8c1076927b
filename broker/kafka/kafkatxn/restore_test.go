package kafkatxn

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/sampletest"
)

func TestAfterARestartTheLocalCopyIsBroughtUpToDate(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, dir, older string){
		"whole":   func(*testing.T, string, string) {},
		"missing": func(t *testing.T, dir, _ string) { kafkatest.Must(t, os.RemoveAll(dir)) },
		"behind": func(t *testing.T, dir, older string) {
			kafkatest.Must(t, os.RemoveAll(dir))
			kafkatest.Must(t, os.CopyFS(dir, os.DirFS(older)))
		},
		"torn": func(t *testing.T, dir, _ string) {
			eachFile(t, dir, func(name string, data []byte) { kafkatest.Must(t, os.WriteFile(name, data[:len(data)-5], 0o600)) })
		},
		"rotten": func(t *testing.T, dir, _ string) {
			eachFile(t, dir, func(name string, data []byte) {
				data[state.HeaderSize+state.FrameSize+70] ^= 1
				kafkatest.Must(t, os.WriteFile(name, data, 0o600))
			})
		},
		"followed by zeros": func(t *testing.T, dir, _ string) {
			eachFile(t, dir, func(name string, data []byte) {
				kafkatest.Must(t, os.WriteFile(name, append(data, make([]byte, 5000)...), 0o600))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				dir, older := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "older")
				opts := b.options()
				opts.State.Dir = dir
				p := b.start(opts)
				b.Write(kafkatest.Numbered(0, 20, 2)...)
				p.Wait(20, kafkatest.Settled)
				kafkatest.Must(t, os.CopyFS(older, os.DirFS(dir)))
				b.Write(kafkatest.Numbered(20, 20, 2)...)
				p.Wait(40, kafkatest.Settled)
				b.Write(kafkatest.Numbered(40, 20, 2)...)
				p.Wait(60, kafkatest.Settled)
				p.Stop()
				spoil(t, dir, older)
				p = b.start(opts)
				b.Write(kafkatest.Numbered(0, 80, 2)...)
				p.Wait(80, kafkatest.Settled)
				p.Stop()
				b.Exactly(80)
				if got := p.Events.Decisions(semel.Duplicate); got != 60 {
					t.Errorf("%d duplicates, want 60", got)
				}
				read := strings.Join(p.Events.Log, "\n")
				if want := map[string]string{"whole": ", 0 keys", "missing": ", 60 keys", "behind": ", 40 keys", "torn": ", 20 keys", "rotten": ", 60 keys", "followed by zeros": ", 0 keys"}[name]; !strings.Contains(read, want) {
					t.Errorf("it did not read%s from the changelog", want)
				}
			})
		})
	}
}

func eachFile(t *testing.T, dir string, fn func(name string, data []byte)) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*", "*.keys"))
	kafkatest.Must(t, err)
	if len(names) == 0 {
		t.Fatal("there are no files")
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		kafkatest.Must(t, err)
		fn(name, data)
	}
}

// TestACrashAtAnyRequestLosesNothingAndRepeatsNothing cuts the line before or
// after the nth request of each kind that matters, and starts again.
func TestACrashAtAnyRequestLosesNothingAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []kmsg.Key{kmsg.Produce, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.Heartbeat, kmsg.Fetch, kmsg.InitProducerID, kmsg.JoinGroup, kmsg.OffsetFetch} {
		for _, after := range []bool{false, true} {
			for nth := 1; nth <= 4; nth++ {
				name := kind.Name() + map[bool]string{false: "/before/", true: "/after/"}[after] + string(rune('0'+nth))
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					inBubble(t, 2, func(b *bubble) {
						opts := b.options()
						opts.State.Dir = t.TempDir()
						for i := range 5 {
							b.Write(kafkatest.Numbered(10*i, 20, 2)...)
						}
						line := b.NewLine()
						if after {
							line.On(nil, kafkatest.Once(kind, nth))
						} else {
							line.On(kafkatest.Once(kind, nth), nil)
						}
						p := b.startOn(line, opts)
						for i := range 5 {
							time.Sleep(200 * time.Millisecond)
							b.Write(kafkatest.Numbered(60+10*i, 20, 2)...)
						}
						p.Kill()
						<-p.Done
						p = b.start(opts)
						time.Sleep(3 * time.Second)
						p.Stop()
						b.Exactly(120)
					})
				})
			}
		}
	}
}

// TestAnEndThatIsNotKnownIsLookedUp cuts the line around the request that ends a
// transaction, and repairs it while the program runs.
func TestAnEndThatIsNotKnownIsLookedUp(t *testing.T) {
	t.Parallel()
	for _, kind := range []kmsg.Key{kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.Produce} {
		for _, after := range []bool{false, true} {
			for _, outage := range []time.Duration{0, time.Second, 40 * time.Second, 3 * time.Minute} {
				name := kind.Name() + map[bool]string{false: "/before/", true: "/after/"}[after] + outage.String()
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					inBubble(t, 2, func(b *bubble) {
						p := b.start(b.options())
						b.Write(kafkatest.Numbered(0, 20, 2)...)
						p.Wait(20, kafkatest.Settled)
						cut := make(chan struct{})
						sever := func(k kmsg.Key) bool {
							if k != kind {
								return false
							}
							p.Line.On(nil, nil)
							close(cut)
							return true
						}
						if after {
							p.Line.On(nil, sever)
						} else {
							p.Line.On(sever, nil)
						}
						b.Write(kafkatest.Numbered(10, 20, 2)...)
						<-cut
						time.Sleep(outage)
						p.Line.Mend()
						b.Write(kafkatest.Numbered(20, 20, 2)...)
						time.Sleep(time.Minute)
						p.Stop()
						b.Exactly(40)
					})
				})
			}
		}
	}
}

// TestErrorsOfTheBrokerAreNormalEvents answers single requests with errors.
func TestErrorsOfTheBrokerAreNormalEvents(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		kind kmsg.Key
		errs []*kerr.Error
	}{
		{kmsg.TxnOffsetCommit, []*kerr.Error{
			kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.RebalanceInProgress, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress,
			kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions, kerr.UnknownServerError, kerr.TransactionAbortable, kerr.RequestTimedOut,
		}},
		{kmsg.EndTxn, []*kerr.Error{
			kerr.UnknownServerError, kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions, kerr.TransactionAbortable,
			kerr.InvalidTxnState, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping, kerr.RequestTimedOut,
		}},
		{kmsg.Produce, []*kerr.Error{
			kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.InvalidProducerEpoch,
			kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.MessageTooLarge, kerr.TransactionAbortable, kerr.UnknownServerError,
		}},
		{kmsg.Heartbeat, []*kerr.Error{kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.NotCoordinator}},
		{kmsg.OffsetFetch, []*kerr.Error{kerr.UnstableOffsetCommit, kerr.NotCoordinator}},
		{kmsg.InitProducerID, []*kerr.Error{kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress}},
		{kmsg.Fetch, []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownServerError}},
	} {
		for _, e := range f.errs {
			for _, count := range sampletest.OneOf(1, 3) {
				t.Run(f.kind.Name()+"/"+e.Message+"/"+string(rune('0'+count)), func(t *testing.T) {
					t.Parallel()
					inBubble(t, 2, func(b *bubble) {
						opts := b.options()
						opts.State.Dir = t.TempDir()
						p := b.start(opts)
						b.Write(kafkatest.Numbered(0, 20, 2)...)
						p.Wait(20, kafkatest.Settled)
						var topic string
						if f.kind == kmsg.Produce || f.kind == kmsg.Fetch {
							topic = "out"
						}
						if f.kind == kmsg.Fetch {
							topic = "in"
						}
						handle := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{f.kind}, Topic: topic, Err: e, Count: count})
						for i := range 6 {
							b.Write(kafkatest.Numbered(10*i, 20, 2)...)
							time.Sleep(time.Second)
						}
						time.Sleep(90 * time.Second)
						p.Stop()
						b.Exactly(70)
						if (f.kind == kmsg.EndTxn || f.kind == kmsg.TxnOffsetCommit || f.kind == kmsg.Produce) && handle.Hits() == 0 {
							t.Error("the error was never met")
						}
					})
				})
			}
		}
	}
}

// TestRandomCrashesLoseNothingAndRepeatNothing kills programs at random times.
func TestRandomCrashesLoseNothingAndRepeatNothing(t *testing.T) {
	t.Parallel()
	for range 4 {
		seed := kafkatest.NewSeed(t)
		t.Run("", func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 0))
			inBubble(t, 3, func(b *bubble) {
				opts := b.options()
				opts.State.Dir = t.TempDir()
				var dying []*program
				p := b.start(opts)
				next := 0
				for range 60 {
					if random.IntN(4) > 0 {
						from := max(0, next-random.IntN(30))
						n := 1 + random.IntN(40)
						b.Write(kafkatest.Numbered(from, n, 3)...)
						next = max(next, from+n)
					}
					time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
					switch random.IntN(8) {
					case 0:
						p.Kill()
						<-p.Done
						dying = append(dying, p)
						p = b.start(opts)
					case 1:
						p.Line.Mend()
					case 2:
						p.Stop()
						p = b.start(opts)
					}
				}
				time.Sleep(30 * time.Second)
				p.Stop()
				b.Exactly(next)
				for _, d := range slices.Backward(dying) {
					if d.Err != nil {
						t.Errorf("a dying program ended with %v", d.Err)
					}
				}
			})
		})
	}
}
