package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/store/pgstore"
)

const (
	// notifyPause is the least time between two notifications of a Notifier. A relay reads
	// no more often.
	notifyPause = 10 * time.Millisecond
	// notifyRetry is the pause after one that failed. notifyWithin limits one.
	notifyRetry, notifyWithin = time.Second, 5 * time.Second
)

// Notifier wakes the relays of an outbox when there are new messages. Without it, an
// idle relay finds messages by polling, within a second. Relays continue to poll with it,
// so a lost notification only costs that time. NewNotifier returns one.
type Notifier struct {
	exec      func(ctx context.Context, statement string) error
	statement string
	wake      chan struct{}
	stop      context.CancelFunc
	ended     sync.WaitGroup
}

// NewNotifier returns a notifier for the tables with the default names; see
// [Writer.NewNotifier].
func NewNotifier(exec func(ctx context.Context, statement string) error) *Notifier {
	w, err := New(pgstore.Names{})
	if err != nil {
		panic(err) // the default names are valid
	}
	return w.NewNotifier(exec)
}

// NewNotifier returns a notifier. exec runs a statement in a separate transaction, as
// Exec of a pool does. One goroutine calls it, at most a hundred times a second. The
// notifier ignores its errors, so exec should log them.
func (w *Writer) NewNotifier(exec func(ctx context.Context, statement string) error) *Notifier {
	ctx, stop := context.WithCancel(context.Background())
	n := &Notifier{exec: exec, statement: "SELECT pg_notify('" + w.channel + "', '')", wake: make(chan struct{}, 1), stop: stop}
	n.ended.Go(func() { n.run(ctx) })
	return n
}

// Notify wakes the relays. Call it after the commit of a transaction that has written: a
// relay that wakes earlier does not see the messages. It never blocks, and it is safe
// for concurrent use. Calls that come together are one notification. The server serialises
// transactions that notify, so this one must not be the transaction of the message.
func (n *Notifier) Notify() {
	select {
	case n.wake <- struct{}{}:
	default: // one is due
	}
}

// Close sends a notification that is due, and ends the notifier. It blocks for that long,
// at most 5 seconds. A later Notify does nothing.
func (n *Notifier) Close() {
	n.stop()
	n.ended.Wait()
}

func (n *Notifier) run(ctx context.Context) {
	for {
		select {
		case <-n.wake:
		case <-ctx.Done():
			select {
			case <-n.wake:
				_ = n.send(ctx) // the relays poll
			default:
			}
			return
		}
		pause := notifyPause
		if n.send(ctx) != nil {
			pause = notifyRetry
		}
		_ = retry.Sleep(ctx, pause) // if ctx has ended, a notification that is due is sent first
	}
}

func (n *Notifier) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyWithin)
	defer cancel()
	return n.exec(ctx, n.statement)
}
