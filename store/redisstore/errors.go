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

// storeError classifies the errors of the client library and of the server. An
// error that does not prove that nothing changed is an unknown outcome.
func storeError(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, semel.ErrStoreUnavailable), errors.Is(err, semel.ErrOutcomeUnknown), errors.Is(err, semel.ErrClosed):
		return fmt.Errorf("redisstore: %s: %w", verb, err) // Client has classified it
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("redisstore: %s: %w: %w", verb, semel.ErrOutcomeUnknown, err)
	case errors.Is(err, rueidis.ErrClosing):
		// A call that was running when the client was closed gets this error
		// too.
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

// unsent reports whether the client could not connect.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, rueidis.ErrNoSlot)
}

// refusals are the codes with which a server refuses a command before it has
// changed anything. From Redis 7.0 on, the server refuses a script at its first
// write or not at all, provided that the user may run every command of the
// script. Redis 6.2 checks before each write whether a background sync has
// failed (MISCONF), so a script may end between two writes.
var refusals = [...]struct {
	code string
	is   error
}{
	{"OOM", semel.ErrStoreFull},
	{"READONLY", semel.ErrStoreUnavailable},     // a replica, for example after a failover
	{"LOADING", semel.ErrStoreUnavailable},      // the server loads its file
	{"MASTERDOWN", semel.ErrStoreUnavailable},   // a replica without its master
	{"CLUSTERDOWN", semel.ErrStoreUnavailable},  // some slots have no server
	{"TRYAGAIN", semel.ErrStoreUnavailable},     // a slot is moving
	{"MOVED", semel.ErrStoreUnavailable},        // the client no longer follows
	{"ASK", semel.ErrStoreUnavailable},          // the client no longer follows
	{"NOREPLICAS", semel.ErrStoreUnavailable},   // fewer replicas than required
	{"MISCONF", semel.ErrStoreUnavailable},      // the server's disk fails
	{"BUSY", semel.ErrStoreUnavailable},         // a script of another client runs
	{"NOAUTH", semel.ErrStoreUnavailable},       // the password is missing
	{"WRONGPASS", semel.ErrStoreUnavailable},    // the password is wrong
	{"NOPERM", semel.ErrStoreUnavailable},       // the user lacks the permission
	{"UNKILLABLE", semel.ErrStoreUnavailable},   // a script of another client runs
	{"WRONGTYPE", semel.ErrCorrupt},             // a name of the store has another type
	{"CROSSSLOT", semel.ErrInvalidRequest},      // the server is a cluster, and the client expects one server
	{"EXECABORT", semel.ErrStoreUnavailable},    // the server does not know the protocol
	{"PROTO", semel.ErrInvalidRequest},          // no such protocol
	{"DENIED", semel.ErrStoreUnavailable},       // protected mode
	{"INPROG", semel.ErrStoreUnavailable},       // a failover is running
	{"NOMASTERLINK", semel.ErrStoreUnavailable}, // a replica without its master
}

// refusal classifies an error answer of the server. Redis 6.2 wraps the errors
// of commands in a script: "ERR Error running script …: -OOM command …". A
// script says PARTLY if it had written something before.
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

// refused returns the error of one request that a script refused.
func refused(verb, message string) error {
	return fmt.Errorf("redisstore: %s: %w: %s", verb, refusal(message), strings.TrimSpace(message))
}

// graver returns the error that stands for both. It is the first one, unless
// only the second is an unknown outcome.
func graver(first, second error) error {
	if first == nil || semel.Classify(first) != semel.ClassUnknown && semel.Classify(second) == semel.ClassUnknown {
		return second
	}
	return first
}

// isFull reports whether the server has no memory for another key.
func isFull(err error) bool { return errors.Is(err, semel.ErrStoreFull) }

// damaged reports that the value of a key's name is not a record.
func damaged(verb string, key semel.Key) error {
	return fmt.Errorf("redisstore: %s: the record of %s is damaged: %w", verb, key, semel.ErrCorrupt)
}
