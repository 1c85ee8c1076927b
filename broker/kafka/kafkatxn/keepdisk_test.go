package kafkatxn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

// onDisk is a pipeline whose state is on disk: held records, or windows with long
// accumulators.
type onDisk struct {
	options func(b *bubble) TransactorOptions
	// record has a text for a key. Of several texts, the last one is the result.
	record func(n int, id, text string) *kgo.Record
	// text is that of an output.
	text func(r *kgo.Record) string
}

var onDisks = map[string]onDisk{
	"held records": {
		func(b *bubble) TransactorOptions {
			return b.keeping(stream.Keep{Last: stream.Tumbling(24 * time.Hour), Idle: semel.Forever})
		},
		func(_ int, id, text string) *kgo.Record { return kafkatest.Record(0, id, text) },
		func(r *kgo.Record) string { return string(r.Value) },
	},
	"windows": {
		func(b *bubble) TransactorOptions {
			opts := b.counting(24*time.Hour, 0, semel.Forever)
			values, err := stream.Values(stream.Value{Name: "t", Of: "last .t"})
			kafkatest.Must(b.T, err)
			opts.Aggregate.Func = values
			return opts
		},
		func(n int, id, text string) *kgo.Record {
			return kafkatest.Record(0, strconv.Itoa(n), fmt.Sprintf(`{"g":%q,"t":%q}`, id, text))
		},
		func(r *kgo.Record) string {
			var out struct{ Values struct{ T string } }
			if err := json.Unmarshal(r.Value, &out); err != nil {
				return err.Error()
			}
			return out.Values.T
		},
	},
}

// TestAStateOnDiskIsNeverLost has a disk that fails in several ways, and all results.
func TestAStateOnDiskIsNeverLost(t *testing.T) {
	t.Parallel()
	const half = 20
	type trouble struct {
		// between happens between the two halves of the records, and after behind them.
		between, after func(b *bubble, disk *faultfs.FS)
		told           string // what an event says
		fileSize       int64
		restart        func(b *bubble, p *program, opts *TransactorOptions) *program
	}
	copies := func(disk *faultfs.FS) (list []string) {
		for _, name := range disk.Files() {
			if strings.HasSuffix(name, ".state") {
				list = append(list, name)
			}
		}
		return list
	}
	each := func(fn func(b *bubble, disk *faultfs.FS, name string)) func(b *bubble, disk *faultfs.FS) {
		return func(b *bubble, disk *faultfs.FS) {
			if len(copies(disk)) == 0 {
				b.Fatal("there is no copy on disk")
			}
			for _, name := range copies(disk) {
				fn(b, disk, name)
			}
		}
	}
	failing := func(kind faultfs.OpKind) func(b *bubble, disk *faultfs.FS) {
		return func(_ *bubble, disk *faultfs.FS) {
			failed := false
			disk.SetHook(func(op faultfs.Op) error {
				if op.Kind == kind && strings.HasSuffix(op.Name, ".state") && !failed {
					failed = true
					return syscall.EIO
				}
				return nil
			})
		}
	}
	for name, c := range map[string]trouble{
		"none": {},
		"a full disk": {between: func(_ *bubble, disk *faultfs.FS) {
			disk.SetFree(1000)
			time.AfterFunc(time.Minute, func() { disk.SetFree(-1) })
		}, told: "no space left on device"},
		"a write that fails":       {between: failing(faultfs.Write), told: "input/output error"},
		"a read that fails":        {after: failing(faultfs.Read), told: "input/output error"},
		"an early read that fails": {between: failing(faultfs.Read), told: "input/output error"},
		"a rotten value": {after: each(func(b *bubble, disk *faultfs.FS, name string) {
			kafkatest.Must(b.T, disk.FlipBit(name, state.HeaderSize+state.FrameSize+300, 3))
		}), told: "checksum"},
		"a file cut short": {after: each(func(b *bubble, disk *faultfs.FS, name string) {
			file, err := disk.Open(name)
			kafkatest.Must(b.T, err)
			kafkatest.Must(b.T, file.Truncate(700))
			kafkatest.Must(b.T, file.Close())
		}), told: "EOF"},
		"a restart": {restart: func(b *bubble, p *program, opts *TransactorOptions) *program {
			p.Stop()
			return b.start(*opts)
		}},
		"a loss of power": {restart: func(b *bubble, p *program, opts *TransactorOptions) *program {
			p.Stop()
			opts.files = opts.files.(*faultfs.FS).Survive(faultfs.OnlySynced, nil)
			return b.start(*opts)
		}},
		"a restart with a rotten value": {restart: func(b *bubble, p *program, opts *TransactorOptions) *program {
			p.Stop()
			each(func(b *bubble, disk *faultfs.FS, name string) {
				kafkatest.Must(b.T, disk.FlipBit(name, state.HeaderSize+state.FrameSize+300, 3))
			})(b, opts.files.(*faultfs.FS))
			return b.start(*opts)
		}},
		"many files": {fileSize: 2000},
		"a restart without the oldest file": {fileSize: 2000, restart: func(b *bubble, p *program, opts *TransactorOptions) *program {
			p.Stop()
			disk := opts.files.(*faultfs.FS)
			if len(copies(disk)) < 3 {
				b.Fatalf("the copy has the files %v", copies(disk))
			}
			kafkatest.Must(b.T, disk.Remove(copies(disk)[0]))
			return b.start(*opts)
		}},
		"a standby that takes over": {restart: func(b *bubble, p *program, opts *TransactorOptions) *program {
			next := *opts
			next.files = faultfs.New()
			s, promote := b.startStandby(next)
			s.copies()
			if len(copies(next.files.(*faultfs.FS))) == 0 {
				b.Error("the standby has no copy on disk")
			}
			p.Kill()
			<-p.Done
			promote()
			return s
		}},
	} {
		for kind, of := range onDisks {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				inBubble(t, 1, func(b *bubble) {
					disk := faultfs.New()
					opts := of.options(b)
					opts.State.Dir, opts.files, opts.fileSize = filepath.FromSlash("/state"), disk, c.fileSize
					base := time.Now().Add(-25 * time.Hour).Truncate(24 * time.Hour)
					want := map[string]string{}
					p := b.start(opts)
					write := func(from int) {
						for n := from; n < from+half; n++ {
							id := "key " + strconv.Itoa((n-10*(n/half))*2/3) // some replace others
							want[id] = fmt.Sprintf("%d %s", n, strings.Repeat("x", 500))
							r := of.record(n, id, want[id])
							r.Timestamp = base.Add(time.Duration(n) * time.Second)
							b.Write(r)
						}
						p.Wait(from+half, kafkatest.Settled)
					}
					write(0)
					if c.between != nil {
						c.between(b, disk)
					}
					write(half)
					if c.after != nil {
						c.after(b, disk)
					}
					log, settled := p.Events, 2*half
					if c.restart != nil {
						p, settled = c.restart(b, p, &opts), 0
					}
					end := of.record(2*half, "end", "end")
					end.Timestamp = base.Add(24 * time.Hour)
					b.Write(end)
					p.Wait(settled+1, kafkatest.Settled)
					p.Stop()
					for _, r := range b.Read("out") {
						if got := of.text(r); want[string(r.Key)] != got {
							t.Errorf("%s: %.20s, want %.20s", r.Key, got, want[string(r.Key)])
						}
						delete(want, string(r.Key))
					}
					if len(want) > 0 {
						t.Errorf("no outputs of %d keys", len(want))
					}
					if all := strings.Join(log.Log, "\n"); !strings.Contains(all, c.told) {
						t.Errorf("the log does not report %s:\n%s", c.told, all)
					}
					if parked := b.Read("aside"); len(parked) > 0 {
						t.Errorf("%d records were parked", len(parked))
					}
				})
			})
		}
	}
}

// TestWindowsContinueWithAFullDisk: short accumulators are in memory too, so the copy on disk may
// stop.
func TestWindowsContinueWithAFullDisk(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		disk := faultfs.New()
		opts := b.counting(time.Minute, 0, semel.Forever)
		opts.State.Dir, opts.files = filepath.FromSlash("/state"), disk
		base := time.Now().Add(-time.Hour).Truncate(time.Minute)
		p := b.start(opts)
		b.Write(counted(0, "a", "x", 1, base))
		p.Wait(1, kafkatest.Settled)
		disk.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.Write && strings.HasSuffix(op.Name, ".state") {
				return syscall.ENOSPC
			}
			return nil
		})
		began := time.Now()
		for i, id := range []string{"b", "c"} {
			b.Write(counted(0, id, "x", 2, base.Add(time.Second)))
			p.Wait(2+i, kafkatest.Settled)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a full disk held windows up for %v", took)
		}
		told := p.Events
		p.Stop()
		if all := strings.Join(told.Log, "\n"); !strings.Contains(all, "no space left on device") {
			t.Errorf("the log does not report the disk:\n%s", all)
		}
		disk.SetHook(nil)
		p = b.start(opts) // from a copy that lacks the last transactions
		b.Write(counted(0, "d", "x", 4, base.Add(2*time.Second)), counted(0, "e", "x", 8, base.Add(time.Minute)))
		p.Wait(2, kafkatest.Settled)
		p.Stop()
		if got, want := lines(b.results(), base), "x0 n=4 s=9"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// TestACopyThatTheBrokersContradictIsDropped has a record in the copy that the brokers lost:
// another one has its offset, or none.
func TestACopyThatTheBrokersContradictIsDropped(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(data, value, other []byte, before, behind int64) []byte{
		"another one": func(data, _, other []byte, before, behind int64) []byte {
			return append(state.AppendFrame(data, other, before, behind), other...)
		},
		"none": func(data, value, other []byte, before, behind int64) []byte {
			data = append(state.AppendFrame(data, value, before, behind), value...)
			return append(state.AppendFrame(data, other, behind+9, behind+10), other...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.counting(time.Minute, 0, semel.Forever)
				opts.State.Dir = t.TempDir()
				base := time.Now().Add(-time.Hour).Truncate(time.Minute)
				p := b.start(opts)
				b.Write(counted(0, "1", "group right", 1, base))
				p.Wait(1, kafkatest.Settled)
				p.Stop()
				names, err := filepath.Glob(filepath.Join(opts.State.Dir, "*", "*.state"))
				kafkatest.Must(t, err)
				if len(names) != 1 {
					t.Fatalf("the copy is in %q", names)
				}
				data, err := os.ReadFile(names[0])
				kafkatest.Must(t, err)
				value, before, behind, ok := state.FrameAt(data[state.HeaderSize:])
				other := bytes.Replace(value, []byte("right"), []byte("wrong"), 1)
				if !ok || bytes.Equal(value, other) {
					t.Fatalf("the copy has %q", value)
				}
				kafkatest.Must(t, os.WriteFile(names[0], spoil(slices.Clone(data[:state.HeaderSize]), value, other, before, behind), 0o600))
				p = b.start(opts)
				b.Write(counted(0, "2", "end", 1, base.Add(time.Minute)))
				p.Wait(1, kafkatest.Settled)
				p.Stop()
				if got := b.finals(); got != "group right n=1 s=1" {
					t.Errorf("results %s", got)
				}
			})
		})
	}
}

// TestACopyOfOtherWindowsIsRefused: the copy on disk is of the same changelog, which other
// settings made.
func TestACopyOfOtherWindowsIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.counting(time.Minute, 0, semel.Forever)
		opts.State.Dir, opts.files = filepath.FromSlash("/state"), faultfs.New()
		p := b.start(opts)
		b.Write(counted(0, "a", "x", 1, time.Now().Add(-time.Hour)))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		opts.Aggregate.Over = stream.Tumbling(2 * time.Minute)
		p = b.start(opts)
		b.Write(counted(0, "b", "x", 1, time.Now().Add(-time.Hour)))
		<-p.Done
		if p.Err == nil || !strings.Contains(p.Err.Error(), "made otherwise than by") {
			t.Errorf("Run: %v", p.Err)
		}
	})
}
