package kafkatxn

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

func paused(e *kafkatest.Events) int  { return e.Count(pipeline.EventPaused) }
func resumed(e *kafkatest.Events) int { return e.Count(pipeline.EventResumed) }

func (p *program) ready() error {
	ctx, cancel := context.WithTimeout(p.B.Context(), 5*time.Second)
	defer cancel()
	return p.tr.Ready(ctx)
}

// unready checks that a program is not ready, and says why.
func (p *program) unready(want string) {
	p.B.Helper()
	if err := p.ready(); err == nil || !strings.Contains(err.Error(), want) {
		p.B.Errorf("ready: %v, want %q", err, want)
	}
}

// becomesReady checks that a program is ready within minutes.
func (p *program) becomesReady() {
	p.B.Helper()
	if !kafkatest.Within(3*time.Minute, func() bool { return p.ready() == nil }) {
		p.B.Errorf("after three minutes it is not ready: %v", p.ready())
	}
}

func TestATransactorIsNotReadyBeforeItsBrokersAnswer(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		unused, err := NewTransactor(&opts)
		kafkatest.Must(t, err)
		if err := unused.Ready(b.Context()); err == nil || !strings.Contains(err.Error(), "Run has not started") {
			t.Errorf("before Run it is ready: %v", err)
		}
		cut := b.NewLine()
		cut.Sever(true)
		p := b.startOn(cut, opts)
		p.Wait(1, paused)
		p.unready(kafkatest.ErrCut.Error())
		time.Sleep(time.Minute)
		p.unready(kafkatest.ErrCut.Error())
		if n := paused(p.Events); n != 1 || resumed(p.Events) != 0 {
			t.Errorf("%d pauses, want 1 that lasts", n)
		}
		p.Line.Mend()
		p.Wait(1, resumed)
		p.becomesReady()
		b.Write(kafkatest.Numbered(0, 10, 1)...)
		p.Wait(10, kafkatest.Settled)
		p.Stop()
		if paused(p.Events) != 1 || resumed(p.Events) != 1 {
			t.Errorf("%d pauses and %d ends, want one of each", paused(p.Events), resumed(p.Events))
		}
	})
}

func TestATransactorIsNotReadyWhileATopicIsMissing(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Output.Topic = "nowhere"
		p := b.start(opts)
		time.Sleep(time.Minute)
		p.unready("topic nowhere does not exist")
		kafkatest.Must(t, b.Cluster.CreateTopic("nowhere", 1, nil))
		p.becomesReady()
		p.Stop()
		if n := paused(p.Events); n != 0 {
			t.Errorf("%d pauses, though the brokers answered", n)
		}
	})
}

func TestATransactorWhoseBrokersEndWhileItIsIdlePauses(t *testing.T) {
	t.Parallel()
	for name, repartition := range map[string]*Repartition{"one stage": nil, "two stages": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.Repartition = repartition
				p := b.start(opts)
				b.Write(kafkatest.Numbered(0, 10, 1)...)
				p.Wait(10, kafkatest.Settled)
				time.Sleep(time.Minute)
				if err := p.ready(); err != nil || paused(p.Events) != 0 {
					t.Errorf("it is idle, and ready: %v, after %d pauses", err, paused(p.Events))
				}
				p.Line.Sever(true)
				p.unready("no broker answers: ")
				p.Wait(1, paused)
				p.unready("")
				p.Line.Mend()
				p.Wait(1, resumed)
				p.becomesReady()
				b.Write(kafkatest.Numbered(10, 10, 1)...)
				p.Wait(20, kafkatest.Settled)
				p.Stop()
				if paused(p.Events) != 1 || resumed(p.Events) != 1 {
					t.Errorf("%d pauses and %d ends, want one of each", paused(p.Events), resumed(p.Events))
				}
			})
		})
	}
}

// TestATransactorWhoseBrokersRefuseItIsNotReady has brokers that answer, and give no
// id to a producer.
func TestATransactorWhoseBrokersRefuseItIsNotReady(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		var refuse atomic.Bool
		refuse.Store(true)
		b.Cluster.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			if !refuse.Load() {
				return nil, nil, false
			}
			answer := req.ResponseKind().(*kmsg.InitProducerIDResponse)
			answer.ErrorCode = kerr.InvalidRequest.Code
			return answer, nil, true
		})
		p := b.start(b.options())
		p.Wait(1, paused)
		p.unready(kerr.InvalidRequest.Message)
		refuse.Store(false)
		p.Wait(1, resumed)
		p.becomesReady()
		p.Stop()
	})
}

// stalled returns the sum of the records in all reports of stalls.
func stalled(e *kafkatest.Events) int { return e.Count(pipeline.EventStalled) }

// TestAStalledTransactorIsReported has brokers that answer all requests but the
// end of a transaction.
func TestAStalledTransactorIsReported(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		p := b.start(opts)
		b.Write(kafkatest.Numbered(0, 10, 1)...)
		p.Wait(10, kafkatest.Settled)
		time.Sleep(time.Hour)
		if n := stalled(p.Events); n != 0 {
			t.Fatalf("it is idle, and %d records are stalled", n)
		}
		var refuse atomic.Bool
		refuse.Store(true)
		b.Cluster.ControlKey(int16(kmsg.EndTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			if !refuse.Load() {
				return nil, nil, false
			}
			answer := req.ResponseKind().(*kmsg.EndTxnResponse)
			answer.ErrorCode = kerr.ConcurrentTransactions.Code // the client repeats the request
			return answer, nil, true
		})
		b.Write(kafkatest.Numbered(10, 10, 1)...)
		time.Sleep(9 * time.Second)
		if n := stalled(p.Events); n != 0 {
			t.Errorf("after 9 s %d records are stalled", n)
		}
		time.Sleep(4 * time.Second)
		if n := stalled(p.Events); n != 10 {
			t.Errorf("after 13 s %d records are stalled, want 10", n)
		}
		p.unready("stalled for ")
		p.unready("waiting for the commit of a Kafka transaction")
		refuse.Store(false)
		p.Wait(20, kafkatest.Settled)
		p.becomesReady()
		p.Stop()
	})
}

func TestMissingRightsOnTopicsWithStateAreNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		topic kadm.TopicDetail
		want  string
	}{
		{kadm.TopicDetail{}, ""}, // an old broker does not tell
		{kadm.TopicDetail{AuthorizedOperations: []kadm.ACLOperation{kadm.OpAll}}, ""},
		{kadm.TopicDetail{AuthorizedOperations: []kadm.ACLOperation{kadm.OpWrite, kadm.OpRead, kadm.OpDescribe}}, ""},
		{kadm.TopicDetail{AuthorizedOperations: []kadm.ACLOperation{kadm.OpWrite, kadm.OpDescribe}}, "topic g-keys: no right to READ"},
		{kadm.TopicDetail{AuthorizedOperations: []kadm.ACLOperation{kadm.OpRead, kadm.OpDescribe}}, "topic g-keys: no right to WRITE"},
		{kadm.TopicDetail{Err: kerr.TopicAuthorizationFailed}, "topic g-keys: TOPIC_AUTHORIZATION_FAILED"},
		{kadm.TopicDetail{Err: kerr.UnknownTopicOrPartition}, ""},
	} {
		err := lackedRight("g-keys", c.topic)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !errors.Is(err, kerr.TopicAuthorizationFailed)) {
			t.Errorf("%+v: %v, want %q", c.topic, err, c.want)
		}
	}
}
