package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// storeError is the one place that says what an error of the client or of the
// server means. What is not known to have changed nothing is unknown.
func storeError(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, semel.ErrStoreUnavailable), errors.Is(err, semel.ErrOutcomeUnknown), errors.Is(err, semel.ErrClosed):
		return fmt.Errorf("redisstore: %s: %w", verb, err) // Client has said it
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("redisstore: %s: %w: %w", verb, semel.ErrOutcomeUnknown, err)
	case errors.Is(err, rueidis.ErrClosing):
		// A call that was under way when the client closed has it too.
		return fmt.Errorf("redisstore: %s: %w: %w: %w", verb, semel.ErrOutcomeUnknown, semel.ErrClosed, err)
	}
	if e, ok := rueidis.IsRedisErr(err); ok {
		return fmt.Errorf("redisstore: %s: %w: %w", verb, refusal(e.Error()), err)
	}
	if unsent(err) {
		return fmt.Errorf("redisstore: %s: %w: %w", verb, semel.ErrStoreUnavailable, err)
	}
	return fmt.Errorf("redisstore: %s: %w: %w", verb, semel.ErrOutcomeUnknown, err)
}

// unsent reports whether the client found nobody to send to.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, rueidis.ErrNoSlot)
}

// refusals are the words with which a server refuses a command before it has
// changed anything. From Redis 7.0 on a script is refused at its first write or
// not at all, as long as the user may run every command of it. Redis 6.2 looks
// before each write whether a sync in the background has failed (MISCONF), so
// that a script may end in between.
var refusals = [...]struct {
	code string
	is   error
}{
	{"OOM", semel.ErrStoreFull},
	{"READONLY", semel.ErrStoreUnavailable},     // a replica, as after a failover
	{"LOADING", semel.ErrStoreUnavailable},      // it reads its file
	{"MASTERDOWN", semel.ErrStoreUnavailable},   // a replica without its master
	{"CLUSTERDOWN", semel.ErrStoreUnavailable},  // slots are not served
	{"TRYAGAIN", semel.ErrStoreUnavailable},     // a slot moves
	{"MOVED", semel.ErrStoreUnavailable},        // and the client no longer follows
	{"ASK", semel.ErrStoreUnavailable},          // likewise
	{"NOREPLICAS", semel.ErrStoreUnavailable},   // fewer replicas than required
	{"MISCONF", semel.ErrStoreUnavailable},      // its disk fails
	{"BUSY", semel.ErrStoreUnavailable},         // another's script runs
	{"NOAUTH", semel.ErrStoreUnavailable},       // no password
	{"WRONGPASS", semel.ErrStoreUnavailable},    // another password
	{"NOPERM", semel.ErrStoreUnavailable},       // the user may not
	{"UNKILLABLE", semel.ErrStoreUnavailable},   // another's script runs
	{"WRONGTYPE", semel.ErrCorrupt},             // a name of ours is something else
	{"CROSSSLOT", semel.ErrInvalidRequest},      // a cluster behind a client for one server
	{"EXECABORT", semel.ErrStoreUnavailable},    // a command was refused before
	{"PROTO", semel.ErrInvalidRequest},          // no such protocol
	{"DENIED", semel.ErrStoreUnavailable},       // protected mode
	{"INPROG", semel.ErrStoreUnavailable},       // a failover runs
	{"NOMASTERLINK", semel.ErrStoreUnavailable}, // a replica without its master
}

// refusal returns what an answer of the server means. Redis 6.2 wraps the
// errors of a script's commands: "ERR Error running script …: -OOM command …".
// A script says PARTLY where it had written before.
func refusal(message string) error {
	if strings.HasPrefix(message, "PARTLY ") || strings.Contains(message, ": -MISCONF ") {
		return semel.ErrOutcomeUnknown
	}
	for _, r := range refusals {
		if strings.HasPrefix(message, r.code+" ") || strings.Contains(message, ": -"+r.code+" ") {
			return r.is
		}
	}
	return semel.ErrOutcomeUnknown
}

// refused turns the refusal of one request inside a script into an error.
func refused(verb, message string) error {
	return fmt.Errorf("redisstore: %s: %w: %s", verb, refusal(message), strings.TrimSpace(message))
}

// graver returns the error that speaks for both: the first, unless only the
// second says that something may have been changed.
func graver(first, second error) error {
	if first == nil || semel.Classify(first) != semel.ClassUnknown && semel.Classify(second) == semel.ClassUnknown {
		return second
	}
	return first
}

// isFull reports whether the server has no memory for one more key.
func isFull(err error) bool { return errors.Is(err, semel.ErrStoreFull) }

// damaged says that what stands under the name of a key is no record.
func damaged(verb string, key semel.Key) error {
	return fmt.Errorf("redisstore: %s: the record of %s is damaged: %w", verb, key, semel.ErrCorrupt)
}
