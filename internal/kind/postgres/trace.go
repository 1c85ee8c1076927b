package postgres

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/internal/config"
)

// written is what a trace says of a row of an outbox.
const written = "written to the outbox"

// Trace implements config.Source.
func (s *Outbox) Trace(ctx context.Context, p *config.Pipeline, t *config.Tracing) error {
	name := "outbox of " + s.Store.Name
	address := p.Sink.About().Address
	list, err := outbox.Find(ctx, s.spec.DSN.Reveal(), s.spec.names(), t.IDs())
	for _, w := range list {
		what := waits(&w, s.wal())
		if address != nil {
			what += cmp.Or(to(", to be sent to ", address(&w.Message)), ", and names no target that is allowed")
		}
		t.Found(config.Sighting{Time: w.Time, Place: fmt.Sprintf("%s, row %d", name, w.Origin.Offset), What: what})
	}
	if err != nil {
		return err
	}
	if s.Keep == 0 {
		t.Looked(name + ": rows that " + p.Name + " has not delivered; a delivered row is gone")
		return nil
	}
	kept, err := outbox.FindKept(ctx, s.spec.DSN.Reveal(), s.spec.names(), t.IDs(), t.Since)
	for _, k := range kept {
		place := fmt.Sprintf("%s, row %d", name, k.Origin.Offset)
		what := "delivered"
		if address != nil {
			what += to(" to ", address(&k.Message))
		}
		switch k.Failure {
		case "":
		case "dropped":
			what = "dropped"
		default:
			what = "parked (" + k.Failure + ")"
		}
		t.Found(config.Sighting{Time: k.Time, Place: place, What: written})
		t.Found(config.Sighting{Time: k.Delivered, Place: place, What: fmt.Sprintf("%s by the relay %s, attempt %d", what, k.Relay, k.Attempts)})
	}
	if err == nil {
		t.Looked(name + ": rows that " + p.Name + " has not delivered, and those that it has kept")
	}
	return err
}

// waits says for what a row waits.
func waits(w *outbox.Waiting, wal bool) string {
	switch {
	case w.DeliverAt.After(time.Now()):
		return written + "; it waits until " + w.DeliverAt.UTC().Format(time.RFC3339)
	case wal:
		return written + "; it waits for the relay that reads the replication slot"
	case w.Owner != "":
		return written + "; it waits for the relay " + w.Owner
	}
	return written + "; it waits, and no relay owns its shard"
}

// to returns a preposition and an address, if there is one.
func to(preposition, address string) string {
	if address == "" {
		return ""
	}
	return preposition + address
}

// Trace implements config.Sink. It looks for the rows of the sink in an outbox, unless a pipeline
// of the file reads this outbox and so looks itself.
func (s *Sink) Trace(ctx context.Context, p *config.Pipeline, t *config.Tracing) error {
	t.Unsearched("sink", p.Name, s.About().Name)
	if s.Outbox == nil {
		return nil
	}
	for _, other := range t.File.Pipelines {
		if of, ok := other.Source.(*Outbox); ok && of.Store.Name == s.Store.Name {
			return nil
		}
	}
	store, err := find(t.File, s.Store.Name)
	if err != nil {
		return err
	}
	name := "outbox of " + s.Store.Name
	list, err := outbox.Find(ctx, store.DSN.Reveal(), store.names(), t.IDs())
	for _, w := range list {
		t.Found(config.Sighting{Time: w.Time, Place: fmt.Sprintf("%s, row %d", name, w.Origin.Offset), What: waits(&w, false)})
	}
	if err == nil {
		t.Looked(name + ": rows that wait; this file has no pipeline that reads it")
	}
	return err
}
