package marks

import (
	"reflect"
	"strings"
	"testing"
)

func TestANoteIsReadBack(t *testing.T) {
	t.Parallel()
	n := Note{Read: ID{1}, Keys: Extent{Topic: ID{2}, Low: -1, End: 40, Times: []Time{{3, 1000}, {39, 2000}}}, State: Extent{Topic: ID{3}, Low: 7, End: 9}}
	for _, want := range []Note{n, {Read: ID{1}, Keys: Extent{Topic: ID{2}, Low: 5, End: 6}}, {Read: ID{1}, Copied: ID{9}}} {
		got, err := Parse("waiting for rows: 1,2; " + want.String())
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%+v was read as %+v: %v", want, got, err)
		}
	}
	for _, text := range []string{"", "g-member-1", "waiting for rows: 1"} {
		if got, err := Parse(text); got != nil || err != nil {
			t.Errorf("%q was read as %v: %v", text, got, err)
		}
	}
	for _, text := range []string{"of=x", "keys=", "keys=AgAAAAAAAAAAAAAAAAAAAA", "keys=AgAAAAAAAAAAAAAAAAAAAA,1,2,3", "keys=AgAAAAAAAAAAAAAAAAAAAA,1,!"} {
		if got, err := Parse(Prefix + text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

func TestDeletedChangelogRecordsAreDetected(t *testing.T) {
	t.Parallel()
	const keep, now = 1000, 10_000
	exact := Extent{Topic: ID{1}, Low: 10, End: 50}
	byTime := Extent{Topic: ID{1}, Low: -1}
	for at := int64(0); at <= now; at += 100 { // offsets 0 to 100
		byTime.Wrote(at/100, at/100+1, at, keep)
	}
	if n := len(byTime.Times); n > MostTimes {
		t.Errorf("%d times are noted", n)
	}
	for _, c := range []struct {
		e    Extent
		p    Present
		now  int64
		want string
	}{
		{exact, Present{ID{1}, 10, 50}, now, ""},
		{exact, Present{ID{1}, 0, 60}, now, ""},
		{exact, Present{ID{}, 10, 50}, now, ""}, // brokers without ids
		{exact, Present{ID{2}, 10, 50}, now, "made again"},
		{exact, Present{ID{1}, 11, 50}, now, "begins at offset 11, and records from 10 on still count"},
		{exact, Present{ID{1}, 50, 50}, now, "deleted"},
		{exact, Present{ID{1}, 10, 49}, now, "restored"},
		{byTime, Present{ID{1}, 91, 101}, now, ""}, // older ones have expired
		{byTime, Present{ID{1}, 101, 101}, now, "still counts: it was deleted"},
		{byTime, Present{ID{1}, 95, 101}, now, "deleted"}, // a half
		{byTime, Present{ID{1}, 101, 101}, now + keep + 1, ""},
		{Extent{}, Present{ID{1}, 5, 5}, now, ""},
	} {
		if got := c.e.Lacks(c.p, c.now, keep); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v of %+v at %d lacks %q, want %q", c.e, c.p, c.now, got, c.want)
		}
	}
}
