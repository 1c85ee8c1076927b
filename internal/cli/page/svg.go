package page

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel/internal/cli/facts"
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

const (
	timelineWidth  = 720
	timelineHeight = 74
	// apart is the least distance of two marks, and mostMarks how many fit.
	apart     = 28
	mostMarks = 23
)

// timeline is the history of a key as a picture.
type timeline struct {
	Width, Height int
	Marks         []mark
	From, To      string
	// Title says what the picture shows.
	Title string
}

// mark is one event of a timeline, with its number in the list next to the picture, or the present.
type mark struct {
	X int
	// Label is the number, or "now".
	Label, Text string
	// Alarm: the event is about a parked message or an outcome that is not known.
	Alarm bool
}

// newTimeline returns the picture of events, which are in the order of time, up to now. It returns nil
// if none of them has a time.
func newTimeline(events []facts.Event, now time.Time) *timeline {
	var marks []mark
	var at []time.Time
	for i, e := range events {
		if e.At.IsZero() || e.At.After(now) {
			continue
		}
		marks = append(marks, mark{Label: strconv.Itoa(i + 1), Text: e.Place + ": " + e.What, Alarm: strings.Contains(e.What, "parked") || strings.Contains(e.What, "unknown")})
		at = append(at, e.At)
	}
	if len(marks) == 0 {
		return nil
	}
	if more := len(marks) - mostMarks; more > 0 {
		marks, at = marks[more:], at[more:]
	}
	title := fmt.Sprintf("%s between %s and now; the list has them with the same numbers", term.Plural(len(marks), "event"), term.DisplayTime(at[0]))
	marks, at = append(marks, mark{Label: "now", Text: term.DisplayTime(now)}), append(at, now)
	first := at[0]
	span := max(now.Sub(first).Seconds(), 1e-9)
	const left, right = 20, timelineWidth - 28
	for i := range marks {
		marks[i].X = left + int(float64(right-left)*at[i].Sub(first).Seconds()/span)
		if i > 0 {
			marks[i].X = max(marks[i].X, marks[i-1].X+apart)
		}
	}
	for i := len(marks) - 1; i >= 0; i-- { // those that were moved beyond the end
		marks[i].X = min(marks[i].X, right-(len(marks)-1-i)*apart)
	}
	return &timeline{Width: timelineWidth, Height: timelineHeight, Marks: marks, From: term.DisplayTime(first), To: term.DisplayTime(now), Title: title}
}

const (
	drawingWidth  = 760
	drawingHeight = 170
	boxWidth      = 160
	boxHeight     = 58
	boxLabel      = 19 // characters
)

// box is a part of a pipeline.
type box struct{ Name, Text string }

// drawnBox is a box with its place.
type drawnBox struct {
	box
	X, Middle int
	Short     string
	ArrowFrom int // 0 for the first one
	ArrowTo   int
}

// drawing shows the parts of a pipeline, and the moments at which the process can die.
type drawing struct {
	Width, Height, BoxWidth, BoxHeight int
	Boxes                              []drawnBox
	Moments                            []drawnMoment
	Title                              string
}

// drawnMoment is a moment with its place.
type drawnMoment struct {
	moment
	X int
}

// newDrawing returns the drawing of a pipeline. The moments are in the order in which it commits.
func newDrawing(boxes []box, moments []moment) *drawing {
	d := &drawing{Width: drawingWidth, Height: drawingHeight, BoxWidth: boxWidth, BoxHeight: boxHeight}
	step := (drawingWidth - boxWidth) / (len(boxes) - 1)
	names := make([]string, len(boxes))
	for i, b := range boxes {
		short := []rune(term.OneLine(b.Text))
		if len(short) > boxLabel {
			short = append(short[:boxLabel-1], '…')
		}
		at := drawnBox{box: b, X: i * step, Middle: i*step + boxWidth/2, Short: string(short)}
		if i > 0 {
			at.ArrowFrom, at.ArrowTo = (i-1)*step+boxWidth+2, i*step-4
		}
		d.Boxes = append(d.Boxes, at)
		names[i] = b.Name + " " + b.Text
	}
	for i, m := range moments {
		d.Moments = append(d.Moments, drawnMoment{m, (2*i + 1) * drawingWidth / (2 * len(moments))})
	}
	d.Title = strings.Join(names, ", then ") + "; below, in their order, " + term.Plural(len(moments), "moment") + " at which the process can die: the table has them with the same numbers"
	return d
}

// moment is a moment at which the process, or something else, fails.
type moment struct {
	Number   int
	At, Then string
}
