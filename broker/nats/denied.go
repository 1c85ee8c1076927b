package nats

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	natsgo "github.com/nats-io/nats.go"
)

// denied are the calls that end when the server denies a right. The server does not
// answer a request without a right: it only sends an error for the whole connection, and
// the request would wait until its time is over.
type denied struct {
	mu    sync.Mutex // guards calls
	calls map[*context.CancelCauseFunc]struct{}
}

// follow notes what a server denies on a connection. It keeps the handler of the options.
func (d *denied) follow(conn *natsgo.Conn) {
	before := conn.ErrorHandler()
	conn.SetErrorHandler(func(conn *natsgo.Conn, sub *natsgo.Subscription, err error) {
		if errors.Is(err, natsgo.ErrPermissionViolation) {
			d.note(err)
		}
		if before != nil {
			before(conn, sub, err)
		}
	})
}

func (d *denied) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for cancel := range d.calls {
		(*cancel)(err)
	}
}

// watch returns a context that ends when the server denies a right. Call end with the
// error of the call: it returns the denial instead, if there was one.
func (d *denied) watch(ctx context.Context) (watched context.Context, end func(error) error) {
	watched, cancel := context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls == nil {
		d.calls = map[*context.CancelCauseFunc]struct{}{}
	}
	d.calls[&cancel] = struct{}{}
	return watched, func(err error) error {
		d.mu.Lock()
		delete(d.calls, &cancel)
		d.mu.Unlock()
		if cause := context.Cause(watched); errors.Is(cause, natsgo.ErrPermissionViolation) {
			err = cause
		}
		cancel(nil)
		return err
	}
}

// during calls fn with a context of watch. If fn fails and the server has denied a right,
// it returns the denial.
func (d *denied) during(ctx context.Context, fn func(ctx context.Context) error) error {
	watched, end := d.watch(ctx)
	err := fn(watched)
	if denial := end(err); err != nil {
		return denial
	}
	return nil
}

// isDenied reports whether a context of watch has ended because the server denies
// publications to a subject.
func isDenied(watched context.Context, subject string) bool {
	cause := context.Cause(watched)
	return errors.Is(cause, natsgo.ErrPermissionViolation) && strings.Contains(cause.Error(), strconv.Quote(subject))
}
