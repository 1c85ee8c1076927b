package measure

import (
	"strconv"

	"github.com/semel-dev/semel/pipeline"
)

// LagLabels returns the labels of a lag.
func LagLabels(name string, lag *pipeline.Lag) []string {
	return []string{name, lag.Source, strconv.Itoa(int(lag.Partition))}
}

// Lag calls set for each unit in which a lag is known.
func Lag(lag *pipeline.Lag, set func(id ID, value int64)) {
	if lag.Messages >= 0 {
		set(SourceLagMessages, lag.Messages)
	}
	if lag.Bytes >= 0 {
		set(SourceLagBytes, lag.Bytes)
	}
}
