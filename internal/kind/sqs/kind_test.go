package sqs_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/sqs"
)

func TestSource(t *testing.T) {
	kindtest.Source(t, sqs.NewSource, kindtest.Case{Least: `{ queue: "https://sqs.eu-west-1.amazonaws.com/123456789012/orders" }`})
}

func TestSink(t *testing.T) {
	kindtest.Sink(t, sqs.NewSink, kindtest.Case{Least: `{ queue: "https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo" }`})
}

// TestErrorsHaveACauseAndARemedy has the errors of Amazon, and those of servers that
// write a prefix before the code.
func TestErrorsHaveACauseAndARemedy(t *testing.T) {
	t.Parallel()
	source, sink := sqs.NewSource().(*sqs.Source), sqs.NewSink().(*sqs.Sink)
	source.URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
	sink.URL = source.URL + ".fifo"
	api := func(code string) error { return &smithy.GenericAPIError{Code: code, Message: "m"} }
	for _, c := range []struct {
		kind config.Advisor
		err  error
		want string // cause: remedy
	}{
		{source, &types.QueueDoesNotExist{}, "there is no queue orders: create it with aws sqs create-queue --queue-name orders, or correct p.source.queue"},
		{sink, &types.QueueDoesNotExist{}, "there is no queue orders.fifo: create it with aws sqs create-queue --queue-name orders.fifo --attributes FifoQueue=true, or"},
		{source, &types.OverLimit{}, "the queue orders has as many unsettled messages as SQS permits: look for the processes that have them"},
		{source, api("AccessDenied"), "these credentials have no permission for the queue orders: permit sqs:ReceiveMessage, sqs:DeleteMessage, sqs:ChangeMessageVisibility"},
		{sink, api("com.amazon.coral.service#AccessDeniedException"), "these credentials have no permission for the queue orders.fifo: permit sqs:SendMessage and"},
		{sink, api("ExpiredToken"), "SQS refuses these credentials: are they for this account, and still valid?"},
		{sink, api("InternalError"), ""},
		{sink, &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: 503}}, Err: api("InternalError")}, "the answer is 503 (Service Unavailable): is SQS up, or"},
		{source, errors.New("connection refused"), ""},
	} {
		got := ""
		if said := c.kind.Advise(nil, nil, "p.source", fmt.Errorf("sqs: %w", c.err)); said != nil {
			got = said.Cause + ": " + said.Remedy
		}
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}
