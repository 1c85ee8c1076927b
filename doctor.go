package semel

import "context"

// Doctor is the ability of a store to say whether its server is configured to
// keep the store's promise.
type Doctor interface {
	// Examine connects and asks. It changes nothing. Each thing that was looked
	// at is one finding, also where all is well; an error means that the
	// examination itself failed, and the findings so far come with it.
	Examine(ctx context.Context) ([]Finding, error)
}

// Severity grades a finding.
type Severity uint8

const (
	// Fine: as it should be.
	Fine Severity = iota
	// Notice: worth knowing; the promise holds.
	Notice
	// Warning: the promise holds with an exception that the finding names.
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

// Finding is one thing an examination found.
type Finding struct {
	Severity Severity
	// Subject is what was looked at, in the server's own words where it has
	// one: "maxmemory-policy", "synchronous_commit".
	Subject string
	// Found is what is there: "allkeys-lru". It never holds a secret.
	Found string
	// Cost says what it costs the promise. It is empty if Severity is Fine.
	Cost string
	// Remedy says what to do. It is empty if there is nothing to do.
	Remedy string
}
