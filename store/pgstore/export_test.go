package pgstore

import "testing"

// SharedServers gives external tests access to the shared servers.
func SharedServers() interface {
	Database(t testing.TB) string
} {
	return &shared
}
