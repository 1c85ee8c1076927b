// Package doctor has what an examination of a server, a store or a broker says: findings with
// their severity, what they cost, and what to do.
package doctor

import "context"

// Severity is the severity of a finding.
type Severity uint8

const (
	// Fine: the setting is right.
	Fine Severity = iota
	// Notice: worth knowing; the promise holds.
	Notice
	// Warning: the promise holds, except in the case that the finding names.
	Warning
	// Broken: the promise does not hold.
	Broken
)

// String returns the severity's name in lower case.
func (s Severity) String() string {
	switch s {
	case Fine:
		return "fine"
	case Notice:
		return "notice"
	case Warning:
		return "warning"
	case Broken:
		return "broken"
	}
	return "invalid"
}

// Finding is one result of an examination of a server, such as that of
// store/pgstore or store/redisstore.
type Finding struct {
	Severity Severity
	// Subject is the setting or object that was checked. It is the server's own
	// name if there is one: "maxmemory-policy", "synchronous_commit".
	Subject string
	// Found is the present value, for example "allkeys-lru". It never holds a
	// secret.
	Found string
	// Cost says how the promise suffers. It is empty if Severity is Fine.
	Cost string
	// Remedy says what to do. It is empty if nothing needs to be done.
	Remedy string
}

// Readier is implemented by a store, source or sink that can check whether it
// could do its work now.
type Readier interface {
	// Ready returns nil, or an error that says what is missing. It may ask a
	// server. It blocks until the server has answered or ctx ends. It is safe for
	// concurrent use at any time. Probes show the error's text, which must not
	// contain anything of a message.
	Ready(ctx context.Context) error
}
