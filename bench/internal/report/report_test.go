package report

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel/bench/internal/result"
)

func TestTablesShowEachFigureWithItsVerdictRoundsAndCommand(t *testing.T) {
	t.Parallel()
	results := []result.Result{
		{
			Name: "memstore-claim", Work: "claim ids. Peer: a map", Unit: "claims/s", PeerVersion: "a|b v1",
			Rounds: [][2]float64{{8_000_000, 1_000_000}}, Target: 5, Command: "run claim", Date: "2026-01-02T00:00:00Z", Machine: "this machine",
		},
		{
			Name: "dedup-chdb", Work: "semel dedup", Unit: "s", PeerVersion: "chdb 1",
			Rounds: [][2]float64{{2, 3}}, Target: 2, Command: "run dedup", Date: "2026-01-01T00:00:00Z", Machine: "this machine",
		},
		{
			Name: "dedup-polars", Work: "semel dedup. Peer: Polars", Unit: "s", PeerVersion: "polars 1",
			Rounds: [][2]float64{{2, 3}, {4, 5}, {3, 4}}, Command: "run dedup", Date: "2026-01-01T00:00:00Z", Machine: "this machine",
		},
		{
			Name: "dedup-memory", Work: "semel dedup", Unit: "MiB", PeerVersion: "chdb 1",
			Rounds: [][2]float64{{1, 2}}, Command: "run dedup", Date: "2026-01-01T00:00:00Z", Machine: "this machine",
		},
		{
			Name: "other-thing", Work: "count", Unit: "s", PeerVersion: "x", PeerEnded: 2,
			Rounds: [][2]float64{{3, 12_345}}, Command: "run other", Date: "2026-01-03T00:00:00Z", Machine: "that machine",
		},
	}
	for i := range results {
		results[i].Settle(results[i].Unit == "s")
	}
	var b strings.Builder
	if err := WriteTables(&b, Measurements{Results: results}); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	at := -1
	for _, want := range []string{
		"These figures miss their targets:\n\n|figure|ratio|wanted|\n|---|--:|--:|\n|[dedup-chdb](#dedup-chdb)|1.50|2|\n",
		"- this machine, from 2026-01-01T00:00:00Z to 2026-01-02T00:00:00Z\n",
		"- that machine, from 2026-01-03T00:00:00Z",
		"## semel dedup",
		"| [dedup-chdb](#dedup-chdb) | s | 2.00 | 3.00 | **1.50** | 2, **short** | chdb 1 |",
		"| [dedup-memory](#dedup-memory) | MiB |",
		"### dedup\n\nsemel dedup.\n\n    run dedup\n\n| figure | unit |",
		`| <a id="dedup-chdb"></a>dedup-chdb | s | 2.00 | 3.00 |`,
		"\nPeer: Polars.\n\n| figure |",
		`dedup-polars | s | 2.00, 4.00, 3.00 | 3.00, 5.00, 4.00 |`,
		"## The store in memory",
		`| [memstore-claim](#memstore-claim) | claims/s | 8.00 M | 1.00 M | **8.00** | 5, met | a\|b v1 |`,
		"### claim\n\nClaim ids.\n\n    run claim\n\nPeer: a map.\n",
		`| <a id="memstore-claim"></a>memstore-claim | claims/s | 8.00 M | 1.00 M |`,
		"## other",
		"| s | 3.00 | 12.3 k | **4115** | – | x |",
		"    run other\n",
		"| 3.00 | 12.3 k; its program ended by itself 2 times, and was measured again |\n",
	} {
		next := strings.Index(page, want)
		if next < 0 {
			t.Fatalf("the page lacks %q:\n%s", want, page)
		}
		if next < at {
			t.Errorf("%q is out of order", want)
		}
		at = next
	}
}
