package report

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/semel-dev/semel/bench/internal/result"
)

// measurements are two results of one unit and one of another.
func measurements() []result.Result {
	machine := "Some(R) CPU Processor, 2 cores, 24 GiB, Linux 6.1, go1.2"
	list := []result.Result{
		{Name: "a-one", Unit: "s", Rounds: [][2]float64{{2, 3}}, Target: 2, Command: "run a", Date: "2026-01-02T03:04:05Z", Machine: machine},
		{Name: "a-two", Unit: "s", Rounds: [][2]float64{{4, 2}}, Command: "run a", Date: "2026-01-01T03:04:05Z", Machine: machine},
		{Name: "b", Unit: "MiB", Rounds: [][2]float64{{1, 2}}, Command: "run b", Date: "2026-01-03T03:04:05Z", Machine: machine + ", arm"},
	}
	for i := range list {
		list[i].Settle(true)
	}
	return list
}

func TestPageShowsChosenFiguresAndCharts(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	s := summary{page: page{w: &b}, results: measurements()}
	files, err := s.write(
		[]area{{"Files", []row{{name: "a-one", work: "read & `write`", peer: "Peer|1"}, {name: "a-two", work: "copy", peer: "Peer 2"}}}},
		[]chart{{"files", "Files", []string{"a-one", "a-two"}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	text, at := b.String(), -1
	for _, want := range []string{
		"Measured from 2026-01-01 to 2026-01-03 on Linux: Some CPU, 2 cores, 24 GiB, go1.2; Some CPU, 2 cores, 24 GiB, go1.2, arm.\n",
		"![Files, s (shorter is better). Figures below.](charts/files.svg)\n",
		"|measured|Semel|peer|ratio|\n",
		"|**Files**||||\n",
		"|[read & `write`](../bench/results/README.md#a-one)|2.00 s|Peer\\|1: 3.00|**1.50**|\n",
		"|[copy](../bench/results/README.md#a-two)|4.00 s|Peer 2: 2.00|**0.5**|\n",
		"|[a-one](../bench/results/README.md#a-one)|1.50|2|\n",
	} {
		next := strings.Index(text, want)
		if next <= at {
			t.Errorf("the page lacks %q in its place:\n%s", want, text)
		}
		at = max(at, next)
	}
	drawn := files["charts/files.svg"]
	if len(files) != 1 || drawn == "" {
		t.Fatalf("charts: %v", files)
	}
	for decoder := xml.NewDecoder(strings.NewReader(drawn)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, drawn)
		}
	}
	for _, want := range []string{
		"<title>Files, s (shorter is better). read &amp; write: Semel 2.00, peer 3.00 (Peer|1); copy: Semel 4.00, peer 2.00 (Peer 2).</title>",
		"@media (prefers-color-scheme: dark)",
		`width="220.0" height="14" rx="2"/><text x="436.0" y="75">2.00</text>`,  // half as long as
		`width="440.0" height="14" rx="2"/><text x="656.0" y="135">4.00</text>`, // the longest
	} {
		if !strings.Contains(drawn, want) {
			t.Errorf("the chart lacks %q:\n%s", want, drawn)
		}
	}
}

func TestPageIsRefusedIfAResultIsMissingOrUnitsDiffer(t *testing.T) {
	t.Parallel()
	known := []area{{"Files", []row{{name: "a-one"}, {name: "b"}}}}
	for _, c := range []struct {
		areas  []area
		charts []chart
		want   string
	}{
		{[]area{{"Files", []row{{name: "c"}}}}, nil, "the performance page shows c, which has no result"},
		{known, []chart{{"files", "", []string{"c"}}}, "the performance page shows c, which has no result"},
		{known, []chart{{"files", "", []string{"a-two"}}}, "the chart files shows a-two, which is not in the table"},
		{known, []chart{{"files", "", []string{"a-one", "b"}}}, "the chart files has results with different units: a-one and b"},
	} {
		s := summary{page: page{w: io.Discard}, results: measurements()}
		if _, err := s.write(c.areas, c.charts); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
