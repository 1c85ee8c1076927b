package remotestore

import "time"

// Journal is what a process remembers of the deliveries of a key, oldest first.
type Journal struct {
	// Since is how far back the journal reaches. Start: that is the start of the
	// process.
	Since   time.Time      `json:"since"`
	Start   bool           `json:"start"`
	Entries []JournalEntry `json:"entries"`
}

// JournalEntry is one thing that happened to a delivery of a key, if it was not plainly
// processed.
type JournalEntry struct {
	Time     time.Time `json:"time"`
	Pipeline string    `json:"pipeline"`
	// Event is what happened: the name of a decision, such as "duplicate", or of an
	// event, such as "parked".
	Event  string `json:"event"`
	Reason string `json:"reason,omitempty"`
	// Source is empty if the origin of the delivery is not known.
	Source    string `json:"source,omitempty"`
	Partition int32  `json:"partition,omitempty"`
	Offset    int64  `json:"offset,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Token     uint64 `json:"token,omitempty"`
	// Times is how often it happened, if that is more than once. Time is the last time.
	Times int `json:"times,omitempty"`
}
