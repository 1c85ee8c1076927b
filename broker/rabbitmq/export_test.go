package rabbitmq

import "context"

// LimitArgument returns the delivery limit among the arguments of a queue, or 0.
func LimitArgument(ctx context.Context, client Client, queue string) (int64, error) {
	l, err := client.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.close(ctx) }()
	limit, _, err := l.limitArgument(queue)
	return limit, err
}

// PolicyKnown reports whether the HTTP API knows the policy of a queue.
func PolicyKnown(ctx context.Context, client Client, management, queue string) (bool, error) {
	var q queueInfo
	err := client.ask(ctx, management, &q, "queues", client.host(), queue)
	return len(q.Policy) > 0, err
}
