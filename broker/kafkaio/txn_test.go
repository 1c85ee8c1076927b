package kafkaio

import (
	"testing"

	"github.com/semel-dev/semel"
)

func TestDuplicatesAreDroppedInOneTransactionAndAcrossThem(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.write(numbered(0, 10, 2)...)
		b.write(numbered(5, 10, 2)...)
		p := b.start(b.options())
		p.wait(20, settled)
		b.exactly(15)
		b.write(numbered(0, 20, 2)...)
		p.wait(40, settled)
		b.exactly(20)
		p.stop()
		if got := p.events.decisions(semel.Duplicate); got != 20 {
			t.Errorf("%d duplicates, want 20", got)
		}
	})
}
