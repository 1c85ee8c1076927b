package brokertest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/semel-dev/semel/pipeline"
)

// lettersBug is what a broken dead-letter store does.
type lettersBug string

const (
	auditsNothing   lettersBug = "does not keep a line about a change"
	auditsLate      lettersBug = "writes a line about a change with the change"
	settlesNameless lettersBug = "does not say who settled a message"
	dropsHeaders    lettersBug = "drops headers"
	queuesNothing   lettersBug = "does not queue"
	keepsFirst      lettersBug = "keeps the first entry of a message that is parked again"
	listsBackwards  lettersBug = "lists the newest first"
	settlesMissing  lettersBug = "settles a message that is not there"
	countsAll       lettersBug = "counts the messages of all pipelines"
)

// faultyLetters is a directory of parked messages with a bug.
type faultyLetters struct {
	*pipeline.DeadLetterDir
	bug  lettersBug
	late *[][]byte
}

// Audit implements pipeline.DeadLetters.
func (l faultyLetters) Audit(ctx context.Context, line []byte) error {
	switch l.bug {
	case auditsNothing:
		return nil
	case auditsLate:
		*l.late = append(*l.late, line)
		return nil
	}
	return l.DeadLetterDir.Audit(ctx, line)
}

// Settle implements pipeline.DeadLetters.
func (l faultyLetters) Settle(ctx context.Context, p *pipeline.Parked, how pipeline.Settlement) error {
	if l.bug == settlesNameless {
		how.Actor = ""
	}
	for _, line := range *l.late {
		_ = l.DeadLetterDir.Audit(ctx, line) // the bug is that it comes late
	}
	*l.late = nil
	err := l.DeadLetterDir.Settle(ctx, p, how)
	if l.bug == settlesMissing && errors.Is(err, pipeline.ErrNotParked) {
		return nil
	}
	return err
}

// Park implements pipeline.Parker.
func (l faultyLetters) Park(ctx context.Context, list []pipeline.Parked) error {
	list = slices.Clone(list)
	for i := range list {
		if _, err := l.Get(ctx, list[i].ID); l.bug == keepsFirst && err == nil {
			return nil
		}
		if l.bug == dropsHeaders {
			list[i].Message.Headers = nil
		}
	}
	return l.DeadLetterDir.Park(ctx, list)
}

// Queue implements pipeline.DeadLetterStore.
func (l faultyLetters) Queue(ctx context.Context, ids []string) error {
	if l.bug == queuesNothing {
		return nil
	}
	return l.DeadLetterDir.Queue(ctx, ids)
}

// List implements pipeline.DeadLetters.
func (l faultyLetters) List(ctx context.Context, of string, fn func(*pipeline.Parked) bool) error {
	if l.bug != listsBackwards {
		return l.DeadLetterDir.List(ctx, of, fn)
	}
	var list []*pipeline.Parked
	err := l.DeadLetterDir.List(ctx, of, func(p *pipeline.Parked) bool { list = append(list, p); return true })
	for _, p := range slices.Backward(list) {
		if !fn(p) {
			break
		}
	}
	return err
}

// Count implements pipeline.DeadLetterStore.
func (l faultyLetters) Count(ctx context.Context, of string) (int64, error) {
	if l.bug == countsAll {
		of = ""
	}
	return l.DeadLetterDir.Count(ctx, of)
}

func TestSuiteCatchesBrokenDeadLetterStores(t *testing.T) {
	t.Parallel()
	const change, settled = "a line about a change is in the audit log before the change", "the audit log says how each message was settled"
	for b, name := range map[lettersBug]string{
		auditsNothing: change, auditsLate: change, settlesNameless: settled,
		dropsHeaders:   "parked messages are kept unchanged",
		queuesNothing:  "queued messages come oldest first until they are removed",
		keepsFirst:     "a message parked again replaces its earlier entry",
		listsBackwards: "lists are in order and stop at their limit",
		countsAll:      "lists are in order and stop at their limit",
		settlesMissing: "an unknown message is reported as not parked",
	} {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			failures := tryCase(t, deadLetterCases(), name, func(w *watched) deadLetterEnv {
				w.patience = time.Second
				dir := w.TempDir()
				return deadLetterEnv{w, func() pipeline.DeadLetterStore {
					letters, err := pipeline.OpenDeadLetterDir(dir)
					if err != nil {
						w.Fatal(err)
					}
					return faultyLetters{letters, b, new([][]byte)}
				}}
			})
			if len(failures) == 0 {
				t.Errorf("a dead-letter store that %s passes", b)
			}
		})
	}
}
