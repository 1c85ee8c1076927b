package window

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state/statetest"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/vfs"
)

// lastText is an aggregate whose accumulators have the last text of a window.
func lastText(t *testing.T, over stream.Window) *stream.Aggregate {
	t.Helper()
	values, err := stream.Values(stream.Value{Name: "text", Of: "last .v"})
	kafkatest.Must(t, err)
	agg := testAggregate(t, over, 0)
	agg.Func, agg.Early = values, time.Second
	return agg
}

// diskLog has a state with a copy of its changelog on disk, in a topic that keeps no records.
type diskLog struct{ *changelog }

func newOnDisk(t *testing.T, files vfs.FS, agg *stream.Aggregate) diskLog {
	t.Helper()
	return diskLog{statetest.New(t, statetest.Options[*State]{Files: files, Discard: true, New: func(d *state.Disk) *State {
		s := New(agg)
		s.SetCopy(d)
		return s
	}})}
}

// add adds a message with a text.
func (d diskLog) add(key, text string, when int64) error {
	d.State.See(when, when)
	_, err := d.State.Add(&semel.Message{Body: []byte(`{"v":"` + text + `"}`), Time: time.UnixMilli(when)}, []byte(key), when, when)
	return err
}

// commit ends a transaction.
func (d diskLog) commit() {
	d.Write(1 << 20)
	d.Commit()
}

// TestWindowsMayBeLargerThanMemory has accumulators on disk that have far more bytes than the
// heap. Some of them change.
func TestWindowsMayBeLargerThanMemory(t *testing.T) {
	const size, batch = 8 << 10, 100
	groups := 20_000
	if testing.Short() {
		groups = 4000
	}
	agg := lastText(t, testTumbling)
	log := newOnDisk(t, vfs.OS{}, agg)
	s := log.State
	text := func(n, round int) string { return strings.Repeat(fmt.Sprintf("%d.%d ", n, round), size)[:size] }
	before, peak := int64(inUse()), int64(0)
	measure := func(n int) {
		if n%(20*batch) == 0 {
			peak = max(peak, int64(inUse())-before)
		}
	}
	for round, step := range []int{1, 10} {
		for from := 0; from < groups; from += batch * step {
			for n := from; n < from+batch*step; n += step {
				kafkatest.Must(t, log.add(fmt.Sprintf("%08d", n), text(n, round), 5000))
			}
			log.commit()
			measure(from)
		}
	}
	s.See(100_000, 100_000)
	got := 0
	for s.Due() {
		_, err := s.Emit(batch, func(c *stream.Closed) error {
			round := 0
			if got%10 == 0 {
				round = 1
			}
			body, err := agg.Func.Result(c)
			if want := fmt.Sprintf("%08d", got); err != nil || c.Key != want || !strings.Contains(string(body), text(got, round)) {
				t.Fatalf("%s has another result, want that of %s: %v", c.Key, want, err)
			}
			got++
			return nil
		})
		kafkatest.Must(t, err)
		log.commit()
		measure(got)
	}
	if got != groups || peak > int64(groups*size/8) {
		t.Errorf("%d results, want %d; %d bytes of memory for %d bytes", got, groups, peak, groups*size)
	}
	t.Logf("at most %d bytes of memory for %d bytes", peak, groups*size)
}

// TestAFailedReadIsReturned: each method that needs an accumulator on disk returns the error.
// It is not an error of the message, which would be parked.
func TestAFailedReadIsReturned(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 500)
	ignore := func(*stream.Closed) error { return nil }
	for name, method := range map[string]func(log diskLog) error{
		"Add": func(log diskLog) error { return log.add("a", long, 5500) },
		"Add that joins": func(log diskLog) error {
			return errors.Join(log.add("a", long, 7000), log.add("a", long, 6000))
		},
		"Emit": func(log diskLog) error {
			log.State.See(100_000, 100_000)
			_, err := log.State.Emit(9, ignore)
			return err
		},
		"Preview": func(log diskLog) error {
			_, err := log.State.Preview(9, ignore)
			return err
		},
		"Changes": func(log diskLog) error {
			log.State.SetSlack(-1 << 20) // so that a is written again
			return errors.Join(log.add("b", long, 5000), log.Log.Write(1<<20, func(*kgo.Record) {}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, fails := range []bool{false, true} {
				disk := faultfs.New()
				log := newOnDisk(t, disk, lastText(t, stream.Session(1500*time.Millisecond, time.Minute)))
				kafkatest.Must(t, log.add("a", long, 5000))
				log.commit()
				if log.State.Detach() {
					t.Fatal("no accumulator is on disk")
				}
				if fails {
					disk.SetHook(func(op faultfs.Op) error {
						if op.Kind == faultfs.Read {
							return syscall.EIO
						}
						return nil
					})
				}
				err := method(log)
				if fails != errors.Is(err, syscall.EIO) || !fails && err != nil || semel.Classify(err) == semel.ClassPermanent {
					t.Errorf("the disk fails: %t: %v", fails, err)
				}
				if fails != (log.State.CopyErr() != nil) {
					t.Errorf("the copy says %v", log.State.CopyErr())
				}
			}
		})
	}
}

// TestShortAccumulatorsNeedNoLocalCopy: only a state that has left something on disk depends on it.
func TestShortAccumulatorsNeedNoLocalCopy(t *testing.T) {
	t.Parallel()
	log := newOnDisk(t, faultfs.New(), lastText(t, testTumbling))
	for i := range 3 {
		kafkatest.Must(t, log.add(fmt.Sprint(i), strings.Repeat("x", mostInline-22), 5000)) // with 20 bytes and quotes
	}
	log.commit()
	s := log.State
	if !s.Detach() {
		t.Fatal("a short accumulator is on disk")
	}
	kafkatest.Must(t, log.add("long", strings.Repeat("x", mostInline), 5000))
	log.commit()
	log.Close()
	n := 0
	s.See(100_000, 100_000)
	if _, err := s.Emit(9, func(*stream.Closed) error { n++; return nil }); err != nil || n != 4 {
		t.Errorf("without its copy: %d results, %v", n, err)
	}
}
