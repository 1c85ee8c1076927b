package rabbitmq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/inbox"
	"github.com/semel-dev/semel/internal/retry"
)

const (
	// defaultLimit is the delivery limit of quorum queues from RabbitMQ 4 on. Restarts do not
	// reach enoughDeliveries. unreachedLimit is the limit of queues that this package makes.
	defaultLimit     = 20
	enoughDeliveries = 1000
	unreachedLimit   = 1_000_000_000

	limitArg = "x-delivery-limit"
)

// major returns the first number of the server's version, or 0.
func (l *link) major() int { return majorOf(fmt.Sprint(l.conn.Properties["version"])) }

func majorOf(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(first)
	return n
}

// endless reports whether a delivery limit stands for no limit.
func endless(limit int64, major int) bool { return limit < 0 && major >= 4 }

// deliveryLimit returns how often the server delivers a message of a queue. It asks the
// HTTP API, which knows arguments and policies. Without the address of the API it looks at
// the arguments only. A limit that it cannot see counts as none.
func (l *link) deliveryLimit(ctx context.Context, queue string, client *Client, management string) (inbox.Limit, error) {
	if management != "" {
		var q queueInfo
		if err := client.ask(ctx, management, &q, "queues", client.host(), queue); err != nil {
			return inbox.Limit{}, &apiError{queue, err}
		}
		return q.limit(queue, l.major())
	}
	n, set, err := l.limitArgument(queue)
	if err != nil {
		return inbox.Limit{}, err
	}
	return limitOf(queue, n, set, l.major())
}

// Pauses between two questions for the limit of a policy, which may change at any time.
// The API learns of a policy with the statistics of the queue, some seconds later.
const (
	firstLook = 5 * time.Second
	nextLook  = time.Minute
)

// followLimit asks the HTTP API for the delivery limit until ctx ends. While the API does
// not answer, the last limit counts.
func (s *Source) followLimit(ctx context.Context) {
	for pause := firstLook; ; {
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		var q queueInfo
		if s.opts.Client.ask(ctx, s.opts.Management, &q, "queues", s.opts.Client.host(), s.opts.Queue) != nil {
			continue
		}
		if q.Policy != nil {
			pause = nextLook
		}
		s.mu.Lock()
		if limit, err := q.limit(s.opts.Queue, s.major); err == nil {
			s.limit = limit
		}
		s.mu.Unlock()
	}
}

// limitOf returns the limit for a setting of a queue. The server deletes a message at the
// first return above the setting.
func limitOf(queue string, setting int64, set bool, major int) (inbox.Limit, error) {
	switch {
	case !set || endless(setting, major):
		return inbox.Limit{}, nil
	case setting < 1:
		return inbox.Limit{}, fmt.Errorf("queue %s has the delivery-limit %d: RabbitMQ deletes a message whose first delivery is not acknowledged, so that the end of this process would lose it: set delivery-limit to %d or more: %w", queue, setting, enoughDeliveries, semel.ErrInvalidRequest)
	}
	return inbox.Limit{
		Deliveries: int(min(setting, 1<<30)) + 1,
		Then:       "RabbitMQ deletes the message, or moves it to its dead-letter exchange",
		Setting:    fmt.Sprintf("delivery-limit %d of queue %s", setting, queue),
	}, nil
}

// inequivalent is the server's answer to a declaration of a queue that has another value
// of an argument. Any value except none is quoted.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' .* current is (?:the value )?(none|'[^']*')(?: of type '([^']+)')?`)

// limitArgument returns the delivery limit among the arguments of a queue. AMQP has no
// request for arguments. But the server refuses a declaration with other arguments, and
// names the first one that differs. So limitArgument repeats the declaration with each
// value that it learns, until the limit is named. The declaration can never succeed, and
// makes no queue: one of its arguments is invalid for quorum queues. If the user may not
// configure the queue, or it has no limit, the limit is the default of the server.
func (l *link) limitArgument(queue string) (limit int64, set bool, err error) {
	unset := l.major() >= 4
	args := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum, limitArg: "?", "x-max-age": "?", "x-max-priority": int32(1)}
	for range 30 { // more than there are arguments
		err := l.on(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, true, false, false, false, args)
			return err
		})
		answer, ok := errors.AsType[*amqp.Error](err)
		if !ok || answer.Code != amqp.PreconditionFailed && answer.Code != amqp.AccessRefused {
			return 0, false, err
		}
		found := inequivalent.FindStringSubmatch(answer.Reason)
		if found == nil || found[1] == amqp.QueueTypeArg || !strings.HasPrefix(found[1], "x-") {
			return defaultLimit, unset, nil // the user may not ask, or it is no quorum queue, which counts nothing
		}
		name, value, kind := found[1], strings.Trim(found[2], "'"), found[3]
		_, again := args[name]
		switch n, err := strconv.ParseInt(value, 10, 64); {
		case name == limitArg && err == nil:
			return n, true, nil
		case name == limitArg, again:
			return defaultLimit, unset, nil
		case kind == "bool":
			args[name] = value == "true"
		case kind != "longstr" && err == nil:
			args[name] = n
		default:
			args[name] = value
		}
	}
	return defaultLimit, unset, nil
}

// queueInfo is what the HTTP API says about a queue.
type queueInfo struct {
	Type      string         `json:"type"`
	Durable   bool           `json:"durable"`
	Arguments map[string]any `json:"arguments"`
	Policy    map[string]any `json:"effective_policy_definition"` // nil if it is not known yet
}

// setting returns an argument of a queue, or a value of its policy. The smaller one
// of two numbers counts.
func (q *queueInfo) setting(name string) (any, bool) {
	argument, given := q.Arguments["x-"+name]
	ruled, also := q.Policy[name]
	a, isNumber := argument.(float64)
	if b, ok := ruled.(float64); also && (!given || isNumber && ok && b < a) {
		return ruled, true
	}
	return argument, given
}

// limit returns the limit of the deliveries of a message.
func (q *queueInfo) limit(queue string, major int) (inbox.Limit, error) {
	n, set := q.deliveryLimit(major)
	return limitOf(queue, n, set, major)
}

// deliveryLimit returns the delivery limit of a queue on a server of a major version. From
// version 4 on there is a default, and a negative number means no limit: it counts only if
// argument and policy both have one.
func (q *queueInfo) deliveryLimit(major int) (limit int64, set bool) {
	if q.Type != amqp.QueueTypeQuorum {
		return 0, false
	}
	argument, given := q.Arguments[limitArg].(float64)
	ruled, also := q.Policy["delivery-limit"].(float64)
	switch {
	case given && also && major >= 4 && (argument < 0 || ruled < 0):
		return int64(max(argument, ruled)), true
	case given && also:
		return int64(min(argument, ruled)), true
	case given:
		return int64(argument), true
	case also:
		return int64(ruled), true
	}
	return defaultLimit, major >= 4
}

// apiError says that the HTTP API did not tell the delivery limit of a queue. It wraps
// semel.ErrStoreUnavailable, because the API may answer at any time.
type apiError struct {
	queue string
	err   error
}

// Error implements error.
func (e *apiError) Error() string {
	return fmt.Sprintf("ask the HTTP API (management) for the delivery limit of queue %s: %v", e.queue, e.err)
}

// Unwrap returns the cause.
func (e *apiError) Unwrap() error { return e.err }

// Is reports whether target is semel.ErrStoreUnavailable.
func (*apiError) Is(target error) bool { return target == semel.ErrStoreUnavailable }

// errAbsent says that the HTTP API does not know something.
var errAbsent = errors.New("not found")

// ask reads a document of the HTTP API.
func (c *Client) ask(ctx context.Context, management string, document any, path ...string) error {
	for i := range path {
		path[i] = url.PathEscape(path[i])
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(management, "/")+"/api/"+strings.Join(path, "/"), nil)
	if err != nil {
		return err
	}
	request.SetBasicAuth(cmp.Or(c.User, "guest"), cmp.Or(c.Password, "guest"))
	client := http.Client{Timeout: connectLimit, Transport: &http.Transport{TLSClientConfig: c.TLS, DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	switch answer.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(answer.Body).Decode(document)
	case http.StatusNotFound:
		return errAbsent
	}
	return fmt.Errorf("%s answers %s: the user needs the tag monitoring", request.URL, answer.Status)
}
