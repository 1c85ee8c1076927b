package config

import (
	"cmp"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// HeldWait is how long a message waits for a key of another holder, before the message goes back
// to a source that takes messages back.
const HeldWait = 5 * time.Second

// firstPause is the pause after the first failed attempt.
const firstPause = 200 * time.Millisecond

// Guard returns the policy for the pipeline's claims. The observer may be nil.
func (p *Pipeline) Guard(observer semel.Observer) semel.GuardOptions {
	g := semel.GuardOptions{Lease: p.Lease, Window: p.Window}
	if observer != nil {
		g.Observer = observer
	}
	if p.OnLeaseExpired == "hold" {
		g.OnLeaseExpired = semel.ExpiryHold
	}
	if p.OnLate == "run" {
		g.OnLate = semel.LateRun
	}
	return g
}

// Options returns the options of a pipeline of the file. The observer may be nil.
func (f *File) Options(p *Pipeline, observer pipeline.Observer) *pipeline.Options {
	o := &pipeline.Options{
		Name: p.Name, Key: p.Key.Rule, Unwrap: p.unwrapper(), Scope: p.Key.Scope, SameScope: p.Key.SameScope, Fingerprint: p.OnMismatch != "ignore",
		Window: p.Window, EventTime: p.OnLate != "run",
		OnLate: then(p.OnLate), OnMismatch: then(p.OnMismatch),
		Failure: p.OnFailure,
		Workers: p.Parallel, Batch: int(p.Batch), MaxItems: int(p.InFlight.Max), MaxBytes: p.InFlight.Bytes,
		Wait: HeldWait, Shutdown: f.Shutdown, ParkedMaxAge: p.Parked.MaxAge, Observer: observer,
	}
	about := p.Source.About(p)
	o.Varies = about.Varies && p.Key.Rule.String() == about.Key.String()
	o.Failure.From = min(firstPause, o.Failure.To)
	if decider := f.Decider(p.Store.Name); decider != nil {
		o.KeepOrigin = decider.Spec.About().Origins
	}
	if p.Order == "partition" {
		o.Order = pipeline.OrderPartition
	}
	switch p.Key.OnMissing {
	case "fail":
		o.OnMissing = pipeline.MissingStop
	case "drop":
		o.OnMissing = pipeline.MissingDrop
	case "pass":
		o.OnMissing = pipeline.MissingPass
	case "hash":
		o.OnMissing = pipeline.MissingHash
	}
	if f.Mode(p) == Checkpointed {
		// Each record of the store costs one disk sync, so batches are large.
		o.Batch, o.MaxItems = cmp.Or(o.Batch, 4096), cmp.Or(o.MaxItems, 65536)
	}
	return o
}

// unwrapper returns what unwraps the messages of a pipeline, or nil.
func (p *Pipeline) unwrapper() pipeline.Unwrapper {
	if p.Unwrap == nil {
		return nil // not p.Unwrap: a nil pointer in an interface is not nil
	}
	return p.Unwrap
}

// RuleText says how a pipeline finds the ids of messages.
func (p *Pipeline) RuleText() string { return pipeline.RuleText(p.Key.Rule.String(), p.unwrapper()) }

// ScopeOwner returns the owner of the scope of a pipeline that does not share it.
func (p *Pipeline) ScopeOwner() semel.ScopeOwner {
	return semel.ScopeOwner{Rule: p.RuleText(), Pipeline: p.Name}
}

// KeyOf returns the key of a message as a pipeline finds it, and the message that it has found
// the key in, which may be inside the other. After an error of the key, that message is valid too.
func (p *Pipeline) KeyOf(m *semel.Message) (semel.Key, *semel.Message, error) {
	inner, err := p.Unwrap.Unwrap(*m)
	if err != nil {
		return semel.Key{}, nil, err
	}
	k, err := p.Key.Rule.Key(p.Key.Scope, &inner)
	return k, &inner, err
}

// thenField is the policy for messages that cannot be processed.
func thenField(name string, target *pipeline.Then, doc string) schema.Field {
	var word string
	f := schema.ChoiceField(name, &word, doc, "park", "drop", "stop").Or("park")
	read := f.Read
	f.Read = func(v schema.Value) {
		read(v)
		*target = then(word)
	}
	return f
}

// then converts a policy word. Other words are handled elsewhere.
func then(word string) pipeline.Then {
	switch word {
	case "drop":
		return pipeline.Drop
	case "stop":
		return pipeline.Stop
	}
	return pipeline.Park
}
