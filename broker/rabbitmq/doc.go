// Package rabbitmq has a source and a sink for RabbitMQ, and a publisher for
// programs.
//
// The source acknowledges a message when its outcome is durable. It connects again
// by itself, and survives a channel that the server closes.
//
// The sink and the [Publisher] publish persistent messages with a message-id, wait
// for the server's confirm, and report a message that no queue takes as a failure.
// RabbitMQ itself recognises no duplicates; the store does, by the message-id.
package rabbitmq
