// Package window computes the aggregates of package stream over the messages of one
// partition. It has no broker and no clock: times come with the messages, and the caller
// stores the records that describe each change.
package window
