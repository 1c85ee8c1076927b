package kafkatxn

import (
	"context"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/kafkatest"
)

func TestDuplicatesAreDroppedInOneTransactionAndAcrossThem(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 10, 2)...)
		b.Write(kafkatest.Numbered(5, 10, 2)...)
		p := b.start(b.options())
		p.Wait(20, kafkatest.Settled)
		b.Exactly(15)
		b.Write(kafkatest.Numbered(0, 20, 2)...)
		p.Wait(40, kafkatest.Settled)
		b.Exactly(20)
		p.Stop()
		if got := p.Events.Decisions(semel.Duplicate); got != 20 {
			t.Errorf("%d duplicates, want 20", got)
		}
	})
}

func TestLagOfTransactions(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 20, 2)...)
		opts := b.options()
		events := &kafkatest.Events{}
		opts.Observer = events
		tr, err := NewTransactor(&opts)
		if err != nil {
			b.Fatal(err)
		}
		if n, parts := b.Lag(tr); n != 0 || parts != 0 {
			b.Errorf("%d behind in %d partitions before it runs", n, parts)
		}
		ctx, stop := context.WithCancel(b.Context())
		ended := make(chan error)
		go func() { ended <- tr.Run(ctx) }()
		time.Sleep(10 * time.Second)
		if n, parts := b.Lag(tr); n != 0 || parts != 2 {
			b.Errorf("%d behind in %d partitions, want 0 in 2", n, parts)
		}
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		if _, parts := b.Lag(tr); parts != 0 {
			b.Error("it reports partitions when it has ended")
		}
	})
}
