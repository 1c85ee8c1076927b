// Package storeapi has the shapes of the HTTP API of semel serve, for its server and for
// the store that is its client, and its OpenAPI document.
package storeapi

import (
	_ "embed"
	"encoding/json"
	"strconv"
)

// OpenAPI is the OpenAPI 3.1 document of the API.
//
//go:embed openapi.json
var OpenAPI []byte

// Result is the result of an effect. In a request one member is set: JSON, Text, Base64,
// Failed, FailedBase64 or NotKept. In an answer Kind is value, failed, not_kept or none,
// with the bytes in Text, or in Base64 if they are not UTF-8.
type Result struct {
	Kind         string          `json:"kind,omitempty"`
	JSON         json.RawMessage `json:"json,omitempty"`
	Text         *string         `json:"text,omitempty"`
	Base64       *[]byte         `json:"base64,omitempty"`
	Failed       *string         `json:"failed,omitempty"`
	FailedBase64 *[]byte         `json:"failed_base64,omitempty"`
	NotKept      bool            `json:"not_kept,omitempty"`
}

// Claimed is the answer to a claim.
type Claimed struct {
	Decision string `json:"decision"`
	// Token and ClaimID are those of a granted claim.
	Token    string `json:"token,omitempty"`
	Attempt  int    `json:"attempt,omitempty"`
	LeaseMS  *int64 `json:"lease_ms,omitempty"`
	LeaseEnd string `json:"lease_end,omitempty"`
	ClaimID  string `json:"claim_id,omitempty"`
	// Holder, HolderToken, Origin and RequestID are those of the call that has or had the
	// key.
	Holder       string  `json:"holder,omitempty"`
	HolderToken  string  `json:"holder_token,omitempty"`
	Origin       string  `json:"origin,omitempty"`
	RequestID    string  `json:"request_id,omitempty"`
	RetryAfterMS *int64  `json:"retry_after_ms,omitempty"`
	Result       *Result `json:"result,omitempty"`
	FirstSeen    string  `json:"first_seen,omitempty"`
	Expires      string  `json:"expires,omitempty"`
}

// Append appends the answer as JSON. Each claim has one, and encoding/json takes several times
// as long.
func (c *Claimed) Append(b []byte) []byte {
	b = append(b, `{"decision":`...)
	b = appendText(b, c.Decision)
	b = appendMember(b, "token", c.Token)
	if c.Attempt != 0 {
		b = strconv.AppendInt(append(b, `,"attempt":`...), int64(c.Attempt), 10)
	}
	if c.LeaseMS != nil {
		b = strconv.AppendInt(append(b, `,"lease_ms":`...), *c.LeaseMS, 10)
	}
	b = appendMember(b, "lease_end", c.LeaseEnd)
	b = appendMember(b, "claim_id", c.ClaimID)
	b = appendMember(b, "holder", c.Holder)
	b = appendMember(b, "holder_token", c.HolderToken)
	b = appendMember(b, "origin", c.Origin)
	b = appendMember(b, "request_id", c.RequestID)
	if c.RetryAfterMS != nil {
		b = strconv.AppendInt(append(b, `,"retry_after_ms":`...), *c.RetryAfterMS, 10)
	}
	if c.Result != nil {
		b = append(append(b, `,"result":`...), marshal(c.Result)...)
	}
	b = appendMember(b, "first_seen", c.FirstSeen)
	b = appendMember(b, "expires", c.Expires)
	return append(b, '}')
}

// appendMember appends a member of an object that is not the first, unless it is empty.
func appendMember(b []byte, name, text string) []byte {
	if text == "" {
		return b
	}
	b = append(append(append(b, `,"`...), name...), `":`...)
	return appendText(b, text)
}

// appendText appends a text as encoding/json writes it.
func appendText(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return append(b, marshal(text)...)
		}
	}
	return append(append(append(b, '"'), text...), '"')
}

func marshal(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic("storeapi: " + err.Error()) // the values have texts and numbers
	}
	return data
}

// Settled is the answer to a completion, a release, a resolution or a removal.
type Settled struct {
	State string `json:"state"`
	// Removed is set in the answer to a removal.
	Removed *bool `json:"removed,omitempty"`
}

// Append appends the answer as JSON, as that of a claim does.
func (s *Settled) Append(b []byte) []byte {
	b = appendText(append(b, `{"state":`...), s.State)
	if s.Removed != nil {
		b = strconv.AppendBool(append(b, `,"removed":`...), *s.Removed)
	}
	return append(b, '}')
}

// Extended is the answer for one lease.
type Extended struct {
	LeaseMS  int64  `json:"lease_ms"`
	LeaseEnd string `json:"lease_end"`
}

// Record is a record in the answer to a lookup or a list, as semel keys show --json has it.
type Record struct {
	Scope        *string         `json:"scope,omitempty"`
	ScopeBase64  []byte          `json:"scope_base64,omitempty"`
	ID           json.RawMessage `json:"id,omitempty"`
	IDBase64     []byte          `json:"id_base64,omitempty"`
	Digest       string          `json:"digest,omitempty"`
	State        string          `json:"state"`
	FirstSeen    string          `json:"first_seen,omitempty"`
	Attempts     int             `json:"attempts,omitempty"`
	Token        string          `json:"token,omitempty"`
	Holder       string          `json:"holder,omitempty"`
	Orphaned     bool            `json:"orphaned,omitempty"`
	Origin       string          `json:"origin,omitempty"`
	OriginBase64 []byte          `json:"origin_base64,omitempty"` // instead, if it is not UTF-8
	RequestID    string          `json:"request_id,omitempty"`
	LeaseEnd     string          `json:"lease_end,omitempty"`
	Expires      string          `json:"expires,omitempty"` // "forever" if it never expires
	Fingerprint  string          `json:"fingerprint,omitempty"`
	Result       string          `json:"result,omitempty"`
	ResultSize   *int            `json:"result_size,omitempty"`
	ResultText   *string         `json:"result_text,omitempty"`
	ResultBase64 *[]byte         `json:"result_base64,omitempty"`
}

// Items is an answer with one item for each item of the request, in order.
type Items struct {
	Items []json.RawMessage `json:"items"`
	// Cursor continues a list. It is empty at the end.
	Cursor string `json:"cursor,omitempty"`
	// Counts are there if a list asks for them.
	Counts *Counts `json:"counts,omitempty"`
}

// Append appends the answer as JSON. The items are JSON without space already, which
// encoding/json would check and copy.
func (a *Items) Append(b []byte) []byte {
	b = append(b, `{"items":[`...)
	for i, item := range a.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, item...)
	}
	b = append(b, ']')
	b = appendMember(b, "cursor", a.Cursor)
	if a.Counts != nil {
		b = append(append(b, `,"counts":`...), marshal(a.Counts)...)
	}
	return append(b, '}')
}

// Counts are how much a store holds, as texts.
type Counts struct {
	Claimed     string `json:"claimed"`
	Done        string `json:"done"`
	Unknown     string `json:"unknown"`
	MemoryBytes string `json:"memory_bytes"`
	DiskBytes   string `json:"disk_bytes"`
	OldestMS    string `json:"oldest_ms"`
}

// Refused is the answer for one item that was refused.
type Refused struct {
	Error *Problem `json:"error,omitempty"`
}

// Limits are the limits of a server, and the promises of its store.
type Limits struct {
	MaxBody          int64  `json:"max_body"`
	MaxBatch         int    `json:"max_batch"`
	MaxResult        int64  `json:"max_result"`
	MaxID            int    `json:"max_id"`
	MaxWaitMS        int64  `json:"max_wait_ms"`
	MaxKeysPerCaller int    `json:"max_keys_per_caller,omitempty"`
	MaxConnections   int    `json:"max_connections,omitempty"`
	Lease            string `json:"lease"`
	Window           string `json:"window"`
	OnLeaseExpired   string `json:"on_lease_expired"`
	Store            Traits `json:"store"`
}

// Traits are what the store promises.
type Traits struct {
	Durable       bool   `json:"durable"`
	PowerSafe     bool   `json:"power_safe"`
	DurableClaims bool   `json:"durable_claims"`
	Shared        bool   `json:"shared"`
	Exact         bool   `json:"exact"`
	Results       bool   `json:"results"`
	Origins       bool   `json:"origins"`
	Tick          string `json:"tick"`
}

// Identity is the answer to whoami.
type Identity struct {
	Name   string   `json:"name"`
	Role   string   `json:"role"`
	Scopes []string `json:"scopes"`
	// Auth says how the caller was recognised: none, token or certificate.
	Auth string `json:"auth"`
}
