// Package nats has a source and a sink for NATS JetStream.
//
// The source is a durable pull consumer. It acknowledges a message when its
// outcome is durable, and keeps the claim of the server alive until then, however
// long the effect takes.
//
// The sink publishes with a Nats-Msg-Id made from the key, and waits for the
// server's answer. Within its duplicate window, two minutes by default, the server
// therefore stores a repeated message once. Semel's own store covers what is
// older.
package nats
