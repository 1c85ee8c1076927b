package pgstore

import "testing"

// SharedServers gives the shared servers to tests of the package's outside.
func SharedServers() interface {
	Database(t testing.TB) string
} {
	return &shared
}
