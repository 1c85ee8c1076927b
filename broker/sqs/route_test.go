package sqs

import (
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestMessageCannotNameAQueueOfAnotherAccount has names that would change the URL before them.
func TestMessageCannotNameAQueueOfAnotherAccount(t *testing.T) {
	t.Parallel()
	route, err := pipeline.NewRoute("source", "*")
	if err != nil {
		t.Fatal(err)
	}
	const account = "https://sqs.eu-west-1.amazonaws.com/123456789012"
	s := &Sink{opts: SinkOptions{Queue: account, Route: route}}
	for name, want := range map[string]bool{
		"orders": true, "orders.fifo": true, "a_b-C9": true, strings.Repeat("a", 80): true,
		"": false, "../999999999999/secret": false, "a/b": false, "orders?x": false, "orders.fifo.fifo": false, ".fifo": false, "a b": false, "a#b": false, "ä": false, strings.Repeat("a", 81): false,
	} {
		it := &pipeline.Item{Message: semel.Message{Origin: semel.Origin{Source: name}}}
		if url, err := s.target(it); (err == nil) != want || err != nil && !errors.Is(err, pipeline.ErrRoute) || err == nil && url != account+"/"+name {
			t.Errorf("%q: %s: %v", name, url, err)
		}
	}
}
