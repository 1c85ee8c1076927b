// Package app opens the stores and pipelines of a configuration, runs them until they end, and
// answers for them while they run: probes, metrics, the log, the status.
//
// Secrets are hidden in every error, whatever its origin.
package app
