// Package wiring opens what a configuration names. It is the one place that
// knows every kind of store.
//
// Errors have their secrets hidden, whoever wrote them.
package wiring
