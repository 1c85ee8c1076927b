package table_test

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 chooses one")

// newRand returns a source whose seed a failing test prints.
func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("run again with -seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func randomDigest(r *rand.Rand) semel.Digest {
	var d semel.Digest
	binary.LittleEndian.PutUint64(d[:8], r.Uint64())
	binary.LittleEndian.PutUint64(d[8:], r.Uint64())
	return d
}

// model is a map with expiries, with which the tests compare a table.
type model map[[15]byte]struct {
	v      uint64
	expiry table.Tick
}

func key(d semel.Digest) [15]byte { return [15]byte(d[:15]) }

func TestTableMatchesTheModelAsKeysExpire(t *testing.T) {
	t.Parallel()
	r := newRand(t)
	for _, keys := range []int{40, 4000, 60000} {
		tab := table.New[uint64](0)
		digests := make([]semel.Digest, keys)
		for i := range digests {
			digests[i] = randomDigest(r)
			// Two shards are crowded and their keys share homes. The others are
			// even.
			if i%8 == 0 {
				digests[i][0], digests[i][1], digests[i][2] = 7, 0xff, 0xff
			}
		}
		want := model{}
		now := table.Tick(0)
		for range 120_000 {
			d := &digests[r.IntN(keys)]
			w, ok := want[key(*d)]
			ok = ok && w.expiry > now
			switch op := r.IntN(16); {
			case op < 8:
				expiry := now + 1 + table.Tick(r.IntN(int(table.MaxAhead)))
				if op == 0 {
					expiry = table.Forever
				}
				v := r.Uint64()
				got, added := tab.Add(d, v, now, expiry)
				if added == ok || ok && got != w.v {
					t.Fatalf("Add at %d: got %d, %v; present is %v with %d", now, got, added, ok, w.v)
				}
				if added {
					w.v, w.expiry = v, expiry
					want[key(*d)] = w
				}
			case op < 12:
				got, expiry, found := tab.Find(d, now)
				if found != ok || ok && (got != w.v || expiry != w.expiry) {
					t.Fatalf("Find at %d: got %d, %d, %v; want %+v, %v", now, got, expiry, found, w, ok)
				}
			case op < 13:
				w.v, w.expiry = r.Uint64(), now+table.MaxAhead
				tab.Set(d, w.v, now, w.expiry)
				want[key(*d)] = w
			case op < 14:
				if found := tab.Delete(d); ok && !found {
					t.Fatalf("Delete at %d did not find a key that expires at %d", now, w.expiry)
				}
				delete(want, key(*d))
			case r.IntN(50) == 0:
				now += table.Tick(r.IntN(int(table.MaxAhead)))
			case r.IntN(500) == 0:
				now += table.Tick(r.IntN(10 * int(table.MaxAhead)))
			case r.IntN(500) == 0:
				tab.Sweep(now)
			}
		}
		checkAll(t, tab, want, now)
	}
}

// checkAll compares the entries of a table with the model.
func checkAll(t *testing.T, tab *table.Table[uint64], want model, now table.Tick) {
	t.Helper()
	live := 0
	for _, w := range want {
		if w.expiry > now {
			live++
		}
	}
	var last semel.Digest
	for e := range tab.All(now) {
		w, ok := want[key(e.Digest)]
		if !ok || w.v != e.Value || w.expiry != e.Expiry {
			t.Fatalf("listed %+v, want %+v, %v", e, w, ok)
		}
		if string(e.Digest[:]) < string(last[:]) {
			t.Fatalf("%v is listed after %v", e.Digest, last)
		}
		last = e.Digest
		live--
	}
	if live != 0 {
		t.Fatalf("the listing misses %d keys", live)
	}
	tab.Sweep(now)
	if int64(len(want)) < tab.Len() {
		t.Fatalf("%d keys after a sweep, at most %d live", tab.Len(), len(want))
	}
}

func TestBatchDecidesItsOwnDuplicatesInOrder(t *testing.T) {
	t.Parallel()
	r := newRand(t)
	for _, expect := range []int64{0, 5000} {
		tab := table.New[uint64](expect)
		digests := make([]semel.Digest, 5000)
		vals := make([]uint64, len(digests))
		for i := range digests {
			digests[i], vals[i] = randomDigest(r), uint64(i)
			if i%3 == 2 {
				digests[i] = digests[r.IntN(i)]
			}
		}
		outcomes := make([]table.Outcome, len(digests))
		tab.AddBatch(digests, vals, 0, table.Forever, outcomes)
		first := map[semel.Digest]uint64{}
		for i, d := range digests {
			v, seen := first[d]
			if !seen {
				v, first[d] = uint64(i), uint64(i)
			}
			if bool(outcomes[i]) == seen || vals[i] != v {
				t.Fatalf("%d: outcome %v, value %d; seen %v with %d", i, outcomes[i], vals[i], seen, v)
			}
		}
		if tab.Len() != int64(len(first)) {
			t.Fatalf("%d keys, want %d", tab.Len(), len(first))
		}
	}
}

func TestDigestsThatDifferInOneBitOf120AreTwoKeys(t *testing.T) {
	t.Parallel()
	tab := table.New[struct{}](0)
	base := randomDigest(newRand(t))
	for bit := range 120 {
		d := base
		d[bit/8] ^= 1 << (bit % 8)
		if _, added := tab.Add(&d, struct{}{}, 0, table.Forever); !added {
			t.Fatalf("bit %d does not tell keys apart", bit)
		}
	}
}

func TestManyKeysWithOneHomeSlotStayOrdered(t *testing.T) {
	t.Parallel()
	r := newRand(t)
	tab := table.New[uint64](0)
	var digests []semel.Digest
	for i := range 300 {
		d := randomDigest(r)
		// The keys have the very last home of a shard. Some of them have equal
		// bits up to the end of the part that decides the order.
		for j := range 9 {
			if j < 3 || i%2 == 0 {
				d[j] = 0xff
			}
		}
		digests = append(digests, d)
		if _, added := tab.Add(&d, uint64(i), 0, table.Forever); !added {
			t.Fatalf("%d was not added", i)
		}
	}
	n := 0
	for range tab.All(0) {
		n++
	}
	if n != len(digests) {
		t.Errorf("%d of %d keys are listed", n, len(digests))
	}
	r.Shuffle(len(digests), func(i, j int) { digests[i], digests[j] = digests[j], digests[i] })
	for i := range digests {
		if !tab.Delete(&digests[i]) {
			t.Fatalf("%v is lost", digests[i])
		}
	}
	if tab.Len() != 0 {
		t.Errorf("%d keys are left", tab.Len())
	}
}

func TestExpiredSlotsAreUsedAgainAndSweepsGiveMemoryBack(t *testing.T) {
	t.Parallel()
	r := newRand(t)
	tab := table.New[struct{}](0)
	var most int64
	for now := range table.Tick(100) {
		for range 2000 {
			d := randomDigest(r)
			tab.Add(&d, struct{}{}, now, now+10)
		}
		if now == 30 {
			most = tab.Bytes()
		}
	}
	// Twenty thousand keys live at any time, of two hundred thousand in total.
	if now := tab.Bytes(); now > most*5/4 {
		t.Errorf("the table grew from %d to %d bytes with a constant number of live keys", most, now)
	}
	if n := tab.Sweep(1000); n == 0 || tab.Len() != 0 {
		t.Errorf("swept %d, %d left", n, tab.Len())
	}
	if empty := table.New[struct{}](0); tab.Bytes() != empty.Bytes() {
		t.Errorf("an empty table takes %d bytes, a new one %d", tab.Bytes(), empty.Bytes())
	}
}

func TestScaleExpiresKeysAtMostOneTickAfterTheirWindow(t *testing.T) {
	t.Parallel()
	r := newRand(t)
	for range 10_000 {
		origin := r.Int64N(1 << 60)
		longest := time.Duration(1 + r.Int64N(1<<r.IntN(62)))
		scale, err := table.NewScale(origin, longest)
		if err != nil {
			t.Fatal(err)
		}
		now := origin + r.Int64N(1<<50)
		window := time.Duration(1 + r.Int64N(int64(longest)))
		expiry := scale.Expiry(now, window)
		if ahead := expiry - scale.Tick(now); ahead > table.MaxAhead || ahead < 1 {
			t.Fatalf("a window of %v of %v ends %d ticks ahead", window, longest, ahead)
		}
		over := now + int64(window)
		if end := scale.Time(expiry); end < over || end >= over+int64(scale.Length()) {
			t.Fatalf("a window that ends at %d is kept until %d with ticks of %v", over, end, scale.Length())
		}
		if scale.Tick(over-1) >= expiry || scale.Tick(over+int64(scale.Length())) < expiry {
			t.Fatalf("the window's end at %d does not lie in tick %d", over, expiry)
		}
	}
	scale, err := table.NewScale(0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if e := scale.Expiry(1, semel.Forever); e != table.Forever {
		t.Errorf("forever ends at %d", e)
	}
	if _, err := table.NewScale(0, 0); err == nil {
		t.Error("a longest window of 0 was accepted")
	}
}
