package header_test

import (
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/pipeline"
)

// A sink delivers these headers with the body, so that the next pipeline finds the key of the
// message, and the target can refuse a holder that lost its claim.
func ExampleOutput() {
	it := &pipeline.Item{Attempt: 2, Token: 7}
	it.Message.Headers = []semel.Header{{Name: "region", Value: []byte("eu")}}
	it.Call.Key = semel.Key{Scope: "payments", ID: "order-7"}
	for _, h := range header.Output(it, "payments") {
		fmt.Printf("%s: %s\n", h.Name, h.Value)
	}
	// Output:
	// region: eu
	// semel-key: order-7
	// semel-pipeline: payments
	// semel-attempt: 2
	// semel-token: 7
}

// An id that cannot be printed is written in base64.
func ExampleOfKey() {
	fmt.Println(header.OfKey("order-7"))
	fmt.Println(header.OfKey("\x00\xff"))
	// Output:
	// semel-key order-7
	// semel-key-base64 AP8=
}
