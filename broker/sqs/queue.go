package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
)

const (
	// requestTimeout bounds a request, in addition to the time that SQS waits for
	// messages.
	requestTimeout = 10 * time.Second
	// batch is how many messages one request of SQS can have.
	batch = 10
	// concurrent is how many requests one call makes at the same time.
	concurrent = 8
)

// Address is a queue by its URL.
type Address struct {
	// URL is the queue's URL. Endpoint is its scheme and host.
	URL, Endpoint string
	// Region is the region in the host name, or empty if it has none.
	Region string
	// Name is the queue's name. FIFO says that it is a FIFO queue.
	Name string
	FIFO bool
}

// ParseAddress reads the URL of a queue, as the console and `aws sqs get-queue-url`
// show it.
func ParseAddress(text string) (Address, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
		return Address{}, fmt.Errorf("it is not the URL of a queue, such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders: %w", semel.ErrInvalidRequest)
	}
	path := strings.Split(strings.Trim(u.Path, "/"), "/")
	name := path[len(path)-1]
	if name == "" || len(path) < 2 {
		return Address{}, fmt.Errorf("the URL of a queue ends in its account and its name, as in https://sqs.eu-west-1.amazonaws.com/123456789012/orders: %w", semel.ErrInvalidRequest)
	}
	return Address{URL: text, Endpoint: u.Scheme + "://" + u.Host, Region: regionOf(u.Hostname()), Name: name, FIFO: strings.HasSuffix(name, ".fifo")}, nil
}

// regionOf returns the region in a host name of Amazon: that of a public endpoint, an
// older one, or one of a private network.
func regionOf(host string) string {
	labels := strings.Split(host, ".")
	for i, label := range labels {
		switch {
		case !strings.Contains(host, ".amazonaws.com") && !strings.Contains(host, ".api.aws"):
			return ""
		case (label == "sqs" || label == "sqs-fips") && i+1 < len(labels) && labels[i+1] != "amazonaws":
			return labels[i+1]
		case label == "queue" && i > 0:
			return labels[i-1]
		}
	}
	return ""
}

// queue makes the requests about one queue.
type queue struct {
	Address
	api *awssqs.Client
}

func newQueue(client *awssqs.Client, address, options string) (*queue, error) {
	wrong := invalid.In("sqs: " + options + ".")
	if client == nil {
		wrong.Add("Client is required")
	}
	at, err := ParseAddress(address)
	if err != nil {
		wrong.Add("Queue: %v", err)
	}
	return &queue{at, client}, wrong.Err()
}

// use has a request go to the queue's endpoint, once. Source and sink repeat a
// request themselves, because they know what a lost answer means.
func (q *queue) use(o *awssqs.Options) {
	o.BaseEndpoint = &q.Endpoint
	o.Retryer = aws.NopRetryer{}
	if q.Region != "" {
		o.Region = q.Region
	}
}

// attributes returns the attributes of the queue. They are empty if this process may
// not read them.
func (q *queue) attributes(ctx context.Context) (map[string]string, error) {
	list, err := q.mustAttributes(ctx)
	if Denied(err) {
		return nil, nil
	}
	return list, err
}

func (q *queue) mustAttributes(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	out, err := q.api.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{
		QueueUrl: &q.URL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	}, q.use)
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}

// redrivePolicy says when SQS moves a message to a dead-letter queue.
type redrivePolicy struct {
	Target string // the ARN of the dead-letter queue
	Most   int    // deliveries
}

func parsePolicy(text string) (policy redrivePolicy) {
	var from struct {
		Target string `json:"deadLetterTargetArn"`
		Most   any    `json:"maxReceiveCount"` // a number or a string
	}
	if json.Unmarshal([]byte(text), &from) == nil {
		policy.Target = from.Target
		policy.Most, _ = strconv.Atoi(fmt.Sprint(from.Most)) // 0 is unknown
	}
	return policy
}

// Denied reports whether SQS refuses a request because the credentials do not permit
// it.
func Denied(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && strings.HasPrefix(code(api.ErrorCode()), "AccessDenied")
}

// OfKMS reports whether SQS refuses a request because of the key that encrypts the queue.
func OfKMS(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && strings.HasPrefix(code(api.ErrorCode()), "Kms")
}

// code returns the last part of an error code. Some servers write a prefix before it.
func code(text string) string {
	return text[strings.LastIndexAny(text, ".#")+1:]
}

// unsent reports whether a request cannot have reached SQS.
func unsent(err error) bool {
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
		return true
	}
	_, ok := errors.AsType[*net.DNSError](err)
	return ok || Unsigned(err)
}

// Unsigned reports whether there were no credentials to sign a request with.
func Unsigned(err error) bool {
	return err != nil && strings.Contains(err.Error(), "get identity: ")
}

// inBatches calls a function for parts of a list, some of them at the same time, and
// waits for all.
func inBatches[T any](parts [][]T, call func(part []T)) {
	var running sync.WaitGroup
	free := make(chan struct{}, concurrent)
	for _, part := range parts {
		if len(parts) == 1 {
			call(part)
			return
		}
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			call(part)
		})
	}
	running.Wait()
}
