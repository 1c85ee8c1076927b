// Package daemon runs what a configuration names until it is told to end:
// pipelines, and the admin server beside them.
package daemon
