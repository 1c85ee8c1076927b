package suite

import "slices"

// Table returns all benchmarks, in the order in which they run.
func Table(e Env) []Benchmark {
	return slices.Concat(keys(e), memory(e), durable(e), atRest(e), dedup(e), pipelines(e), redis(e), postgresStore(e), cleanup(e), layers(e), kafka(e), windows(e), outboxes(e), brokers(e), brokerTargets(e), proxies(e), servers(e), commands(e))
}
