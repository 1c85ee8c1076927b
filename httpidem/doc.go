// Package httpidem gives HTTP requests the semantics of the Idempotency-Key header: a
// request that a client repeats takes effect once, and the repetition gets the first
// answer.
//
// [New] wraps a handler. [NewProxy] is a handler for a service in any language. Both take
// a [semel.Guard], so any store of Semel that keeps results will do.
//
// Package caller finds out who sends a request, and package pgidem commits requests in
// PostgreSQL transactions with their keys. [NewState] tells clients the state of their
// keys. [NewTransport] is the other side: a client that repeats requests with their key.
//
// What a client sees:
//
//   - The first request with a key runs. Its answer is kept for the guard's window.
//   - A repetition gets the kept answer, with the header Idempotent-Replayed: true.
//   - A repetition while the first request runs gets 409 and Retry-After, or waits for
//     the first answer (Options.Wait).
//   - Another request under the same key gets 422, at any time.
//   - If it is not known whether a request took effect, for instance after a crash, a
//     repetition gets 409 and does not run. That needs a guard with OnLeaseExpired:
//     semel.ExpiryHold. With semel.ExpiryRetry it runs again.
//
// These errors are problem details (RFC 9457), with a type for each cause: see [Problem].
//
// The rules follow draft-ietf-httpapi-idempotency-key-header-07 where it has one. A
// [Profile] has those of another API.
package httpidem
