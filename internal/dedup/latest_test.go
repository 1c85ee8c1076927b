package dedup

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

func TestKeepLastKeepsTheLastLineOfEachKey(t *testing.T) {
	t.Parallel()
	r := random(t)
	for round := range 20 {
		b := setup(t)
		var lines []string
		for n := range 1 + r.IntN(200) {
			switch r.IntN(10) {
			case 0:
				lines = append(lines, "")
			case 1:
				lines = append(lines, fmt.Sprintf(`{"n":%d}`, n))
			default:
				lines = append(lines, fmt.Sprintf(`{"id":%d,"v":%d}`, r.IntN(20), r.IntN(2)))
			}
		}
		last := map[string]string{}
		for _, line := range lines {
			if id, _, ok := strings.Cut(line, `,"v"`); ok {
				last[id] = line
			}
		}
		// From the end, the first line of each key is the one to keep.
		var fresh, dups, odd []string
		var want Counts
		seen := map[string]bool{}
		for i := len(lines) - 1; i >= 0; i-- {
			line := lines[i]
			id, _, keyed := strings.Cut(line, `,"v"`)
			switch {
			case line == "":
				want.Blank++
			case !keyed:
				want.Missing++
				odd = append([]string{line}, odd...)
			case !seen[id]:
				seen[id] = true
				fresh = append([]string{line}, fresh...)
			default:
				if line != last[id] {
					want.Mismatch++
				}
				dups = append([]string{line}, dups...)
			}
		}
		text := func(lines []string) string {
			if len(lines) == 0 {
				return ""
			}
			return linesOf(lines...)
		}
		want.Fresh, want.Duplicate, want.Rejected = int64(len(fresh)), int64(len(dups)), int64(len(odd))
		want.Read = want.Fresh + want.Duplicate + want.Rejected
		want.BytesIn, want.BytesOut = int64(len(text(lines))), int64(len(text(fresh)))
		half := r.IntN(len(lines) + 1)
		opts := jsonl(Options{
			Inputs: []string{b.file("in0", text(lines[:half])), b.file("in1", compressed(r, text(lines[half:])))},
			Keep:   KeepLast, OnMissing: MissingReject, Rejected: b.path("rejected"), Duplicates: b.path("dups"),
			Threads: 1 + r.IntN(3), blockSize: 1 << r.IntN(10),
		})
		out, report := b.must(opts)
		b.equal(fmt.Sprint("output of round ", round), out, text(fresh))
		b.equal("duplicates", b.content("dups"), text(dups))
		b.equal("rejected", b.content("rejected"), text(odd))
		if report.Counts != want {
			t.Fatalf("counts:\n got %+v\nwant %+v", report.Counts, want)
		}
	}
}

func TestKeepLastFindsInputsThatChangeBetweenItsPasses(t *testing.T) {
	t.Parallel()
	digester := digest.New(digest.NewSecret()).Scope("test")
	pass := func(l *latest, ids string) error {
		digests := make([]semel.Digest, len(ids))
		for i := range ids {
			digests[i] = digester.Bytes([]byte(ids[i : i+1]))
		}
		return l.decide(lines{digests: digests}, make([]semel.Decision, len(ids)))
	}
	for _, second := range []string{"abac", "aba", "abacc", "abacd", "baac", "abbc", "dbac", ""} {
		l := newLatest(KeepLast, false, forecast{})
		if err := pass(l, "abac"); err != nil {
			t.Fatal(err)
		}
		l.turn()
		err := pass(l, second)
		if err == nil {
			err = l.check()
		}
		if same := second == "abac"; same != (err == nil) || !same && !errors.Is(err, errInputsChanged) {
			t.Errorf("%q: error %v", second, err)
		}
	}
}
