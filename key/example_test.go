package key_test

import (
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

func ExampleParseRule() {
	rule, err := key.ParseRule(".order.id")
	if err != nil {
		fmt.Println(err)
		return
	}
	k, err := rule.Key("billing", &semel.Message{Body: []byte(`{"order":{"id":"A-17"}}`)})
	fmt.Println(k, err)

	_, err = rule.Key("billing", &semel.Message{Body: []byte(`{"order":{"id":null}}`)})
	fmt.Println(err, errors.Is(err, key.ErrMissing))

	_, err = key.ParseRule("offset")
	fmt.Println(err)
	// Output:
	// "billing"/"A-17" <nil>
	// key: .order.id is null true
	// key: rule offset is not stable: a message that is published again or redriven gets a new offset
}

func ExampleAll() {
	user, _ := key.ParseRule(".user")
	order, _ := key.ParseRule("header:Order-Id")
	rule, err := key.All(user, order)
	if err != nil {
		fmt.Println(err)
		return
	}
	k, err := rule.Key("billing", &semel.Message{
		Headers: []semel.Header{{Name: "Order-Id", Value: []byte("17")}},
		Body:    []byte(`{"user":42}`),
	})
	fmt.Println(k, err)
	// Output: "billing"/"\x00c\x04\x00n42\x0217" <nil>
}

func ExampleFirst() {
	header, _ := key.ParseRule("header:Event-Id")
	body, _ := key.ParseRule(".event_id")
	rule, err := key.First(header, body)
	if err != nil {
		fmt.Println(err)
		return
	}
	k, err := rule.Key("billing", &semel.Message{Body: []byte(`{"event_id":"e-1"}`)})
	fmt.Println(k, err)
	// Output: "billing"/"e-1" <nil>
}

func ExampleTemplate() {
	rule, err := key.Template("order-{.order_id}-placed")
	if err != nil {
		fmt.Println(err)
		return
	}
	k, err := rule.Key("billing", &semel.Message{Body: []byte(`{"order_id":"A-17"}`)})
	fmt.Println(k, err)
	// Output: "billing"/"order-A-17-placed" <nil>
}

func ExampleFinder() {
	path, err := key.ParsePath(".event_id")
	if err != nil {
		fmt.Println(err)
		return
	}
	finder, err := key.NewFinder([]key.Path{path}, &key.FinderOptions{Content: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	var id []byte
	var prints []uint64
	for _, line := range []string{`{"event_id":7,"n":"a"}`, `{ "n": "\u0061", "event_id": 7 }`, `{"event_id":7`} {
		if err := finder.Find([]byte(line)); err != nil {
			fmt.Println(err)
			continue
		}
		id, err = finder.AppendID(id[:0])
		prints = append(prints, finder.Print())
		fmt.Printf("%q %v\n", id, err)
	}
	fmt.Println(prints[0] == prints[1])
	// Output:
	// "\x00n7" <nil>
	// "\x00n7" <nil>
	// key: invalid JSON: the document ends too early at byte 13
	// true
}

func ExampleStateChange() {
	fmt.Printf("%q\n", key.StateChange("order-17", "placed", 3))
	// Output: "\x00c\border-17\x06placed\x03\x00n3"
}

func ExampleAction() {
	k := semel.Key{Scope: "payments", ID: key.Action("charge", "tx-9")}
	fmt.Println(k)
	// Output: "payments"/"\x00c\x06charge\x04tx-9"
}

func ExampleUUIDv5() {
	fmt.Println(key.UUIDv5(key.NamespaceURL, "https://example.com/orders/17"))
	// Output: 2c6180c3-3c5d-5827-824c-e8783afd3ddc
}
