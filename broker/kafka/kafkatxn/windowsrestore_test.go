package kafkatxn

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/test/kafkatest"
)

// aborting are brokers that do not commit.
type aborting struct{ trialBrokers }

// End implements brokers.
func (r aborting) End(ctx context.Context, _ kgo.TransactionEndTry) (bool, error) {
	return r.trialBrokers.End(ctx, kgo.TryAbort)
}

// TestAnAbortedTransactionAddsNothingToWindows to windows.
func TestAnAbortedTransactionAddsNothingToWindows(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute) })
	m := &semel.Message{RecordKey: []byte("1"), Body: []byte(`{"g":"a"}`), Time: tr.base}
	tr.s.brokers = aborting{trialBrokers{tr.Trial}}
	for range 2 {
		if _, err := tr.Send(t.Context(), tr.base, m); !errors.Is(err, errAgain) {
			t.Fatal(err)
		}
	}
	tr.s.brokers = trialBrokers{tr.Trial}
	if o := tr.at(0, 0, "1", `{"g":"a"}`); o.Decision != semel.Fresh {
		t.Errorf("%+v", o)
	}
	tr.at(60, 60, "2", `{"g":"a"}`)
	released, err := tr.Pass(t.Context(), tr.base.Add(time.Minute))
	kafkatest.Must(t, err)
	if len(released) != 1 || !strings.Contains(string(released[0].Value), `"n":1`) {
		t.Errorf("%d results: %s", len(released), released[0].Value)
	}
}

// TestForgottenWindowsDeleteNoChangelogRecords has a changelog that lost records. What counted before says
// nothing of the records that are written now.
func TestForgottenWindowsDeleteNoChangelogRecords(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute) })
	tr.at(0, 0, "1", `{"g":"a"}`)
	at := tr.s.parts[cluster.Partition{Topic: "in"}].slot
	at.deletable[1].Store(7)
	_, err := at.logs[1].Start(0, -1, 0)
	kafkatest.Must(t, err)
	if cut, open := at.deletable[1].Load(), at.store.Open(); cut != 0 || open != 0 {
		t.Errorf("the changelog is cut at %d, and %d windows are open", cut, open)
	}
}

// TestALostConnectionKeepsTheWindows that are in memory: their last record is still there.
func TestALostConnectionKeepsTheWindows(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		p := b.start(b.counting(10*time.Second, 0, 20*time.Second))
		b.Write(counted(0, "1", "a", 1, time.Now()))
		p.Wait(1, kafkatest.Settled)
		p.Line.On(kafkatest.Once(kmsg.EndTxn, 1), nil)
		b.Write(counted(0, "2", "a", 2, time.Now()))
		time.Sleep(time.Second) // in a bubble
		p.Line.On(nil, nil)
		p.Line.Mend()
		p.Wait(2, kafkatest.Settled)
		time.Sleep(2 * time.Minute) // in a bubble
		if got := b.finals(); got != "a n=2 s=3" {
			t.Errorf("results %s", got)
		}
		p.Stop()
		log := strings.Join(p.Events.Log, "\n")
		if !strings.Contains(log, "a member restarts") || strings.Contains(log, "another record than before") {
			t.Error("the member did not restart, or dropped its windows")
		}
	})
}
