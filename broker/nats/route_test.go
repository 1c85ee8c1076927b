package nats

import (
	"errors"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

func TestASubjectThatAMessageNamesIsNeitherWildcardNorRequest(t *testing.T) {
	t.Parallel()
	route, err := pipeline.NewRoute("source", "*")
	if err != nil {
		t.Fatal(err)
	}
	s := &Sink{opts: SinkOptions{Route: route}}
	for subject, want := range map[string]bool{
		"orders": true, "orders.paid": true, "a$b": true,
		"": false, "orders.*": false, "orders.>": false, "a b": false, ".a": false, "a.": false, "a..b": false, "a\r\nPUB x": false, "$JS.API.STREAM.DELETE.orders": false,
	} {
		it := &pipeline.Item{Message: semel.Message{Origin: semel.Origin{Source: subject}}}
		if _, err := s.subject(it); (err == nil) != want || err != nil && !errors.Is(err, pipeline.ErrRoute) {
			t.Errorf("%q: %v", subject, err)
		}
	}
}
