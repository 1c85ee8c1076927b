package kafkatxn

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestKeysThatHaveLeftMemoryAreKnown has a disk that fails in several ways, while keys leave memory.
func TestKeysThatHaveLeftMemoryAreKnown(t *testing.T) {
	t.Parallel()
	const round, rounds = 40, 20
	runs := func(disk *faultfs.FS) (list []string) {
		for _, name := range disk.Files() {
			if strings.HasSuffix(name, ".run") {
				list = append(list, name)
			}
		}
		return list
	}
	failing := func(kind faultfs.OpKind, suffix string) func(b *bubble, disk *faultfs.FS) {
		return func(_ *bubble, disk *faultfs.FS) {
			var failed atomic.Bool
			disk.SetHook(func(op faultfs.Op) error {
				if op.Kind == kind && strings.Contains(op.Name, suffix) && failed.CompareAndSwap(false, true) {
					return syscall.EIO
				}
				return nil
			})
		}
	}
	for name, c := range map[string]struct {
		// trouble happens in the middle of the records, and restart before they come again.
		trouble func(b *bubble, disk *faultfs.FS)
		restart func(b *bubble, p *program, opts *TransactorOptions) *program
		told    string // what an event says
	}{
		"none": {},
		"a restart": {restart: func(b *bubble, p *program, opts *TransactorOptions) *program {
			p.Stop()
			return b.start(*opts)
		}},
		"a loss of power": {restart: func(b *bubble, p *program, opts *TransactorOptions) *program {
			p.Kill()
			<-p.Done
			opts.files = opts.files.(*faultfs.FS).Survive(faultfs.Torn, rand.New(rand.NewPCG(kafkatest.NewSeed(b.T), 0)))
			return b.start(*opts)
		}},
		"a restart without the oldest run": {restart: func(b *bubble, p *program, opts *TransactorOptions) *program {
			p.Stop()
			disk := opts.files.(*faultfs.FS)
			kafkatest.Must(b.T, disk.Remove(runs(disk)[0]))
			return b.start(*opts)
		}},
		"a rotten run": {trouble: func(b *bubble, disk *faultfs.FS) {
			for _, name := range runs(disk) {
				kafkatest.Must(b.T, disk.FlipBit(name, 4096+40, 3))
			}
		}, told: "checksum"},
		"a write of a run that fails":    {trouble: failing(faultfs.Write, ".run"), told: "input/output error"},
		"a sync of a run that fails":     {trouble: failing(faultfs.Sync, ".run"), told: "input/output error"},
		"a write of the copy that fails": {trouble: failing(faultfs.Write, ".keys"), told: "input/output error"},
		"a removal that fails":           {trouble: failing(faultfs.Remove, ".keys"), told: "input/output error"},
		"a read of a run that fails":     {trouble: failing(faultfs.Read, ".run"), told: "input/output error"},
		"a full disk": {trouble: func(_ *bubble, disk *faultfs.FS) {
			disk.SetFree(1000)
			time.AfterFunc(time.Minute, func() { disk.SetFree(-1) })
		}, told: "no space left on device"},
		"a standby that takes over": {restart: func(b *bubble, p *program, opts *TransactorOptions) *program {
			next := *opts
			next.files = faultfs.New()
			s, promote := b.startStandby(next)
			s.copies()
			p.Kill()
			<-p.Done
			promote()
			return s
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				disk := faultfs.New()
				opts := b.options()
				opts.State.Dir, opts.files, opts.fileSize, opts.spill = filepath.FromSlash("/state"), disk, 500, round/4
				p := b.start(opts)
				for n := range rounds {
					if n == rounds/2 {
						if len(runs(disk)) == 0 {
							b.Fatalf("no key has left memory: %v", disk.Files())
						}
						if c.trouble != nil {
							c.trouble(b, disk)
						}
					}
					b.Write(kafkatest.Numbered(n*round, round, 2)...)
					p.Wait((n+1)*round, kafkatest.Settled)
				}
				log, settled := p.Events, rounds*round
				if c.restart != nil {
					p, settled = c.restart(b, p, &opts), 0
				}
				b.Write(kafkatest.Numbered(0, (rounds+1)*round, 2)...)
				p.Wait(settled+(rounds+1)*round, kafkatest.Settled)
				p.Stop()
				b.Exactly((rounds + 1) * round)
				if all := strings.Join(log.Log, "\n"); !strings.Contains(all, c.told) {
					t.Errorf("the log does not report %s:\n%s", c.told, all)
				}
				if got := p.Events.Decisions(semel.Duplicate); got != rounds*round {
					t.Errorf("%d duplicates, want %d", got, rounds*round)
				}
			})
		})
	}
}

// TestAStandbyContinuesAfterItsDiskFailed lets an operation on the copy of a standby fail once, and
// expects that it follows the owner again, and that keys leave memory again.
func TestAStandbyContinuesAfterItsDiskFailed(t *testing.T) {
	t.Parallel()
	const round, rounds = 40, 20
	for _, suffix := range []string{".keys", ".run.tmp"} {
		t.Run(suffix, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				owner := b.start(b.options())
				disk, opts := faultfs.New(), b.options()
				opts.State.Dir, opts.files, opts.fileSize, opts.spill = filepath.FromSlash("/state"), disk, 500, round/4
				s, promote := b.startStandby(opts)
				var failed atomic.Bool
				var made atomic.Int64
				disk.SetHook(func(op faultfs.Op) error {
					if op.Kind == faultfs.Rename && strings.HasSuffix(op.Name, ".run.tmp") {
						made.Add(1)
					}
					if op.Kind == faultfs.Write && strings.HasSuffix(op.Name, suffix) && made.Load() > 2 && failed.CompareAndSwap(false, true) {
						return syscall.EIO
					}
					return nil
				})
				before := int64(0)
				for n := range rounds {
					b.Write(kafkatest.Numbered(n*round, round, 1)...)
					owner.Wait((n+1)*round, kafkatest.Settled)
					s.copies()
					if n == rounds/2 {
						before = made.Load()
					}
				}
				if !failed.Load() || made.Load() == before {
					t.Errorf("failed %v, %d runs, and %d of them in the first half", failed.Load(), made.Load(), before)
				}
				owner.Kill()
				<-owner.Done
				promote()
				b.Write(kafkatest.Numbered(0, (rounds+1)*round, 1)...)
				s.Wait((rounds+1)*round, kafkatest.Settled)
				s.Stop()
				b.Exactly((rounds + 1) * round)
			})
		})
	}
}
