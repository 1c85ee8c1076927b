// Package sqs is the kind of source that reads a queue of Amazon SQS, and the kind of
// sink that sends to one.
package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
)

// Queue names a queue and the credentials for it.
type Queue struct {
	URL, Profile string
}

// profile is the field that source and sink share.
func (q *Queue) profile() schema.Field {
	return schema.TextField("profile", &q.Profile, "Profile of the AWS configuration files whose credentials are used.").Means("the usual order: environment, `AWS_PROFILE`, role of the machine or container")
}

// checkURL reports a URL that cannot be one of a queue.
func checkURL(v schema.Value, field, url string) {
	if url == "" || strings.Contains(url, "${") { // a reference that is not resolved yet
		return
	}
	at, err := sqs.ParseAddress(url)
	if err != nil {
		v.Wrong("%s: %s", field, strings.TrimSuffix(err.Error(), ": "+semel.ErrInvalidRequest.Error()))
		return
	}
	checkName(v, field, at.Name)
}

// checkName reports a name that no queue has, such as a pattern.
func checkName(v schema.Value, field, name string) {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	if len(name) > 80 || strings.Trim(strings.TrimSuffix(name, ".fifo"), allowed) != "" {
		v.Wrong("%s: %q is not the name of a queue: write letters, digits, '_' and '-', and .fifo at the end of a FIFO queue", field, name)
	}
}

func (q *Queue) name() string {
	at, err := sqs.ParseAddress(q.URL)
	if err != nil {
		return q.URL
	}
	return at.Name
}

// fifo reports whether it is a FIFO queue.
func (q *Queue) fifo() bool {
	at, err := sqs.ParseAddress(q.URL)
	return err == nil && at.FIFO
}

// fifoDrops describes how a FIFO queue drops what it has. A standard queue stores every
// message.
var fifoDrops = config.Drops{Server: "SQS", For: 5 * time.Minute}

// client returns a client for the region of a queue's URL, with credentials from where
// users of AWS expect them.
func (q *Queue) client(ctx context.Context, url string) (*awssqs.Client, error) {
	at, err := sqs.ParseAddress(url)
	if err != nil {
		return nil, err
	}
	var opts []func(*awsconfig.LoadOptions) error
	if q.Profile != "" {
		opts = append(opts, awsconfig.WithSharedConfigProfile(q.Profile))
	}
	found, err := awsconfig.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("sqs: AWS configuration: %w", err)
	}
	// A server that is not Amazon's takes any region.
	found.Region = cmp.Or(at.Region, found.Region, "us-east-1")
	return awssqs.NewFromConfig(found), nil
}

// examine examines a queue.
func (q *Queue) examine(ctx context.Context, x *config.Examination, url string, reads, writes bool) {
	client, err := q.client(ctx, url)
	if err == nil {
		findings, failed := sqs.Examine(ctx, &sqs.ExamineOptions{Client: client, Queue: url, Reads: reads, Writes: writes, Window: x.Pipeline.Window, Lease: x.Pipeline.Lease})
		x.Add(findings)
		err = failed
	}
	x.Fail("", err)
}

// permissions are those that a source or a sink needs.
const (
	toRead  = "sqs:ReceiveMessage, sqs:DeleteMessage, sqs:ChangeMessageVisibility and sqs:GetQueueAttributes"
	toWrite = "sqs:SendMessage and sqs:GetQueueAttributes"
)

// advise says what an error of SQS means. queue is the name of the queue, or "" if messages
// name it. path is the kind's place in the configuration.
func advise(queue, path, permissions string, err error) *diagnose.Error {
	said := &diagnose.Error{Public: true}
	_, missing := errors.AsType[*types.QueueDoesNotExist](err)
	_, over := errors.AsType[*types.OverLimit](err)
	what := "the queue " + queue
	if queue == "" {
		what = "a queue that messages name"
	}
	switch {
	case missing && queue == "":
		said.Cause, said.Remedy = what+" does not exist", "create it with aws sqs create-queue, or correct "+path+".queue.allow"
	case missing:
		said.Cause = "there is no queue " + queue
		said.Remedy = "create it with aws sqs create-queue --queue-name " + queue
		if strings.HasSuffix(queue, ".fifo") {
			said.Remedy += " --attributes FifoQueue=true"
		}
		said.Remedy += ", or correct " + path + ".queue"
	case over:
		said.Cause, said.Remedy = what+" has as many unsettled messages as SQS permits", "look for the processes that have them"
	case sqs.Denied(err):
		said.Cause, said.Remedy = "these credentials have no permission for "+what, "permit "+permissions
	case sqs.OfKMS(err):
		said.Cause, said.Remedy = "SQS may not use the KMS key of "+what, "permit kms:GenerateDataKey and kms:Decrypt for that key, and look whether it is enabled"
	case sqs.Unsigned(err):
		said.Cause, said.Remedy = "there are no AWS credentials", "set "+path+".profile or AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
	case refused(err):
		said.Cause, said.Remedy = "SQS refuses these credentials", "are they for this account, and still valid? log in again with aws sso login, or correct the access key"
	default:
		answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
		if !ok || answer.HTTPStatusCode() < 500 {
			return nil
		}
		said.Cause = fmt.Sprintf("the answer is %d (%s)", answer.HTTPStatusCode(), http.StatusText(answer.HTTPStatusCode()))
		said.Remedy = "is SQS up, or does a proxy answer in its place?"
	}
	return said
}

// refused reports whether SQS does not accept the credentials.
func refused(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return false
	}
	switch api.ErrorCode() {
	case "InvalidClientTokenId", "InvalidAccessKeyId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException",
		"IncompleteSignature", "MissingAuthenticationToken", "ExpiredToken", "ExpiredTokenException", "InvalidSecurity":
		return true
	}
	return false
}
