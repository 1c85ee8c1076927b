package kafkaio

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/pipeline"
)

// TestARefusalOfAnothersRecordIsNotTakenForItsOwn has the brokers refuse a batch
// once, as for the size of a record of another delivery.
func TestARefusalOfAnothersRecordIsNotTakenForItsOwn(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		sink, _ := b.sink(nil)
		b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: 1})
		it := item("k", "v")
		sink.Deliver(t.Context(), []*pipeline.Item{it})
		must(t, errors.Join(sink.Close(t.Context()), it.Err))
		if got := len(b.read("out")); got != 1 {
			t.Errorf("%d records, want 1", got)
		}
	})
}
