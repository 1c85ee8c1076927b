package brokertest

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/semel-dev/semel/pipeline"
)

func TestSourceInMemory(t *testing.T) {
	RunSource(t, SourceHarness{NoTime: true, NoHeaders: true, New: func(tb testing.TB) SourcePlace { return newFaultySource(tb, "", nil) }})
}

func TestSourceOfAServer(t *testing.T) {
	RunSource(t, SourceHarness{Messages: 300, New: func(tb testing.TB) SourcePlace { return netPlace(tb, "") }})
}

func TestSinkInMemory(t *testing.T) {
	RunSink(t, SinkHarness{New: func(tb testing.TB) SinkTarget { return newFaultySink("") }})
}

func TestSinkOfAServer(t *testing.T) {
	RunSink(t, SinkHarness{Messages: 300, AtLeastOnce: true, New: func(tb testing.TB) SinkTarget { return netTarget(tb, "") }})
}

func BenchmarkSource(b *testing.B) {
	RunSourceBenchmarks(b, SourceHarness{New: func(tb testing.TB) SourcePlace { return newFaultySource(tb, "", nil) }})
}

func BenchmarkSink(b *testing.B) {
	RunSinkBenchmarks(b, SinkHarness{New: func(tb testing.TB) SinkTarget { return netTarget(tb, "") }})
}

// newFaultySource returns a queue whose source has a bug, or none. restarted
// counts restarts of its server.
func newFaultySource(_ testing.TB, b sourceBug, restarted *int) SourcePlace {
	const partitions = 3
	s := newMemoryQueue(partitions)
	var open atomic.Pointer[faultySource]
	place := SourcePlace{
		Partitions: partitions,
		Produce:    s.produce,
		Open: func(context.Context) (pipeline.Source, error) {
			source := &faultySource{queueSource: s.open(), bug: b}
			open.Store(source)
			return source, nil
		},
		Again: s.again,
	}
	if restarted != nil || b == losesInRestart {
		place.Restart = func(context.Context) error {
			if restarted != nil {
				*restarted++
			}
			if b == losesInRestart {
				open.Load().lose()
			}
			return nil
		}
	}
	if b == hidesPositions {
		place.Again = nil
	}
	return place
}
