package kafkaio

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/pipeline"
)

func paused(e *events) int  { return e.count(pipeline.EventPaused) }
func resumed(e *events) int { return e.count(pipeline.EventResumed) }

func (p *program) ready() error {
	ctx, cancel := context.WithTimeout(p.b.Context(), 5*time.Second)
	defer cancel()
	return p.tr.Ready(ctx)
}

// unready checks that a program is not ready, and says why.
func (p *program) unready(want string) {
	p.b.Helper()
	if err := p.ready(); err == nil || !strings.Contains(err.Error(), want) {
		p.b.Errorf("ready: %v, want %q", err, want)
	}
}

// becomesReady checks that a program is ready within minutes.
func (p *program) becomesReady() {
	p.b.Helper()
	if !within(3*time.Minute, func() bool { return p.ready() == nil }) {
		p.b.Errorf("after three minutes it is not ready: %v", p.ready())
	}
}

func TestATransactorIsNotReadyBeforeItsBrokersAnswer(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		unused, err := NewTransactor(&opts)
		must(t, err)
		if err := unused.Ready(b.Context()); err == nil || !strings.Contains(err.Error(), "has not begun") {
			t.Errorf("before Run it is ready: %v", err)
		}
		p := b.startOn(&line{dial: b.dial, conns: map[*lineConn]bool{}, cut: true}, opts)
		p.wait(1, paused)
		p.unready(errCut.Error())
		time.Sleep(time.Minute)
		p.unready(errCut.Error())
		if n := paused(p.events); n != 1 || resumed(p.events) != 0 {
			t.Errorf("%d pauses, want 1 that lasts", n)
		}
		p.line.mend()
		p.wait(1, resumed)
		p.becomesReady()
		b.write(numbered(0, 10, 1)...)
		p.wait(10, settled)
		p.stop()
		if paused(p.events) != 1 || resumed(p.events) != 1 {
			t.Errorf("%d pauses and %d ends, want one of each", paused(p.events), resumed(p.events))
		}
	})
}

func TestATransactorIsNotReadyWhileATopicIsMissing(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Output = "nowhere"
		p := b.start(opts)
		time.Sleep(noTopicAfter / 2)
		p.unready("topic nowhere does not exist")
		must(t, b.cluster.CreateTopic("nowhere", 1, nil))
		p.becomesReady()
		p.stop()
		if n := paused(p.events); n != 0 {
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
				b.write(numbered(0, 10, 1)...)
				p.wait(10, settled)
				time.Sleep(time.Minute)
				if err := p.ready(); err != nil || paused(p.events) != 0 {
					t.Errorf("it is idle, and ready: %v, after %d pauses", err, paused(p.events))
				}
				p.line.sever(true)
				p.unready("no broker answers: ")
				p.wait(1, paused)
				p.unready("")
				p.line.mend()
				p.wait(1, resumed)
				p.becomesReady()
				b.write(numbered(10, 10, 1)...)
				p.wait(20, settled)
				p.stop()
				if paused(p.events) != 1 || resumed(p.events) != 1 {
					t.Errorf("%d pauses and %d ends, want one of each", paused(p.events), resumed(p.events))
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
		b.cluster.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.cluster.KeepControl()
			if !refuse.Load() {
				return nil, nil, false
			}
			answer := req.ResponseKind().(*kmsg.InitProducerIDResponse)
			answer.ErrorCode = kerr.InvalidRequest.Code
			return answer, nil, true
		})
		p := b.start(b.options())
		p.wait(1, paused)
		p.unready(kerr.InvalidRequest.Message)
		refuse.Store(false)
		p.wait(1, resumed)
		p.becomesReady()
		p.stop()
	})
}
