package app

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// notifyFor limits the time for one message: systemd may not read its socket, and the
// end of the program must not wait for that.
const notifyFor = 250 * time.Millisecond

// notifier tells systemd about the process, as sd_notify(3) does.
type notifier struct {
	socket   string        // "@name" is an abstract address, as in package net; "" for none
	every    time.Duration // between two signs of life; 0 for none
	unopened atomic.Int64  // pipelines, and the service
	open     chan struct{} // closed when all pipelines are open
}

func newNotifier(env func(name string) string, pipelines int) *notifier {
	n := &notifier{open: make(chan struct{})}
	n.unopened.Store(int64(pipelines))
	if env == nil {
		return n
	}
	n.socket = env("NOTIFY_SOCKET")
	if pid := env("WATCHDOG_PID"); pid == "" || pid == strconv.Itoa(os.Getpid()) {
		micros, _ := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64) // 0 without a watchdog
		n.every = max(time.Duration(micros)*time.Microsecond, 0) / 3
	}
	return n
}

// opened notes that a pipeline is open.
func (n *notifier) opened() {
	if n.unopened.Add(-1) == 0 {
		close(n.open)
	}
}

// start tells systemd when all pipelines are open, and when ctx ends, as it must before
// stop is called. Three times in each period of the watchdog it calls alive and says that
// the process lives.
func (n *notifier) start(ctx context.Context, alive func()) (stop func()) {
	if n.socket == "" {
		return func() {}
	}
	end := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		var tick <-chan time.Time
		if n.every > 0 {
			ticker := time.NewTicker(n.every)
			defer ticker.Stop()
			tick = ticker.C
		}
		until := func(one, other <-chan struct{}) {
			for {
				select {
				case <-tick:
					alive()
					_ = n.say("WATCHDOG=1") // the next one comes soon
				case <-one:
					return
				case <-other:
					return
				}
			}
		}
		until(n.open, ctx.Done())
		select {
		case <-n.open: // even if the sources have ended already
			for errors.Is(n.say("READY=1"), os.ErrDeadlineExceeded) && ctx.Err() == nil {
			} // without this message systemd waits for ever
		default:
		}
		until(ctx.Done(), nil)
		_ = n.say("STOPPING=1") // systemd sees the end of the process too
		until(end, nil)
	})
	return func() {
		close(end)
		telling.Wait()
	}
}

// say sends one message.
func (n *notifier) say(state string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(notifyFor)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return err
}
