package kafkatxn_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// A trial keeps the last message of each minute. No broker is needed.
func ExampleNewTrial() {
	id, err := key.ParseRule(".id")
	if err != nil {
		log.Fatal(err)
	}
	now := time.Date(2026, 11, 24, 13, 0, 0, 0, time.UTC)
	trial, err := kafkatxn.NewTrial(&kafkatxn.TransactorOptions{
		Group: "orders", Inputs: []string{"in"}, Output: kafkatxn.Output{Topic: "out"}, Parked: "parked", Key: kafkatxn.KeyOptions{Rule: id},
		Keep: &stream.Keep{Last: stream.Tumbling(time.Minute)},
	}, now, 1)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for _, body := range []string{`{"id":1,"status":"paid"}`, `{"id":1,"status":"sent"}`} {
		o, err := trial.Send(ctx, now, &semel.Message{Body: []byte(body)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(o.Decision, o.Held)
	}
	released, err := trial.Pass(ctx, now.Add(10*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range released {
		fmt.Println(string(r.Value))
	}
	// Output:
	// fresh true
	// fresh true
	// {"id":1,"status":"sent"}
}
