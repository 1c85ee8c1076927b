// Package daemon runs the pipelines of a configuration, together with the admin
// server, until it is stopped.
package daemon
