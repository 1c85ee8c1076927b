// Package wiring opens the stores and pipelines of a configuration. It is the
// only package that combines all of them.
//
// Secrets are hidden in every error, whatever its origin.
package wiring
