// Package httpsrc is a source that takes messages as HTTP requests: POST in, and
// the answer when the message is settled.
//
// The sender may repeat a request until it gets an answer of 2xx: the key keeps
// the repetition from having a second effect. Nothing is kept for a sender that
// got no such answer.
//
//	200  done, now or before: see Semel-Decision. The body is the key's result.
//	202  put aside, with its reason: somebody will look at it
//	409  being processed elsewhere: ask again after Retry-After
//	413  the body is too large
//	422  given up by the pipeline's policy
//	503  not now: ask again after Retry-After
package httpsrc
