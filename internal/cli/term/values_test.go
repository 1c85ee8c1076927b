package term

import (
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestCountsRatesAndSizesAreFormattedForPeople(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		FormatCount(0): "0", FormatCount(999): "999", FormatCount(5000000): "5,000,000", FormatCount(-1234): "-1,234", FormatCount(-123): "-123",
		FormatRate(870): "870", FormatRate(12_400): "12.4 k", FormatRate(2.6e6): "2.6 M", FormatRate(999_999): "1.0 M",
		FormatBytes(870): "870 B", FormatBytes(1 << 20): "1.0 MiB", FormatBytes(1<<20 - 1): "1.0 MiB",
		FormatElapsed(1900 * time.Millisecond): "1.9 s", FormatElapsed(200 * time.Second): "3 min 20 s",
		FormatElapsed(59960 * time.Millisecond): "1 min 0 s", FormatElapsed(125 * time.Minute): "2 h 5 min",
		FormatElapsed(semel.Forever): "forever", FormatElapsed(49 * time.Hour): "2 d 1 h",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
