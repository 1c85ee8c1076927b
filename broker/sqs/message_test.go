package sqs

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/pipeline"
)

// TestBodiesAndHeadersThatSQSRefusesAreEncoded encodes what SQS refuses, and decodes it.
func TestBodiesAndHeadersThatSQSRefusesAreEncoded(t *testing.T) {
	t.Parallel()
	many := func(n int) (list []semel.Header) {
		for i := range n {
			list = append(list, semel.Header{Name: fmt.Sprintf("h%02d", i), Value: []byte{'v'}})
		}
		return append(list, semel.Header{Name: header.Key, Value: []byte("k")}, semel.Header{Name: header.Pipeline, Value: []byte("p")})
	}
	for name, c := range map[string]struct {
		body    string
		headers []semel.Header
	}{
		"plain":                     {body: "{}", headers: many(2)},
		"empty":                     {},
		"binary":                    {body: "\x00\xff", headers: many(7)},
		"refused character":         {body: "a\uFFFEb\x1b"},
		"exactly ten attributes":    {body: "b", headers: many(8)},
		"eleven attributes":         {body: "b", headers: many(9)},
		"many attributes, base64":   {body: "\x01", headers: many(30)},
		"odd names and values":      {body: "b", headers: []semel.Header{{Name: "", Value: []byte("v")}, {Name: "a b\xff", Value: []byte{0}}, {Name: "AWS.x", Value: []byte("v")}, {Name: "e", Value: []byte{}}}},
		"a name twice":              {body: "b", headers: []semel.Header{{Name: "a", Value: []byte("1")}, {Name: "a", Value: []byte("2")}}},
		"bytes as a value":          {body: "b", headers: []semel.Header{{Name: "raw", Value: []byte{0, 0xff}}}},
		"a long header, repeatedly": {body: strings.Repeat("x", 1000), headers: many(12)},
	} {
		text, attributes := encode([]byte(c.body), c.headers, header.IsKey)
		if !isText(text) || text == "" || len(attributes) > maxAttributes {
			t.Errorf("%s: the body is %q, and there are %d attributes", name, text, len(attributes))
		}
		body, headers := decode(&types.Message{Body: &text, MessageAttributes: attributes})
		slices.SortStableFunc(headers, func(a, b semel.Header) int { return strings.Compare(a.Name, b.Name) })
		want := slices.Clone(c.headers)
		slices.SortStableFunc(want, func(a, b semel.Header) int { return strings.Compare(a.Name, b.Name) })
		if string(body) != c.body || body == nil || len(want) != len(headers) || len(want) > 0 && !reflect.DeepEqual(want, headers) {
			t.Errorf("%s: decoded as %q %v", name, body, headers)
		}
		if len(c.headers) > maxAttributes && len(c.headers) < 12 && attributes[header.Key].StringValue != nil {
			t.Errorf("%s: the headers with the key are not packed before those of the message", name)
		}
	}
}

func TestSQSMessageIDIsNotTheIdentityOfAMessage(t *testing.T) {
	t.Parallel()
	const id = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"
	for name, c := range map[string]struct {
		attributes map[string]string
		want       string
	}{
		"standard":               {nil, ""},
		"FIFO":                   {map[string]string{"MessageDeduplicationId": "d"}, "d"},
		"replaced by SQS":        {map[string]string{"MessageDeduplicationId": id}, ""},
		"from a dead-letter one": {map[string]string{"MessageDeduplicationId": "d", "DeadLetterQueueSourceArn": "arn"}, ""},
	} {
		m := message("q", &types.Message{MessageId: aws.String(id), Body: aws.String("b"), Attributes: c.attributes})
		if m.ID != c.want {
			t.Errorf("%s: the id is %q, want %q", name, m.ID, c.want)
		}
		if len(m.Headers) > 0 {
			t.Errorf("%s: headers %v", name, m.Headers)
		}
	}
}

func TestThePlaceOfAMessageNamesItsQueueAndId(t *testing.T) {
	t.Parallel()
	m := message("q", &types.Message{MessageId: aws.String("9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"), Body: aws.String("b")})
	if got, want := place(m.Origin), "q, message 9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"; got != want {
		t.Errorf("place %q, want %q", got, want)
	}
}

func TestQueueURLsAreParsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Address{
		"https://sqs.eu-west-1.amazonaws.com/123456789012/orders":                {Endpoint: "https://sqs.eu-west-1.amazonaws.com", Region: "eu-west-1", Name: "orders"},
		"https://eu-west-1.queue.amazonaws.com/123456789012/orders.fifo":         {Endpoint: "https://eu-west-1.queue.amazonaws.com", Region: "eu-west-1", Name: "orders.fifo", FIFO: true},
		"https://vpce-1.sqs.us-east-2.vpce.amazonaws.com/123456789012/orders":    {Endpoint: "https://vpce-1.sqs.us-east-2.vpce.amazonaws.com", Region: "us-east-2", Name: "orders"},
		"https://sqs.cn-north-1.amazonaws.com.cn/123456789012/orders":            {Endpoint: "https://sqs.cn-north-1.amazonaws.com.cn", Region: "cn-north-1", Name: "orders"},
		"http://127.0.0.1:9324/000000000000/orders":                              {Endpoint: "http://127.0.0.1:9324", Name: "orders"},
		"http://sqs.eu-west-1.localhost.localstack.cloud:4566/000000000000/test": {Endpoint: "http://sqs.eu-west-1.localhost.localstack.cloud:4566", Name: "test"},
	} {
		want.URL = text
		if got, err := ParseAddress(text); err != nil || got != want {
			t.Errorf("%s: %+v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "orders", "https://", "https://sqs.eu-west-1.amazonaws.com", "https://sqs.eu-west-1.amazonaws.com/orders", "arn:aws:sqs:eu-west-1:123456789012:orders", "https://u:p@h/1/q"} {
		if got, err := ParseAddress(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func TestIDsFitSQS(t *testing.T) {
	t.Parallel()
	for _, key := range []semel.Key{{Scope: "orders", ID: "1"}, {Scope: "a:b", ID: "c"}, {Scope: "a", ID: "b:c"}, {Scope: "s", ID: strings.Repeat("x", 500)}, {Scope: "s", ID: "ü \x00"}} {
		if id := deduplicationID(key); !fits(id) || id != deduplicationID(key) {
			t.Errorf("%v: %q", key, id)
		}
		it := &pipeline.Item{Call: semel.Call{Key: key}}
		if id := header.OnceID(it, "p", "group", maxID); !fits(id) {
			t.Errorf("%v: %q", key, id)
		}
		if group := groupID(key, nil); !fits(group) {
			t.Errorf("%v: group %q", key, group)
		}
	}
	if a, b := deduplicationID(semel.Key{Scope: "a:b", ID: "c"}), deduplicationID(semel.Key{Scope: "a", ID: "b:c"}); a == b {
		t.Errorf("two keys have the id %q", a)
	}
	if got := groupID(semel.Key{ID: "k"}, []byte("customer-7")); got != "customer-7" {
		t.Errorf("the group is %q", got)
	}
}
