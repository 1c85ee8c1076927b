package cli

import (
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestFormatsReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		formatCount(0): "0", formatCount(999): "999", formatCount(5000000): "5,000,000", formatCount(-1234): "-1,234", formatCount(-123): "-123",
		formatRate(870): "870", formatRate(12_400): "12.4 k", formatRate(2.6e6): "2.6 M", formatRate(999_999): "1.0 M",
		formatBytes(870): "870 B", formatBytes(1 << 20): "1.0 MiB", formatBytes(1<<20 - 1): "1.0 MiB",
		formatElapsed(1900 * time.Millisecond): "1.9 s", formatElapsed(200 * time.Second): "3 min 20 s",
		formatElapsed(59960 * time.Millisecond): "1 min 0 s", formatElapsed(125 * time.Minute): "2 h 5 min",
		formatElapsed(semel.Forever): "forever", formatElapsed(49 * time.Hour): "2 d 1 h",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
