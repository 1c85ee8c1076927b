package pipeline

import (
	"errors"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/key"
)

// Order says which messages of a partition are delivered in order.
type Order uint8

const (
	// OrderKey orders messages with the same record key. Messages without a record key
	// are ordered if they have the same key.
	OrderKey Order = iota
	// OrderPartition orders all messages of a partition.
	OrderPartition
)

// Missing says what happens to a message whose key is missing or cannot be read.
type Missing uint8

const (
	// MissingPark parks it.
	MissingPark Missing = iota
	// MissingDrop drops it. It is lost.
	MissingDrop
	// MissingStop ends the pipeline.
	MissingStop
	// MissingPass delivers it under a key made of its position. Only a redelivery of
	// the same message is then a duplicate. The source must have Positions.
	MissingPass
	// MissingHash delivers it under a key made from its content.
	MissingHash
)

// Unwrapper takes a message out of the one that a source has.
type Unwrapper interface {
	// Unwrap returns the message inside. Many goroutines call it. It must not change the
	// memory of its argument, and must keep the Origin.
	Unwrap(m semel.Message) (semel.Message, error)
	// String says what Unwrap does. What has another text finds other keys.
	String() string
}

// RuleText says how ids are found: by a rule with this text, in the message inside unless unwrap
// is nil. It is the Rule of a semel.ScopeOwner.
func RuleText(rule string, unwrap Unwrapper) string {
	if unwrap == nil {
		return rule
	}
	return rule + " of the message inside (unwrap: " + unwrap.String() + ")"
}

// Options are the options of New. Key is required.
type Options struct {
	// Name is the pipeline's name in messages and metrics. Defaults to "pipeline".
	Name string
	// Key finds the id in a message. Ids are unique within Scope. The session's store
	// binds Scope to Key and Name with the first key: see semel.BindScope. If another
	// rule or another pipeline filled the scope, Run returns a *semel.ScopeError before
	// it processes a message, unless SameScope says that equal ids mean the same message.
	// If Key needs a position, the source must have Positions.
	Key       *key.Rule
	Scope     string
	SameScope bool
	// Unwrap returns the message inside a message. Key, session and sink see that message.
	// The message that was read is parked, redriven, and given back to its source. One that
	// cannot be unwrapped has no key: see OnMissing. Scope is bound to it as to Key. Defaults
	// to nil, which is the message itself.
	Unwrap Unwrapper
	// Fingerprint detects a key that is used for two different bodies.
	Fingerprint bool
	// Varies says that the sender's attempts of one message differ in content. Then a duplicate
	// that differs is no EventDiffering. Defaults to false.
	Varies bool
	// Window replaces the session's window if it is above 0.
	Window time.Duration
	// KeepOrigin gives each claim its origin: the place of the message in its source,
	// and the host and process id of this process. Defaults to false.
	KeepOrigin bool
	// EventTime uses the time of each message. A message that is older than its
	// window is late, unless its key has a record.
	EventTime bool
	// OnMissing says what happens to messages without a key. OnLate is for messages
	// that are too old, and OnMismatch for those whose key was used with another
	// payload. OnMissing defaults to MissingPark, the others to Park.
	OnMissing          Missing
	OnLate, OnMismatch Then
	// Failure says what happens to messages that fail.
	Failure Failure
	// Order says which messages are delivered in order. Defaults to OrderKey.
	Order Order
	// Workers is the number of batches that are processed concurrently. Defaults to
	// the session's Parallel.
	Workers int
	// Batch limits the items of a batch, as the session's MaxBatch does. Defaults to
	// the session's Batch, reduced if MaxItems does not suffice for all workers. If
	// the session has no Batch, it defaults to 500.
	Batch int
	// MaxItems and MaxBytes limit the messages in progress. A message that is larger
	// than MaxBytes is in progress alone. A batch has at most a worker's share of
	// MaxBytes, as Item.Bytes counts them; a larger message is a batch of its own. They
	// default to 10,000 and 64 MiB.
	MaxItems int
	MaxBytes int64
	// Wait is how long a message waits for a key that another holder has. After that
	// the runner returns it to its source. If the source cannot take it back, it keeps
	// waiting, and the observer gets an event with eventreason.Held. Defaults to 5 s.
	Wait time.Duration
	// Shutdown limits how long the drain takes. Defaults to 25 s.
	Shutdown time.Duration
	// DeadLetters parks messages. It is required if any policy parks. From a
	// DeadLetterStore, the runner also redrives queued messages.
	DeadLetters Parker
	// ParkedMaxAge is how long a message stays parked in a DeadLetterStore. Run
	// settles older ones as HowExpired, unless they are queued for a redrive, and
	// reports each as an EventDropped with ReasonExpired. Defaults to 0, for ever.
	ParkedMaxAge time.Duration
	// Observer receives the events of the pipeline. If it is a [Tracer], it also
	// follows the messages. Defaults to none.
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
		if t.Batch > 0 { // MaxItems must suffice for all workers
			o.Batch = max(min(t.Batch, o.MaxItems/max(o.Workers, 1)), 1)
		}
	}
	if t.MaxBatch > 0 {
		o.Batch = min(o.Batch, t.MaxBatch)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	if o.Wait == 0 {
		o.Wait = 5 * time.Second
	}
	if o.Shutdown == 0 {
		o.Shutdown = 25 * time.Second
	}
}

// batchBytes is a worker's share of MaxBytes.
func (o *Options) batchBytes() int64 { return max(o.MaxBytes/int64(o.Workers), 1) }

func (o *Options) validate(source *SourceTraits) error {
	wrong := invalid.In("pipeline: Options.")
	switch {
	case o.Key == nil:
		wrong.Add("Key is missing")
	case o.Key.NeedsPosition() && !source.Positions:
		wrong.Add("Key: %v is made of the position of a message, and the source has no positions: use an id that the message has, or its content", o.Key)
	}
	if o.OnMissing == MissingPass && !source.Positions {
		wrong.Add("OnMissing: MissingPass makes a key of the position of a message, and the source has no positions: use MissingPark or MissingHash")
	}
	for name, n := range map[string]int64{
		"Workers": int64(o.Workers), "Batch": int64(o.Batch), "MaxItems": int64(o.MaxItems), "MaxBytes": o.MaxBytes,
		"Wait": int64(o.Wait), "Shutdown": int64(o.Shutdown),
	} {
		if n < 1 {
			wrong.Add("%s: %d is below 1", name, n)
		}
	}
	if o.Window < 0 {
		wrong.Add("Window: %v is negative", o.Window)
	}
	if o.ParkedMaxAge < 0 {
		wrong.Add("ParkedMaxAge: %v is negative", o.ParkedMaxAge)
	}
	if o.OnMissing > MissingHash {
		wrong.Add("OnMissing: %d is not a policy", o.OnMissing)
	}
	if o.Order > OrderPartition {
		wrong.Add("Order: %d is not OrderKey or OrderPartition", o.Order)
	}
	for name, then := range map[string]Then{"OnLate": o.OnLate, "OnMismatch": o.OnMismatch} {
		if then > Stop {
			wrong.Add("%s: %d is not Park, Drop or Stop", name, then)
		}
	}
	if o.DeadLetters == nil && (o.OnMissing == MissingPark || o.OnLate == Park || o.OnMismatch == Park || o.Failure.Then == Park) {
		wrong.Add("DeadLetters is missing, but a policy parks messages")
	}
	return errors.Join(wrong.Err(), source.validate(), o.Failure.validate())
}

// Then says what happens to a message that is not retried.
type Then uint8

const (
	// Park parks it.
	Park Then = iota
	// Drop drops it. It is lost.
	Drop
	// Stop ends the pipeline. The message is not acknowledged.
	Stop
)

// String returns the policy's name in configurations.
func (t Then) String() string {
	names := [...]string{"park", "drop", "stop"}
	if int(t) < len(names) {
		return names[t]
	}
	return "invalid"
}

// Failure says how a pipeline retries messages. The zero value is valid.
type Failure struct {
	// Attempts limits the deliveries of a message. After a permanent error there is no
	// further delivery. An unavailable sink costs no attempt, unless it accepts other
	// messages. Defaults to 8.
	Attempts int
	// From and To are the least and the longest pause before the next attempt. The
	// pause doubles each time. They default to 200 ms and 30 s.
	From, To time.Duration
	// Then says what happens after the last attempt. Defaults to Park.
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
		wrong.Add("From, To: %v and %v must be above 0, and To not below From", f.From, f.To)
	}
	if f.Then > Stop {
		wrong.Add("Then: %d is not Park, Drop or Stop", f.Then)
	}
	return wrong.Err()
}

// Pause returns how long to wait after a number of tries, from 1. The pause is From
// after the first try, doubles with each further one, and is at most To. Pause returns a random
// time between a half and the whole of it, so that messages that failed together are retried
// apart.
func (f *Failure) Pause(tries int) time.Duration {
	return retry.UpTo(retry.Backoff(tries-1, f.From, f.To), 0.5)
}

// argument is a required argument of a constructor.
type argument struct {
	name    string
	missing bool
}

// missing returns an error that names all missing arguments of a constructor, or nil.
func missing(constructor string, of ...argument) error {
	wrong := invalid.In("pipeline: " + constructor + ": ")
	for _, a := range of {
		if a.missing {
			wrong.Add("the %s is nil", a.name)
		}
	}
	return wrong.Err()
}
