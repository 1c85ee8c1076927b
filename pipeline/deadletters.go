package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/semel-dev/semel"
)

// Reason says why a message is parked or dropped, or why a pipeline stops at it. A
// dead-letter store that others write to may have messages with other reasons, or
// without one.
type Reason string

const (
	// ReasonAttempts: no attempt is left.
	ReasonAttempts Reason = "attempts"
	// ReasonPermanent: the error is permanent, see [semel.Permanent].
	ReasonPermanent Reason = "permanent"
	// ReasonLate: the message is older than its window.
	ReasonLate Reason = "late"
	// ReasonMismatch: the key was used with another payload.
	ReasonMismatch Reason = "mismatch"
	// ReasonUnknown: the key is unknown, so that a person must resolve it.
	ReasonUnknown Reason = "unknown"
	// ReasonKeyMissing: the message has no key.
	ReasonKeyMissing Reason = "key-missing"
	// ReasonKeyInvalid: the message's key cannot be read, or is refused.
	ReasonKeyInvalid Reason = "key-invalid"

	// alreadyParked is the reason of a message that came again although it is
	// parked: it is settled.
	alreadyParked Reason = "parked before"
)

// Reasons returns the reasons for which a pipeline parks messages.
func Reasons() []Reason {
	return []Reason{ReasonAttempts, ReasonPermanent, ReasonLate, ReasonMismatch, ReasonUnknown, ReasonKeyMissing, ReasonKeyInvalid}
}

// Parked is a message that was parked.
type Parked struct {
	// ID names it within its dead-letter store. It is made from the pipeline, the key,
	// the message's origin and its body, so that a message that is parked twice is
	// there once.
	ID       string
	Pipeline string
	Key      semel.Key
	// Reason says why, and Error is the last error.
	Reason Reason
	Error  string
	// Attempts counts the deliveries that were begun.
	Attempts int
	// Redrives counts how often it was redriven before.
	Redrives int
	// At is when it was parked.
	At time.Time
	// Queued: it is to be redriven.
	Queued bool
	// Message is the original, with its headers and origin.
	Message semel.Message
}

// ErrNotParked: there is no such message in the dead-letter store.
var ErrNotParked = errors.New("not parked")

// ErrUnreadable: an entry of a dead-letter store cannot be read, or is no message.
// All other entries can be read.
var ErrUnreadable = errors.New("what is parked there cannot be read")

// Parker parks messages. Many goroutines may call its method.
type Parker interface {
	// Park stores messages. It blocks until they are durable. A message replaces the
	// one with the same ID. Park keeps no reference to bodies and headers when it has
	// returned, because their memory is used again. A permanent error, see
	// [semel.Permanent], ends the pipeline; after other errors Park is called again.
	Park(ctx context.Context, list []Parked) error
}

// DeadLetters are the messages that pipelines have parked, for people who look at
// them and settle them. The error for a message that is not there wraps ErrNotParked.
type DeadLetters interface {
	// List calls fn with the messages of a pipeline, oldest first, until fn returns
	// false. The name "" lists all pipelines. Entries that cannot be read may be left
	// out; List then returns an error that wraps ErrUnreadable after all others.
	List(ctx context.Context, pipeline string, fn func(*Parked) bool) error
	// Get returns one message.
	Get(ctx context.Context, id string) (*Parked, error)
	// Settle removes a message and writes to the audit log how it was settled. If
	// the message is no longer there, the error wraps ErrNotParked. A redrive that
	// was delivered is written to the log all the same: its effect happened.
	Settle(ctx context.Context, p *Parked, how Settlement) error
	// Close ends what is open.
	Close() error
}

// DeadLetterStore is a place for dead letters from which a running pipeline redrives
// them. Several processes may use one at the same time.
type DeadLetterStore interface {
	Parker
	DeadLetters
	// Count returns how many messages a pipeline has parked, or all pipelines for
	// "". It does not read them.
	Count(ctx context.Context, pipeline string) (int64, error)
	// Queue asks the process that runs the pipeline to redrive messages.
	Queue(ctx context.Context, ids []string) error
	// Queued returns at most max messages of a pipeline that are to be redriven,
	// oldest request first. It leaves out what it cannot read.
	Queued(ctx context.Context, pipeline string, max int) ([]*Parked, error)
	// AuditEnd returns the position behind the last entry of the audit log.
	AuditEnd(ctx context.Context) (int64, error)
	// Settled reads the entries of the audit log behind a position, in their
	// order, until fn returns false. An entry that is written while AuditEnd runs
	// may be missing.
	Settled(ctx context.Context, after int64, fn func(Settlement) bool) error
}

// Settlement says how a message left its dead-letter store. It is an entry of the
// audit log.
type Settlement struct {
	// ID is the message's. The dead-letter store sets it.
	ID string `json:"id"`
	// How is HowRedriven, HowSkipped or HowDone.
	How string `json:"how"`
	// Delivered reports that the redrive delivered the message. A redrive of a
	// DeadLetterStore that did not deliver it found a duplicate.
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

// auditVerb marks the entries of a dead-letter store in an audit log that also has
// others.
const auditVerb = "parked"

// AuditLine returns the line of JSON that a dead-letter store writes when a message is
// settled.
func AuditLine(p *Parked, how Settlement) ([]byte, error) {
	how.ID = p.ID
	return json.Marshal(auditLine{
		At: time.Now().UTC(), Verb: auditVerb, Pipeline: p.Pipeline, Scope: p.Key.Scope, Key: p.Key.ID,
		Settlement: how, ParkedFor: string(p.Reason),
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

// parkedJSON is Parked as it is kept: bytes in base64, with the text beside
// them for people where it is text.
type parkedJSON struct {
	ID       string    `json:"id"`
	Pipeline string    `json:"pipeline"`
	Scope    string    `json:"scope"`
	Key      *string   `json:"key,omitempty"` // for people
	KeyBytes []byte    `json:"key_bytes"`
	Reason   string    `json:"reason"`
	Error    string    `json:"error"`
	Attempts int       `json:"attempts"`
	Redrives int       `json:"redrives"`
	At       time.Time `json:"at"`
	Queued   bool      `json:"queued,omitempty"`
	Message  msgJSON   `json:"message"`
}

type msgJSON struct {
	ID        string       `json:"id,omitempty"`
	IDBytes   []byte       `json:"id_bytes,omitempty"` // if it is no text
	RecordKey *[]byte      `json:"record_key"`         // null is none
	Headers   []headerJSON `json:"headers,omitempty"`
	Body      *[]byte      `json:"body"`
	Text      *string      `json:"text,omitempty"` // for people
	Time      *time.Time   `json:"time,omitempty"`
	Source    string       `json:"source,omitempty"`
	SrcBytes  []byte       `json:"source_bytes,omitempty"` // likewise
	Partition int32        `json:"partition,omitempty"`
	Offset    int64        `json:"offset,omitempty"`
	Delivery  int          `json:"delivery,omitempty"`
}

type headerJSON struct {
	Name  []byte  `json:"name_bytes"`
	Value *[]byte `json:"value_bytes"`
	Text  *string `json:"text,omitempty"`
	Label *string `json:"name,omitempty"`
}

// MarshalJSON implements json.Marshaler. Nothing is lost: bytes are kept as
// base64, and shown as text beside it if they are text.
func (p *Parked) MarshalJSON() ([]byte, error) {
	m := &p.Message
	j := parkedJSON{
		ID: p.ID, Pipeline: p.Pipeline, Scope: p.Key.Scope, Key: readable([]byte(p.Key.ID)), KeyBytes: []byte(p.Key.ID),
		Reason: string(p.Reason), Error: p.Error, Attempts: p.Attempts, Redrives: p.Redrives, At: p.At.UTC(), Queued: p.Queued,
		Message: msgJSON{
			ID: m.ID, RecordKey: orNull(m.RecordKey), Body: orNull(m.Body), Text: readable(m.Body),
			Source: m.Origin.Source, Partition: m.Origin.Partition, Offset: m.Origin.Offset, Delivery: m.Origin.Delivery,
		},
	}
	if !utf8.ValidString(m.ID) {
		j.Message.IDBytes = []byte(m.ID)
	}
	if !utf8.ValidString(m.Origin.Source) {
		j.Message.SrcBytes = []byte(m.Origin.Source)
	}
	if !m.Time.IsZero() {
		j.Message.Time = &m.Time
	}
	for _, h := range m.Headers {
		j.Message.Headers = append(j.Message.Headers, headerJSON{[]byte(h.Name), orNull(h.Value), readable(h.Value), readable([]byte(h.Name))})
	}
	return json.Marshal(&j)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Parked) UnmarshalJSON(data []byte) error {
	var j parkedJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*p = Parked{
		ID: j.ID, Pipeline: j.Pipeline, Key: semel.Key{Scope: j.Scope, ID: string(j.KeyBytes)},
		Reason: Reason(j.Reason), Error: j.Error, Attempts: j.Attempts, Redrives: j.Redrives, At: j.At, Queued: j.Queued,
		Message: semel.Message{
			ID: j.Message.ID, RecordKey: orNil(j.Message.RecordKey), Body: orNil(j.Message.Body),
			Origin: semel.Origin{Source: j.Message.Source, Partition: j.Message.Partition, Offset: j.Message.Offset, Delivery: j.Message.Delivery},
		},
	}
	if j.Message.IDBytes != nil {
		p.Message.ID = string(j.Message.IDBytes)
	}
	if j.Message.SrcBytes != nil {
		p.Message.Origin.Source = string(j.Message.SrcBytes)
	}
	if j.Message.Time != nil {
		p.Message.Time = *j.Message.Time
	}
	for _, h := range j.Message.Headers {
		p.Message.Headers = append(p.Message.Headers, semel.Header{Name: string(h.Name), Value: orNil(h.Value)})
	}
	return nil
}

func readable(b []byte) *string {
	if b == nil || !utf8.Valid(b) {
		return nil
	}
	s := string(b)
	return &s
}

func orNull(b []byte) *[]byte {
	if b == nil {
		return nil
	}
	return &b
}

func orNil(b *[]byte) []byte {
	if b == nil {
		return nil
	}
	if *b == nil {
		return []byte{}
	}
	return *b
}
