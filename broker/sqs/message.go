package sqs

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel"
)

// Attributes of a message whose body or headers SQS cannot carry as they are. The
// source turns them back.
const (
	// bodyAttribute is base64 if the body is in base64, and empty if the body is
	// empty, which SQS refuses.
	bodyAttribute = "semel-body"
	// headersAttribute has headers as a JSON array of objects with name and value.
	// Bytes that are not text are in name_base64 and base64.
	headersAttribute = "semel-headers"
)

// maxAttributes is how many attributes a message can have.
const maxAttributes = 10

// packed is a header in headersAttribute.
type packed struct {
	Name       string `json:"name,omitempty"`
	NameBase64 []byte `json:"name_base64,omitempty"`
	Value      string `json:"value,omitempty"`
	Base64     []byte `json:"base64,omitempty"`
}

var attributeName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// isText reports whether SQS accepts a body or value as text.
func isText[T string | []byte](text T) bool {
	if !utf8.ValidString(string(text)) {
		return false
	}
	for _, c := range string(text) {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == 0xFFFE || c == 0xFFFF {
			return false
		}
	}
	return true
}

// isAttribute reports whether a header can be an attribute of its own.
func isAttribute(h *semel.Header) bool {
	lower := strings.ToLower(h.Name)
	return len(h.Value) > 0 && len(h.Name) <= 256 && attributeName.MatchString(h.Name) &&
		!strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.")
}

// encode returns what SQS carries for a body and headers. names are the headers to
// pack first if not all headers fit.
func encode(body []byte, headers []semel.Header, first func(name string) bool) (text string, attributes map[string]types.MessageAttributeValue) {
	attributes = map[string]types.MessageAttributeValue{}
	switch {
	case len(body) == 0:
		text = "-"
		attributes[bodyAttribute] = stringValue("empty")
	case isText(body):
		text = string(body)
	default:
		text = base64.StdEncoding.EncodeToString(body)
		attributes[bodyAttribute] = stringValue("base64")
	}
	headers = slices.DeleteFunc(slices.Clone(headers), func(h semel.Header) bool { return h.Name == bodyAttribute || h.Name == headersAttribute })
	room := maxAttributes - len(attributes)
	pack := make([]bool, len(headers))
	single, seen := 0, map[string]bool{}
	for i := range headers {
		pack[i] = !isAttribute(&headers[i]) || seen[headers[i].Name]
		seen[headers[i].Name] = true
		if !pack[i] {
			single++
		}
	}
	if single < len(headers) || single > room {
		room-- // for the packed headers
		for _, firstOnes := range []bool{true, false} {
			for i := len(headers) - 1; i >= 0 && single > room; i-- {
				if !pack[i] && first(headers[i].Name) == firstOnes {
					pack[i] = true
					single--
				}
			}
		}
	}
	var list []packed
	for i, h := range headers {
		switch {
		case pack[i]:
			list = append(list, packHeader(h))
		case isText(h.Value):
			attributes[h.Name] = stringValue(string(h.Value))
		default:
			attributes[h.Name] = types.MessageAttributeValue{DataType: aws.String("Binary"), BinaryValue: h.Value}
		}
	}
	if len(list) > 0 {
		data, _ := json.Marshal(list) // strings and bytes never fail
		attributes[headersAttribute] = stringValue(string(data))
	}
	return text, attributes
}

func packHeader(h semel.Header) (p packed) {
	if p.Name = h.Name; !isText(h.Name) {
		p.Name, p.NameBase64 = "", []byte(h.Name)
	}
	if p.Value = string(h.Value); !isText(h.Value) {
		p.Value, p.Base64 = "", h.Value
	}
	return p
}

func stringValue(text string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &text}
}

// sizeOf returns what a message counts in the limits of SQS.
func sizeOf(body string, attributes map[string]types.MessageAttributeValue) int {
	n := len(body)
	for name, value := range attributes {
		n += len(name) + len(aws.ToString(value.DataType)) + len(aws.ToString(value.StringValue)) + len(value.BinaryValue)
	}
	return n
}

// decode returns the body and headers of a message, the attributes in the order of
// their names.
func decode(m *types.Message) (body []byte, headers []semel.Header) {
	body = []byte(aws.ToString(m.Body))
	names := make([]string, 0, len(m.MessageAttributes))
	for name := range m.MessageAttributes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		value := m.MessageAttributes[name]
		text := aws.ToString(value.StringValue)
		switch {
		case name == bodyAttribute && text == "empty":
			body = []byte{}
			continue
		case name == bodyAttribute && text == "base64":
			if data, err := base64.StdEncoding.DecodeString(string(body)); err == nil {
				body = data
				continue
			}
		case name == headersAttribute:
			var list []packed
			if json.Unmarshal([]byte(text), &list) == nil {
				headers = append(headers, unpack(list)...)
				continue
			}
		}
		data := value.BinaryValue
		if value.StringValue != nil {
			data = []byte(text)
		}
		headers = append(headers, semel.Header{Name: name, Value: data})
	}
	return body, headers
}

func unpack(list []packed) []semel.Header {
	headers := make([]semel.Header, len(list))
	for i, p := range list {
		headers[i] = semel.Header{Name: p.Name + string(p.NameBase64), Value: append([]byte(p.Value), p.Base64...)}
	}
	return headers
}

// message returns a message of SQS as a pipeline sees it. The MessageId is only in
// the origin: it is the same for every delivery, and a producer that repeats a message
// gets another one. The id is empty if SQS has replaced it on the way through a
// dead-letter queue.
func message(queue string, from *types.Message) semel.Message {
	system := func(name types.MessageSystemAttributeName) string { return from.Attributes[string(name)] }
	m := semel.Message{Origin: semel.Origin{Source: queue, Identity: aws.ToString(from.MessageId)}}
	m.Body, m.Headers = decode(from)
	m.Origin.Delivery, _ = strconv.Atoi(system(types.MessageSystemAttributeNameApproximateReceiveCount)) // 0 is unknown
	if sent, err := strconv.ParseInt(system(types.MessageSystemAttributeNameSentTimestamp), 10, 64); err == nil {
		m.Time = time.UnixMilli(sent)
	}
	id := system(types.MessageSystemAttributeNameMessageDeduplicationId)
	if id != aws.ToString(from.MessageId) && system(types.MessageSystemAttributeNameDeadLetterQueueSourceArn) == "" {
		m.ID = id
	}
	if group := system(types.MessageSystemAttributeNameMessageGroupId); group != "" {
		m.RecordKey = []byte(group)
	}
	return m
}

// place describes an origin by its MessageId.
func place(o semel.Origin) string { return o.Source + ", message " + o.Identity }
