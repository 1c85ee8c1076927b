package facts

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// Hands is a store as people change it by hand. Each change goes to its audit log first.
type Hands struct {
	semel.Resolver
	keyrecord.Log
	Store semel.Store
	look  semel.Inspector
}

// HandsOn returns a store for changes by hand, or an error if it cannot be changed so.
func HandsOn(f *open.StoreFlags, store semel.Store) (*Hands, error) {
	resolver, err := open.Able[semel.Resolver](f, store, "change a key by hand")
	if err != nil {
		return nil, err
	}
	log, err := open.Able[keyrecord.Log](f, store, "keep an audit log, without which no key is changed by hand")
	if err != nil {
		return nil, err
	}
	look, err := open.Able[semel.Inspector](f, store, "look keys up")
	if err != nil {
		return nil, err
	}
	return &Hands{resolver, log, store, look}, nil
}

// byDigest returns the store if it finds records by their digests. It is the one that changes
// keys: what a store wraps would change them behind its back.
func (h *Hands) byDigest() (semel.DigestResolver, error) {
	find, ok := h.Resolver.(semel.DigestResolver)
	if !ok {
		return nil, fmt.Errorf("the store finds no key by its digest: name its ID: %w", errors.ErrUnsupported)
	}
	return find, nil
}

// Version identifies what is known of a record, so that a person changes what was shown. It
// changes with each claim, completion, release and resolution.
func Version(r *semel.Record) string {
	if r.State == semel.Absent {
		return r.State.String()
	}
	return fmt.Sprintf("%s %d %d %d", r.State, r.Token, r.Attempt, r.FirstSeen.UnixMicro())
}

// Again looks at a record again, by its digest if its key is not known.
func (h *Hands) Again(ctx context.Context, r *semel.Record) (*semel.Record, error) {
	if r.Key.ID == "" {
		find, err := h.byDigest()
		if err != nil {
			return nil, err
		}
		now, err := find.LookDigest(ctx, r.Digest)
		now.Digest = r.Digest
		return &now, err
	}
	records := make([]semel.Record, 1)
	if err := h.look.Look(ctx, []semel.Key{r.Key}, records); err != nil {
		return nil, fmt.Errorf("look the key up: %w", err)
	}
	records[0].Key = r.Key
	return &records[0], nil
}

// Settle settles an unknown record, between two lines of the audit log.
func (h *Hands) Settle(ctx context.Context, by keyrecord.By, r *semel.Record, as semel.State, window time.Duration) error {
	return keyrecord.Audited(ctx, h, "resolve", by, r, as, keyrecord.OutcomeDone, func() error {
		if r.Key.ID != "" {
			return h.Resolve(ctx, semel.ResolveRequest{Key: r.Key, As: as, Window: window})
		}
		find, err := h.byDigest()
		if err != nil {
			return err
		}
		return find.ResolveDigest(ctx, r.Digest, semel.ResolveRequest{As: as, Window: window})
	})
}

// ErrChanged is wrapped by the error of a change to a record that is no longer what was shown.
var ErrChanged = errors.New("the record changed since it was shown")

// unchanged returns an error if a record is no longer what was shown.
func (h *Hands) unchanged(ctx context.Context, r *semel.Record) error {
	now, err := h.Again(ctx, r)
	switch {
	case err != nil:
		return err
	case now.State == semel.Absent:
		return errors.New("the key has expired")
	case Version(now) != Version(r):
		return fmt.Errorf("nothing was changed: %w, and is %s now: look at it again", ErrChanged, now.State)
	}
	return nil
}

// Forget removes a record in any state, between two lines of the audit log, if it is what was
// shown. Remove takes no expected record, so Forget looks at it again immediately before: what
// the first line took, a message had time to claim the key.
func (h *Hands) Forget(ctx context.Context, by keyrecord.By, r *semel.Record) error {
	return keyrecord.Audited(ctx, h, "rm", by, r, semel.Absent, keyrecord.OutcomeDone, func() (err error) {
		if err := h.unchanged(ctx, r); err != nil {
			return err
		}
		var removed bool
		if r.Key.ID != "" {
			removed, err = h.Remove(ctx, r.Key)
		} else {
			find, unable := h.byDigest()
			if unable != nil {
				return unable
			}
			removed, err = find.RemoveDigest(ctx, r.Digest)
		}
		switch {
		case err == nil && !removed:
			err = errors.New("the key has expired")
		case err != nil && removed: // removed from the deciding store, but not from a layer above it
			err = fmt.Errorf("%w: run the same command again", err)
		}
		return err
	})
}

// MakeDone makes a key done from any state, unless another holder has it, between two lines of
// the audit log. A key that is done stays as it is.
func (h *Hands) MakeDone(ctx context.Context, by keyrecord.By, key semel.Key, window time.Duration) error {
	r, err := h.Again(ctx, &semel.Record{Key: key})
	if err != nil || r.State == semel.Done {
		return err
	}
	return keyrecord.Audited(ctx, h, "parked done", by, r, semel.Done, keyrecord.OutcomeDone, func() error { return h.makeDone(ctx, by, r, window) })
}

func (h *Hands) makeDone(ctx context.Context, by keyrecord.By, r *semel.Record, window time.Duration) error {
	if r.State == semel.Unknown {
		return h.Resolve(ctx, semel.ResolveRequest{Key: r.Key, As: semel.Done, Window: window})
	}
	claims := []semel.ClaimRequest{{
		Key: r.Key, Owner: semel.Owner{Name: by.Actor, Nonce: binary.LittleEndian.Uint64([]byte(rand.Text()))},
		Window: window, Done: true,
	}}
	answers := make([]semel.ClaimAnswer, 1)
	if err := h.Store.Claim(ctx, claims, answers); err != nil {
		return err
	}
	switch a := &answers[0]; {
	case a.Err != nil:
		return a.Err
	case a.Decision == semel.Fresh, a.Decision == semel.Duplicate:
		return nil
	case a.Decision == semel.InFlight:
		return fmt.Errorf("%s holds the key until %s: try again after that", term.DisplayText(a.Holder), term.DisplayTime(a.Claim.LeaseEnd))
	default:
		return fmt.Errorf("the store answered %s", a.Decision)
	}
}

// WindowOf returns how long a record that is made done is remembered, and the pipeline that says
// so. If several pipelines may have the key, the longest window counts.
func WindowOf(conf *config.File, store string, r *semel.Record) (window time.Duration, pipeline string) {
	for _, p := range conf.PipelinesOn(store) {
		_, anyScope := conf.Lacks(p.Name, "key.scope")
		if p.Window > window && (anyScope || r.Key.ID == "" || r.Key.Scope == p.Key.Scope) {
			window, pipeline = p.Window, p.Name
		}
	}
	if p, ok := conf.ProxyOn(store); ok && pipeline == "" && (r.Key.ID == "" || r.Key.Scope == p.Scope) {
		return p.LongestWindow(), ""
	}
	if pipeline == "" {
		return semel.Forever, ""
	}
	return window, pipeline
}

// DropWarnings names the servers that still drop a message with the id of a removed
// key, and says until when. A message that comes again before would be lost.
func DropWarnings(conf *config.File, store string, record *semel.Record, now time.Time) (warnings []string) {
	for _, p := range conf.PipelinesOn(store) {
		if record.Key.ID != "" && record.Key.Scope != p.Key.Scope {
			continue
		}
		// The producer published the message before a pipeline saw its key.
		if until, why := dropsUntil(p.Source.About(p).Drops, record.FirstSeen, now); until != "" {
			warnings = append(warnings, fmt.Sprintf("the source of %s drops a message that its producer publishes again with the same id, until %s (%s), and reports success: publish it again after that", p.Name, until, why))
		}
		if until, why := dropsUntil(p.Sink.About().Drops, completed(record, p.Window), now); until != "" {
			warnings = append(warnings, fmt.Sprintf("the sink of %s drops a message that has the id of this key, until %s (%s), and reports success: let the message come again after that", p.Name, until, why))
		}
	}
	return warnings
}

// dropsUntil says until when a server drops the id of a message that it stored at the
// given time, or now if that is zero. It returns empty texts if it does not.
func dropsUntil(drops config.Drops, stored, now time.Time) (until, why string) {
	if stored.IsZero() || stored.After(now) {
		stored = now
	}
	end := stored.Add(drops.For)
	if !end.After(now) {
		return "", ""
	}
	why = drops.Server + " keeps ids for " + schema.Duration(drops.For)
	if drops.Setting != "" {
		why += ", or for the " + drops.Setting
	}
	return term.DisplayTime(end.Add(time.Second)), why
}

// completed returns when a key became done, or zero if the record does not say.
func completed(record *semel.Record, window time.Duration) time.Time {
	if record.State != semel.Done || record.Expires.IsZero() {
		return time.Time{}
	}
	at := record.Expires.Add(-window)
	if at.Before(record.FirstSeen) { // it was completed with another window
		return time.Time{}
	}
	return at
}

// LookUp fills in the records of keys, with the key in each.
func (h *Hands) LookUp(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	err := h.look.Look(ctx, keys, records)
	for i := range keys {
		records[i].Key = keys[i]
	}
	return err
}
