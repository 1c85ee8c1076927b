package filter

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// Random operations against a map, with a table so small that lines overflow.
func TestTableAgreesWithAMap(t *testing.T) {
	t.Parallel()
	const universe, window = 220, time.Hour
	table := must(NewTable(&TableOptions{Capacity: 200, Window: window, Seed: testSeed(t)}))(t)
	random := rand.New(rand.NewPCG(*seedFlag, 2))
	type entry struct {
		at    time.Time
		again bool
	}
	model := map[int]entry{}
	now := time.Unix(1_700_000_000, 0)
	table.Advance(now)
	limit := window + overshoot(table)
	for step := range 60_000 {
		i := random.IntN(universe)
		e, known := model[i]
		if known && now.Sub(e.at) >= limit {
			delete(model, i)
			known = false
		}
		sure := known && now.Sub(e.at) <= window
		switch n := random.IntN(100); {
		case n < 50:
			seen, err := table.Add(id(i))
			if errors.Is(err, ErrFull) && table.Len() == 200 {
				break
			}
			if err != nil || sure && !seen || !known && seen {
				t.Fatalf("step %d: Add = %v, %v; in the window %v, known %v", step, seen, err, sure, known)
			}
			model[i] = entry{now, seen}
		case n < 75:
			forgotten := table.Delete(id(i))
			if forgotten != (sure && !e.again) && sure == known {
				t.Fatalf("step %d: Delete = %v; in the window %v, added again %v", step, forgotten, sure, e.again)
			}
			if forgotten {
				delete(model, i)
			}
		case n < 98:
			if seen := table.Has(id(i)); sure && !seen || !known && seen {
				t.Fatalf("step %d: Has = %v; in the window %v, known %v", step, seen, sure, known)
			}
		case n < 99:
			now = now.Add(time.Duration(random.Int64N(int64(window) / 5)))
			table.Advance(now)
		default:
			if err := table.UnmarshalBinary(must(table.MarshalBinary())(t)); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}
}

func TestDeleteForgetsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	const n = 50_000
	table := must(NewTable(&TableOptions{Capacity: n, Seed: testSeed(t)}))(t)
	seenAtOnce := 0
	for i := range n {
		if seen := must(table.Add(id(i)))(t); seen {
			seenAtOnce++
		}
	}
	for i := 0; i < n; i += 2 {
		if !table.Delete(id(i)) && seenAtOnce == 0 {
			t.Fatalf("id %d is not forgotten", i)
		}
	}
	left := 0
	for i := range n {
		seen := table.Has(id(i))
		if i%2 == 1 && !seen {
			t.Fatalf("id %d is forgotten with another", i)
		}
		if i%2 == 0 && seen {
			left++
		}
	}
	if left > 2 || table.Len() < n/2-2 || table.Len() > n/2+2 {
		t.Errorf("%d ids are seen after Delete, %d of %d are live", left, table.Len(), n/2)
	}
}

// Two ids with one fingerprint cannot be told apart, so neither Delete may
// take the other's.
func TestDeleteKeepsAFingerprintThatWasAddedTwice(t *testing.T) {
	t.Parallel()
	table := must(NewTable(&TableOptions{Capacity: 100, Window: time.Minute, Seed: testSeed(t)}))(t)
	now := time.Unix(1_700_000_000, 0)
	table.Advance(now)
	x, y := table.hasher.id(id(1))
	twin := y ^ 1 // differs below the fingerprint
	must(table.add(x, y))(t)
	if seen := must(table.add(x, twin))(t); !seen {
		t.Fatal("the twin has another fingerprint")
	}
	if table.delete(x, y) || !table.has(x, twin) {
		t.Error("Delete of an id took its twin along")
	}
	table.Advance(now.Add(2 * time.Minute))
	if table.has(x, twin) {
		t.Error("the twin is seen after its window")
	}
	// The slot is as good as new.
	must(table.add(x, y))(t)
	if !table.delete(x, y) {
		t.Error("Delete of an id that was added once")
	}
}

// crowd adds n ids of one line, each with a fingerprint of its own.
func crowd(t testing.TB, table *Table, n int) error {
	for i := range n {
		if seen, err := table.add(0, uint64(i+1)<<(64-fingerprintBits)); seen || err != nil {
			if !seen {
				return err
			}
			t.Fatalf("fingerprint %d of a line is seen", i)
		}
	}
	return nil
}

func crowded(table *Table, n int) bool {
	for i := range n {
		if !table.has(0, uint64(i+1)<<(64-fingerprintBits)) {
			return false
		}
	}
	return true
}

func TestIDsOfAFullLineLiveInTheNext(t *testing.T) {
	t.Parallel()
	const n = 5*lineSlots + 1
	table := must(NewTable(&TableOptions{Capacity: 1000, Window: time.Minute, Seed: testSeed(t)}))(t)
	now := time.Unix(1_700_000_000, 0)
	table.Advance(now)
	if err := crowd(t, table, n); err != nil {
		t.Fatal(err)
	}
	if !crowded(table, n) {
		t.Fatal("an id of a full line is not seen")
	}
	// The last one stays reachable when its line empties before it, and lives
	// as long as it is added again.
	last := uint64(n) << (64 - fingerprintBits)
	for i := range n - 1 {
		if !table.delete(0, uint64(i+1)<<(64-fingerprintBits)) {
			t.Fatalf("id %d is not forgotten", i)
		}
	}
	for range 5 {
		now = now.Add(time.Minute)
		table.Advance(now)
		if seen := must(table.add(0, last))(t); !seen {
			t.Fatal("an id far from its line is not seen")
		}
	}
	// When it is gone, absent ids of the line are looked for there alone.
	table.Advance(now.Add(2 * time.Minute))
	if table.goesOn(0) {
		t.Error("the line goes on after the last id that passed it is dead")
	}
}

func TestLastLineGoesOnToTheFirst(t *testing.T) {
	t.Parallel()
	table := must(NewTable(&TableOptions{Capacity: 100, Seed: testSeed(t)}))(t)
	const n = 3 * lineSlots
	for i := range n {
		must(table.add(^uint64(0), uint64(i+1)<<(64-fingerprintBits)))(t)
	}
	for i := range n {
		if !table.has(^uint64(0), uint64(i+1)<<(64-fingerprintBits)) {
			t.Fatalf("id %d is not seen", i)
		}
	}
}

// An attacker who had the seed could fill one line. Nothing is lost then.
func TestTableRefusesAnIDThatFindsNoSlot(t *testing.T) {
	t.Parallel()
	table := must(NewTable(&TableOptions{Capacity: 10_000, Seed: testSeed(t), WhenFull: Report}))(t)
	const room = reach * lineSlots
	if err := crowd(t, table, room); err != nil {
		t.Fatal(err)
	}
	if seen, err := table.add(0, (room+1)<<(64-fingerprintBits)); seen || !errors.Is(err, ErrFull) {
		t.Errorf("Add = %v, %v; want ErrFull", seen, err)
	}
	if !crowded(table, room) || table.Len() != room {
		t.Errorf("an id was lost: %d of %d live", table.Len(), room)
	}
}

func TestTableHoldsALittleMoreThanItsCapacityAndNeverTwice(t *testing.T) {
	t.Parallel()
	const n = 200_000
	table := must(NewTable(&TableOptions{Capacity: n, Seed: testSeed(t), WhenFull: Report}))(t)
	held := 0
	for ; ; held++ {
		if _, err := table.Add(id(held)); errors.Is(err, ErrFull) {
			break
		}
	}
	if float64(held) < 1.1*n || held >= 2*n {
		t.Errorf("held %d of a capacity of %d", held, n)
	}
	if p := table.ErrorRate(); p > 2e-6 {
		t.Errorf("error rate %g when no slot is found", p)
	}
	for i := range held {
		if !table.Has(id(i)) {
			t.Fatalf("id %d is not seen", i)
		}
	}
	t.Logf("held %.3f of the capacity at an error rate of %.2g", float64(held)/n, table.ErrorRate())
}

// The rate is too low to be measured with whole fingerprints in a test, so
// matches are counted on some of their bits, each of which halves them.
func TestTableRateAtCapacity(t *testing.T) {
	t.Parallel()
	const n, trials, used = 100_000, 2_000_000, 14
	table := must(NewTable(&TableOptions{Capacity: n, Seed: testSeed(t)}))(t)
	next := fillTo(t, table, n)
	if p := table.ErrorRate(); p > 3e-7 {
		t.Errorf("error rate %g at capacity", p)
	}
	wrong, matches := 0, 0
	for i := next; i < next+trials; i++ {
		x, y := table.hasher.id(id(i))
		if table.has(x, y) {
			wrong++
		}
		if i%10 != 0 {
			continue
		}
		at, tag := table.place(x, y)
		for {
			for _, slot := range table.lines[at][:lineSlots] {
				if slot != 0 && (slot^tag)>>(32-used) == 0 {
					matches++
				}
			}
			if !table.goesOn(at) {
				break
			}
			at = table.next(at)
		}
	}
	if wrong > bound(trials, 1e-6) {
		t.Errorf("%d of %d absent ids are called seen", wrong, trials)
	}
	const scale = 1 << (fingerprintBits - used)
	rate := float64(matches) / (trials / 10) / scale
	t.Logf("%d of %d called seen; %.3g by parts of fingerprints, %.3g by ErrorRate", wrong, trials, rate, table.ErrorRate())
	if ratio := rate / table.ErrorRate(); ratio < 0.75 || ratio > 1.25 {
		t.Errorf("parts of fingerprints match at a rate of %g, ErrorRate says %g", rate, table.ErrorRate())
	}
}
