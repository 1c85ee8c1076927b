package page

import (
	"fmt"
	"strings"

	"github.com/semel-dev/semel/internal/cli/term"
)

const (
	chartWidth  = 360
	chartHeight = 40
)

// chart is a line of the rates of the last hour.
type chart struct {
	Width, Height int
	Points        string
	// Title says the same in words.
	Title string
}

// newChart returns a chart of rates, the newest at the right end. It returns nil without rates.
func newChart(rates []float64) *chart {
	if len(rates) == 0 {
		return nil
	}
	top, sum := 0.0, 0.0
	for _, rate := range rates {
		top, sum = max(top, rate), sum+rate
	}
	c := &chart{Width: chartWidth, Height: chartHeight}
	var points strings.Builder
	start := chartWidth - len(rates)
	for i, rate := range rates {
		y := float64(chartHeight - 1)
		if top > 0 {
			y -= rate / top * (chartHeight - 3)
		}
		fmt.Fprintf(&points, "%d,%.1f ", start+i, y)
	}
	c.Points = strings.TrimSpace(points.String())
	last := rates[len(rates)-1]
	c.Title = fmt.Sprintf("rate of the last %s: now %s/s, at most %s/s, on average %s/s", term.Plural((len(rates)+5)/6, "minute"), term.FormatRate(last), term.FormatRate(top), term.FormatRate(sum/float64(len(rates))))
	return c
}
