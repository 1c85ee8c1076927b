package key

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync"
	"testing"
	"time"
)

// namespaceDNS is the name space of RFC 9562 for host names.
var namespaceDNS = UUID{0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}

func TestUUIDv5MatchesRFC9562(t *testing.T) {
	t.Parallel()
	// RFC 9562, appendix A.4.
	const want = "2ed6657d-e927-568b-95e1-2665a8aea6a2"
	if got := UUIDv5(namespaceDNS, "www.example.com").String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if UUIDv5(NamespaceURL, "a") == UUIDv5(namespaceDNS, "a") || UUIDv5(NamespaceURL, "a") == UUIDv5(NamespaceURL, []byte("b")) {
		t.Error("another name space or name gives the same UUID")
	}
}

func TestUUIDsSayTheirVersionAndParse(t *testing.T) {
	t.Parallel()
	for version, u := range map[int]UUID{4: newUUIDv4(), 5: UUIDv5(NamespaceURL, "x"), 7: NewUUIDv7()} {
		if u.Version() != version || u[8]>>6 != 2 {
			t.Errorf("%s is of version %d, variant %d; want %d, 2", u, u.Version(), u[8]>>6, version)
		}
		if parsed, err := ParseUUID(u.String()); err != nil || parsed != u {
			t.Errorf("%s parses to %s, %v", u, parsed, err)
		}
	}
	if u, err := ParseUUID("2ED6657D-E927-568B-95E1-2665A8AEA6A2"); err != nil || u != UUIDv5(namespaceDNS, "www.example.com") {
		t.Errorf("upper case parses to %s, %v", u, err)
	}
	for _, text := range []string{"", "2ed6657d", "2ed6657de927568b95e12665a8aea6a2", "2ed6657d-e927-568b-95e1-2665a8aea6ax",
		"2ed6657d-e927-568b-95e1-2665a8aea6a2 ", "2ed6657d-e927-568b-95e12665a8aea6a2-"} {
		if u, err := ParseUUID(text); err == nil || !strings.HasSuffix(err.Error(), "is not a UUID") || u != (UUID{}) {
			t.Errorf("%q parses to %s, %v", text, u, err)
		}
	}
}

func TestUUIDv7HoldsItsTime(t *testing.T) {
	t.Parallel()
	var c uuidClock
	now := time.Date(2026, 2, 1, 10, 11, 12, 345_678_901, time.UTC)
	u := c.next(now)
	if got := timeOf(u); u.Version() != 7 || !got.Equal(now.Truncate(time.Millisecond)) {
		t.Errorf("%s has time %v; want %v", u, got, now)
	}
}

// timeOf returns the time in a version 7 UUID, to the millisecond.
func timeOf(u UUID) time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(u[:8]) >> 16))
}

func TestUUIDv7sOnlyGrowAlsoWhenTheClockGoesBack(t *testing.T) {
	t.Parallel()
	var c uuidClock
	now := time.Date(2026, 2, 1, 10, 0, 0, 0, time.UTC)
	last := c.next(now)
	for i, step := range []time.Duration{0, 0, 1, 244, time.Microsecond, -time.Hour, 0, 0, -time.Nanosecond, time.Hour, time.Second} {
		for range 5000 { // more than fit into a millisecond
			now = now.Add(step)
			u := c.next(now)
			if bytes.Compare(last[:], u[:]) >= 0 {
				t.Fatalf("step %d, %v: %s after %s", i, step, u, last)
			}
			last = u
			step = 0
		}
	}
	if drift := timeOf(last).Sub(now); drift < 0 || drift > 10*time.Second {
		t.Errorf("after the clock caught up the ids are %v off", drift)
	}
}

func TestUUIDv7sOfManyGoroutinesDiffer(t *testing.T) {
	t.Parallel()
	const each = 2000
	var running sync.WaitGroup
	drawn := make([][]UUID, 4)
	for i := range drawn {
		running.Go(func() {
			for range each {
				drawn[i] = append(drawn[i], NewUUIDv7())
			}
		})
	}
	running.Wait()
	seen := make(map[[8]byte]bool)
	for _, list := range drawn {
		for i, u := range list {
			if seen[[8]byte(u[:8])] {
				t.Fatalf("two ids begin with %x", u[:8])
			}
			seen[[8]byte(u[:8])] = true
			if i > 0 && bytes.Compare(list[i-1][:], u[:]) >= 0 {
				t.Fatalf("%s after %s", u, list[i-1])
			}
		}
	}
}
