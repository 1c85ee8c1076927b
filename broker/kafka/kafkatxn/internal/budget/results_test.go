package budget

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

const (
	interval = 100 * time.Millisecond
	most     = 20_000
)

// transact writes all that the transaction may write of a number of results. Making one and
// writing one to the brokers take some time, as does the transaction without results.
func transact(r *Results, due *int, making, writing, empty time.Duration) (wrote int, took time.Duration) {
	began := time.Now()
	r.Begin(most, interval, false)
	r.Write(func(most int) (int, error) {
		n := min(most, *due)
		*due -= n
		wrote += n
		time.Sleep(time.Duration(n) * making) // in a bubble
		return n, nil
	})
	time.Sleep(time.Duration(wrote)*writing + empty) // in a bubble
	if n := r.End(); n != wrote {
		panic("a wrong number of results")
	}
	return wrote, time.Since(began)
}

// TestTransactionsLastAboutTheIntervalWhateverTheSpeed has fast and slow programs and
// brokers.
func TestTransactionsLastAboutTheIntervalWhateverTheSpeed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		making, writing, empty time.Duration
		most                   time.Duration // of a transaction
		least                  int           // results of most transactions
	}{
		"fast":         {time.Microsecond, time.Microsecond, 5 * time.Millisecond, interval, most},
		"slow program": {100 * time.Microsecond, time.Microsecond, 0, interval * 3 / 4, 400},
		"slow brokers": {time.Microsecond, 10 * time.Microsecond, 20 * time.Millisecond, 2 * interval, 6_000},
		"far brokers":  {0, time.Microsecond, time.Second, time.Second + interval, first},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r Results
				due, full, all := 2_000_000, 0, 0
				for due > 0 {
					wrote, took := transact(&r, &due, c.making, c.writing, c.empty)
					if all++; wrote >= c.least {
						full++
					}
					if took > c.most {
						t.Fatalf("transaction %d took %v with %d results", all, took, wrote)
					}
				}
				if full < all-5 {
					t.Errorf("only %d of %d transactions had %d results", full, all, c.least)
				}
			})
		})
	}
}

// TestBrokersThatBecomeSlowGetFewerResults in the next transaction, and more when they
// are quick again.
func TestBrokersThatBecomeSlowGetFewerResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Results
		for i, c := range []struct {
			due     int
			writing time.Duration
			want    int
		}{
			{1 << 20, time.Microsecond, first}, {1 << 20, time.Microsecond, 2 * first}, {1 << 20, time.Microsecond, most}, {1 << 20, 10 * time.Microsecond, most},
			{1 << 20, time.Microsecond, 10_000}, {10, time.Second, 10}, {1 << 20, time.Microsecond, first}, {1 << 20, time.Microsecond, 2 * first},
			{10, time.Microsecond, 10}, {1 << 20, time.Microsecond, most}, // few results show nothing
		} {
			due := c.due
			if wrote, _ := transact(&r, &due, 0, c.writing, 0); wrote != c.want {
				t.Errorf("transaction %d has %d results, want %d", i, wrote, c.want)
			}
		}
	})
}

// TestWriteCallsItsFunctionOnceEvenIfItWritesNothing has functions that write corrections
// alone, which do not count.
func TestWriteCallsItsFunctionOnceEvenIfItWritesNothing(t *testing.T) {
	t.Parallel()
	var r Results
	r.Begin(0, interval, false)
	calls := 0
	failed := errors.New("failed")
	if err := r.Write(func(most int) (int, error) { calls += 1 + most; return 0, failed }); !errors.Is(err, failed) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
	r.Begin(10, interval, false)
	r.Preview(func(most int) (int, error) { return most - 3, nil })
	if r.Left() != 3 {
		t.Errorf("%d left", r.Left())
	}
}
