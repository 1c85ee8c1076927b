package pipeline

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/semel-dev/semel"
)

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
		Reason: p.Reason, Error: p.Error, Attempts: p.Attempts, Redrives: p.Redrives, At: p.At.UTC(), Queued: p.Queued,
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
		Reason: j.Reason, Error: j.Error, Attempts: j.Attempts, Redrives: j.Redrives, At: j.At, Queued: j.Queued,
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
