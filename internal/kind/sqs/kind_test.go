package sqs_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/sqs"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

func TestSourcePassesTheKindSuite(t *testing.T) {
	kindtest.Source(t, sqs.NewSource, kindtest.Case{Least: `{ queue: "https://sqs.eu-west-1.amazonaws.com/123456789012/orders" }`})
}

func TestSinkPassesTheKindSuite(t *testing.T) {
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
		kind config.Kind
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

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	kindtest.Refused(t, [][2]string{
		{kindtest.WithSink("{ sqs: { queue: { from: source, allow: [a] } } }"), "pipelines.p.sink.sqs: account is missing: write the URL before the names of the queues"},
		{kindtest.WithSink("{ sqs: { account: 'https://h', queue: { from: source, allow: [a] } } }"), "pipelines.p.sink.sqs: account: the URL of a queue ends in its account and its name"},
		{kindtest.WithSink("{ sqs: { account: 'https://h/1', queue: 'https://h/1/a' } }"), "pipelines.p.sink.sqs: account has no effect beside the URL of one queue"},
		{kindtest.WithSource("{ sqs: { queue: orders } }"), "pipelines.p.source.sqs: queue: "},
		{kindtest.WithSink("{ sqs: { account: 'https://sqs.eu-west-1.amazonaws.com/1', queue: { from: source, allow: ['o.p'] } } }"), "pipelines.p.sink.sqs: queue: \"o.p\" is not the name of a queue"},
		{kindtest.WithSink("{ sqs: { queue: 'https://sqs.eu-west-1.amazonaws.com/1/o-*' } }"), "pipelines.p.sink.sqs: queue: \"o-*\" is not the name of a queue: write letters, digits, '_' and '-', and .fifo at the end of a FIFO queue"},
		{kindtest.WithSource("{ sqs: { queue: 'https://sqs.eu-west-1.amazonaws.com/1/" + strings.Repeat("x", 81) + "' } }"), "is not the name of a queue"},
		{through("{ sqs: { account: 'https://h/1/', queue: { from: 'header:to', allow: [out, 'i*'] } } }"), "pipelines.p.sink.sqs.queue: the pipeline would read its own output: use another queue"},
		{through("{ sqs: { queue: 'https://h/1/in' } }"), "pipelines.p.sink.sqs.queue: the pipeline would read its own output: use another queue"},
	})
	kindtest.Parse(t, through("{ sqs: { account: 'https://h/1/', queue: { from: 'header:to', allow: [out, 'o*'] } } }"))
}

// through returns a configuration that reads the queue in.
func through(sink string) string {
	return "stores: { k: { embedded: { path: k } } }\npipelines: { p: { key: { id: .id }, store: k, source: { sqs: { queue: 'https://h/1/in' } }, sink: " + sink + " } }"
}

func TestLintWarnsOfQueueSettingsThatDropOrShareMessages(t *testing.T) {
	t.Parallel()
	source := func(name, id, more string) string {
		return "stores: { k: { embedded: { path: k } } }\npipelines: { p: { key: { id: '" + id + "' }, store: k, source: { sqs: { queue: 'https://h/1/" + name + "' } }, sink: { stdout: {} }" + more + " } }"
	}
	const one = "{ key: { id: .id }, store: k, source: { sqs: { queue: 'https://h/1/in' } }, sink: { file: { path: %s } } }"
	kindtest.Warned(t, [][2]string{
		{source("in", ".id", ""), ""},
		{source("in.fifo", "property:message-id", ""), "warning repeat pipelines.p.key.id: property:message-id, the MessageDeduplicationId"},
		{source("in", "property:message-id", ""), "broken loss pipelines.p.key.id: property:message-id"},
		{"stores: { k: { embedded: { path: k } } }\npipelines: { p: " + fmt.Sprintf(one, "a") + ", q: " + fmt.Sprintf(one, "b") + " }", "warning loss pipelines.q.source.sqs.queue: in, which pipeline p reads too"},
	})
	for text, want := range map[string]string{
		source("in", "header:Message-Id", ""):     "notice  pipelines.p.key.id: header:Message-Id",
		source("in", ".id", ", order: partition"): "notice  pipelines.p.order: partition",
	} {
		if found := strings.Join(kindtest.Findings(kindtest.Parse(t, text)), "\n"); !strings.Contains(found, want) {
			t.Errorf("%s\n%s\nwant %s", text, found, want)
		}
	}
}

// TestMessagesPassThroughAQueue has a pipeline whose sink sends to a standard queue and a
// FIFO queue of a real server, and whose source reads them.
func TestMessagesPassThroughAQueue(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "x")
	url := servers.SQS(t)
	client := awssqs.NewFromConfig(aws.Config{Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("x", "x", "")}, func(o *awssqs.Options) { o.BaseEndpoint = &url })
	for _, end := range []string{"", ".fifo"} {
		name := servicestest.Topic() + end
		attributes := map[string]string{}
		if end != "" {
			attributes["FifoQueue"] = "true"
		}
		made, err := client.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
		if err != nil {
			t.Fatal(err)
		}
		in := kindtest.Parse(t, kindtest.WithSource("{ sqs: { queue: '"+*made.QueueUrl+"' } }"))
		out := kindtest.Parse(t, kindtest.WithSink("{ sqs: { queue: '"+*made.QueueUrl+"' } }"))
		routed := kindtest.Parse(t, kindtest.WithSink("{ sqs: { account: '"+strings.TrimSuffix(*made.QueueUrl, "/"+name)+"', queue: { from: 'header:to', allow: ['"+name+"', other] } } }"))
		kindtest.Deliver(t, out, `{"id":1}`, `{"id":2}`)
		for _, of := range []struct {
			f *config.File
			k config.Kind
		}{{in, in.Pipelines[0].Source}, {out, out.Pipelines[0].Sink}} {
			if lines, err := kindtest.Examine(t, of.f, of.k); err != nil || !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "fine ") }) {
				t.Errorf("%T: %q, %v", of.k, lines, err)
			}
		}
		if lines, err := kindtest.Examine(t, routed, routed.Pipelines[0].Sink); !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, "other") }) && !strings.Contains(fmt.Sprint(err), "other") {
			t.Errorf("a queue that is missing: %q, %v", lines, err)
		}
		if got, want := kindtest.Receive(t, in, 2), []string{`{"id":1}`, `{"id":2}`}; !slices.Equal(got, want) {
			t.Errorf("%s: received %q, want %q", name, got, want)
		}
	}
}
