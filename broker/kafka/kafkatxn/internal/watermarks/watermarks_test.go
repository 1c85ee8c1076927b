package watermarks

import (
	"math/rand/v2"
	"testing"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

func TestTheWatermarkIsThatOfTheSlowestPartition(t *testing.T) {
	times := New(map[string]int32{"a": 2, "b": 1})
	at := func(topic string, number int32) cluster.Partition {
		return cluster.Partition{Topic: topic, Number: number}
	}
	low := func(want int64) {
		t.Helper()
		if got, ok := times.Low(); ok != (want >= 0) || ok && got != want {
			t.Errorf("low is %d, %t, want %d", got, ok, want)
		}
	}
	low(-1)
	times.See(at("a", 0), 30)
	times.See(at("b", 0), 20)
	low(-1) // nothing is known of one
	if !times.See(at("a", 1), 0) {
		t.Error("the first record is no news")
	}
	low(0)
	times.See(at("a", 1), 25)
	low(20)
	if times.See(at("b", 0), 20) || times.See(at("b", 0), 10) || times.See(at("c", 0), 5) || times.See(at("a", -1), 5) {
		t.Error("an older record, another input or no partition is news")
	}
	low(20)
	before := times.Clone()
	times.See(at("b", 0), 40)
	low(25)
	times.See(at("a", 3), 24) // a new partition; of the one before nothing is known
	low(-1)
	times.See(at("a", 2), 50)
	low(24)
	if got, _ := before.Low(); got != 20 {
		t.Errorf("the copy has changed: %d", got)
	}
	if got, ok := New(nil).Low(); ok {
		t.Errorf("without sources all have come to %d", got)
	}
}

// TestTimesAreReadAsTheyWereWritten adds encoded times to others, which have some later
// ones.
func TestTimesAreReadAsTheyWereWritten(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		sizes := map[string]int32{"a": random.Int32N(4), "with a long name": random.Int32N(3), "": 1}
		one, other, both := New(sizes), New(sizes), New(sizes)
		for range random.IntN(20) {
			at, time := cluster.Partition{Topic: []string{"a", "with a long name", ""}[random.IntN(3)], Number: random.Int32N(4)}, random.Int64N(1<<random.IntN(44))
			both.See(at, time)
			if random.IntN(2) == 0 {
				one.See(at, time)
			} else {
				other.See(at, time)
			}
		}
		b := one.Append(nil)
		if len(b) > one.MaxSize() {
			t.Errorf("%d bytes, and at most %d", len(b), one.MaxSize())
		}
		for range 2 { // the same times again change nothing
			if err := other.Add(b); err != nil {
				t.Fatal(err)
			}
		}
		for input, list := range both.greatest {
			for i, want := range list {
				if got := other.greatest[input][i]; got != want {
					t.Errorf("%s/%d is at %d, want %d", input, i, got, want)
				}
			}
		}
		for n := range b {
			New(sizes).Add(b[:n]) // must not panic
		}
	}
	if err := New(nil).Add([]byte{1, 200}); err != ErrTimes {
		t.Errorf("half a number: %v", err)
	}
	if err := New(nil).Add([]byte{0, 1, 'a', 200, 1}); err != ErrTimes {
		t.Errorf("more partitions than bytes: %v", err)
	}
}
