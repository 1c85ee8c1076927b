package storeapi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/semel-dev/semel"
)

// Problem is the body of an error (RFC 9457), or of one item in a batch.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Class is the class of the error: retryable, permanent or unknown outcome.
	Class string `json:"class"`
	// Retry is no, same (send the same request again) or later.
	Retry        string `json:"retry"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
	// State, Holder and HolderToken are those of the record, if a token is stale.
	State       string `json:"state,omitempty"`
	Holder      string `json:"holder,omitempty"`
	HolderToken string `json:"holder_token,omitempty"`
}

// types begins the type of each problem: the page that lists them.
const types = "https://github.com/semel-dev/semel/blob/main/docs/guides/serve.md#/"

// Kind is what a problem is, as the last part of its type.
type Kind string

// The kinds of problems.
const (
	InvalidRequest   Kind = "invalid-request"
	KeyInvalid       Kind = "key-invalid"
	Unauthenticated  Kind = "unauthenticated"
	Forbidden        Kind = "forbidden"
	NotFound         Kind = "not-found"
	MethodNotAllowed Kind = "method-not-allowed"
	StaleToken       Kind = "stale-token"
	NotUnknown       Kind = "not-unknown"
	Changed          Kind = "changed"
	BodyTooLarge     Kind = "body-too-large"
	ResultTooLarge   Kind = "result-too-large"
	UnsupportedMedia Kind = "unsupported-media-type"
	Misdirected      Kind = "misdirected"
	RateLimited      Kind = "rate-limited"
	Quota            Kind = "quota"
	Corrupt          Kind = "corrupt"
	Unsupported      Kind = "unsupported"
	StoreUnavailable Kind = "store-unavailable"
	StoreFull        Kind = "store-full"
	Overloaded       Kind = "overloaded"
	Draining         Kind = "draining"
	OutcomeUnknown   Kind = "outcome-unknown"
)

// about is what is known of a kind. err is the error that a client gets, and the one whose
// class the problem has.
type about struct {
	kind   Kind
	status int
	title  string
	err    error
}

// errPermanent and errLater are for problems that are no error of a store.
var (
	errPermanent = semel.ErrInvalidRequest
	errLater     = semel.ErrStoreUnavailable
)

// kinds has all kinds. The first one whose error matches describes an error, so an error
// that leaves the outcome open comes first, as in semel.Classify.
var kinds = []about{
	{OutcomeUnknown, 504, "It is not known whether the change was made", semel.ErrOutcomeUnknown},
	{OutcomeUnknown, 504, "It is not known whether the change was made", semel.ErrStoreFailed},
	{KeyInvalid, 400, "The key is not valid", semel.ErrInvalidKey},
	{StaleToken, 409, "The token does not hold the key", semel.ErrStaleToken},
	{NotUnknown, 409, "The record is not unknown", semel.ErrNotUnknown},
	{ResultTooLarge, 413, "The result is too large", semel.ErrResultTooLarge},
	{InvalidRequest, 400, "The request is not valid", semel.ErrInvalidRequest},
	{Corrupt, 500, "Stored data is damaged", semel.ErrCorrupt},
	{StoreFull, 503, "The store is full", semel.ErrStoreFull},
	{StoreUnavailable, 503, "The store cannot be reached", semel.ErrStoreUnavailable},
	{Draining, 503, "The server is ending", semel.ErrClosed},
	{Unsupported, 501, "The store cannot do this", errors.ErrUnsupported},

	// The following ones are no errors of a store.
	{Unauthenticated, 401, "It is not known who sends the request", errPermanent},
	{Forbidden, 403, "The caller may not send the request", errPermanent},
	{NotFound, 404, "There is no such path", errPermanent},
	{MethodNotAllowed, 405, "The path has another method", errPermanent},
	{Changed, 409, "The record is not the expected one", errPermanent},
	{BodyTooLarge, 413, "The body is too large", errPermanent},
	{UnsupportedMedia, 415, "The body is not JSON", errPermanent},
	{Misdirected, 421, "The host is not one of this server", errPermanent},
	{RateLimited, 429, "Too many requests without valid credentials", errLater},
	{Quota, 429, "The caller has used too many new keys", errLater},
	{Overloaded, 503, "The server is at a limit", errLater},
}

// Of returns the problem of this kind.
func Of(kind Kind, detail string) *Problem {
	for _, k := range kinds {
		if k.kind == kind {
			return k.problem(detail)
		}
	}
	panic("no kind of problem: " + kind)
}

func (k *about) problem(detail string) *Problem {
	p := &Problem{Type: types + string(k.kind), Title: k.title, Status: k.status, Detail: detail}
	class := semel.Classify(k.err)
	switch {
	case k.kind == Draining:
		class = semel.ClassRetryable // another process answers soon
	case k.kind == Unsupported:
		class = semel.ClassPermanent
	}
	p.Class = class.String()
	switch class {
	case semel.ClassRetryable:
		p.Retry, p.RetryAfterMS = "later", 1000
	case semel.ClassUnknown:
		p.Retry = "same"
	default:
		p.Retry = "no"
	}
	return p
}

// FromError returns the problem that describes an error of a store. An unrecognised error
// is an unknown outcome. Its text may name a server, so callers give the detail.
func FromError(err error, detail string) *Problem {
	kind := about{OutcomeUnknown, 504, "It is not known whether the change was made", semel.ErrOutcomeUnknown}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			kind = k
			break
		}
	}
	p := kind.problem(detail)
	var stale *semel.StaleTokenError
	if errors.As(err, &stale) {
		p.State = stale.State.String()
		if stale.Current != 0 {
			p.HolderToken = FormatToken(stale.Current)
		}
	}
	return p
}

// Kind returns the kind of a problem.
func (p *Problem) Kind() Kind { return Kind(p.Type[strings.LastIndexByte(p.Type, '/')+1:]) }

// Err returns the error of a store that the problem describes, for the request of a key.
func (p *Problem) Err(key semel.Key, token semel.Token) error {
	if p == nil {
		return nil
	}
	kind := p.Kind()
	if kind == StaleToken {
		stale := &semel.StaleTokenError{Key: key, Token: token, State: ParseState(p.State)}
		stale.Current, _ = ParseToken(p.HolderToken)
		return stale
	}
	for _, k := range kinds {
		if k.kind != kind {
			continue
		}
		if kind == Draining { // of the server, not of this client
			break
		}
		return fmt.Errorf("%s: %w", p.Detail, k.err)
	}
	switch p.Class {
	case semel.ClassPermanent.String():
		return fmt.Errorf("%s: %s: %w", p.Title, p.Detail, semel.ErrInvalidRequest)
	case semel.ClassRetryable.String():
		return fmt.Errorf("%s: %s: %w", p.Title, p.Detail, semel.ErrStoreUnavailable)
	}
	return fmt.Errorf("%s: %s: %w", p.Title, p.Detail, semel.ErrOutcomeUnknown)
}

// FormatToken returns a token as text, because JSON readers round large numbers.
func FormatToken(t semel.Token) string { return strconv.FormatUint(uint64(t), 10) }

// ParseToken reads a token.
func ParseToken(text string) (semel.Token, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	return semel.Token(n), err
}

// ParseState reads a state. An unknown word is Absent.
func ParseState(text string) semel.State {
	for _, s := range []semel.State{semel.Claimed, semel.Done, semel.Unknown} {
		if s.String() == text {
			return s
		}
	}
	return semel.Absent
}

// ParseDecision reads a decision. A word that is not known is InFlight: the key is neither
// free nor done.
func ParseDecision(text string) semel.Decision {
	for _, d := range []semel.Decision{semel.Fresh, semel.Duplicate, semel.Mismatch, semel.OutcomeUnknown, semel.Late} {
		if d.String() == text {
			return d
		}
	}
	return semel.InFlight
}
