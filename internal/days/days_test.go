package days

import (
	"testing"
	"time"
	_ "time/tzdata" // the test does not depend on the host
)

// TestDaysOfZones has days of 23, 24, 24.5 and 25 hours, days without a midnight or with two,
// and a day that a zone left out.
func TestDaysOfZones(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		zone, day string
		start     string // UTC
		hours     float64
	}{
		{"UTC", "2026-03-29", "2026-03-29T00:00:00Z", 24},
		{"Europe/Vienna", "2026-03-29", "2026-03-28T23:00:00Z", 23},
		{"Europe/Vienna", "2026-10-25", "2026-10-24T22:00:00Z", 25},
		{"America/New_York", "2026-03-08", "2026-03-08T05:00:00Z", 23},
		{"Asia/Kolkata", "2026-03-29", "2026-03-28T18:30:00Z", 24},
		{"Asia/Kathmandu", "2026-03-29", "2026-03-28T18:15:00Z", 24},
		{"Australia/Lord_Howe", "2026-04-05", "2026-04-04T13:00:00Z", 24.5},
		{"Australia/Lord_Howe", "2026-10-04", "2026-10-03T13:30:00Z", 23.5},
		{"Pacific/Auckland", "2026-09-27", "2026-09-26T12:00:00Z", 23},
		{"Pacific/Kiritimati", "2026-01-01", "2025-12-31T10:00:00Z", 24},
		{"Pacific/Pago_Pago", "2026-01-01", "2026-01-01T11:00:00Z", 24},
		{"America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00:00Z", 23}, // begins at 01:00
		{"America/Sao_Paulo", "2018-02-17", "2018-02-17T02:00:00Z", 25}, // 23:00 comes twice
		{"Africa/Cairo", "2026-04-24", "2026-04-23T22:00:00Z", 23},      // begins at 01:00
		{"America/Havana", "2026-03-08", "2026-03-08T05:00:00Z", 23},    // begins at 01:00
		{"America/Havana", "2026-11-01", "2026-11-01T04:00:00Z", 25},    // 00:00 comes twice
		{"America/St_Johns", "2009-11-01", "2009-11-01T02:30:00Z", 25},  // back at 00:01
		{"Pacific/Apia", "2011-12-29", "2011-12-29T10:00:00Z", 24},      // the 30th was left out
		{"Pacific/Apia", "2011-12-31", "2011-12-30T10:00:00Z", 24},
		{"Pacific/Kwajalein", "1993-08-22", "1993-08-21T12:00:00Z", 24}, // the 21st was left out
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		start, err := time.Parse(time.RFC3339, c.start)
		if err != nil {
			t.Fatal(err)
		}
		end := start.Add(time.Duration(c.hours * float64(time.Hour)))
		for _, at := range []time.Time{start, start.Add(time.Millisecond), start.Add(time.Hour), end.Add(-time.Millisecond)} {
			from, to := New(zone, 1).Bounds(at.UnixMilli())
			if from != start.UnixMilli() || to != end.UnixMilli() {
				t.Errorf("%s in %s: %s has the day from %s to %s, want %s to %s", c.day, c.zone, at, text(from), text(to), c.start, text(end.UnixMilli()))
			}
		}
		if date := start.In(zone).Format(time.DateOnly); date != c.day {
			t.Errorf("%s in %s starts on %s", c.day, c.zone, date)
		}
	}
}

func text(at int64) string { return time.UnixMilli(at).UTC().Format(time.RFC3339) }

// TestEveryTimeIsInExactlyOneDayOfItsZone goes through the days of many zones, and through weeks. Each time is
// in one of them, and all but a few show the date of the day.
func TestEveryTimeIsInExactlyOneDayOfItsZone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Europe/London", "America/Sao_Paulo", "America/St_Johns", "Pacific/Apia", "Asia/Beirut", "Africa/Casablanca", "Antarctica/Troll", "Asia/Tehran", "America/Asuncion", "Asia/Pyongyang", "Asia/Manila"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int64{1, 7} {
			d, at := New(zone, size), time.Date(1973, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
			for at < time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() {
				from, to := d.Bounds(at)
				if from > at || to <= at {
					t.Fatalf("%s, %d days: %s is not from %s to %s", name, size, text(at), text(from), text(to))
				}
				for _, again := range []int64{from, (from + to) / 2, to - 1} {
					if f, e := New(zone, size).Bounds(again); f != from || e != to {
						t.Fatalf("%s, %d days: %s has from %s to %s, not from %s to %s", name, size, text(again), text(f), text(e), text(from), text(to))
					}
				}
				if noon := time.UnixMilli(from).Add(12 * time.Hour).In(zone); size == 1 && noon.Hour() < 10 || noon.Hour() > 14 {
					t.Fatalf("%s: 12 hours after the start it is %s", name, noon)
				}
				at = to
			}
		}
	}
}

func BenchmarkBounds(b *testing.B) {
	zone, err := time.LoadLocation("Europe/Vienna")
	if err != nil {
		b.Fatal(err)
	}
	at := time.Date(2026, 3, 29, 12, 0, 0, 0, time.UTC).UnixMilli()
	for name, step := range map[string]int64{"same day": 1, "another day": milliseconds} {
		b.Run(name, func(b *testing.B) {
			d := New(zone, 1)
			for i := 0; b.Loop(); i++ {
				d.Bounds(at + int64(i%2)*step)
			}
		})
	}
}
