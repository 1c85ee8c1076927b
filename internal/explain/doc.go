// Package explain states what a pipeline or a route of a proxy promises: what is never lost, what never
// happens twice, and the exceptions. It also states the outcome of a message for
// each moment at which a process can die. The promise follows from how the
// pipeline commits and from the findings of lint. The package makes no
// connections.
package explain
