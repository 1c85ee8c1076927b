package faults

import (
	"slices"
	"strings"
	"testing"
)

// did is an effect, and acked what its worker tells when it is complete.
func did(key string, attempt int, token uint64) entry {
	return entry{Kind: effect, Key: key, Attempt: attempt, Token: token}
}

func acked(key, decision string, token uint64) entry {
	return entry{Kind: settled, Key: key, Decision: decision, Result: result(key, token)}
}

// TestCheckerFindsBrokenJournals gives the checker journals that are broken in one
// way each.
func TestCheckerFindsBrokenJournals(t *testing.T) {
	t.Parallel()
	sound := []entry{
		did("a", 1, 1), acked("a", "fresh", 1), acked("a", "duplicate", 1),
		{Kind: death, Key: "b", Point: "x"}, did("b", 1, 2), did("b", 2, 5), acked("b", "fresh", 5), acked("b", "duplicate", 5),
	}
	for _, c := range []struct {
		name    string
		inputs  string
		journal []entry
		grow    order
		want    func(*report) []string
		keys    string
	}{
		{"an input without effect is lost", "abc", sound, byAttempt, func(r *report) []string { return r.Lost }, "c"},
		{"an input that is parked is not lost", "abc", append(slices.Clone(sound), entry{Kind: parked, Key: "c"}), byAttempt, func(r *report) []string { return append(r.Lost, r.Open...) }, ""},
		{"an input without a reported outcome is open", "abc", append(slices.Clone(sound), did("c", 1, 1)), byAttempt, func(r *report) []string { return r.Open }, "c"},
		{"a duplicate without effect is false", "ab", []entry{acked("a", "duplicate", 1), did("b", 1, 1), acked("b", "fresh", 1)}, byAttempt, func(r *report) []string { return r.False }, "a"},
		{"a duplicate before its effect is false", "a", []entry{acked("a", "duplicate", 1), did("a", 1, 1)}, byAttempt, func(r *report) []string { return r.False }, "a"},
		{"an effect after the acknowledgement was forgotten", "a", append(slices.Clone(sound[:3]), did("a", 2, 9)), byAttempt, func(r *report) []string { return r.Forgotten }, "a"},
		{"an effect under an old token is late, not forgotten", "b", append(slices.Clone(sound[3:]), did("b", 1, 3)), byToken, func(r *report) []string { return append(r.Late, r.Forgotten...) }, "b"},
		{"two effects are a repeat", "ab", sound, byAttempt, func(r *report) []string { return r.Repeated }, "b"},
		{"a repeat with a higher attempt says so", "ab", sound, byAttempt, func(r *report) []string { return r.Unmarked }, ""},
		{"a repeat with the same attempt does not", "a", []entry{did("a", 1, 1), did("a", 1, 2)}, byAttempt, func(r *report) []string { return r.Unmarked }, "a"},
		{"a repeat with a lower attempt and a higher token does not", "a", []entry{did("a", 2, 1), did("a", 1, 2)}, byAttempt, func(r *report) []string { return r.Unmarked }, "a"},
		{"a repeat with the same token never does", "a", []entry{did("a", 1, 1), did("a", 2, 1)}, byToken, func(r *report) []string { return r.Unmarked }, "a"},
		{"a higher token is enough where attempts are not kept", "a", []entry{did("a", 1, 1), did("a", 1, 2)}, byToken, func(r *report) []string { return r.Unmarked }, ""},
		{"the result of no effect is wrong", "a", []entry{did("a", 1, 1), acked("a", "duplicate", 2)}, byAttempt, func(r *report) []string { return r.Wrong }, "a"},
		{"a key that is no input is unexpected", "a", sound, byAttempt, func(r *report) []string { return r.Unexpected }, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := check(strings.Split(c.inputs, ""), c.journal, c.grow)
			if got := strings.Join(c.want(r), ""); got != c.keys {
				t.Errorf("keys %q, want %q, in %+v", got, c.keys, r)
			}
		})
	}
	r := check([]string{"a", "b"}, sound, byAttempt)
	if wrongs := r.wrongs(); len(wrongs) > 0 {
		t.Errorf("a sound journal is called wrong: %v", wrongs)
	}
	if r.Effects != 3 || r.Fresh != 2 || r.Duplicates != 2 || r.Deaths["x"] != 1 {
		t.Errorf("counted %v", r)
	}
}

// TestCheckerFindsAStoreThatMarksBeforeWork has workers crash on the store that
// this project exists to replace: messages must be seen to be lost.
func TestCheckerFindsAStoreThatMarksBeforeWork(t *testing.T) {
	t.Parallel()
	s := setting{Kind: onMarkFirst, Dir: t.TempDir()}
	_, reports := crash(t, s, []mode{retry}, 1, byToken)
	r := reports[retry]
	if len(r.Lost) == 0 || len(r.False) == 0 {
		t.Errorf("the checker found no loss: %v", r)
	}
	if r.Deaths["retry "+beforeEffect] > len(r.Lost) {
		t.Errorf("%d workers died between mark and effect, and %d keys are lost", r.Deaths["retry "+beforeEffect], len(r.Lost))
	}
}
