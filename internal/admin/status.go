package admin

import (
	"time"

	"github.com/semel-dev/semel"
)

// Status is what a running program does now: the answer at StatusPath.
type Status struct {
	Time      time.Time        `json:"time"`
	Started   time.Time        `json:"started"`
	Pipelines []PipelineStatus `json:"pipelines"`
	Stores    []StoreStatus    `json:"stores"`
	// Service is what a process without pipelines serves, or nil.
	Service *ServiceStatus `json:"service,omitempty"`
}

// ServiceStatus is what is known of a service, such as a proxy.
type ServiceStatus struct {
	Name  string `json:"service"`
	State State  `json:"state"` // StateReady or StateNotReady
	// Reason says why the service is not ready, and NextAttempt when it tries again. Answered is
	// that of PipelineStatus.
	Reason      string    `json:"reason,omitempty"`
	NextAttempt time.Time `json:"next_attempt,omitzero"`
	Answered    time.Time `json:"answered,omitzero"`
}

// StatusPath is the path of the status on the admin server.
const StatusPath = "/status"

// PipelineStatus is what a pipeline does now. A count that is not known is nil.
type PipelineStatus struct {
	Name  string `json:"pipeline"`
	State State  `json:"state"`
	// Reason says why the pipeline is not ready, without a part of a message.
	Reason string `json:"reason,omitempty"`
	// Answered is when the pipeline said whether it is ready, if it did not at this request.
	Answered time.Time `json:"answered,omitzero"`
	// NextAttempt is when a pipeline that cannot work tries again, if that is known.
	NextAttempt time.Time `json:"next_attempt,omitzero"`
	// WaitingFor is what a stalled pipeline waited for when the log said so last.
	WaitingFor string `json:"waiting_for,omitempty"`
	// Rate is the number of messages that were settled per second in the last ten
	// seconds.
	Rate float64 `json:"rate"`
	// The counts below are of messages since the program started.
	Read      int64 `json:"read"`
	Settled   int64 `json:"settled"`
	Fresh     int64 `json:"fresh"`
	Duplicate int64 `json:"duplicate"`
	// Differ is the number of duplicates that are known to differ in content from the
	// message of their key that took effect.
	Differ   int64 `json:"differ,omitempty"`
	Filtered int64 `json:"filtered"`
	// Superseded messages did not take effect, because of another one of their key.
	Superseded int64 `json:"superseded"`
	Parked     int64 `json:"parked"`
	Dropped    int64 `json:"dropped"`
	// Held is the number of settled messages without any of these outcomes: key.keep holds
	// them. It is negative for outcomes of messages that were settled earlier, or are in
	// flight.
	Held int64 `json:"held,omitempty"`
	// InFlight messages are being processed. Retrying messages wait for their next try, which
	// is due at NextRetry for the first, unless it only waits for its turn. ReadAhead messages
	// wait for their first try, or for a message of their group.
	InFlight  int       `json:"in_flight"`
	Retrying  int       `json:"retrying,omitempty"`
	NextRetry time.Time `json:"next_retry,omitzero"`
	ReadAhead int       `json:"read_ahead,omitempty"`
	// Waiting is the number of parked messages that wait for an operator, and WaitingMeasured when
	// they were counted.
	Waiting         *int64    `json:"parked_waiting,omitempty"`
	WaitingMeasured time.Time `json:"parked_measured,omitzero"`
	// Lag and LagBytes are the sums of Lags.
	Lag      *int64         `json:"lag,omitempty"`
	LagBytes *int64         `json:"lag_bytes,omitempty"`
	Lags     []PartitionLag `json:"partitions,omitempty"`
	// LagMore: the source counted no further, and has more than that.
	LagMore bool `json:"lag_more,omitempty"`
	// LagMeasured is when the lag was measured: at the request, unless the source
	// did not answer in time. It is zero if the lag is known without a measurement.
	LagMeasured time.Time `json:"lag_measured,omitzero"`
	// LastSettled is zero if nothing was settled yet, and LastError nil without an
	// error.
	LastSettled time.Time  `json:"last_settled,omitzero"`
	LastError   *LastError `json:"last_error,omitempty"`
	// Pace says how long the lag takes, and why. It is nil if the pipeline is not behind.
	Pace *Pace `json:"pace,omitempty"`
	// Work is Pace without the time for the lag, even for a pipeline that is not behind. It is
	// for the page of the process itself.
	Work *Pace `json:"-"`
}

// Pace is how a pipeline that is behind works, over the last ten seconds.
type Pace struct {
	// LeftSeconds is how long the lag takes at the present rate, if nothing is added to it. It
	// is nil if nothing was settled.
	LeftSeconds *float64 `json:"left_seconds,omitempty"`
	// Messages is how many messages a batch or a transaction has, and BatchSeconds how long it
	// takes. ClaimSeconds and SinkSeconds are parts of that time, if they can be distinguished.
	// Workers is how many batches are processed at a time.
	Messages     float64  `json:"batch_messages,omitempty"`
	BatchSeconds *float64 `json:"batch_seconds,omitempty"`
	ClaimSeconds *float64 `json:"claim_seconds,omitempty"`
	SinkSeconds  *float64 `json:"sink_seconds,omitempty"`
	Workers      int      `json:"parallel"`
	// MoreProcesses: a second process can run the pipeline in parallel with this one.
	MoreProcesses bool `json:"more_processes,omitempty"`
	// Limit is what limits the rate. It is empty if nothing was delivered, or if it is not known.
	Limit Limit `json:"limit,omitempty"`
}

// Limit is what limits the rate of a pipeline.
type Limit string

// These are the limits.
const (
	LimitSource  Limit = "source" // the workers wait for messages
	LimitStore   Limit = "store"
	LimitSink    Limit = "sink"
	LimitParking Limit = "parking"  // most messages are parked
	LimitWorkers Limit = "parallel" // store and sink are one transaction
)

// State is the state of a pipeline in one word.
type State string

// These are the states of a pipeline.
const (
	StateOpening  State = "opening"
	StateWaiting  State = "waiting" // for a server, before it can start
	StateReady    State = "ready"
	StateNotSeen  State = "not seen" // no process that runs it answered
	StatePaused   State = "paused"
	StateStalled  State = "stalled"
	StateNotReady State = "not ready"
	StateEnded    State = "ended"
	StateFailed   State = "failed" // it ended with an error, and does not start again
)

// PartitionLag is the lag of one partition. A count that is not known is nil.
type PartitionLag struct {
	Source    string `json:"source,omitempty"`
	Partition int32  `json:"partition"`
	Messages  *int64 `json:"messages,omitempty"`
	Bytes     *int64 `json:"bytes,omitempty"`
	More      bool   `json:"more,omitempty"`
}

// LastError says what failed last. Its text has no part of a message.
type LastError struct {
	At    time.Time `json:"at"`
	Event string    `json:"event"`
	// Cause has the remedy too, unless the error is over.
	Cause string `json:"cause,omitempty"`
	Over  bool   `json:"over,omitempty"`

	// Plain is the cause without the remedy.
	Plain string `json:"-"`
}

// StoreStatus is what is known of a store that a pipeline uses. The counts are nil until
// it was measured.
type StoreStatus struct {
	Name  string `json:"store"`
	State State  `json:"state"` // StateReady or StateNotReady
	// Reason says why the store is not ready. Answered is that of PipelineStatus.
	Reason   string    `json:"reason,omitempty"`
	Answered time.Time `json:"answered,omitzero"`
	Done     *int64    `json:"done,omitempty"`
	Claimed  *int64    `json:"claimed,omitempty"`
	Unknown  *int64    `json:"unknown,omitempty"`
	Measured time.Time `json:"measured,omitzero"`
	// MemoryBytes and DiskBytes are the space that the records take, as far as the store knows.
	// OldestSeconds is the age of the oldest record that it answers for.
	MemoryBytes   int64   `json:"memory_bytes,omitempty"`
	DiskBytes     int64   `json:"disk_bytes,omitempty"`
	OldestSeconds float64 `json:"oldest_seconds,omitempty"`
	// CleanUp is the last clean-up of expired keys, if this process makes them.
	CleanUp *CleanUp `json:"clean_up,omitempty"`
}

// CleanUp is a clean-up of expired keys.
type CleanUp struct {
	// At is when it ended, or zero if none has ended yet. Error says why it ended early.
	At    time.Time `json:"at,omitzero"`
	Keys  int64     `json:"keys"`
	Error string    `json:"error,omitempty"`
}

// Counted sets what was counted at a time.
func (s *StoreStatus) Counted(c *semel.Counts, at time.Time) {
	s.Done, s.Claimed, s.Unknown, s.Measured = &c.Done, &c.Claimed, &c.Unknown, at
	s.MemoryBytes, s.DiskBytes, s.OldestSeconds = c.MemoryBytes, c.DiskBytes, c.Oldest.Seconds()
}
