// Package httpsrc is a source that receives messages as HTTP POST requests and
// answers each request when its message is settled.
//
// The sender may repeat a request until it gets a 2xx answer. The key protects
// against a second effect of a repeated request. Without such an answer the
// message may be lost unless the sender repeats it.
//
// Headers become message headers under their canonical names, except traceparent
// and tracestate, which keep their names in lower case.
//
//	200  done, now or before: see Semel-Decision; the body is the key's result
//	202  parked with its reason; an operator must settle it
//	408  the body came too slowly: repeat
//	409  another delivery holds the key: repeat after Retry-After
//	413  the body is too large
//	422  dropped, or failed permanently
//	503  not settled, or too much is in memory: repeat after Retry-After
package httpsrc
