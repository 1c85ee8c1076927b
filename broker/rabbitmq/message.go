package rabbitmq

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
)

// Headers of a message that the source adds.
const (
	exchangeHeader   = "amqp-exchange"
	routingKeyHeader = "amqp-routing-key"
)

// property is a property of AMQP messages that is a header elsewhere.
type property struct {
	name string
	of   func(*amqp.Publishing) *string
}

// properties are those that the source turns into headers, and the sink back.
func properties() []property {
	return []property{
		{"content-type", func(p *amqp.Publishing) *string { return &p.ContentType }},
		{"content-encoding", func(p *amqp.Publishing) *string { return &p.ContentEncoding }},
		{"correlation-id", func(p *amqp.Publishing) *string { return &p.CorrelationId }},
		{"reply-to", func(p *amqp.Publishing) *string { return &p.ReplyTo }},
		{"type", func(p *amqp.Publishing) *string { return &p.Type }},
		{"app-id", func(p *amqp.Publishing) *string { return &p.AppId }},
	}
}

// sent returns the time of a message. AMQP counts seconds. Some producers write milliseconds,
// microseconds or nanoseconds, which as seconds are times after the year 5138.
func sent(at time.Time) time.Time {
	const year5138 = 100_000_000_000
	for _, perSecond := range []int64{1e3, 1e6, 1e9} {
		if n := at.Unix(); n >= year5138 && n/perSecond < year5138 {
			return time.Unix(n/perSecond, n%perSecond*(1e9/perSecond))
		}
	}
	return at
}

// message returns a delivery as a message.
func message(queue string, d *amqp.Delivery) semel.Message {
	m := semel.Message{
		ID: d.MessageId, Body: d.Body, Time: sent(d.Timestamp),
		Origin: semel.Origin{Source: queue, Delivery: deliveries(d)},
	}
	if m.Body == nil {
		m.Body = []byte{} // AMQP does not tell nil from empty
	}
	if d.Exchange != "" && d.RoutingKey != "" { // without an exchange it is the name of the queue
		m.RecordKey = []byte(d.RoutingKey)
	}
	names := make([]string, 0, len(d.Headers))
	for name := range d.Headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		m.Headers = append(m.Headers, semel.Header{Name: name, Value: value(d.Headers[name])})
	}
	p := amqp.Publishing{
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, CorrelationId: d.CorrelationId,
		ReplyTo: d.ReplyTo, Type: d.Type, AppId: d.AppId,
	}
	for _, property := range properties() {
		if text := *property.of(&p); text != "" {
			m.Headers = append(m.Headers, semel.Header{Name: property.name, Value: []byte(text)})
		}
	}
	if d.Exchange != "" {
		m.Headers = append(m.Headers, semel.Header{Name: exchangeHeader, Value: []byte(d.Exchange)})
	}
	m.Headers = append(m.Headers, semel.Header{Name: routingKeyHeader, Value: []byte(d.RoutingKey)})
	return m
}

// deliveries returns the number of a delivery. Quorum queues count. A classic queue
// says only whether it is the first one.
func deliveries(d *amqp.Delivery) int {
	switch before := d.Headers["x-delivery-count"].(type) {
	case int64:
		return int(before) + 1
	case int32:
		return int(before) + 1
	}
	if d.Redelivered {
		return 0 // not counted
	}
	return 1
}

// value returns the value of a header as text: lists and tables, such as x-death, as
// JSON.
func value(v any) []byte {
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		return []byte(v)
	case []byte:
		return v
	case time.Time:
		return []byte(v.UTC().Format(time.RFC3339))
	case amqp.Table, []any:
		if text, err := json.Marshal(v); err == nil {
			return text
		}
	}
	return fmt.Append(nil, v)
}

// longest is the size in bytes of the longest short string of AMQP.
const longest = 255

// MessageID returns the message-id for the id of a key: the id itself if it is
// text of at most 255 bytes, and otherwise a digest of it. It is the same for all
// attempts and redrives, so that the next consumer recognises the message by it.
func MessageID(id string) string {
	if len(id) <= longest && utf8.ValidString(id) && !strings.ContainsRune(id, 0) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "sha256:" + base64.RawURLEncoding.EncodeToString(sum[:])
}
