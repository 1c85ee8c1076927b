package pipeline_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// slowQueue is a dead-letter store whose answer about its queue is old when it arrives.
type slowQueue struct {
	*pipeline.DeadLetterDir
	meanwhile func()
}

func (l *slowQueue) Queued(ctx context.Context, of string, most int) ([]*pipeline.Parked, error) {
	list, err := l.DeadLetterDir.Queued(ctx, of, most)
	if l.meanwhile != nil {
		l.meanwhile()
	}
	return list, err
}

// TestAMessageThatIsSettledWhileTheQueueAnswersIsNotReadAgain settles a message between the
// reading of the queue and the arrival of the answer. One that was given back then is read.
func TestAMessageThatIsSettledWhileTheQueueAnswersIsNotReadAgain(t *testing.T) {
	t.Parallel()
	for name, settled := range map[string]bool{"settled": true, "given back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			letters, err := pipeline.OpenDeadLetterDir(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			const id = "9f2c41d07be35a1186c0de42"
			if err := letters.Park(t.Context(), []pipeline.Parked{{ID: id, Pipeline: "p", At: time.Now(), Message: semel.Message{Body: []byte("x")}}}); err != nil {
				t.Fatal(err)
			}
			if err := letters.Queue(t.Context(), []string{id}); err != nil {
				t.Fatal(err)
			}
			queue := &slowQueue{DeadLetterDir: letters}
			source := pipeline.NewRedriven(queue, "p")
			items, err := source.Read(t.Context())
			if err != nil || len(items) != 1 {
				t.Fatalf("%d items, %v", len(items), err)
			}
			queue.meanwhile = func() {
				queue.meanwhile = nil
				err := source.Return(t.Context(), items, 0)
				if settled {
					err = source.Ack(t.Context(), items)
				}
				if err != nil {
					t.Error(err)
				}
			}
			again, err := source.Read(t.Context())
			if settled && (len(again) > 0 || !errors.Is(err, io.EOF)) {
				t.Errorf("it was read again: %d items, %v", len(again), err)
			}
			if !settled && (len(again) != 1 || err != nil) {
				t.Errorf("it was not read again: %d items, %v", len(again), err)
			}
		})
	}
}
