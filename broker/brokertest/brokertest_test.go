package brokertest

import (
	"context"
	"testing"

	"github.com/semel-dev/semel/pipeline"
)

func TestSourceInMemory(t *testing.T) {
	RunSource(t, SourceHarness{New: func(tb testing.TB) SourcePlace { return newFaultySource(tb, "", nil) }})
}

func TestSinkInMemory(t *testing.T) {
	RunSink(t, SinkHarness{New: func(tb testing.TB) SinkTarget { return newFaultySink("") }})
}

// newFaultySource returns a queue whose source has a bug, or none. restarted
// counts restarts of its server.
func newFaultySource(_ testing.TB, b sourceBug, restarted *int) SourcePlace {
	const partitions = 3
	s := newMemoryQueue(partitions)
	var open *faultySource
	place := SourcePlace{
		Partitions: partitions,
		Produce:    s.produce,
		Open: func(context.Context) (pipeline.Source, error) {
			open = &faultySource{queueSource: s.open(), bug: b}
			return open, nil
		},
		Again: s.again,
		Restart: func(context.Context) error {
			if restarted != nil {
				*restarted++
			}
			if b == losesInRestart {
				open.lose()
			}
			return nil
		},
	}
	if b == hidesPositions {
		place.Again = nil
	}
	return place
}
