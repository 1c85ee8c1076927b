package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Kinds of entries in a journal.
const (
	// effect: an effect happened, under a claim with Attempt and Token.
	effect = "effect"
	// settled: a delivery came to its end, with Decision fresh or duplicate,
	// and with the Result that its caller got.
	settled = "settled"
	// parked: a delivery ended because its key is unknown.
	parked = "parked"
	// death: the worker is about to kill itself, at Point.
	death = "death"
)

// entry is one line of a journal. Lines are in the order in which they were
// synced: what a line rests on stands before it.
type entry struct {
	Kind     string
	Key      string
	Worker   string
	Attempt  int    `json:",omitempty"`
	Token    uint64 `json:",omitempty"`
	Decision string `json:",omitempty"`
	Result   string `json:",omitempty"`
	Point    string `json:",omitempty"`
}

// order says which number must grow with each effect of a key.
type order uint8

const (
	// byAttempt: each repeat has a higher attempt and a higher token.
	byAttempt order = iota
	// byToken: each repeat has a higher token, for stores whose claims do not
	// survive their process.
	byToken
)

// report is what a journal says. Each list has keys, sorted, each once.
type report struct {
	// Lost are inputs without effect that are not parked: I1.
	Lost []string
	// Open are inputs of which no delivery was settled or parked: I3.
	Open []string
	// False are keys of which a delivery was called done, or a duplicate, with
	// no effect before it: I5.
	False []string
	// Repeated are keys with more than one effect: I2, where it is promised.
	Repeated []string
	// Forgotten are keys with an effect after a delivery of them was settled:
	// I4, an acknowledged completion was lost.
	Forgotten []string
	// Unmarked are keys with a repeat that is not marked as one.
	Unmarked []string
	// Wrong are keys of which a duplicate got a result that no effect made: I6.
	Wrong []string
	// Unexpected are keys that are not inputs.
	Unexpected []string
	// Parked are inputs that were reported as unknown.
	Parked []string
	// Late are effects under a lower token than an earlier effect: a holder slept through its
	// lease, and a target that compares tokens refuses such effects.
	Late []string

	Effects, Fresh, Duplicates int
	// Deaths counts the points at which workers killed themselves.
	Deaths map[string]int
}

// history is what one key went through.
type history struct {
	effects         []entry
	settled, parked bool
}

// check reads a journal of what became of the inputs.
func check(inputs []string, journal []entry, grow order) *report {
	r := &report{Deaths: map[string]int{}}
	keys := make(map[string]*history, len(inputs))
	for _, input := range inputs {
		keys[input] = &history{}
	}
	for _, e := range journal {
		if e.Kind == death {
			r.Deaths[e.Point]++
			continue
		}
		h := keys[e.Key]
		if h == nil {
			r.Unexpected = append(r.Unexpected, e.Key)
			continue
		}
		r.add(h, e)
	}
	for key, h := range keys {
		if len(h.effects) == 0 && !h.parked {
			r.Lost = append(r.Lost, key)
		}
		if !h.settled && !h.parked {
			r.Open = append(r.Open, key)
		}
		if h.parked {
			r.Parked = append(r.Parked, key)
		}
		if len(h.effects) > 1 {
			r.Repeated = append(r.Repeated, key)
		}
		if !marked(h.effects, grow) {
			r.Unmarked = append(r.Unmarked, key)
		}
	}
	for _, list := range []*[]string{&r.Lost, &r.Open, &r.False, &r.Repeated, &r.Forgotten, &r.Unmarked, &r.Wrong, &r.Unexpected, &r.Parked, &r.Late} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return r
}

// add reads one entry of a key.
func (r *report) add(h *history, e entry) {
	switch e.Kind {
	case effect:
		r.Effects++
		late := slices.ContainsFunc(h.effects, func(before entry) bool { return before.Token > e.Token })
		switch {
		case late:
			r.Late = append(r.Late, e.Key)
		case h.settled:
			r.Forgotten = append(r.Forgotten, e.Key)
		}
		h.effects = append(h.effects, e)
	case parked:
		h.parked = true
	case settled:
		h.settled = true
		if e.Decision == "duplicate" {
			r.Duplicates++
		} else {
			r.Fresh++
		}
		if len(h.effects) == 0 {
			r.False = append(r.False, e.Key)
		}
		made := func(by entry) bool { return result(e.Key, by.Token) == e.Result }
		if e.Result != "" && !slices.ContainsFunc(h.effects, made) {
			r.Wrong = append(r.Wrong, e.Key)
		}
	}
}

// result is what an effect of a key leaves, under a token.
func result(key string, token uint64) string { return fmt.Sprintf("%s by %d", key, token) }

// marked reports whether each effect but the first says that it is a repeat.
func marked(effects []entry, grow order) bool {
	sorted := slices.Clone(effects)
	slices.SortStableFunc(sorted, func(a, b entry) int { return int(int64(a.Token) - int64(b.Token)) })
	for i := 1; i < len(sorted); i++ {
		if sorted[i].Token == sorted[i-1].Token || grow == byAttempt && sorted[i].Attempt <= sorted[i-1].Attempt {
			return false
		}
	}
	return true
}

// String says how much there was of what.
func (r *report) String() string {
	var deaths []string
	for _, point := range slices.Sorted(maps.Keys(r.Deaths)) {
		deaths = append(deaths, fmt.Sprintf("%d %s", r.Deaths[point], point))
	}
	return fmt.Sprintf("%d effects, %d settled fresh and %d as duplicates, %d keys repeated, %d parked, %d late, %d forgotten; deaths: %s",
		r.Effects, r.Fresh, r.Duplicates, len(r.Repeated), len(r.Parked), len(r.Late), len(r.Forgotten), strings.Join(deaths, ", "))
}

// wrongs says what is wrong in every mode, and nothing if all is well. Repeats
// are for the mode to judge.
func (r *report) wrongs() []string {
	var list []string
	for _, w := range []struct {
		keys []string
		what string
	}{
		{r.Lost, "lost: without an effect, and not parked"},
		{r.Open, "still open: neither settled nor parked"},
		{r.False, "called done without an effect"},
		{r.Forgotten, "done again after they were acknowledged"},
		{r.Unmarked, "repeated without saying so"},
		{r.Wrong, "replayed with a result that no effect made"},
		{r.Unexpected, "not inputs"},
	} {
		if len(w.keys) > 0 {
			list = append(list, fmt.Sprintf("%d keys are %s: %v", len(w.keys), w.what, w.keys[:min(len(w.keys), 10)]))
		}
	}
	return list
}
