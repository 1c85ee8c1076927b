package idemcheck

import "context"

// Sources of items.
const (
	draft    = "draft"    // draft-ietf-httpapi-idempotency-key-header-07, with RFC 9651
	vendor   = "vendor"   // practice of large APIs
	security = "security" // one caller must not see or disturb another
	choice   = "choice"   // a decision that the draft leaves open
	protocol = "protocol" // the Model Context Protocol, with JSON-RPC
)

// item is an item with its check, or the reason why it cannot be checked from outside.
type item struct {
	Item
	run func(*check, context.Context)
	not string
}

// Reasons why an item cannot be checked from outside.
const (
	needsProcess = "it needs control of the target's process or store"
	needsStart   = "it is about how the target is configured"
	needsLogs    = "it is about the target's logs and files"
)

// items returns the items in their order. Draft and security are demanded, and so is
// every item by which a request could take effect twice or get a wrong answer.
func items() []item {
	must := func(n int, source, name string, run func(*check, context.Context)) item {
		return item{Item: Item{Number: n, Name: name, Source: source, Demanded: true}, run: run}
	}
	may := func(n int, source, name string, run func(*check, context.Context)) item {
		return item{Item: Item{Number: n, Name: name, Source: source}, run: run}
	}
	not := func(n int, source, name, why string) item {
		return item{Item: Item{Number: n, Name: name, Source: source}, not: why}
	}
	return []item{
		must(1, draft, "a key is a string in double quotes", (*check).quotedKey),
		must(2, draft, "strict: what is no such string is refused", (*check).strictKey),
		may(3, vendor, "lenient: a raw key is the same as the quoted one", (*check).rawKey),
		must(4, draft, "parameters behind a key do not count", (*check).parameters),
		must(5, draft, "two keys are refused", (*check).twoKeys),
		must(6, choice, "an empty key is refused", (*check).emptyKey),
		may(7, vendor, "a key has a greatest length", (*check).keyLength),
		must(8, security, "no bytes in a key confuse two keys", (*check).keyBytes),
		not(9, vendor, "other names of the header", needsStart),
		may(10, vendor, "POST and PATCH take a key, GET and OPTIONS do not", (*check).methods),
		must(11, draft, "without a key: refused, or forwarded", (*check).missingKey),
		may(12, choice, "a key that has no effect is reported", (*check).ignoredKey),
		may(13, choice, "upgrades and preflights pass", (*check).upgrades),
		must(14, draft, "a first request takes effect once; its answer is untouched", (*check).firstAnswer),
		must(15, draft, "a repetition gets the first answer", (*check).repetition),
		must(16, draft, "another body under a key is refused", (*check).mismatch),
		must(17, draft, "a repetition in flight is refused", (*check).inFlight),
		may(18, draft, "another body in flight is a mismatch", (*check).mismatchInFlight),
		may(19, choice, "a repetition in flight can wait", (*check).waits),
		must(20, draft, "100 concurrent requests take effect once", (*check).concurrent),
		may(21, choice, "each refusal has its own type", (*check).problemTypes),
		may(22, draft, "refusals are problem details and are not cached", (*check).problemForm),
		must(23, vendor, "method, path, query and body are compared", (*check).compared),
		must(24, vendor, "chunked bodies are compared by their bytes", (*check).chunked),
		must(25, choice, "numbers and members of JSON are not merged", (*check).canonical),
		may(26, vendor, "chosen members do not count", (*check).ignoredMember),
		may(27, vendor, "a new multipart boundary is no mismatch", (*check).multipart),
		must(28, vendor, "headers may differ in a repetition", (*check).otherHeaders),
		must(29, security, "callers do not share keys", (*check).callers),
		not(30, security, "without a scope it does not start", needsStart),
		must(31, security, "authorization comes before the kept answer", (*check).authorization),
		must(32, security, "anonymous callers are not one caller", (*check).anonymous),
		not(33, security, "keys are not in logs", needsLogs),
		may(34, vendor, "4xx of the service is kept; 401, 403, 408, 425 and 429 are not", (*check).kept4xx),
		may(35, vendor, "5xx of the service is kept or released", (*check).kept5xx),
		must(36, choice, "an error of the proxy is no kept answer", (*check).ownErrors),
		must(37, vendor, "after a broken answer nothing runs again", (*check).brokenAnswer),
		may(38, vendor, "replays are marked, and only they", (*check).marker),
		may(39, vendor, "replays tell when the first request ran", (*check).firstTime),
		must(40, vendor, "replays keep status and headers of the content", (*check).contentHeaders),
		must(41, security, "replays have no cookies and no headers of a connection", (*check).sessionHeaders),
		must(42, security, "replays do not allow the origin of another caller", (*check).origins),
		must(43, vendor, "replayed bodies are the same byte for byte", (*check).bodies),
		must(44, choice, "trailers: replayed, or the answer is not kept", (*check).trailers),
		must(45, choice, "large and flushed answers: nothing runs again", (*check).largeAnswer),
		must(46, choice, "a body that is too large is refused before the claim", (*check).largeBody),
		must(47, choice, "an aborted upload leaves no record", (*check).abortedUpload),
		not(48, choice, "buffered bytes and waiters are limited", "it needs load, and knowledge of the target's memory"),
		must(49, choice, "the request continues when its client leaves", (*check).disconnect),
		must(50, choice, "a time-out of the service runs nothing again", (*check).timeout),
		must(51, choice, "the lease is extended while the service works", (*check).lease),
		not(52, choice, "a stale holder changes nothing", needsProcess),
		not(53, choice, "kill -9 in the middle", needsProcess),
		not(54, choice, "the store is down at the claim", needsProcess),
		not(55, choice, "the store is down at the completion", needsProcess),
		not(56, choice, "a graceful stop drains", needsProcess),
		not(57, choice, "expiry uses the store's clock", needsProcess),
		may(58, choice, "answers are kept from the completion on", (*check).window),
		not(59, choice, "full memory evicts nothing", needsProcess),
		may(60, choice, "a request from before the window does not run again", (*check).firstSent),
		may(61, choice, "the service gets the key", (*check).forwarded),
		must(62, choice, "no client library repeats the request by itself", (*check).ownRetry),
	}
}
