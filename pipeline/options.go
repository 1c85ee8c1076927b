package pipeline

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/key"
)

// Order says which messages of a partition must be delivered in order.
type Order uint8

const (
	// OrderKey: those with the same record key, or, if they have none, the same
	// key. Others may overtake.
	OrderKey Order = iota
	// OrderPartition: all.
	OrderPartition
)

// Missing says what becomes of a message whose key is missing or cannot be read.
type Missing uint8

const (
	// MissingPark puts it aside.
	MissingPark Missing = iota
	// MissingDrop gives it up. It is lost.
	MissingDrop
	// MissingStop ends the pipeline.
	MissingStop
	// MissingPass delivers it under a key made of its origin, which makes a
	// redelivery a duplicate, and nothing else.
	MissingPass
	// MissingHash delivers it under a key made of its content.
	MissingHash
)

// Options are the options of New. Key is required.
type Options struct {
	// Name is the pipeline's name, for people and metrics. Defaults to
	// "pipeline".
	Name string
	// Key says where a message has its id, and Scope what the id is unique
	// within.
	Key   *key.Rule
	Scope string
	// Fingerprint notices one key used for two different bodies.
	Fingerprint bool
	// Window replaces the session's window for a key if it is above 0.
	Window time.Duration
	// EventTime takes the time of a message into account: without a record, one
	// that is older than the window is late.
	EventTime bool
	// OnMissing, OnLate and OnMismatch say what becomes of messages without a
	// key, that are too old, or that use a key of another payload. OnMissing
	// defaults to MissingPark, the others to Park.
	OnMissing          Missing
	OnLate, OnMismatch Then
	// Failure says what becomes of messages that fail.
	Failure Failure
	// Order says which messages are delivered in order. Defaults to OrderKey.
	Order Order
	// Workers is how many batches are processed concurrently. Defaults to what the
	// session wants.
	Workers int
	// Batch is the most items of a batch. Defaults to what the session wants, if
	// each worker can have as many, or 500, and is never more than it allows.
	Batch int
	// BatchBytes is the most bytes of a batch, as Item.Bytes counts them; a
	// message that is larger goes alone. Defaults to a worker's share of MaxBytes,
	// and is never more than that.
	BatchBytes int64
	// MaxItems and MaxBytes bound what is under way. Default to 10,000 and
	// 64 MiB; a message that is larger than MaxBytes goes alone.
	MaxItems int
	MaxBytes int64
	// Wait is how long a message waits for a key that another holds before it
	// is returned to a source that can take it back. With another source it waits
	// on, and the observer receives an event: see HeldReason. Defaults to 5 s.
	Wait time.Duration
	// Shutdown is how long the drain may take. Defaults to 25 s.
	Shutdown time.Duration
	// DeadLetters parks messages. A DeadLetterStore is also looked at for messages that
	// are to be redriven. It is required if anything is parked.
	DeadLetters Parker
	// Actor is who is named in the audit log for what is redriven. Defaults to
	// host and process id.
	Actor string
	// Observer receives the events of the pipeline. Defaults to none.
	Observer Observer
}

func (o *Options) defaults(t SinkTraits) {
	if o.Name == "" {
		o.Name = "pipeline"
	}
	o.Failure.defaults()
	if o.Workers == 0 {
		o.Workers = max(t.Parallel, 1)
	}
	if o.MaxItems == 0 {
		o.MaxItems = 10_000
	}
	if o.Batch == 0 {
		o.Batch = 500
		if t.Batch > 0 { // and something is left for the other workers
			o.Batch = max(min(t.Batch, o.MaxItems/max(o.Workers, 1)), 1)
		}
	}
	if t.MaxBatch > 0 {
		o.Batch = min(o.Batch, t.MaxBatch)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	share := max(o.MaxBytes/int64(max(o.Workers, 1)), 1)
	if o.BatchBytes == 0 {
		o.BatchBytes = share
	}
	o.BatchBytes = min(o.BatchBytes, share)
	if o.Wait == 0 {
		o.Wait = 5 * time.Second
	}
	if o.Shutdown == 0 {
		o.Shutdown = 25 * time.Second
	}
	if o.Actor == "" {
		o.Actor = thisProcess()
	}
}

// thisProcess names this process for an audit log.
func thisProcess() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return host + ":" + strconv.Itoa(os.Getpid())
}

func (o *Options) validate() error {
	wrong := invalid.In("pipeline: Options.")
	if o.Key == nil {
		wrong.Add("Key is missing")
	}
	for name, n := range map[string]int64{
		"Workers": int64(o.Workers), "Batch": int64(o.Batch), "BatchBytes": o.BatchBytes, "MaxItems": int64(o.MaxItems), "MaxBytes": o.MaxBytes,
		"Wait": int64(o.Wait), "Shutdown": int64(o.Shutdown),
	} {
		if n < 1 {
			wrong.Add("%s: %d is below 1", name, n)
		}
	}
	if o.Window < 0 {
		wrong.Add("Window: %v is negative", o.Window)
	}
	if o.OnMissing > MissingHash {
		wrong.Add("OnMissing: %d is no such policy", o.OnMissing)
	}
	if o.Order > OrderPartition {
		wrong.Add("Order: %d is neither OrderKey nor OrderPartition", o.Order)
	}
	for name, then := range map[string]Then{"OnLate": o.OnLate, "OnMismatch": o.OnMismatch} {
		if then > Stop {
			wrong.Add("%s: %d is none of Park, Drop and Stop", name, then)
		}
	}
	if o.DeadLetters == nil && (o.OnMissing == MissingPark || o.OnLate == Park || o.OnMismatch == Park || o.Failure.Then == Park) {
		wrong.Add("DeadLetters is missing, and messages are to be parked")
	}
	return errors.Join(wrong.Err(), o.Failure.validate())
}

// Then says what becomes of a message that is not tried again.
type Then uint8

const (
	// Park puts it aside.
	Park Then = iota
	// Drop gives it up. It is lost.
	Drop
	// Stop ends the pipeline. The message is not acknowledged.
	Stop
)

// String returns the policy's name as it is written in configurations.
func (t Then) String() string {
	names := [...]string{"park", "drop", "stop"}
	if int(t) < len(names) {
		return names[t]
	}
	return "invalid"
}

// Failure is what a pipeline does about messages that fail. The zero value is
// valid.
type Failure struct {
	// Attempts is how often a message is delivered before it is given up. A
	// permanent error gives it up immediately; a sink that is unavailable costs no
	// attempt, unless it takes others. Defaults to 8.
	Attempts int
	// From and To bound the pause before the next attempt, which doubles.
	// Default to 200 ms and 30 s.
	From, To time.Duration
	// Then follows the last attempt. Defaults to Park.
	Then Then
}

func (f *Failure) defaults() {
	if f.Attempts == 0 {
		f.Attempts = 8
	}
	if f.From == 0 {
		f.From = 200 * time.Millisecond
	}
	if f.To == 0 {
		f.To = max(30*time.Second, f.From)
	}
}

func (f *Failure) validate() error {
	wrong := invalid.In("pipeline: Failure.")
	if f.Attempts < 1 {
		wrong.Add("Attempts: %d is below 1", f.Attempts)
	}
	if f.From <= 0 || f.To < f.From {
		wrong.Add("From, To: %v and %v are not above 0 and in order", f.From, f.To)
	}
	if f.Then > Stop {
		wrong.Add("Then: %d is none of Park, Drop and Stop", f.Then)
	}
	return wrong.Err()
}

// Pause returns how long to wait after a number of tries, from 1: From doubled
// for each try after the first, To at most, and of that a random share between
// a half and all, which keeps those who failed together apart.
func (f *Failure) Pause(tries int) time.Duration {
	pause := f.From
	for i := 1; i < tries && pause < f.To; i++ {
		pause *= 2
	}
	pause = min(pause, f.To)
	return pause/2 + rand.N(pause/2+1)
}

// argument is one that a constructor cannot do without.
type argument struct {
	name    string
	missing bool
}

// missing returns the error of a constructor that names all arguments which are
// nil, or nil if none is.
func missing(constructor string, of ...argument) error {
	wrong := invalid.In("pipeline: " + constructor + ": ")
	for _, a := range of {
		if a.missing {
			wrong.Add("the %s is nil", a.name)
		}
	}
	return wrong.Err()
}
