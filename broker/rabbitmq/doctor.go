package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

// ExamineOptions name what a pipeline uses of a server.
type ExamineOptions struct {
	Client Client
	// Management is the URL of the server's HTTP API. Without it, types, limits and
	// alarms are not checked.
	Management string
	// Queue is read. Empty means that the pipeline does not read.
	Queue string
	// Exchange and RoutingKey are published to. Empty means that the pipeline does
	// not publish.
	Exchange, RoutingKey string
	// Route is set instead of RoutingKey if messages name their routing keys. Without an
	// Exchange, these are names of queues.
	Route *pipeline.Route
	// Create says that OpenSource or OpenSink makes what does not exist yet.
	Create bool
	// Window is how long keys are remembered.
	Window time.Duration
}

type examination struct {
	opts     ExamineOptions
	link     *link
	version  string // of the server
	findings []doctor.Finding
}

// Examine reports which settings of the server, its queues and exchanges support
// the promise of a pipeline, and which do not. It changes nothing, and blocks until
// the server has answered.
func Examine(ctx context.Context, opts *ExamineOptions) ([]doctor.Finding, error) {
	e := &examination{opts: *opts}
	if err := e.opts.Client.check(); err != nil {
		return nil, err
	}
	l, err := e.opts.Client.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	defer func() { _ = l.close(ctx) }() // it only read
	e.link = l
	e.version = fmt.Sprint(l.conn.Properties["version"])
	e.note(doctor.Fine, "server", fmt.Sprint(l.conn.Properties["product"], " ", e.version), "", "")
	queues := []string{e.opts.Queue}
	if e.opts.Exchange != "" {
		err = e.exchange(ctx)
	} else {
		queues = append(queues, e.opts.RoutingKey)
		if e.opts.Route != nil {
			queues = append(queues, e.opts.Route.Names()...)
		}
	}
	if err == nil {
		err = e.rights(ctx)
	}
	if e.opts.Route != nil && (e.opts.Exchange != "" || len(e.opts.Route.Prefixes()) > 0) {
		e.note(doctor.Notice, "routing keys "+e.opts.Route.String(), "messages name them, so their queues are not checked", "a message that no queue takes fails, and is parked", "look at semel parked ls")
	}
	slices.Sort(queues)
	for _, name := range slices.Compact(queues) {
		if err == nil && name != "" {
			err = e.queue(ctx, name)
		}
	}
	if err == nil && e.opts.Management == "" {
		e.note(doctor.Notice, "management", "not set", "queue types, policies, limits and alarms are not checked", "set management to the HTTP API, such as http://"+host(e.opts.Client.Addrs[0])+":15672")
	} else if err == nil {
		err = e.alarms(ctx)
	}
	if err != nil {
		return e.findings, fmt.Errorf("rabbitmq: %w", err)
	}
	return e.findings, nil
}

// host returns the host of an address.
func host(addr string) string {
	if i := strings.LastIndexByte(addr, ':'); i >= 0 {
		return addr[:i]
	}
	return addr
}

func (e *examination) note(severity doctor.Severity, subject, found, cost, remedy string) {
	e.findings = append(e.findings, doctor.Finding{Severity: severity, Subject: subject, Found: found, Cost: cost, Remedy: remedy})
}

// absent notes what does not exist.
func (e *examination) absent(subject, cost, remedy string) {
	if e.opts.Create {
		e.note(doctor.Notice, subject, "it does not exist yet", "", "nothing: semel run makes it")
		return
	}
	e.note(doctor.Broken, subject, "it does not exist", cost, remedy)
}

// ask reads a document of the HTTP API.
func (e *examination) ask(ctx context.Context, document any, path ...string) error {
	return e.opts.Client.ask(ctx, e.opts.Management, document, path...)
}

func (e *examination) queue(ctx context.Context, name string) error {
	subject := "queue " + name
	err := e.link.needQueue(name, false)
	if absent := new(MissingError); errors.As(err, &absent) {
		e.absent(subject, "nothing is read or written", "create it with rabbitmqadmin declare queue name="+name+` durable=true arguments='{"x-queue-type":"quorum"}', or set create: true`)
		return nil
	}
	if err != nil {
		return err
	}
	if e.opts.Management == "" {
		if name != e.opts.Queue {
			return nil
		}
		limit, set, err := e.link.limitArgument(name)
		if err == nil && set {
			e.deliveries(subject, limit, true)
		}
		return err
	}
	var q queueInfo
	if err := e.ask(ctx, &q, "queues", e.opts.Client.host(), name); err != nil {
		return err
	}
	switch {
	case q.Type == amqp.QueueTypeQuorum:
		e.note(doctor.Fine, subject+" type", q.Type, "", "")
	case q.Type == "stream" && name == e.opts.Queue:
		e.note(doctor.Broken, subject+" type", q.Type, "messages are lost while no consumer reads; the pipeline ends at the first message", "read a quorum queue that is bound to the same exchange")
	case q.Type == "stream":
		e.note(doctor.Notice, subject+" type", q.Type, "a message that the sink repeats is stored again; its message-id is the same", "nothing, if the readers know messages by their message-id")
	case !q.Durable:
		e.note(doctor.Broken, subject+" type", q.Type+", not durable", "all messages are lost when the server ends", "use a quorum queue")
	default:
		e.note(doctor.Warning, subject+" type", q.Type, "messages are lost with the disk of one server, and deliveries are not counted", "use a quorum queue")
	}
	if name == e.opts.Queue {
		e.read(subject, &q)
	}
	if overflow, _ := q.setting("overflow"); (overflow == nil || overflow == "drop-head") && e.limited(&q) {
		e.note(doctor.Broken, subject+" overflow", "drop-head", "when the queue reaches its limit, the server deletes the oldest messages, which the pipeline has not read", "set overflow: reject-publish in its policy")
	}
	return nil
}

func (*examination) limited(q *queueInfo) bool {
	_, count := q.setting("max-length")
	_, size := q.setting("max-length-bytes")
	return count || size
}

// read examines a queue that is read.
func (e *examination) read(subject string, q *queueInfo) {
	_, deadLetters := q.setting("dead-letter-exchange")
	fate := "the server deletes the message"
	if deadLetters {
		fate = "the server moves the message to its dead-letter exchange"
	}
	if q.Type == amqp.QueueTypeQuorum {
		limit, set := q.deliveryLimit(majorOf(e.version))
		e.deliveries(subject, limit, set)
	}
	if strategy, _ := q.setting("dead-letter-strategy"); deadLetters && strategy != "at-least-once" {
		e.note(doctor.Warning, subject+" dead-letter-strategy", "at-most-once", "a message that the server moves to the dead-letter exchange can be lost on the way", "set dead-letter-strategy: at-least-once and overflow: reject-publish in its policy")
	}
	if ttl, ok := q.setting("message-ttl"); ok {
		e.note(doctor.Warning, subject+" message-ttl", fmt.Sprint(ttl, " ms"), fate+" when it has waited that long, although the pipeline has not read it", "remove the limit, or make it longer than any outage")
	}
	if timeout, ok := q.setting("consumer-timeout"); ok {
		if ms, _ := timeout.(float64); ms < 60_000 {
			e.note(doctor.Warning, subject+" consumer-timeout", fmt.Sprint(timeout, " ms"), "the server delivers messages again while they are processed", "use 30 minutes")
		}
	}
}

// deliveries examines the delivery limit of a quorum queue.
func (e *examination) deliveries(subject string, limit int64, set bool) {
	subject += " delivery-limit"
	enough := fmt.Sprintf("set it to %d or more: the pipeline counts attempts by itself and parks a message", enoughDeliveries)
	switch {
	case !set:
		e.note(doctor.Fine, subject, "not set; RabbitMQ 4 and later use 20 then", "", "")
	case limit >= enoughDeliveries || endless(limit, majorOf(e.version)):
		e.note(doctor.Fine, subject, fmt.Sprint(limit), "", "")
	case limit < 1:
		e.note(doctor.Broken, subject, fmt.Sprint(limit), "the server deletes a message whose first delivery is not acknowledged, so semel run refuses the queue", enough)
	default:
		e.note(doctor.Warning, subject, fmt.Sprint(limit), fmt.Sprintf("a message is parked at delivery %d, because the server deletes it, or moves it to its dead-letter exchange, after delivery %d: restarts while the target is down count", max(limit, 2), limit+1), enough)
	}
}

// rights notes what the user may not do. It asks for what no server does: it looks up the
// rights before it refuses the rest, so nothing is read and nothing written.
func (e *examination) rights(ctx context.Context) error {
	if e.opts.Queue != "" {
		err := e.link.on(func(ch *amqp.Channel) error {
			_, err := ch.Consume(e.opts.Queue, "", false, false, false, false, amqp.Table{"x-priority": "none"})
			return err
		})
		if err := e.right(err, "queue "+e.opts.Queue, "read", "nothing is read"); err != nil {
			return err
		}
	}
	if e.opts.Exchange == "" && e.opts.RoutingKey == "" && e.opts.Route == nil {
		return nil
	}
	err := e.link.on(func(ch *amqp.Channel) error {
		lost := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirm, err := ch.PublishWithDeferredConfirm(e.opts.Exchange, e.opts.RoutingKey, true, false, amqp.Publishing{Expiration: "none"})
		if err == nil {
			_, err = confirm.WaitContext(ctx)
		}
		select {
		case answer := <-lost:
			if answer != nil {
				err = answer
			}
		default:
		}
		return err
	})
	subject := "exchange " + e.opts.Exchange
	if e.opts.Exchange == "" {
		subject = "default exchange"
	}
	return e.right(err, subject, "write", "nothing is written")
}

// right notes the answer to a request that the server must refuse.
func (e *examination) right(err error, subject, what, cost string) error {
	switch {
	case isCode(err, amqp.AccessRefused):
		user := cmp.Or(e.opts.Client.User, "guest")
		e.note(doctor.Broken, subject+" permission", "the user "+user+" may not "+what, cost, "grant the user this right with rabbitmqctl set_permissions")
	case err != nil && !isCode(err, amqp.PreconditionFailed) && !isCode(err, amqp.NotFound):
		return err
	}
	return nil
}

func (e *examination) exchange(ctx context.Context) error {
	name := e.opts.Exchange
	err := e.link.needExchange(name, false)
	if absent := new(MissingError); errors.As(err, &absent) {
		e.absent("exchange "+name, "nothing is written", "create it with rabbitmqadmin declare exchange name="+name+" type=topic durable=true, or set create: true")
		return nil
	}
	if err != nil || e.opts.Management == "" {
		return err
	}
	var bindings []struct {
		Destination string `json:"destination"`
	}
	if err := e.ask(ctx, &bindings, "exchanges", e.opts.Client.host(), name, "bindings", "source"); err != nil {
		return err
	}
	if len(bindings) == 0 {
		e.note(doctor.Warning, "exchange "+name+" bindings", "none", "no queue takes the messages, so the pipeline waits", "bind a queue to it")
	} else {
		e.note(doctor.Fine, "exchange "+name+" bindings", fmt.Sprint(len(bindings)), "", "")
	}
	return nil
}

// alarms examines the nodes.
func (e *examination) alarms(ctx context.Context) error {
	var nodes []struct {
		Name   string `json:"name"`
		Memory bool   `json:"mem_alarm"`
		Disk   bool   `json:"disk_free_alarm"`
	}
	if err := e.ask(ctx, &nodes, "nodes"); err != nil {
		return err
	}
	for _, n := range nodes {
		subject := "node " + n.Name
		if n.Memory || n.Disk {
			found := "memory alarm"
			if n.Disk {
				found = "disk alarm"
			}
			e.note(doctor.Warning, subject, found, "the server accepts no messages", "free memory or disk on that node")
		} else {
			e.note(doctor.Fine, subject, "no alarm", "", "")
		}
	}
	if len(nodes) < 3 {
		e.note(doctor.Warning, "nodes", fmt.Sprint(len(nodes)), "messages are lost with the disk of that server, and are not available while it is down", "use a cluster of 3 nodes")
	}
	return nil
}
