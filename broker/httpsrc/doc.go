// Package httpsrc is a source that receives messages as HTTP POST requests and
// answers each request when its message is settled.
//
// The sender may repeat a request until it gets a 2xx answer. The key protects
// against a second effect of a repeated request. Without such an answer the
// message may be lost unless the sender repeats it.
//
// Headers become message headers with names in lower case, which are found by a name in any
// case. Several lines of one header are one value. An Idempotency-Key has no quotes. A body
// with Content-Encoding gzip, deflate or zstd is decompressed. A form becomes a JSON object:
// its fields are strings, and a name that comes several times has an array of them.
//
// Options.Verify checks signatures over the body as it arrived. A handshake is answered and is no
// message. Package provider has what well-known senders do.
//
// With Options.Split, a request has several messages with the same headers. It is answered
// when all of them are settled, and the body has their counts. If a message is not settled, the
// status asks for the whole request again, and the settled ones are then duplicates.
//
//	200  done, now or before: see Semel-Decision; the body is the key's result
//	202  parked with its reason; an operator must settle it. While messages fail all alike,
//	     a parked message gets 503, and the source is not ready
//	400  the body cannot be read or decompressed, is no form although it says so, or has
//	     no messages where Options.Split says
//	401  no valid signature (Options.Verify), or not the token
//	403  a handshake of a stranger, or a web page of another site
//	413  the body is too large, or has too many messages or fields
//	415  the body has another Content-Encoding, or the form another charset than UTF-8
//	422  dropped, or failed permanently
//	503  not settled, another delivery holds the key, the body came too slowly, or too much
//	     is in memory: repeat after Retry-After
package httpsrc
