// Package webhook is a sink that sends each message as an HTTP request.
//
// The request carries what the target needs to have an effect only once. That is the
// key in Idempotency-Key, the number of the attempt in Semel-Attempt, and the fencing
// token of the claim in Semel-Token. It also has Semel-Scope and Semel-Pipeline, and
// Semel-Redrive if the message was redriven. The status of the answer decides whether the message is delivered,
// retried or failed permanently. Retry-After sets the time of the retry. The
// body of the answer becomes the result of the key.
//
// The sink sends nothing to a private address unless the options allow it,
// whatever address the target's name resolves to. It does not follow redirects.
package webhook
