package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/semel-dev/semel"
)

// Reason says why a message is parked or dropped, or why a pipeline stops at it. If other
// programs write to a dead-letter store, its messages may have other reasons, or none.
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
	// ReasonUnknown: the key is unknown, and a person must resolve it.
	ReasonUnknown Reason = "unknown"
	// ReasonKeyMissing: the message has no key.
	ReasonKeyMissing Reason = "key-missing"
	// ReasonKeyInvalid: the message's key cannot be read, or is refused.
	ReasonKeyInvalid Reason = "key-invalid"
	// ReasonUnreadable: the source cannot read the message, or Options.Unwrap finds no message
	// in it.
	ReasonUnreadable Reason = "unreadable"
	// ReasonRowMissing: a table has no row for the message.
	ReasonRowMissing Reason = "row-missing"
	// ReasonDeliveries: the message was near the delivery limit of its server, at which
	// the server deletes it or never delivers it again.
	ReasonDeliveries Reason = "deliveries"

	// ReasonExpired: the message was parked for longer than Options.ParkedMaxAge, and is
	// dropped. No message is parked for this reason.
	ReasonExpired Reason = "expired"

	// ReasonParkedBefore: the message came again after it was parked. It is settled, and is
	// not parked again.
	ReasonParkedBefore Reason = "parked before"
)

// Reasons returns the reasons for which a pipeline parks messages.
func Reasons() []Reason {
	return []Reason{ReasonAttempts, ReasonPermanent, ReasonLate, ReasonMismatch, ReasonUnknown, ReasonKeyMissing, ReasonKeyInvalid, ReasonUnreadable, ReasonRowMissing, ReasonDeliveries}
}

// Parked is a parked message.
type Parked struct {
	// ID is unique in the dead-letter store. It is made from the pipeline, the key, and
	// the message's origin and content. A delivery that is parked twice is stored once.
	// Two messages with the same key and content have an entry each, unless one may be the
	// repetition of the other: see SourceTraits.Repeats.
	ID       string
	Pipeline string
	Key      semel.Key
	// Reason says why the message was parked. Error is its last error.
	Reason Reason
	Error  string
	// Attempts counts the deliveries, whatever their outcome.
	Attempts int
	// Redrives counts the earlier redrives.
	Redrives int
	// At is the time when the message was parked.
	At time.Time
	// Queued: the message waits for a redrive.
	Queued bool
	// Message is the original message, with its headers and origin.
	Message semel.Message
}

// ErrNotParked: the dead-letter store does not have the message.
var ErrNotParked = errors.New("not parked")

// ErrUnreadable: an entry of a dead-letter store cannot be read, or is not a parked
// message. Other entries can be read.
var ErrUnreadable = errors.New("an entry of the dead-letter store cannot be read")

// Parker parks messages. Many goroutines may call its method.
type Parker interface {
	// Park stores messages. It blocks until they are durable. A message replaces the
	// one with the same ID. The memory of bodies and headers is reused, so Park must
	// not keep it after it has returned. A permanent error, see [semel.Permanent], stops
	// the pipeline. After other errors the runner calls Park again.
	Park(ctx context.Context, list []Parked) error
}

// DeadLetters lets operators read and settle parked messages. If a message is not there,
// the error wraps ErrNotParked.
type DeadLetters interface {
	// List calls fn with the messages of a pipeline, oldest first, until fn returns
	// false. The name "" stands for all pipelines. List may leave out entries that it
	// cannot read. It then returns an error that wraps ErrUnreadable, after the calls
	// of fn.
	List(ctx context.Context, pipeline string, fn func(*Parked) bool) error
	// Get returns one message.
	Get(ctx context.Context, id string) (*Parked, error)
	// Settle removes a message and adds an entry to the audit log. If the message is no
	// longer there, the error wraps ErrNotParked. For a delivered redrive, Settle adds
	// the entry even then, because the effect happened.
	Settle(ctx context.Context, p *Parked, how Settlement) error
	// Audit appends a line, a JSON object, to the audit log, about a change that an operator is
	// going to make. It blocks until the line is durable, and changes nothing else.
	Audit(ctx context.Context, line []byte) error
	// Close releases files and connections.
	Close() error
}

// DeadLetterStore stores parked messages. A running pipeline redrives them from there.
// Several processes may use it at the same time.
type DeadLetterStore interface {
	Parker
	DeadLetters
	// Count returns the number of parked messages of a pipeline. The name "" stands for
	// all pipelines. Count does not read the messages.
	Count(ctx context.Context, pipeline string) (int64, error)
	// Queue marks messages for a redrive by the process that runs the pipeline.
	Queue(ctx context.Context, ids []string) error
	// Queued returns at most max queued messages of a pipeline. The message that was
	// queued first comes first. Queued leaves out messages that it cannot read.
	Queued(ctx context.Context, pipeline string, max int) ([]*Parked, error)
	// AuditEnd returns the position behind the last entry of the audit log.
	AuditEnd(ctx context.Context) (int64, error)
	// Settled calls fn with the entries of the audit log behind a position, in order,
	// until fn returns false. It may miss an entry that was written while AuditEnd ran.
	Settled(ctx context.Context, after int64, fn func(Settlement) bool) error
}

// Settlement says how a message left its dead-letter store. It is an entry of the
// audit log.
type Settlement struct {
	// ID is the message's ID. The dead-letter store sets it.
	ID string `json:"id"`
	// How is HowRedriven, HowSkipped, HowDone or HowExpired.
	How string `json:"how"`
	// Delivered: the redrive delivered the message. If it did not, the message was a
	// duplicate.
	Delivered bool `json:"delivered,omitempty"`
	// Actor names the person or process that settled the message. Reason says why.
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
}

// The values of Settlement.How.
const (
	// HowRedriven: a pipeline processed the message again.
	HowRedriven = "redriven"
	// HowSkipped: an operator gave up the message.
	HowSkipped = "skipped"
	// HowDone: an operator marked the key as done.
	HowDone = "done"
	// HowExpired: the message was parked for longer than Options.ParkedMaxAge.
	HowExpired = "expired"
)

// auditLine is a stored entry of the audit log.
type auditLine struct {
	At       time.Time `json:"at"`
	Verb     string    `json:"verb"`
	Pipeline string    `json:"pipeline"`
	Scope    string    `json:"scope"`
	Key      string    `json:"key"`
	Settlement
	ParkedFor string `json:"parked_for"`
}

// auditVerb marks the entries of a dead-letter store. The same audit log may have
// other entries.
const auditVerb = "parked"

// Line returns the line of JSON that a dead-letter store adds to its audit log when
// a message is settled.
func (s Settlement) Line(p *Parked) ([]byte, error) {
	s.ID = p.ID
	return json.Marshal(auditLine{
		At: time.Now().UTC(), Verb: auditVerb, Pipeline: p.Pipeline, Scope: p.Key.Scope, Key: p.Key.ID,
		Settlement: s, ParkedFor: string(p.Reason),
	})
}

// ReadLine sets the settlement to that of a Line. It reports false if the line is damaged or
// is not such an entry.
func (s *Settlement) ReadLine(line []byte) bool {
	var l auditLine
	if err := json.Unmarshal(line, &l); err != nil || l.Verb != auditVerb {
		return false
	}
	*s = l.Settlement
	return true
}

// parkedJSON is the stored form of Parked. It has bytes in base64. Bytes that are valid
// UTF-8 are there as text too, for people, unless the body is large.
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
	IDBytes   []byte       `json:"id_bytes,omitempty"` // if it is not valid UTF-8
	RecordKey []byte       `json:"record_key"`         // null if none exists
	Headers   []headerJSON `json:"headers,omitempty"`
	Caseless  bool         `json:"caseless_headers,omitempty"`
	Body      []byte       `json:"body"`
	Text      *string      `json:"text,omitempty"` // for people
	Time      *time.Time   `json:"time,omitempty"`
	Source    string       `json:"source,omitempty"`
	SrcBytes  []byte       `json:"source_bytes,omitempty"` // if it is not valid UTF-8
	Identity  string       `json:"identity,omitempty"`     // of the source; valid UTF-8
	Partition int32        `json:"partition,omitempty"`
	Offset    int64        `json:"offset,omitempty"`
	Delivery  int          `json:"delivery,omitempty"`
}

type headerJSON struct {
	Name  []byte  `json:"name_bytes"`
	Value []byte  `json:"value_bytes"`
	Text  *string `json:"text,omitempty"`
	Label *string `json:"name,omitempty"`
}

// MarshalJSON implements json.Marshaler. UnmarshalJSON restores every byte, and the time of
// the message if its year is between 1 and 9999.
func (p *Parked) MarshalJSON() ([]byte, error) {
	m := &p.Message
	j := parkedJSON{
		ID: p.ID, Pipeline: p.Pipeline, Scope: p.Key.Scope, Key: readable([]byte(p.Key.ID)), KeyBytes: []byte(p.Key.ID),
		Reason: string(p.Reason), Error: p.Error, Attempts: p.Attempts, Redrives: p.Redrives, At: p.At.UTC(), Queued: p.Queued,
		Message: msgJSON{
			ID: m.ID, RecordKey: m.RecordKey, Body: m.Body, Caseless: m.CaselessHeaders,
			Source: m.Origin.Source, Identity: m.Origin.Identity, Partition: m.Origin.Partition, Offset: m.Origin.Offset, Delivery: m.Origin.Delivery,
		},
	}
	if len(m.Body) <= mostReadable {
		j.Message.Text = readable(m.Body)
	}
	if !utf8.ValidString(m.ID) {
		j.Message.IDBytes = []byte(m.ID)
	}
	if !utf8.ValidString(m.Origin.Source) {
		j.Message.SrcBytes = []byte(m.Origin.Source)
	}
	if year := m.Time.UTC().Year(); !m.Time.IsZero() && year >= 1 && year <= 9999 { // JSON cannot write others, and the message must be parked
		j.Message.Time = &m.Time
	}
	for _, h := range m.Headers {
		j.Message.Headers = append(j.Message.Headers, headerJSON{[]byte(h.Name), h.Value, readable(h.Value), readable([]byte(h.Name))})
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
			ID: j.Message.ID, RecordKey: j.Message.RecordKey, Body: j.Message.Body, CaselessHeaders: j.Message.Caseless,
			Origin: semel.Origin{Source: j.Message.Source, Identity: j.Message.Identity, Partition: j.Message.Partition, Offset: j.Message.Offset, Delivery: j.Message.Delivery},
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
		p.Message.Headers = append(p.Message.Headers, semel.Header{Name: string(h.Name), Value: h.Value})
	}
	return nil
}

// mostReadable is the size of the largest body that is there as text too. Larger ones would
// need too much memory.
const mostReadable = 1 << 20

func readable(b []byte) *string {
	if b == nil || !utf8.Valid(b) {
		return nil
	}
	s := string(b)
	return &s
}
