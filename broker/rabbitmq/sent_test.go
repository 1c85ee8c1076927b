package rabbitmq

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestATimestampIsReadInTheUnitThatItHas although AMQP counts seconds.
func TestATimestampIsReadInTheUnitThatItHas(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 3, 0, 1, 250_000_000, time.UTC)
	for n, want := range map[int64]time.Time{
		at.Unix(): at.Truncate(time.Second), at.UnixMilli(): at, at.UnixMicro(): at, at.UnixNano(): at,
		0: time.Unix(0, 0), 99_999_999_999: time.Unix(99_999_999_999, 0), 100_000_000_000: time.UnixMilli(100_000_000_000), -5: time.Unix(-5, 0),
	} {
		m := message("q", &amqp.Delivery{Timestamp: time.Unix(n, 0)})
		if !m.Time.Equal(want) {
			t.Errorf("the timestamp %d is %s, want %s", n, m.Time.UTC(), want.UTC())
		}
	}
	if m := message("q", &amqp.Delivery{}); !m.Time.IsZero() {
		t.Errorf("a message without a timestamp has the time %s", m.Time)
	}
}
