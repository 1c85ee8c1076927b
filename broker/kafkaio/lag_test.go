package kafkaio

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel/pipeline"
)

// lag returns the sum of what is behind, and in how many partitions.
func (b *bubble) lag(of pipeline.Lagger) (messages int64, partitions int) {
	b.Helper()
	list, err := of.Lag(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, l := range list {
		if l.Source != "in" || l.Bytes != pipeline.UnknownLag {
			b.Errorf("%+v", l)
		}
		messages += l.Messages
	}
	return messages, len(list)
}

func TestLagIsWhatTheGroupHasNotCommitted(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.write(numbered(0, 20, 2)...)
		m := b.join(nil)
		items := m.get(20)
		if n, parts := b.lag(m); n != 20 || parts != 2 {
			b.Errorf("%d behind in %d partitions, want 20 in 2", n, parts)
		}
		m.ack(items[:20]...)
		time.Sleep(time.Second)
		b.write(numbered(20, 7, 2)...)
		if n, _ := b.lag(m); n != 7 {
			b.Errorf("%d behind, want the 7 that came later", n)
		}
		other := b.join(nil)
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		var reading sync.WaitGroup
		for _, of := range []*member{m, other} {
			reading.Go(func() {
				for ctx.Err() == nil {
					_, _ = of.Read(ctx) // so that it takes part in the rebalance
				}
			})
		}
		reading.Wait()
		if _, parts := b.lag(m); parts != 1 {
			b.Errorf("a member tells of %d partitions, want its own 1", parts)
		}
		m.leave()
		other.leave()
	})
}

func TestLagOfTransactions(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.write(numbered(0, 20, 2)...)
		opts := b.options()
		events := &events{}
		opts.Observer = events
		tr, err := NewTransactor(&opts)
		if err != nil {
			b.Fatal(err)
		}
		if n, parts := b.lag(tr); n != 0 || parts != 0 {
			b.Errorf("%d behind in %d partitions before it runs", n, parts)
		}
		ctx, stop := context.WithCancel(b.Context())
		ended := make(chan error)
		go func() { ended <- tr.Run(ctx) }()
		time.Sleep(10 * time.Second)
		if n, parts := b.lag(tr); n != 0 || parts != 2 {
			b.Errorf("%d behind in %d partitions, want 0 in 2", n, parts)
		}
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		if _, parts := b.lag(tr); parts != 0 {
			b.Error("it tells of partitions when it has ended")
		}
	})
}
