package clock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/internal/clock"
)

func TestClockIgnoresBackwardSteps(t *testing.T) {
	wall := time.Unix(1000, 0)
	c := clock.New(func() time.Time { return wall }, time.Time{})
	at := func(want int64) {
		t.Helper()
		if got := c.Now().Unix(); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	at(1000)
	wall = wall.Add(10 * time.Second)
	at(1010)
	wall = wall.Add(-time.Hour)
	at(1010)
	wall = wall.Add(5 * time.Second)
	at(1015)
}

func TestClockStartsNotBeforeTheLastRecordedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorded := time.Now().Add(time.Hour)
		c := clock.New(nil, recorded)
		time.Sleep(time.Minute)
		if got := c.Now().Sub(recorded); got != time.Minute {
			t.Errorf("the clock is %v past its start, want a minute", got)
		}
	})
}
