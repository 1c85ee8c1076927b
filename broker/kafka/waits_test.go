package kafka

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/test/kafkatest"
)

// pipe runs a pipeline from the member's source to nowhere, until stop is called.
func (m *member) pipe() (r *pipeline.Runner, stop func()) {
	b := m.b
	b.Helper()
	sink := pipeline.NewHandler(func(context.Context, pipeline.Delivery) (semel.Result, error) { return semel.Result{}, nil })
	store, err := memstore.New(nil)
	kafkatest.Must(b.T, err)
	session, err := pipeline.NewTwoPhase(store, sink, nil)
	kafkatest.Must(b.T, err)
	r, err = pipeline.NewRunner(m.Source, session, &pipeline.Options{
		Key: kafkatest.RecordKey(b), Observer: m.events, OnMissing: pipeline.MissingStop, OnLate: pipeline.Stop, OnMismatch: pipeline.Stop, Failure: pipeline.Failure{Then: pipeline.Stop},
	})
	kafkatest.Must(b.T, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return r, func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
}

// saysWithin waits until a runner is not ready for this reason.
func (m *member) saysWithin(r *pipeline.Runner, most time.Duration, want string) {
	m.b.Helper()
	var err error
	if !kafkatest.Within(most, func() bool {
		err = r.Ready(m.b.Context())
		return err != nil && strings.HasPrefix(err.Error(), "stalled for ") && strings.Contains(err.Error(), want)
	}) {
		m.b.Errorf("ready: %v, want %q within %v", err, want, most)
	}
}

func TestAPipelineSaysThatItsGroupDoesNotAcceptIt(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		var refuse atomic.Bool
		refuse.Store(true)
		b.Cluster.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			if !refuse.Load() {
				return nil, nil, false
			}
			answer := req.ResponseKind().(*kmsg.JoinGroupResponse)
			answer.ErrorCode = kerr.CoordinatorLoadInProgress.Code // the client repeats the request
			return answer, nil, true
		})
		m := b.join(nil)
		r, stop := m.pipe()
		defer stop()
		m.saysWithin(r, 17*time.Second, "waiting for group g to accept this member")
		refuse.Store(false)
		if !kafkatest.Within(30*time.Second, func() bool { return r.Ready(b.Context()) == nil }) {
			t.Errorf("the group accepts it, and ready: %v", r.Ready(b.Context()))
		}
	})
}

func TestAPipelineSaysThatATransactionHoldsItUp(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.Write(kafkatest.Record(0, "a", "v"))
		m := b.join(nil)
		r, stop := m.pipe()
		defer stop()
		if !kafkatest.Within(time.Minute, func() bool { return kafkatest.Settled(m.events) == 1 }) {
			t.Fatal("the first record was not settled")
		}
		time.Sleep(10 * time.Minute)
		if err := r.Ready(b.Context()); err != nil {
			t.Errorf("it has nothing to read, and ready: %v", err)
		}
		other := b.Other("other", "in", time.Hour)
		defer other.Close()
		b.Write(kafkatest.Record(0, "b", "v"))
		time.Sleep(11 * time.Second)
		if said := m.events.Stalls(); !strings.Contains(said, " as other: it began at 2000-") || !strings.Contains(said, "semel kafka txn describe other") {
			t.Errorf("while a transaction is open it says %q", said)
		}
		time.Sleep(5 * time.Minute)
		if err := r.Ready(b.Context()); err != nil {
			t.Errorf("while a transaction may be open: %v", err)
		}
		b.Forget(other, "CompleteCommit")
		start := b.Cluster.PartitionInfo("in", 0).LastStableOffset
		m.saysWithin(r, time.Minute, fmt.Sprintf("no coordinator will end it: semel kafka txn abort --topic in --partition 0 --offset %d", start))
	}, kafkatest.LongTransactions)
}
