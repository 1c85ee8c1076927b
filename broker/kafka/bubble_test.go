package kafka

import (
	"os"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// bubble is a rig with members of a group and sinks.
type bubble struct{ *kafkatest.Rig }

// inBubble runs fn in a synctest bubble with a broker that has the topics in, with the
// given number of partitions, and out and `aside`, with three.
func inBubble(t *testing.T, partitions int32, fn func(b *bubble), opts ...kfake.Opt) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		kafkatest.Virtual(t, partitions, func(r *kafkatest.Rig) { fn(&bubble{r}) }, opts...)
	})
}

// inRealTime is inBubble without the bubble.
func inRealTime(t *testing.T, partitions int32, fn func(b *bubble), opts ...kfake.Opt) {
	t.Helper()
	kafkatest.Real(t, partitions, func(r *kafkatest.Rig) { fn(&bubble{r}) }, opts...)
}

func (b *bubble) whole(group string) bool {
	whole, err := cluster.IsWhole(b.Context(), kadm.NewClient(b.Client), group, []string{"in"})
	if err != nil {
		b.Error(err)
	}
	return whole
}
