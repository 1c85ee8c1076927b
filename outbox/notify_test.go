package outbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/internal/outboxrow"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/store/pgstore"
)

func TestNotificationsAreDebounced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sent []string
		var fails error
		hold := make(chan struct{}, 100)
		n := outbox.NewNotifier(func(_ context.Context, statement string) error {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, statement)
			if len(sent) == 3 {
				<-hold
			}
			return fails
		})
		count := func(want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(sent) != want {
				t.Errorf("%d were sent, want %d", len(sent), want)
			}
		}
		n.Notify()
		count(1)
		for range 1000 {
			n.Notify()
		}
		count(1)
		time.Sleep(20 * time.Millisecond)
		count(2) // those that came during the pause are one
		time.Sleep(time.Second)
		n.Notify()
		synctest.Wait()
		n.Notify() // the third does not return, and no caller waits for it
		hold <- struct{}{}
		synctest.Wait()
		mu.Lock()
		fails = errors.New("no connection")
		mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		count(4)
		n.Notify()
		time.Sleep(500 * time.Millisecond)
		count(4) // it waits after a failure
		n.Close()
		count(5)
		n.Notify()
		count(5)
		if sent[0] != "SELECT pg_notify('semel_outbox', '')" {
			t.Error(sent[0])
		}
	})
	if got, err := outboxrow.Channel(pgstore.Names{Schema: "app", Prefix: "p_"}); got != "p_outbox" || err != nil {
		t.Error(got, err)
	}
}
