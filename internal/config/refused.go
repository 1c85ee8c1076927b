package config

// Fields that people know from other stream processors and that are refused, with what to
// do instead.
const (
	chainInstead  = "a pipeline has one keyed step. Write its output to a topic, and read that with another pipeline"
	onceInstead   = "a result is written once, when its window closes. With early: 10s it is written before that too, and with correct: 1h again for late records"
	appendInstead = "outputs are only appended. With correct: 1h of aggregate a result is written again with a greater semel-revision, and readers keep the greatest"
)

var (
	refusedInPipeline = map[string]string{
		"sql":         "there is no SQL. Write filter, map and aggregate, or read the output topic with a database that has SQL",
		"query":       "state is not queried over the network. Write the results to a topic or a database, and query that",
		"join":        "two streams are not joined. For rows of a compacted topic write tables: { customers: { topic: customers, by: .customer_id } }. To join two streams, write both to one topic with one record key, and aggregate it with a Go function (stream.Aggregator)",
		"steps":       chainInstead,
		"stages":      chainInstead,
		"retractions": appendInstead,
		"windows":     "windows are part of aggregate: write aggregate: { by: …, over: { tumbling: 1m }, values: { n: count } }",
		"suppress":    "results of aggregate are final, so there is nothing to suppress: leave it out",
	}
	refusedInAggregate = map[string]string{
		"trigger":        onceInstead,
		"triggers":       onceInstead,
		"emit":           onceInstead,
		"emit_on_change": onceInstead,
		"suppress":       "results are final, so there is nothing to suppress: leave it out. Nothing is written early because memory is full",
		"retractions":    appendInstead,
		"watermark":      "time is counted for each partition, not for each key: a key that never returns would leave its windows open. Set grace and idle",
		"store":          "open windows are in the topic GROUP-state, because they commit with outputs and offsets: leave it out",
	}
)
