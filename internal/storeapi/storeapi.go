// Package storeapi has the shapes of the HTTP API of semel serve, for its server and for
// the store that is its client, and its OpenAPI document.
package storeapi

import (
	_ "embed"
	"encoding/json"
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

// Settled is the answer to a completion, a release, a resolution or a removal.
type Settled struct {
	State string `json:"state"`
	// Removed is set in the answer to a removal.
	Removed *bool `json:"removed,omitempty"`
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
