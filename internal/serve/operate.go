package serve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/storeapi"
)

// listing is the body of the verb list.
type listing struct {
	opts  semel.ListOptions
	limit int
	after string // the place of the last record of the page before
	count bool
}

var listNames = []string{"scope", "scope_base64", "state", "limit", "cursor", "counts"}

func (d *decoder) listing(value []byte) (*listing, error) {
	l := &listing{limit: 100}
	err := members(value, listNames, func(i int, value []byte) (err error) {
		switch i {
		case 0, 1:
			var k keyParts
			if err = d.member(i, value, &k); err == nil {
				l.opts.Scope = &k.Scope
			}
		case 2:
			err = quantity(d, &l.opts.State, value, func(text string) (semel.State, error) {
				word, err := schema.ParseChoice(text, "claimed", "done", "unknown")
				return storeapi.ParseState(word), err
			})
		case 3:
			if json.Unmarshal(value, &l.limit) != nil || l.limit < 1 || l.limit > d.opts.MaxBatch {
				err = fmt.Errorf("write a number from 1 to %d", d.opts.MaxBatch)
			}
		case 4:
			if l.after, err = d.text(value); err == nil && len(l.after) != hex.EncodedLen(len(semel.Digest{})) {
				err = errors.New("not a cursor: write the text that the page before has")
			}
		case 5:
			l.count, err = truth(value)
		}
		return err
	})
	return l, err
}

// place orders the records of a list. It does not change while a record lives.
func place(r *semel.Record) string {
	if r.Digest != (semel.Digest{}) {
		return r.Digest.String()
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(r.Key.Scope), r.Key.Scope, r.Key.ID))
	return hex.EncodeToString(sum[:len(semel.Digest{})])
}

// list answers one page. A store lists in no order, so each page is a walk over all records
// that the options select, of which it keeps the first ones. A page then needs no memory of
// the server, and survives its restart.
func (c *call) list() (any, *storeapi.Problem) {
	var l *listing
	if p := c.decode(func(d *decoder) (err error) { l, err = d.listing(c.body); return err }); p != nil {
		return nil, p
	}
	switch {
	case c.inspector == nil:
		return nil, unsupported()
	case l.count && !c.who.mayAll():
		return nil, forbidden("*, which counts need,")
	case l.opts.Scope != nil && !c.who.mayScope(*l.opts.Scope):
		return nil, forbidden(*l.opts.Scope)
	}
	type found struct {
		place string
		semel.Record
	}
	var page []found
	sorted := func() { // a walk may find a record twice
		slices.SortFunc(page, func(a, b found) int { return cmp.Compare(a.place, b.place) })
		page = slices.CompactFunc(page, func(a, b found) bool { return a.place == b.place })
	}
	for r, err := range c.inspector.List(c.r.Context(), l.opts) {
		if err != nil {
			return nil, c.failed(err)
		}
		at := place(&r)
		if at <= l.after || !c.who.maySee(&r) {
			continue
		}
		if page = append(page, found{at, r}); len(page) >= 2*(l.limit+1) {
			sorted()
			page = page[:min(l.limit+1, len(page))]
		}
	}
	sorted()
	all := &storeapi.Items{Items: []json.RawMessage{}}
	if l.count {
		counts, err := c.inspector.Count(c.r.Context())
		if err != nil {
			return nil, c.failed(err)
		}
		all.Counts = countsOf(&counts)
	}
	for i := range page {
		if i == l.limit {
			all.Cursor = page[i-1].place
			break
		}
		text := encode(recordOf(&page[i].Record, false))
		all.Items = append(all.Items, text)
	}
	return all, nil
}

func countsOf(c *semel.Counts) *storeapi.Counts {
	text := func(n int64) string { return strconv.FormatInt(n, 10) }
	return &storeapi.Counts{
		Claimed: text(c.Claimed), Done: text(c.Done), Unknown: text(c.Unknown), MemoryBytes: text(c.MemoryBytes), DiskBytes: text(c.DiskBytes),
		OldestMS: text(c.Oldest.Milliseconds()),
	}
}

// decision is the body of the verbs resolve and remove.
type decision struct {
	key    semel.Key
	digest semel.Digest // instead of the key
	as     semel.State
	result semel.Result
	window time.Duration
	reason string
	// state and token are those that the record must have, if they are set.
	state *semel.State
	token *semel.Token
}

var (
	removeNames  = append(slices.Clone(keyNames), "digest", "reason", "expect")
	resolveNames = append(slices.Clone(removeNames), "as", "result", "window")
)

func (d *decoder) decision(value []byte, names []string) (*decision, error) {
	r := &decision{window: d.opts.Window}
	var k keyParts
	var digest, as bool
	err := members(value, names, func(i int, value []byte) (err error) {
		switch i - len(keyNames) {
		case 0:
			digest = true
			err = quantity(d, &r.digest, value, parseDigest)
		case 1:
			r.reason, err = d.text(value)
		case 2:
			err = members(value, []string{"state", "token"}, func(i int, value []byte) error {
				if i == 1 {
					r.token = new(semel.Token)
					return quantity(d, r.token, value, parseToken)
				}
				r.state = new(semel.State)
				return quantity(d, r.state, value, func(text string) (semel.State, error) {
					word, err := schema.ParseChoice(text, "absent", "claimed", "done", "unknown")
					return storeapi.ParseState(word), err
				})
			})
		case 3:
			as = true
			err = quantity(d, &r.as, value, func(text string) (semel.State, error) {
				word, err := schema.ParseChoice(text, "done", "absent")
				return storeapi.ParseState(word), err
			})
		case 4:
			r.result, err = d.result(value)
		case 5:
			err = quantity(d, &r.window, value, schema.ParseWindow)
		default:
			err = d.member(i, value, &k)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case digest && k.scopes+k.ids > 0:
		return nil, errBoth
	case !digest:
		if r.key, err = d.whole(&k); err != nil {
			return nil, err
		}
	}
	switch {
	case strings.TrimSpace(r.reason) == "":
		return nil, errors.New("reason is missing: say why, for the audit log")
	case len(r.reason) > 4096:
		return nil, errors.New("reason: at most 4096 bytes")
	case len(names) == len(resolveNames) && !as:
		return nil, errors.New("as is missing: write done or absent")
	}
	return r, nil
}

// auditor is a store with an audit log.
type auditor interface {
	Audit(ctx context.Context, line []byte) error
}

func (c *call) resolve() (any, *storeapi.Problem) {
	return c.decide("resolve", resolveNames, func(ctx context.Context, by semel.Resolver, d *decision, r *semel.Record) error {
		if r.State != semel.Unknown {
			return semel.ErrNotUnknown
		}
		if r.Key.ID != "" {
			return by.Resolve(ctx, semel.ResolveRequest{Key: r.Key, As: d.as, Result: d.result, Window: d.window})
		}
		find, err := byDigest(c.store)
		if err != nil {
			return err
		}
		return find.ResolveDigest(ctx, r.Digest, semel.ResolveRequest{As: d.as, Result: d.result, Window: d.window})
	})
}

func (c *call) remove() (any, *storeapi.Problem) {
	removed := false
	answer, p := c.decide("remove", removeNames, func(ctx context.Context, by semel.Resolver, _ *decision, r *semel.Record) (err error) {
		switch {
		case r.State == semel.Absent:
			return nil
		case r.Key.ID == "":
			find, unable := byDigest(c.store)
			if unable != nil {
				return unable
			}
			removed, err = find.RemoveDigest(ctx, r.Digest)
		case r.State != semel.Done && r.Token != 0:
			errs := make([]error, 1)
			err = c.store.Release(ctx, []semel.ReleaseRequest{{Key: r.Key, Token: r.Token}}, errs)
			err = cmp.Or(err, errs[0])
			removed = err == nil
		default:
			removed, err = by.Remove(ctx, r.Key)
		}
		return err
	})
	if p != nil {
		return nil, p
	}
	answer.(*storeapi.Settled).Removed = &removed
	return answer, nil
}

// decide makes a change that an operator asks for, between two lines of the audit log. A
// change that cannot be logged is not made.
func (c *call) decide(verb string, names []string, change func(ctx context.Context, by semel.Resolver, d *decision, r *semel.Record) error) (any, *storeapi.Problem) {
	var d *decision
	if p := c.decode(func(dec *decoder) (err error) { d, err = dec.decision(c.body, names); return err }); p != nil {
		return nil, p
	}
	by, ok := semel.As[semel.Resolver](c.store)
	if !ok || c.inspector == nil {
		return nil, unsupported()
	}
	ctx := context.WithoutCancel(c.r.Context())
	record, err := c.find(ctx, d)
	if err != nil {
		return nil, c.failed(err)
	}
	switch {
	case !c.who.maySee(record):
		if d.key.ID == "" {
			return nil, forbidden("of this record") // the same if it does not exist
		}
		return nil, forbidden(d.key.Scope)
	case d.state != nil && *d.state != record.State, d.token != nil && *d.token != record.Token:
		return nil, changed(record)
	}
	err = c.audited(ctx, verb, d, record, func() error { return change(ctx, by, d, record) })
	switch {
	case errors.Is(err, semel.ErrStaleToken):
		return nil, storeapi.Of(storeapi.Changed, "Another call changed the record in the meantime. Look it up again. Nothing was changed.")
	case errors.Is(err, semel.ErrNotUnknown):
		p := storeapi.FromError(err, "Only a record in the state unknown can be resolved. Nothing was changed.")
		p.State = record.State.String()
		return nil, p
	case errors.Is(err, errors.ErrUnsupported):
		return nil, storeapi.Of(storeapi.Unsupported, "The store needs the key, and not its digest.")
	case err != nil:
		return nil, c.failed(err)
	}
	return &storeapi.Settled{State: d.as.String()}, nil
}

// changed returns the problem of a record that is not the expected one.
func changed(r *semel.Record) *storeapi.Problem {
	p := storeapi.Of(storeapi.Changed, "The record is not the expected one. Nothing was changed.")
	p.State, p.Holder = r.State.String(), r.Holder
	if r.Token != 0 {
		p.HolderToken = storeapi.FormatToken(r.Token)
	}
	return p
}

// byDigest returns a store that finds records by their digests. It is the one that resolves
// keys: what a store wraps would change them behind its back.
func byDigest(store semel.Store) (semel.DigestResolver, error) {
	resolver, _ := semel.As[semel.Resolver](store)
	by, ok := resolver.(semel.DigestResolver)
	if !ok {
		return nil, fmt.Errorf("the store finds no key by its digest: %w", errors.ErrUnsupported)
	}
	return by, nil
}

// find returns the record that a decision is about, with its key if that is known.
func (c *call) find(ctx context.Context, d *decision) (*semel.Record, error) {
	if d.key.ID == "" {
		by, err := byDigest(c.store)
		if err != nil {
			return nil, err
		}
		record, err := by.LookDigest(ctx, d.digest)
		record.Digest = d.digest
		return &record, err
	}
	records := make([]semel.Record, 1)
	err := c.inspector.Look(ctx, []semel.Key{d.key}, records)
	records[0].Key = d.key
	return &records[0], err
}

// auditLine is a line of the audit log, as semel keys writes it.
type auditLine struct {
	Time      string           `json:"time"`
	Operation string           `json:"operation"`
	Actor     string           `json:"actor,omitempty"`
	Host      string           `json:"host,omitempty"`
	Verb      string           `json:"verb,omitempty"`
	Before    *storeapi.Record `json:"before,omitempty"`
	After     string           `json:"after,omitempty"`
	Reason    string           `json:"reason,omitempty"`
	Outcome   string           `json:"outcome,omitempty"`
	Error     string           `json:"error,omitempty"`
}

// audited makes a change between two lines of the audit log. A store without one uses the
// log of the server.
func (c *call) audited(ctx context.Context, verb string, d *decision, record *semel.Record, change func() error) error {
	log, ok := semel.As[auditor](c.store)
	write := func(line *auditLine) error {
		text, err := json.Marshal(line)
		if err != nil {
			return err
		}
		if !ok {
			c.server.opts.Log.Info("audit", "line", string(bytes.TrimSpace(text)))
			return nil
		}
		return log.Audit(ctx, text)
	}
	actor := "serve"
	if c.who.Name != "" {
		actor += ":" + c.who.Name
	}
	operation := rand.Text()
	err := write(&auditLine{
		Time: timeText(time.Now()), Operation: operation, Actor: actor, Host: c.r.RemoteAddr, Verb: "serve " + verb,
		Before: recordOf(record, false), After: d.as.String(), Reason: d.reason,
	})
	if err != nil {
		return fmt.Errorf("the audit log cannot be written: %w", errors.Join(err, semel.ErrStoreUnavailable))
	}
	changeErr := change()
	outcome := &auditLine{Time: timeText(time.Now()), Operation: operation, Outcome: "done"}
	if changeErr != nil {
		outcome.Outcome, outcome.Error = "failed", c.server.opts.Redact(changeErr.Error())
	}
	if err := write(outcome); err != nil {
		c.server.opts.Log.Error("the outcome of a change could not be written to the audit log", "operation", operation, "error", err)
	}
	return changeErr
}
