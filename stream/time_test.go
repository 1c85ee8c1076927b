package stream

import (
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/key"
)

// TestATimeIsTheSameInEveryUnitAndSpelling has one moment in each unit, as a number and with
// decimals and exponents.
func TestATimeIsTheSameInEveryUnitAndSpelling(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		unit TimeUnit // the stated one
		want string
	}{
		{"1795834801", Seconds, "2026-11-28T03:00:01Z"},
		{"1795834801.25", Seconds, "2026-11-28T03:00:01.25Z"},
		{"1795834801.123456789", Seconds, "2026-11-28T03:00:01.123456789Z"},
		{"1795834801.9999999999", Seconds, "2026-11-28T03:00:01.999999999Z"},
		{"1.795834801e9", Seconds, "2026-11-28T03:00:01Z"},
		{"1.795834801E+9", Seconds, "2026-11-28T03:00:01Z"},
		{"17958348010e-1", Seconds, "2026-11-28T03:00:01Z"},
		{"1795834801000", Milliseconds, "2026-11-28T03:00:01Z"},
		{"1795834801250.5", Milliseconds, "2026-11-28T03:00:01.2505Z"},
		{"1795834801250001", Microseconds, "2026-11-28T03:00:01.250001Z"},
		{"1795834801250000001", Nanoseconds, "2026-11-28T03:00:01.250000001Z"},
		{"100000000", Seconds, "1973-03-03T09:46:40Z"},
		{"99999999999", Seconds, "5138-11-16T09:46:39Z"},
		{"100000000000", Milliseconds, "1973-03-03T09:46:40Z"},
		{"99999999999999", Milliseconds, "5138-11-16T09:46:39.999Z"},
		{"100000000000000", Microseconds, "1973-03-03T09:46:40Z"},
		{"99999999999999999999", Nanoseconds, "5138-11-16T09:46:39.999999999Z"},
		{"2026-11-28T04:00:01+01:00", RFC3339, "2026-11-28T03:00:01Z"},
		{"2026-11-28T03:00:01.25Z", RFC3339, "2026-11-28T03:00:01.25Z"},
		{"1969-12-31T23:59:59Z", RFC3339, "1969-12-31T23:59:59Z"},
	} {
		for _, unit := range []TimeUnit{AnyUnit, c.unit} {
			got, err := unit.Parse([]byte(c.text))
			if err != nil || got.UTC().Format(time.RFC3339Nano) != c.want {
				t.Errorf("%s in the unit %s is %s (%v), want %s", c.text, unit, got.UTC().Format(time.RFC3339Nano), err, c.want)
			}
		}
	}
	for text, unit := range map[string]TimeUnit{"0": Seconds, "12": Milliseconds, "0.5": Seconds, "007": Seconds, "1795834801": Milliseconds, "1795834801000": Seconds, "0.0e3": Nanoseconds} {
		if got, err := unit.Parse([]byte(text)); err != nil {
			t.Errorf("%s in the stated unit %s: %s, %v", text, unit, got, err)
		}
	}
}

func TestInvalidTimesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		unit TimeUnit
		want string
	}{
		{"", AnyUnit, "is no time"}, {"yesterday", AnyUnit, "is no time"}, {"2026-11-28", AnyUnit, "is no time"}, {"2026-11-28T03:00:01", AnyUnit, "is no time"},
		{"1795834801x", AnyUnit, "is no time"}, {".5", AnyUnit, "is no time"}, {"5.", AnyUnit, "is no time"}, {"1e", AnyUnit, "is no time"}, {"1e99999999999999999999", AnyUnit, "is no time"}, {"1e41", AnyUnit, "too large for a time"}, {"1e99", AnyUnit, "is no time"},
		{"99999999", AnyUnit, "state its unit (time_unit)"}, {"0", AnyUnit, "state its unit"}, {"1.5", AnyUnit, "state its unit"}, {"0.00000000012", AnyUnit, "state its unit"},
		{"100000000000000000000", AnyUnit, "too large"}, {"1e40", AnyUnit, "too large"}, {"1e20", Seconds, "too large"},
		{"-1", AnyUnit, "before 1970"}, {"-1795834801", Seconds, "before 1970"}, {"-0.5", Seconds, "before 1970"},
		{"2026-11-28T03:00:01Z", Seconds, "no number of seconds"}, {"x", Nanoseconds, "no number of nanoseconds"},
		{"1795834801", RFC3339, "no text as in RFC 3339"}, {"x", RFC3339, "no text as in RFC 3339"},
		{strings.Repeat("9", 100), AnyUnit, "is no time"},
	} {
		if got, err := c.unit.Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q in the unit %s is %s, %v; want %q", c.text, c.unit, got, err, c.want)
		}
	}
}

func TestTimeUnitsAreParsedFromTheirNames(t *testing.T) {
	t.Parallel()
	for u := AnyUnit; u <= RFC3339; u++ {
		if got, err := ParseTimeUnit(u.String()); err != nil || got != u {
			t.Errorf("%s is %s, %v", u, got, err)
		}
	}
	if _, err := ParseTimeUnit("minutes"); err == nil || !strings.Contains(err.Error(), "any, s, ms, us, ns, rfc3339") {
		t.Error(err)
	}
	for name, wrong := range map[string]error{
		"Unit: 9 is no such unit":          (&Aggregate{Unit: 9}).Validate(),
		"Unit: s: no rule finds a time":    (&Keep{Unit: Seconds, Last: Tumbling(time.Minute)}).Validate(),
		"Time: it is only for Last":        (&Keep{Newest: new(key.Rule), Time: new(key.Rule)}).Validate(),
		"MaxBehind: -1ns is no such time":  (&Keep{MaxBehind: -1}).Validate(),
		"MaxBehind: -1ns is negative":      (&Aggregate{MaxBehind: -1}).Validate(),
		"Local differs from host to host":  (&Aggregate{Over: Days(1, time.Local)}).Validate(),
		"0s is not a whole number of mill": Days(0, time.FixedZone("here", 60)).Validate(),
	} {
		if wrong == nil || !strings.Contains(wrong.Error(), name) {
			t.Errorf("got %v, want %q", wrong, name)
		}
	}
}

// TestDaysInUTCAreTumblingWindows, so that stored windows stay those of the definition.
func TestDaysInUTCAreTumblingWindows(t *testing.T) {
	t.Parallel()
	if Days(1, time.UTC) != Tumbling(24*time.Hour) || Days(7, nil) != Tumbling(7*24*time.Hour) {
		t.Error("days in UTC differ from tumbling windows")
	}
	zone := time.FixedZone("Somewhere", 3600)
	if got := Days(2, zone); got.String() != "tumbling 48h0m0s in Somewhere" || got.Zone() != zone || got.Size() != 48*time.Hour || got.Validate() != nil {
		t.Errorf("%s, %v", got, got.Validate())
	}
}
