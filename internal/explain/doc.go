// Package explain says what a pipeline promises: what is never lost, what never
// happens twice, with which exceptions, and what becomes of a message at each
// moment at which a process can die. It rests on how the pipeline commits and
// on what the lint of its configuration found, and connects to nothing.
package explain
