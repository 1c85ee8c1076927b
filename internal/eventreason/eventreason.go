// Package eventreason has the reasons by which observers recognise what a pipeline reports.
package eventreason

const (
	// Held is the reason of a pipeline.EventRetried for a message that has waited longer
	// than Options.Wait for a key that another holder has, and that its source cannot take
	// back. Its Err is a *semel.InFlightError.
	Held = "in flight elsewhere"
	// Maybe is the reason of a decision for which only a filter was asked.
	Maybe = "maybe completed before"
)
