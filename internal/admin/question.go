package admin

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// text is a string of any bytes. In JSON it is base64, because JSON text cannot have
// every byte.
type text string

// MarshalText implements encoding.TextMarshaler.
func (t text) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, []byte(t)), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *text) UnmarshalText(encoded []byte) error {
	plain, err := base64.StdEncoding.AppendDecode(nil, encoded)
	*t = text(plain)
	return err
}

// wireKey is a key in a question or an answer.
type wireKey struct {
	Scope text `json:"scope"`
	ID    text `json:"id"`
}

func wireOf(k semel.Key) wireKey   { return wireKey{text(k.Scope), text(k.ID)} }
func (k wireKey) plain() semel.Key { return semel.Key{Scope: string(k.Scope), ID: string(k.ID)} }

func toWire(keys ...semel.Key) (list []wireKey) {
	for _, k := range keys {
		list = append(list, wireOf(k))
	}
	return list
}

func (q *question) keys() (list []semel.Key) {
	for _, k := range q.Keys {
		list = append(list, k.plain())
	}
	return list
}

// The verbs of questions. Those of the second group change keys.
const (
	verbLook       = "look"
	verbLookDigest = "look_digest"
	verbList       = "list"
	verbCount      = "count"
	verbRule       = "rule"
	verbScopes     = "scopes"
	verbParked     = "parked"
	verbJournal    = "journal"
	verbAuditTail  = "audit_tail"

	verbAudit         = "audit"
	verbResolve       = "resolve"
	verbResolveDigest = "resolve_digest"
	verbRemove        = "remove"
	verbRemoveDigest  = "remove_digest"
	verbClaim         = "claim"
	verbPurge         = "purge"
)

// question is the body of a request. Fields that its verb does not use are zero.
type question struct {
	Verb string `json:"verb"`
	// Store is the name of a store; "" is the store with the socket.
	Store    string       `json:"store,omitempty"`
	Pipeline string       `json:"pipeline,omitempty"`
	ID       string       `json:"id,omitempty"` // of a parked message; "" stands for all
	Keys     []wireKey    `json:"keys,omitempty"`
	Digest   semel.Digest `json:"digest"`
	// Scope and State select records. Scope is also the scope whose rule is asked for.
	Scope *text       `json:"scope,omitempty"`
	State semel.State `json:"state,omitempty"`
	// As, Result and Window are the parameters of a resolution.
	As     semel.State     `json:"as,omitempty"`
	Result semel.Result    `json:"result"`
	Window time.Duration   `json:"window,omitempty"`
	Line   json.RawMessage `json:"line,omitempty"` // of the audit log
	Most   int             `json:"most,omitempty"` // lines of the audit log
	Claims []wireClaim     `json:"claims,omitempty"`
}

// wireClaim is a request for a claim, whose key shadows that of the request.
type wireClaim struct {
	semel.ClaimRequest
	Key wireKey
}

// answer is one line of an answer. One field is set.
type answer struct {
	Record  *wireRecord      `json:"record,omitempty"`
	Counts  *semel.Counts    `json:"counts,omitempty"`
	Rule    *text            `json:"rule,omitempty"`  // of a scope; empty if none is bound
	Scope   *text            `json:"scope,omitempty"` // one that is bound to a rule
	Found   *bool            `json:"found,omitempty"`
	Purged  *int64           `json:"purged,omitempty"`
	Claimed *wireClaimed     `json:"claimed,omitempty"`
	Parked  *pipeline.Parked `json:"parked,omitempty"`
	Journal *KeyJournal      `json:"journal,omitempty"`
	Line    []byte           `json:"line,omitempty"` // of the audit log: it may be damaged, and is then no JSON
	Error   *wireError       `json:"error,omitempty"`
	End     bool             `json:"end,omitempty"` // the answer is whole
}

// wireRecord is a record, whose key shadows that of the record.
type wireRecord struct {
	semel.Record
	Key wireKey
}

func recordToWire(r *semel.Record) *wireRecord { return &wireRecord{*r, wireOf(r.Key)} }

func (r *wireRecord) plain() semel.Record {
	record := r.Record
	record.Key = r.Key.plain()
	return record
}

// wireClaimed is the answer to a claim, whose error shadows that of the answer.
type wireClaimed struct {
	semel.ClaimAnswer
	Err *wireError
}

// wireError is an error with the kinds that callers look for.
type wireError struct {
	Text  string   `json:"text"`
	Kinds []string `json:"kinds,omitempty"`
}

// kinds are the errors that keep their identity between processes.
var kinds = map[string]error{
	"unsupported": errors.ErrUnsupported, "not unknown": semel.ErrNotUnknown, "invalid request": semel.ErrInvalidRequest,
	"invalid key": semel.ErrInvalidKey, "corrupt": semel.ErrCorrupt, "store full": semel.ErrStoreFull,
	"unreadable": pipeline.ErrUnreadable, "not parked": pipeline.ErrNotParked, "closed": semel.ErrClosed,
}

func errorToWire(err error) *wireError {
	if err == nil {
		return nil
	}
	e := &wireError{Text: err.Error()}
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			e.Kinds = append(e.Kinds, name)
		}
	}
	return e
}

// plain returns the error, or nil.
func (e *wireError) plain() error {
	if e == nil {
		return nil
	}
	return &remoteError{*e}
}

// remoteError is an error of the other process.
type remoteError struct{ said wireError }

// Error implements error.
func (e *remoteError) Error() string { return e.said.Text }

// Is reports whether the error was of that kind in the other process.
func (e *remoteError) Is(target error) bool {
	for _, name := range e.said.Kinds {
		if kinds[name] == target {
			return true
		}
	}
	return false
}
