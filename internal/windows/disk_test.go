package windows

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/changes"
	"github.com/semel-dev/semel/internal/localcopy"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/vfs"
)

// lastText is an aggregate whose accumulators have the last text of a window.
func lastText(t *testing.T, over stream.Window) *stream.Aggregate {
	t.Helper()
	values, err := stream.Values(stream.Value{Name: "text", Of: "last .v"})
	if err != nil {
		t.Fatal(err)
	}
	agg := testAggregate(t, over, 0)
	agg.Func, agg.Early = values, time.Second
	return agg
}

// onDiskState is a state with a copy of its changelog on disk.
type onDiskState struct {
	*State
	t    *testing.T
	copy *localcopy.Log
	at   int64
}

func newOnDisk(t *testing.T, files vfs.FS, dir string, agg *stream.Aggregate) *onDiskState {
	t.Helper()
	l := localcopy.New(files, dir, ".state", localcopy.ID{})
	if err := l.Open(nil, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s := &onDiskState{State: New(agg), t: t, copy: l}
	s.SetCopy(l)
	return s
}

// add adds a message with a text.
func (s *onDiskState) add(key, text string, when int64) error {
	s.See(when, when)
	_, err := s.Add(&semel.Message{Body: []byte(`{"v":"` + text + `"}`), Time: time.UnixMilli(when)}, []byte(key), when, when)
	return err
}

// commit ends a transaction.
func (s *onDiskState) commit() {
	s.t.Helper()
	var places []localcopy.Place
	values := changesOf(s.t, s.State, 1<<20)
	for i, value := range values {
		places = append(places, s.copy.Add(value, s.at+int64(i), s.at+int64(i)+1))
	}
	s.Commit(s.at, places)
	for _, value := range values {
		s.Stored(s.at, len(value))
		s.at++
	}
	cut, _ := s.Cut()
	if err := errors.Join(s.copy.Write(), s.copy.Tidy(cut-1, 0)); err != nil {
		s.t.Fatal(err)
	}
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
	s := newOnDisk(t, vfs.OS{}, t.TempDir(), agg)
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
				if err := s.add(fmt.Sprintf("%08d", n), text(n, round), 5000); err != nil {
					t.Fatal(err)
				}
			}
			s.commit()
			measure(from)
		}
	}
	s.See(100_000, 100_000)
	got := 0
	for s.Due() {
		if _, err := s.Emit(batch, func(c *stream.Closed) error {
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
		}); err != nil {
			t.Fatal(err)
		}
		s.commit()
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
	for name, method := range map[string]func(s *onDiskState) error{
		"Add": func(s *onDiskState) error { return s.add("a", long, 5500) },
		"Add that joins": func(s *onDiskState) error {
			if err := s.add("a", long, 7000); err != nil {
				return err
			}
			return s.add("a", long, 6000)
		},
		"Emit": func(s *onDiskState) error {
			s.See(100_000, 100_000)
			_, err := s.Emit(9, ignore)
			return err
		},
		"Preview": func(s *onDiskState) error {
			_, err := s.Preview(9, ignore)
			return err
		},
		"Changes": func(s *onDiskState) error {
			s.SetSlack(-1 << 20) // so that a is written again
			if err := s.add("b", long, 5000); err != nil {
				return err
			}
			_, err := s.Changes(changes.ID{1}, changes.ID{2}, 1<<20)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, fails := range []bool{false, true} {
				disk := faultfs.New()
				s := newOnDisk(t, disk, "state", lastText(t, stream.Session(1500*time.Millisecond, time.Minute)))
				if err := s.add("a", long, 5000); err != nil {
					t.Fatal(err)
				}
				s.commit()
				if s.Detach() {
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
				err := method(s)
				if fails != errors.Is(err, syscall.EIO) || !fails && err != nil || semel.Classify(err) == semel.ClassPermanent {
					t.Errorf("the disk fails: %t: %v", fails, err)
				}
				if fails != (s.copy.Err() != nil) {
					t.Errorf("the copy says %v", s.copy.Err())
				}
			}
		})
	}
}

// TestShortAccumulatorsNeedNoLocalCopy: only a state that has left something on disk depends on it.
func TestShortAccumulatorsNeedNoLocalCopy(t *testing.T) {
	t.Parallel()
	s := newOnDisk(t, faultfs.New(), "state", lastText(t, testTumbling))
	for i := range 3 {
		if err := s.add(fmt.Sprint(i), strings.Repeat("x", mostInline-22), 5000); err != nil { // with 20 bytes and quotes
			t.Fatal(err)
		}
	}
	s.commit()
	if !s.Detach() {
		t.Fatal("a short accumulator is on disk")
	}
	if err := s.add("long", strings.Repeat("x", mostInline), 5000); err != nil {
		t.Fatal(err)
	}
	s.commit()
	s.copy.Close()
	n := 0
	s.See(100_000, 100_000)
	if _, err := s.Emit(9, func(*stream.Closed) error { n++; return nil }); err != nil || n != 4 {
		t.Errorf("without its copy: %d results, %v", n, err)
	}
}
