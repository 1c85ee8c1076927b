package report

import (
	"fmt"
	"html"
	"strings"

	"github.com/semel-dev/semel/bench/internal/result"
)

// chart is a chart of pairs of bars: Semel and a peer.
type chart struct {
	file, title string
	names       []string
}

// bar is a pair of bars.
type bar struct {
	row
	result result.Result
}

// Sizes of a chart in pixels.
const (
	width     = 720
	labels    = 210 // the column of the labels
	values    = 70  // the space for the figure behind the longest bar
	thickness = 14
	line      = 18 // the height of a bar with the space below it
	heading   = 24 // the height of the heading of a group with the space below the group
	head      = 48 // the height of the title
)

// style draws the chart on a panel of its own, so that it is legible whatever the page
// behind it looks like.
const style = `<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 15px }
.work { font-weight: 600 }
.panel { fill: #ffffff; stroke: #d1d9e0 }
.semel { fill: #0969da }
.peer { fill: #8c959f }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.panel { fill: #0d1117; stroke: #3d444d }
.semel { fill: #4493f8 }
.peer { fill: #9198a1 }
}
</style>
`

// column is a bar with its label.
type column struct {
	class, label string
	value        float64
}

// group is bars below a heading.
type group struct {
	title string
	bars  []column
}

// svg draws the chart.
func (c *chart) svg(bars []bar) string {
	groups := make([]group, len(bars))
	for i, p := range bars {
		groups[i] = group{plain(p.work), []column{{"semel", "Semel", p.result.Ours}, {"peer", plain(p.peer), p.result.Peer}}}
	}
	return draw(c.heading(bars), c.alt(bars), groups)
}

// draw draws groups of bars. alt is their content as text.
func draw(title, alt string, groups []group) string {
	var b strings.Builder
	height, longest := head+10, 0.0
	for _, g := range groups {
		height += heading + line*len(g.bars)
		for _, c := range g.bars {
			longest = max(longest, c.value)
		}
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n%s", html.EscapeString(alt), style)
	fmt.Fprintf(&b, `<rect class="panel" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>`+"\n", width-1, height-1)
	fmt.Fprintf(&b, `<text class="title" x="14" y="28">%s</text>`+"\n", html.EscapeString(title))
	y := head
	for _, g := range groups {
		fmt.Fprintf(&b, `<text class="work" x="14" y="%d">%s</text>`+"\n", y+10, html.EscapeString(g.title))
		for i, c := range g.bars {
			top := y + 16 + i*line
			long := max(1, c.value/longest*(width-labels-values))
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labels-8, top+11, html.EscapeString(c.label))
			fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, c.class, labels, top, long, thickness)
			fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s</text>`+"\n", labels+long+6, top+11, number(c.value))
		}
		y += heading + line*len(g.bars)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// heading returns the title with the unit, and which bars are better.
func (c *chart) heading(bars []bar) string {
	better := "longer is better"
	if lessIsBetter(bars[0].result) {
		better = "shorter is better"
	}
	return fmt.Sprintf("%s, %s (%s)", c.title, bars[0].result.Unit, better)
}

// alt returns the content of the chart as text.
func (c *chart) alt(bars []bar) string {
	var pairs []string
	work := ""
	for _, p := range bars {
		text := fmt.Sprintf("Semel %s, peer %s (%s)", number(p.result.Ours), number(p.result.Peer), plain(p.peer))
		if p.work != work {
			text = plain(p.work) + ": " + text
		}
		pairs, work = append(pairs, text), p.work
	}
	return c.heading(bars) + ". " + strings.Join(pairs, "; ") + "."
}

// plain removes the marks of code.
func plain(text string) string { return strings.ReplaceAll(text, "`", "") }
