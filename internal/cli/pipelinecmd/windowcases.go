package pipelinecmd

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/windows"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// windowBench has the open windows of one pipeline's cases. The windows of a partition are
// those of a Kafka transaction; only the broker is missing.
type windowBench struct {
	agg   *stream.Aggregate
	group *key.Reader
	parts map[int32]*windows.State
	last  time.Time // when the last message came
}

func newWindowBench(agg *stream.Aggregate) *windowBench {
	return &windowBench{agg: agg.WithDefaults(), group: agg.By.Reader(nil), parts: map[int32]*windows.State{}}
}

// see notes the time of a message that came.
func (w *windowBench) see(m *semel.Message, now time.Time) {
	if w.parts[m.Origin.Partition] == nil {
		w.parts[m.Origin.Partition] = windows.New(w.agg)
	}
	w.parts[m.Origin.Partition].See(m.Time.UnixMilli(), now.UnixMilli())
	w.last = now
}

// add adds a new message to its windows, and returns dryFresh, dryLate, or dryFailed with
// an error.
func (w *windowBench) add(m *semel.Message, now time.Time) (string, error) {
	group, err := w.group.AppendID(nil, m)
	if err == nil && len(group) == 0 {
		err = key.ErrMissing
	}
	if err != nil {
		return dryFailed, fmt.Errorf("aggregate: group key %s: %w", w.agg.By, err)
	}
	verdict, err := w.parts[m.Origin.Partition].Add(m, group, m.Time.UnixMilli(), now.UnixMilli())
	switch {
	case err != nil:
		return dryFailed, err
	case verdict == windows.Late:
		return dryLate, nil
	case verdict == windows.Ahead:
		return dryFailed, fmt.Errorf("its time is more than max_ahead, %v, ahead of the clock", w.agg.MaxAhead)
	}
	return dryFresh, nil
}

// pass closes the windows of partitions without new messages when time has passed.
func (w *windowBench) pass(now time.Time) {
	if w.agg.Idle >= semel.Forever || now.Sub(w.last) < w.agg.Idle {
		return
	}
	for _, part := range w.parts {
		part.Quiet(now.Add(-w.agg.Idle).UnixMilli())
	}
}

// results returns the results that are due, in the order of the partitions.
func (w *windowBench) results() (list []json.RawMessage, err error) {
	var numbers []int32
	for number := range w.parts {
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	for _, number := range numbers {
		part := w.parts[number]
		for {
			if _, err := part.Emit(1000, func(c *stream.Closed) error {
				body, err := w.agg.Func.Result(c)
				if err == nil && body != nil {
					list = append(list, jsonOf(body))
				}
				return err
			}); err != nil {
				return nil, err
			}
			part.Commit()
			if !part.Due() {
				break
			}
		}
	}
	return list, nil
}

// compare compares the results of a line with the expected ones.
func (c *testCase) compare(got []json.RawMessage) string {
	want := *c.Results
	if !slices.EqualFunc(got, want, sameJSON) {
		return fmt.Sprintf("its results are %s, want %s", listOf(got), listOf(want))
	}
	return ""
}

func listOf(list []json.RawMessage) string {
	if len(list) == 0 {
		return "none"
	}
	text, _ := json.Marshal(list) // they are JSON
	return string(text)
}
