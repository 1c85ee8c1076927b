package trialcmd

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// decider decides messages as a pipeline would, but claims nothing.
type decider struct {
	*dryRun
	looker     semel.Inspector // nil if there is no store to read
	route      *pipeline.Route // nil if messages name no targets
	reader     *key.Reader
	partitions bool // each partition has its own keys
	now        time.Time
	seen       map[seenKey]seenMessage
	seed       maphash.Seed // of contents
	batch      []dryMessage
}

// seenKey is a key seen in this reading, with its partition if each has its own
// keys.
type seenKey struct{ id, partition string }

type seenMessage struct {
	at          placed
	fingerprint semel.Fingerprint
	content     uint64
}

// dryMessage is a message whose key was extracted.
type dryMessage struct {
	at          placed
	key         semel.Key
	fingerprint semel.Fingerprint
	content     uint64
	late        bool // applies only to a key that the store does not know
	// pass, output and failed are what filter and map make of the message, if it is fresh.
	pass   bool
	output []byte
	failed error
	astray error // the message names no target that is allowed
}

func newDecider(d *dryRun, looker semel.Inspector) *decider {
	return &decider{
		dryRun: d, route: d.spec.Sink.About().Route, looker: looker, now: time.Now(), seen: map[seenKey]seenMessage{}, seed: maphash.MakeSeed(),
		partitions: d.conf.Mode(d.spec) == config.SourceIsSink,
		reader:     d.spec.Key.Rule.Reader(&key.FinderOptions{Content: d.spec.OnMismatch != "ignore"}),
	}
}

// add adds a message. The next call of decide decides it.
func (j *decider) add(ctx context.Context, m *semel.Message) {
	at := placed{Source: m.Origin.Source, Partition: m.Origin.Partition, Offset: m.Origin.Offset}
	inner, err := j.spec.Unwrap.Unwrap(*m)
	if err != nil {
		j.note(dryMissing, drySample{placed: at, Error: term.PlainText(err.Error())})
		return
	}
	m = &inner
	id, err := j.reader.AppendID(nil, m)
	if err != nil {
		j.note(dryMissing, drySample{placed: at, Error: term.PlainText(diagnose.NoKey(m.Body, err).Error())})
		if id = j.spec.Key.IDWithout(err, m.Body); id == nil {
			return
		}
	}
	d := dryMessage{at: at, key: semel.Key{Scope: j.spec.Key.Scope, ID: string(id)}}
	if err := d.key.Validate(); err != nil {
		j.note(dryMissing, drySample{placed: at, Error: term.PlainText(err.Error())})
		return
	}
	content, err := key.AppendContent(nil, m.Body)
	if err != nil {
		content = m.Body
	}
	d.content = maphash.Bytes(j.seed, content)
	if j.spec.OnMismatch != "ignore" {
		binary.LittleEndian.PutUint64(d.fingerprint[:8], j.reader.Print())
	}
	if j.spec.OnLate != "run" && !m.Time.IsZero() {
		claim := semel.ClaimRequest{Time: m.Time, Window: j.spec.Window}
		d.late = claim.Late(j.now)
	}
	d.output, d.pass, d.failed = j.spec.FilterMap.Call(ctx, pipeline.Delivery{Message: *m, Key: d.key, Attempt: 1})
	if j.route != nil && d.pass {
		_, d.astray = j.route.Target(m)
	}
	if j.spec.Map == "" {
		d.output = bytes.Clone(d.output) // the source uses its memory again
	}
	j.batch = append(j.batch, d)
}

func (j *decider) note(kind string, s drySample) {
	j.count[kind]++
	if (kind != dryFresh || j.spec.Map != "") && len(j.shown[kind]) < j.samples {
		j.shown[kind] = append(j.shown[kind], s)
	}
}

// decide decides the added messages.
func (j *decider) decide(ctx context.Context) error {
	records := make([]semel.Record, len(j.batch))
	if j.looker != nil && len(j.batch) > 0 {
		keys := make([]semel.Key, len(j.batch))
		for i := range j.batch {
			keys[i] = j.batch[i].key
		}
		if err := j.looker.Look(ctx, keys, records); err != nil {
			return fmt.Errorf("look keys up: %w", err)
		}
	}
	for i := range j.batch {
		d := &j.batch[i]
		kind, sample := j.one(d, &records[i])
		if d.astray != nil && (kind == dryFresh || kind == dryDuplicate && j.conf.Mode(j.spec) == config.Direct) {
			kind, sample.Error = dryNoTarget, term.PlainText(d.astray.Error())
		}
		j.note(kind, sample)
	}
	j.batch = j.batch[:0]
	return nil
}

func (j *decider) one(d *dryMessage, r *semel.Record) (kind string, sample drySample) {
	sample = drySample{placed: d.at, Key: keyrecord.DisplayID(d.key.ID)}
	in := seenKey{id: d.key.ID}
	if j.partitions {
		in.partition = fmt.Sprintf("%s/%d", d.at.Source, d.at.Partition)
	}
	if first, ok := j.seen[in]; ok {
		sample.First = &first.at
		if !first.fingerprint.Matches(d.fingerprint) {
			return dryMismatch, sample
		}
		if first.content != d.content {
			j.differ++
		}
		return dryDuplicate, sample
	}
	sample.FirstSeen = term.JSONTime(r.FirstSeen)
	if r.State != semel.Absent && !r.Fingerprint.Matches(d.fingerprint) {
		return dryMismatch, sample
	}
	switch {
	case r.State == semel.Done:
		return dryDuplicate, sample
	case r.State == semel.Unknown:
		return dryUnknown, sample
	case r.State == semel.Claimed && r.LeaseEnd.After(j.now):
		return dryInFlight, sample
	case r.State == semel.Absent && d.late && j.spec.OnLate != "run":
		return dryLate, sample
	}
	kind = d.fresh()
	if fate := without(d.failed); fate != "" { // the key stays open
		j.rowFates[fate] = true
		sample.Error = term.PlainText(d.failed.Error()) + ": " + fate
		return dryNoRow, sample
	}
	if kind == dryFailed {
		sample.Error = term.PlainText(d.failed.Error())
		return kind, sample
	}
	j.seen[in] = seenMessage{d.at, d.fingerprint, d.content}
	if kind == dryFresh && j.spec.Map != "" {
		sample.Output = d.output
	}
	return kind, sample
}

// fresh returns what becomes of a message with a new key.
func (d *dryMessage) fresh() string {
	switch {
	case d.failed != nil:
		return dryFailed
	case !d.pass:
		return dryFiltered
	}
	return dryFresh
}
