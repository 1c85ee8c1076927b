package pgstore

import "testing"

func TestConformanceInGenerations(t *testing.T) {
	t.Parallel()
	conformance(t, shared.Database(t), MigrateOptions{Cleanup: CleanupGenerations, KeepIDs: true}, Options{Generation: 1e6})
}
