package keys

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

// trouble is a partition on a disk with faults. Its topic has what was committed and was not cut off.
type trouble struct {
	t      *testing.T
	random *rand.Rand
	w      *Windowing
	clock  int64
	begin  int64
	topic  []*kgo.Record
	end    int64
	files  *faultfs.FS
	log    *state.Log
	state  *State
	spill  int64
	size   int64

	mu    sync.Mutex
	gate  chan struct{} // closed: open
	fails func(op faultfs.Op) bool
}

// hook holds writers of runs up, and lets operations fail.
func (s *trouble) hook(op faultfs.Op) error {
	s.mu.Lock()
	gate, fails := s.gate, s.fails
	s.mu.Unlock()
	if strings.HasSuffix(op.Name, ".tmp") {
		<-gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if fails != nil && fails(op) {
		return errors.New("it fails")
	}
	return nil
}

func (s *trouble) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.gate:
		s.gate = make(chan struct{})
	default:
	}
}

func (s *trouble) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.gate:
	default:
		close(s.gate)
	}
}

func (s *trouble) openOnce() error {
	disk := state.NewDisk(s.files, "state", ".keys", state.ID{1})
	disk.SetFileSize(s.size)
	var err error
	s.log, err = state.OpenLog(context.Background(), state.LogOptions{Topic: "c", Input: state.ID{7}, ByTime: true, Disk: disk,
		Detached: func(error) {},
		New: func(*state.Disk) state.State {
			s.state = New(&Options{Windowing: s.w, Topic: state.ID{7}, Now: func() int64 { return s.clock }, Spill: s.spill})
			return s.state
		}})
	return err
}

func (s *trouble) restore() error {
	at, err := s.log.Start(s.begin, 0, s.end)
	if err != nil {
		return err
	}
	for at < s.end {
		var records []*kgo.Record
		n := 1 + s.random.IntN(40)
		for _, r := range s.topic {
			if r.Offset >= at && len(records) < n {
				records = append(records, r)
			}
		}
		if len(records) == 0 {
			break
		}
		if _, _, err := s.log.Read(context.Background(), records, state.ID{}); err != nil {
			return err
		}
		at = records[len(records)-1].Offset + 1
	}
	s.state.Begin()
	return nil
}

// again opens until it works. New processes if log is nil.
func (s *trouble) again() {
	s.release()
	for try := 0; ; try++ {
		if try == 20 {
			s.mu.Lock()
			s.fails = nil
			s.mu.Unlock()
		}
		if s.log != nil && s.log.Broken() {
			s.log.Close()
			s.log = nil
		}
		var err error
		if s.log == nil {
			err = s.openOnce()
		}
		if err == nil {
			err = s.restore()
		} else {
			s.log = nil
		}
		if err == nil {
			return
		}
		if try > 40 {
			s.t.Fatalf("cannot be opened: %v", err)
		}
	}
}

// TestKeysAreKnownWhateverTheDiskDoes compares decisions with those of a model, while keys leave memory,
// transactions fail, the disk is slow, fails, rots and loses files, and processes end.
func TestKeysAreKnownWhateverTheDiskDoes(t *testing.T) {
	t.Parallel()
	rounds := 100
	if testing.Short() {
		rounds = 4
	}
	seed := kafkatest.NewSeed(t)
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) { troubleOnce(t, rand.New(rand.NewPCG(seed, uint64(round)))) })
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
}

func troubleOnce(t *testing.T, random *rand.Rand) {
	eventTime := random.IntN(3) > 0
	grace := time.Duration(0)
	if eventTime {
		grace = time.Duration(random.IntN(3)) * time.Second
	}
	windows := []time.Duration{3 * time.Second, 10 * time.Second, semel.Forever}
	window := windows[random.IntN(3)]
	s := &trouble{t: t, random: random, w: testWindowing(t, window, grace, eventTime), clock: 1_000_000, files: faultfs.New(), spill: int64(10 + random.IntN(60)), gate: make(chan struct{})}
	s.size = int64(state.HeaderSize + random.IntN(3000))
	faults, crashes, rot := random.IntN(3) > 0, random.IntN(2) > 0, random.IntN(3) == 0
	sources := eventTime && random.IntN(3) == 0
	close(s.gate)
	s.files.SetHook(s.hook)
	m := &model{w: s.w, first: map[int]int64{}}
	name := func() string {
		return fmt.Sprintf("event time %v window %v grace %v spill %d size %d faults %v crashes %v rot %v sources %v", eventTime, window, grace, s.spill, s.size, faults, crashes, rot, sources)
	}
	s.again()
	offset := int64(0)
	keys := 300 + random.IntN(3000)
	for range 400 {
		switch random.IntN(12) {
		case 0:
			s.hold()
			time.AfterFunc(20*time.Millisecond, s.release)
		case 1, 2:
			s.release()
		case 3:
			if faults {
				k, left := random.IntN(20), 1+random.IntN(4)*random.IntN(30)
				kind := faultfs.OpKind(0)
				if random.IntN(2) == 0 {
					kind = []faultfs.OpKind{faultfs.Write, faultfs.Sync, faultfs.Rename, faultfs.Remove, faultfs.Create, faultfs.Open, faultfs.Read, faultfs.ReadFile, faultfs.List, faultfs.SyncDir, faultfs.Size}[random.IntN(11)]
				}
				s.mu.Lock()
				s.fails = func(op faultfs.Op) bool {
					if kind != 0 && op.Kind != kind {
						return false
					}
					if k--; k < 0 && left > 0 {
						left--
						return true
					}
					return false
				}
				s.mu.Unlock()
			}
		case 4:
			if rot && random.IntN(3) == 0 {
				names := s.files.Files()
				n := names[random.IntN(len(names))]
				_ = s.files.FlipBit(n, random.Int64N(9000), uint(random.IntN(8))) // the file may be shorter
			}
		}
		trial := m.clone()
		from := offset
		var wrong error
		for range random.IntN(40) {
			step := 40
			if random.IntN(200) == 0 {
				step = 4000
			}
			s.clock += int64(random.IntN(step))
			when := s.clock
			if eventTime {
				when -= int64(random.IntN(3000))
			}
			key := random.IntN(keys)
			d := testDigest(key)
			reached := when
			if sources {
				reached = when - 1500
			}
			trial.streamTime = max(trial.streamTime, reached)
			want := trial.decideAt(key, when)
			got := s.state.Decide(&d, reached, when, offset)
			if got != want && wrong == nil {
				wrong = fmt.Errorf("key %d at %d of stream time %d: got %d, want %d", key, when, trial.streamTime, got, want)
			}
			if got == Fresh {
				s.state.Learn(&d, when, offset)
			}
			offset++
		}
		if random.IntN(6) == 0 {
			s.log.Drop()
			offset = from
			continue
		}
		err := s.log.Write(0, func(r *kgo.Record) {
			r.Offset = s.end
			s.end++
		})
		if err != nil {
			s.log.Drop()
			offset = from
			s.again()
			continue
		}
		if wrong != nil {
			t.Errorf("%s: %v; files %v", name(), wrong, s.files.Files())
			break
		}
		s.end++ // marker
		wrote := false
		for _, r := range s.log.Written() {
			wrote = true
			stored := *r
			stored.Value = append([]byte(nil), r.Value...)
			s.topic = append(s.topic, &stored)
		}
		m = trial
		if random.IntN(20) == 0 { // lost
			s.log.Drop()
			s.release()
			s.log.Close()
			s.log = nil
			s.again()
		} else if err := s.log.Commit(); err != nil {
			s.again()
		}
		if random.IntN(3) == 0 {
			if cut := s.log.Cut(); cut > s.begin {
				s.begin = cut
				for len(s.topic) > 0 && s.topic[0].Offset < cut {
					s.topic = s.topic[1:]
				}
			}
		}
		if crashes && random.IntN(15) == 0 {
			left := s.files.Survive(faultfs.Policy(random.IntN(3)), random)
			s.release()
			s.log.Close()
			s.log = nil
			s.files = left
			if random.IntN(4) == 0 {
				names := left.Files()
				if len(names) > 0 {
					n := names[random.IntN(len(names))]
					kafkatest.Must(t, left.Remove(n))
				}
			}
			s.files.SetHook(s.hook)
			// Only a record tells the next process how far the clock was.
			if wrote && random.IntN(4) == 0 {
				s.clock -= int64(random.IntN(500))
			}
			s.again()
		}
	}
	s.release()
	if s.log != nil {
		s.log.Close()
	}
}
