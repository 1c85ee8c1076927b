package kafka

import (
	"testing"
)

// TestOffsetsPartitionOfAGroupMatchesTheBrokers compares with the hashes that Java has.
func TestOffsetsPartitionOfAGroupMatchesTheBrokers(t *testing.T) {
	t.Parallel()
	for group, hash := range map[string]int64{
		"": 0, "g": 103, "once": 3415681, "polygenelubricants": 0, // of which the hash is the least number
		"\U0001D11E": 1772394, // two units of UTF-16
	} {
		for _, n := range []int{1, 4, 50} {
			if got := offsetsPartition(group, n); int64(got) != hash%int64(n) {
				t.Errorf("%q of %d: %d, want %d", group, n, got, hash%int64(n))
			}
		}
	}
}
