package kafkatxn

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// bubble is a rig whose programs are Transactors.
type bubble struct {
	*kafkatest.Rig
	programs []*program // of comeAndGo
}

// inBubble runs fn in a synctest bubble with a broker that has the topics in, with the
// given number of partitions, and out and `aside`, with three.
func inBubble(t *testing.T, partitions int32, fn func(b *bubble), opts ...kfake.Opt) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		kafkatest.Virtual(t, partitions, func(r *kafkatest.Rig) { fn(&bubble{Rig: r}) }, opts...)
	})
}

// inRealTime is inBubble without the bubble.
func inRealTime(t *testing.T, partitions int32, fn func(b *bubble), opts ...kfake.Opt) {
	t.Helper()
	kafkatest.Real(t, partitions, func(r *kafkatest.Rig) { fn(&bubble{Rig: r}) }, opts...)
}

// options returns options for the topics, with the record key as id.
func (b *bubble) options() TransactorOptions {
	return TransactorOptions{
		Client: b.Reach(), Group: "g", Inputs: []string{"in"}, Output: Output{Topic: "out"}, Parked: "aside",
		Key: KeyOptions{Rule: kafkatest.RecordKey(b), Scope: "s"}, Member: Member{Sessions: 1}, Window: time.Hour, hooks: hooks{skipSample: true},
	}
}

// program is a Transactor that runs.
type program struct {
	*kafkatest.Program
	tr *Transactor
}

func (b *bubble) start(opts TransactorOptions) *program {
	b.Helper()
	return b.startOn(b.NewLine(), opts)
}

// startOn starts a program whose way to the broker is a line.
func (b *bubble) startOn(l *kafkatest.Line, opts TransactorOptions) *program {
	b.Helper()
	p := &program{}
	p.Program = b.Run(l, func(client []kgo.Opt, o pipeline.Observer) (kafkatest.Runner, error) {
		opts.Client, opts.Observer = client, o
		tr, err := NewTransactor(&opts)
		p.tr = tr
		return tr, err
	})
	return p
}
