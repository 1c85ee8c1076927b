package measure

import (
	"slices"
	"strconv"

	"github.com/semel-dev/semel/pipeline"
)

// Value is a value of an instrument.
type Value struct {
	ID     ID
	Labels []string
	Value  float64
}

// Lags returns the values of the lags of a pipeline, in each unit that is known.
func Lags(name string, lags []pipeline.Lag) (list []Value) {
	for i := range lags {
		lag := &lags[i]
		labels := []string{name, lag.Source, strconv.Itoa(int(lag.Partition))}
		if lag.Messages >= 0 {
			list = append(list, Value{SourceLagMessages, slices.Clone(labels), float64(lag.Messages)})
		}
		if lag.Bytes >= 0 {
			list = append(list, Value{SourceLagBytes, labels, float64(lag.Bytes)})
		}
	}
	return list
}

// OfSource reports whether an instrument is one of a kind of source; see pipeline.Gauge.
func OfSource(id ID) bool { return id >= OutboxOldest && id <= StateLag }

// Gauges returns the values that a source of a pipeline reports of its own. It leaves out
// those without an instrument.
func Gauges(name string, gauges []pipeline.Gauge) (list []Value) {
	table := Table()
	for i := range gauges {
		g := &gauges[i]
		id := ID(slices.IndexFunc(table, func(i Instrument) bool { return i.Name == g.Name }))
		if OfSource(id) && len(table[id].Labels) == 1+len(g.Labels) {
			list = append(list, Value{id, append([]string{name}, g.Labels...), g.Value})
		}
	}
	return list
}
