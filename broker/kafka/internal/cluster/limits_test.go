package cluster

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/kafkatest"
)

// inBubble runs fn in a synctest bubble with a broker.
func inBubble(t *testing.T, fn func(b *kafkatest.Rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { kafkatest.Virtual(t, 1, fn) })
}

func TestATopicThatMayNotBeSeenHidesNoOther(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *kafkatest.Rig) {
		t := b.T
		kafkatest.Takes(t, b.Client, 10*kafkatest.Megabyte, "first", "secret", "last")
		b.Hide("secret", kerr.TopicAuthorizationFailed, -1)
		l, err := ReadLimits(t.Context(), kadm.NewClient(b.Client), "first", "secret", "last")
		kafkatest.Must(t, err)
		if l.Of("first") != 10*kafkatest.Megabyte || l.Of("secret") != unknownLimit || l.Of("last") != 10*kafkatest.Megabyte {
			t.Errorf("the limits are %v", l)
		}
	})
}

func TestTheClientTakesWhatTheLimitsTake(t *testing.T) {
	t.Parallel()
	for _, most := range []int{600, 16_000, 16_384, 1_048_588, 2<<20 + 100} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(b *kafkatest.Rig) {
				t := b.T
				kafkatest.Takes(t, b.Client, most, "t")
				for _, headers := range []int{0, 3} {
					fits := 0
					for left := 100; left >= -20; left-- {
						l := Limits{"t": most}
						client, err := kgo.NewClient(append(b.Reach(), kgo.DefaultProduceTopic("t"), kgo.ProducerBatchMaxBytesFn(l.Client), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
						kafkatest.Must(t, err)
						r := &kgo.Record{Value: make([]byte, most-left-61)}
						for range headers {
							r.Headers = append(r.Headers, kgo.RecordHeader{Key: "k", Value: []byte("v")})
						}
						said := l.Check("t", r)
						done := client.ProduceSync(t.Context(), r).FirstErr()
						client.Close()
						if said == nil && done != nil {
							t.Fatalf("%d bytes: %v", len(r.Value), done)
						}
						if said == nil {
							fits = max(fits, batchSize(r))
						}
					}
					if fits < most-2 {
						t.Errorf("at most %d bytes fit, of %d", fits, most)
					}
				}
			})
		})
	}
}
