package pipeline

import (
	"context"
	"encoding/json"
	"time"

	"github.com/semel-dev/semel"
)

// Parked is a message that was put aside.
type Parked struct {
	// ID names it within its lot. It is made from the pipeline, the key, the
	// message's origin and its body, so that the same message parked twice is
	// parked once.
	ID       string
	Pipeline string
	Key      semel.Key
	// Reason says in a few fixed words why: "attempts", "permanent", "late",
	// "mismatch", "unknown", "key-missing", "key-invalid". Error is the last
	// error.
	Reason, Error string
	// Attempts counts the deliveries that were begun.
	Attempts int
	// Redrives counts how often it came back from the lot before.
	Redrives int
	// At is when it was put aside.
	At time.Time
	// Queued: somebody asked for it to be redriven.
	Queued bool
	// Message is the original, with its headers and origin.
	Message semel.Message
}

// Parker puts messages aside. Its method may be called by many goroutines at
// once.
type Parker interface {
	// Park keeps messages. They are durable when it returns nil. One with the
	// ID of one that is there replaces it. It blocks until then, and holds nothing
	// of list behind that: the memory of bodies and headers is used again. An error that is
	// permanent, see [semel.Permanent], ends the pipeline; others are tried again.
	Park(ctx context.Context, list []Parked) error
}

// Lot keeps messages that were put aside until somebody settles them. Several
// processes may use one lot at once. Errors of a message that is not there wrap
// ErrNotParked.
type Lot interface {
	Parker
	// Parked lists what a pipeline has parked, oldest first, until fn returns
	// false. All pipelines are listed for "". What a lot cannot read it may
	// pass over, and names it in an error that wraps ErrUnreadable, behind all others.
	Parked(ctx context.Context, pipeline string, fn func(*Parked) bool) error
	// Count returns how many messages a pipeline has parked, or all for "". It
	// does not read them.
	Count(ctx context.Context, pipeline string) (int64, error)
	// Get returns one message.
	Get(ctx context.Context, id string) (*Parked, error)
	// Queue asks for messages to be redriven by whoever runs their pipeline.
	Queue(ctx context.Context, ids []string) error
	// Queued returns messages of a pipeline that are to be redriven, oldest
	// request first, at most max. What cannot be read is not among them.
	Queued(ctx context.Context, pipeline string, max int) ([]*Parked, error)
	// Settle takes a message out and writes to the audit log how it was settled.
	// If the message is no longer there, the error wraps ErrNotParked. A redrive
	// that was delivered is written to the log all the same: its effect happened.
	Settle(ctx context.Context, p *Parked, how Settlement) error
	// AuditEnd returns the position behind the last entry of the audit log.
	AuditEnd(ctx context.Context) (int64, error)
	// Settled reads the entries of the audit log behind a position, in their
	// order, until fn returns false. An entry that is written while AuditEnd runs
	// may be missing.
	Settled(ctx context.Context, after int64, fn func(Settlement) bool) error
	// Close ends what the lot has open.
	Close() error
}

// Settlement says how a message left its lot. It is an entry of the audit log.
type Settlement struct {
	// ID is the message's. The lot sets it.
	ID string `json:"id"`
	// How is HowRedriven, HowSkipped or HowDone.
	How string `json:"how"`
	// Delivered reports that the redrive delivered the message. A redrive of a
	// Lot that did not deliver it found a duplicate.
	Delivered bool `json:"delivered,omitempty"`
	// Actor names who settled the message, and Reason says why.
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
}

// The ways in which a message is settled.
const (
	// HowRedriven: a pipeline processed it again.
	HowRedriven = "redriven"
	// HowSkipped: an operator gave it up.
	HowSkipped = "skipped"
	// HowDone: an operator marked its key done.
	HowDone = "done"
)

// auditLine is an entry of the audit log as it is stored.
type auditLine struct {
	At       time.Time `json:"at"`
	Verb     string    `json:"verb"`
	Pipeline string    `json:"pipeline"`
	Scope    string    `json:"scope"`
	Key      string    `json:"key"`
	Settlement
	ParkedFor string `json:"parked_for"`
}

// auditVerb marks the entries of a lot in an audit log that has others too.
const auditVerb = "parked"

// AuditLine returns the line of JSON with which a lot notes how a message was
// settled.
func AuditLine(p *Parked, how Settlement) ([]byte, error) {
	how.ID = p.ID
	return json.Marshal(auditLine{
		At: time.Now().UTC(), Verb: auditVerb, Pipeline: p.Pipeline, Scope: p.Key.Scope, Key: p.Key.ID,
		Settlement: how, ParkedFor: p.Reason,
	})
}

// ParseAuditLine is the reverse of AuditLine. It reports false for a line that is
// damaged or something else.
func ParseAuditLine(line []byte) (Settlement, bool) {
	var l auditLine
	if err := json.Unmarshal(line, &l); err != nil || l.Verb != auditVerb {
		return Settlement{}, false
	}
	return l.Settlement, true
}
