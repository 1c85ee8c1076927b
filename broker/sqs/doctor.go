package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel/doctor"
)

// ExamineOptions name what a pipeline uses of a queue.
type ExamineOptions struct {
	// Client and Queue are as in SourceOptions.
	Client *awssqs.Client
	Queue  string
	// Reads and Writes say what the pipeline does with the queue.
	Reads, Writes bool
	// Window is how long keys are remembered. Lease is how long a claim lasts.
	Window, Lease time.Duration
}

type examination struct {
	*queue
	opts     *ExamineOptions
	findings []doctor.Finding
}

// Examine reports which attributes of a queue and its dead-letter queue support the
// promise of a pipeline, and which do not. It changes nothing, and blocks until SQS
// has answered.
func Examine(ctx context.Context, opts *ExamineOptions) ([]doctor.Finding, error) {
	q, err := newQueue(opts.Client, opts.Queue, "ExamineOptions")
	if err != nil {
		return nil, err
	}
	e := &examination{queue: q, opts: opts}
	attributes, err := q.mustAttributes(ctx)
	if err != nil {
		if !e.explained(err, "nothing is read or written") {
			return nil, fmt.Errorf("sqs: %w", err)
		}
		return e.findings, nil
	}
	if q.FIFO {
		e.note(doctor.Fine, "queue "+q.Name, "FIFO: SQS recognises a repeated message for five minutes, the store for "+e.opts.Window.String(), "", "")
	} else {
		e.note(doctor.Fine, "queue "+q.Name, "standard: SQS recognises no repeated message, the store does for "+e.opts.Window.String(), "", "")
	}
	if opts.Reads {
		e.read(ctx, attributes)
	}
	if opts.Writes {
		e.written(attributes)
	}
	return e.findings, nil
}

func (e *examination) note(severity doctor.Severity, subject, found, cost, remedy string) {
	e.findings = append(e.findings, doctor.Finding{Severity: severity, Subject: subject, Found: found, Cost: cost, Remedy: remedy})
}

// explained notes why the attributes of a queue are not there. It reports false if the
// error has another reason.
func (e *examination) explained(err error, cost string) bool {
	_, missing := errors.AsType[*types.QueueDoesNotExist](err)
	switch {
	case missing:
		e.note(doctor.Broken, "queue "+e.Name, "it does not exist", cost, e.create())
	case Denied(err):
		e.note(doctor.Notice, "queue "+e.Name, "this process may not read its attributes", "semel doctor cannot check it", "permit sqs:GetQueueAttributes")
	}
	return missing || Denied(err)
}

// create returns the command that creates the queue.
func (q *queue) create() string {
	command := "create it with aws sqs create-queue --queue-name " + q.Name
	if q.FIFO {
		command += " --attributes FifoQueue=true"
	}
	return command
}

func number(attributes map[string]string, name types.QueueAttributeName) int {
	n, _ := strconv.Atoi(attributes[string(name)]) // 0 is unknown
	return n
}

func retention(attributes map[string]string) time.Duration {
	return time.Duration(number(attributes, types.QueueAttributeNameMessageRetentionPeriod)) * time.Second
}

// inFlightLimits are how many messages of a queue may be processed at a time.
const (
	standardInFlight = 120_000
	fifoInFlight     = 20_000
)

// read examines a queue that is read.
func (e *examination) read(ctx context.Context, attributes map[string]string) {
	subject := "queue " + e.Name + " "
	kept := retention(attributes)
	if kept == 0 { // as ElasticMQ
		e.note(doctor.Fine, subject+"retention", "the server does not tell it", "", "")
	} else if kept > e.opts.Window {
		e.note(doctor.Notice, subject+"retention", kept.String(), "a message that is delivered again after the window of "+e.opts.Window.String()+" has its effect again", "choose a window that is longer than the retention")
	} else {
		e.note(doctor.Fine, subject+"retention", kept.String()+", within the window of "+e.opts.Window.String(), "", "")
	}
	e.note(doctor.Fine, subject+"visibility", "the pipeline sets 30s for each message and extends it while it has the message; the queue's own "+attributes[string(types.QueueAttributeNameVisibilityTimeout)]+"s are not used", "", "")
	most := standardInFlight
	if e.FIFO {
		most = fifoInFlight
	}
	if n := number(attributes, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible); n >= most*9/10 {
		e.note(doctor.Warning, subject+"in flight", fmt.Sprintf("%d of %d messages", n, most), "SQS delivers nothing more until some are settled", "look for the process that has them")
	}
	policy := parsePolicy(attributes[string(types.QueueAttributeNameRedrivePolicy)])
	if policy.Target == "" {
		e.note(doctor.Fine, subject+"maxReceiveCount", "no limit: the pipeline counts attempts by itself and parks a message", "", "")
		return
	}
	// After a crash SQS delivers the message every 30 s until the lease of its key ends.
	least := max(10, 3*int(e.opts.Lease/defaultVisibility+1))
	switch {
	case policy.Most == 1:
		e.note(doctor.Broken, subject+"maxReceiveCount", "1", "the end of a process moves all messages that it has to the dead-letter queue, so semel run refuses the queue", fmt.Sprintf("set it to %d or more", least))
	case policy.Most < least:
		e.note(doctor.Warning, subject+"maxReceiveCount", strconv.Itoa(policy.Most), fmt.Sprintf("a message goes to the dead-letter queue after %d deliveries, even if nothing is wrong with it and the processes that had it were killed", policy.Most),
			fmt.Sprintf("set it to %d or more: the pipeline counts attempts by itself and parks a message, and after a crash SQS delivers a message every %s until its lease of %s ends", least, defaultVisibility, e.opts.Lease))
	default:
		e.note(doctor.Fine, subject+"maxReceiveCount", strconv.Itoa(policy.Most), "", "")
	}
	e.deadLetters(ctx, policy.Target, kept)
}

// deadLetters examines the dead-letter queue of a queue that keeps messages for kept.
func (e *examination) deadLetters(ctx context.Context, arn string, kept time.Duration) {
	name := arn[strings.LastIndex(arn, ":")+1:]
	source := e.queue
	defer func() { e.queue = source }()
	e.queue = &queue{Address: source.Address, api: source.api}
	e.URL, e.Name = strings.TrimSuffix(source.URL, source.Name)+name, name
	attributes, err := e.mustAttributes(ctx)
	if err != nil {
		if !e.explained(err, "SQS keeps delivering a message that has reached maxReceiveCount") {
			e.note(doctor.Notice, "queue "+name, err.Error(), "semel doctor cannot check it", "")
		}
		return
	}
	subject := "dead-letter queue " + name + " retention"
	later := retention(attributes)
	switch {
	case later == 0:
		e.note(doctor.Fine, subject, "the server does not tell it", "", "")
	case !e.FIFO && later <= kept:
		e.note(doctor.Warning, subject, later.String(), "a standard queue counts it from when the message was first sent: a message that waited in "+source.Name+" for up to "+kept.String()+" may be deleted as soon as it arrives", "make it longer than the retention of "+source.Name+": 14 days at most")
	case later+kept > e.opts.Window:
		e.note(doctor.Notice, subject, later.String(), "a message that is redriven after the window of "+e.opts.Window.String()+" has its effect again if it had it before", "choose a window of "+cmp.Or(later+kept, later).String())
	default:
		e.note(doctor.Fine, subject, later.String()+", with that of "+source.Name+" within the window of "+e.opts.Window.String(), "", "")
	}
}

// written examines a queue that is written.
func (e *examination) written(attributes map[string]string) {
	subject := "queue " + e.Name + " "
	if attributes[string(types.QueueAttributeNameContentBasedDeduplication)] == "true" {
		e.note(doctor.Notice, subject+"ContentBasedDeduplication", "true", "two messages that other producers send with equal bodies within five minutes are one, even if their attributes differ", "nothing for this pipeline, which sends a MessageDeduplicationId made from the key; turn it off if others rely on attributes")
	}
	if most := number(attributes, types.QueueAttributeNameMaximumMessageSize); most > 0 {
		e.note(doctor.Fine, subject+"MaximumMessageSize", strconv.Itoa(most)+" bytes; a larger message is parked", "", "")
	}
}
