package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// noteLast is how long it takes at the most to note what was written back.
const noteLast = 10 * time.Second

// returner writes messages back to where they came from.
type returner struct {
	source []kgo.Opt
	inputs []string
	// group reads the inputs, where it begins at their ends; else "".
	group  string
	begun  kadm.OffsetResponses
	client *kgo.Client // nil until something is written
	limits limits
	// compacted are topics that keep the newest record of each key alone.
	compacted map[string]bool
	keeps     map[string]time.Duration // by topic, where records end with their own time
}

func (b *returner) close() {
	if b.client != nil {
		b.client.Close()
	}
}

// open connects to the brokers that have the inputs.
func (b *returner) open(ctx context.Context) error {
	var l limits
	client, err := kgo.NewClient(append(b.source[:len(b.source):len(b.source)],
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return l.client(topic) }))...) // asked when the first record comes
	if err != nil {
		return fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	}
	adm := kadm.NewClient(client)
	if err = reach(ctx, client); err == nil {
		l, err = readLimits(ctx, adm, b.inputs...)
	}
	if err == nil {
		err = b.readSettings(ctx, adm)
	}
	if err == nil && b.group != "" {
		b.begun, err = adm.FetchOffsets(ctx, b.group)
		if errors.Is(err, kerr.GroupIDNotFound) {
			err = nil
		}
		if err != nil {
			err = fmt.Errorf("kafkaio: offsets of group %s, without which it may begin behind what is written back: %w", b.group, err)
		}
	}
	if err != nil {
		client.Close()
		return err
	}
	b.client, b.limits = client, l
	return nil
}

// readSettings reads what becomes of old records in the inputs. Of a topic whose
// settings this user may not see nothing is known.
func (b *returner) readSettings(ctx context.Context, adm *kadm.Client) error {
	b.keeps, b.compacted = map[string]time.Duration{}, map[string]bool{}
	for _, topic := range b.inputs {
		configs, err := topicSettings(ctx, adm, topic)
		if err != nil {
			return err
		}
		b.compacted[topic] = strings.Contains(setting(configs, topic, "cleanup.policy"), "compact")
		ms, err := strconv.ParseInt(setting(configs, topic, "retention.ms"), 10, 64)
		if err == nil && ms >= 0 && strings.Contains(setting(configs, topic, "cleanup.policy"), "delete") && setting(configs, topic, "message.timestamp.type") != "LogAppendTime" {
			b.keeps[topic] = time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
		}
	}
	return nil
}

// takes returns why a record cannot go back, or nil. Kafka deletes records by their
// own times, and one that it deletes before it is read would be lost. In a compacted
// topic an old record behind a newer one of its key would take that one's place. A
// group that begins at the end would not read what is written before.
func (b *returner) takes(r *kgo.Record) error {
	if b.group != "" {
		if at, ok := b.begun.Lookup(r.Topic, r.Partition); !ok || at.At < 0 {
			return fmt.Errorf("group %s has committed nothing of %s/%d and begins at its end (start: latest), so that the record would never be read: start the pipeline first: %w", b.group, r.Topic, r.Partition, semel.ErrInvalidRequest)
		}
	}
	if r.Key != nil && b.compacted[r.Topic] {
		return fmt.Errorf("%s is compacted, and in it the old record would replace a newer one of its key: if it is still the newest, send it again by hand, and skip it here: %w", r.Topic, semel.ErrInvalidRequest)
	}
	keep, ok := b.keeps[r.Topic]
	if age := time.Since(r.Timestamp); ok && !r.Timestamp.IsZero() && age >= keep { // without a time it gets the present
		return fmt.Errorf("it is %v old, and %s keeps records for %v, so that Kafka may delete it before it is read: raise retention.ms of the topic until it is delivered: %w",
			age.Round(time.Second), r.Topic, keep, semel.ErrInvalidRequest)
	}
	return b.limits.check(r.Topic, r)
}

// Redrivable returns why a message cannot be redriven, or nil.
func (l *DeadLetterTopic) Redrivable(p *pipeline.Parked) error {
	o := &p.Message.Origin
	switch {
	case len(l.opts.Inputs) == 0 || len(l.opts.Source) == 0:
		return fmt.Errorf("pipeline %s reads no Kafka to which it could go back: send it to the source again, and skip it here: %w", l.opts.Name, semel.ErrInvalidRequest)
	case o.Source == "":
		return fmt.Errorf("its headers do not say where it came from: send it to the topic again in which it belongs, and skip it here: %w", semel.ErrInvalidRequest)
	case !slices.Contains(l.opts.Inputs, o.Source):
		return fmt.Errorf("it came from %s, which pipeline %s does not read: %w", o.Source, l.opts.Name, semel.ErrInvalidRequest)
	}
	if p.Key.ID == "" {
		return nil
	}
	return l.keepsKey(p)
}

// keepsKey returns why a message would have another key once it is back, or nil.
func (l *DeadLetterTopic) keepsKey(p *pipeline.Parked) error {
	const byHand = "look at the target: if it had no effect, send it to its topic again by hand, and skip it here"
	if p.Key.Scope != l.opts.Scope {
		return fmt.Errorf("its key has the scope %q, and pipeline %s now has %q, under which it could have a second effect: write the old key.scope until it is delivered, or %s: %w",
			p.Key.Scope, l.opts.Name, l.opts.Scope, byHand, semel.ErrInvalidRequest)
	}
	id, err := l.identify(&p.Message)
	switch {
	case err != nil && l.opts.OnMissing == pipeline.MissingPass:
		return fmt.Errorf("its key is its place (on_missing: pass), and it would get another place, under which it could have a second effect: %s: %w", byHand, semel.ErrInvalidRequest)
	case err != nil:
		return nil // it is put aside again, or its key is its content
	case id != p.Key.ID:
		return fmt.Errorf("the rule of pipeline %s now finds another key in it, under which it could have a second effect: write the old rule until it is delivered, or %s: %w", l.opts.Name, byHand, semel.ErrInvalidRequest)
	}
	moved := p.Message
	moved.Origin.Offset++
	if id, err := l.identify(&moved); err != nil || id != p.Key.ID {
		return fmt.Errorf("its key is made of its place, and it would get another one, under which it could have a second effect: %s: %w", byHand, semel.ErrInvalidRequest)
	}
	return nil
}

// Redrive writes messages back to the topic and partition from which they came, as
// they were and with pipeline.RedriveHeader, and then notes them as settled. Whoever
// runs the pipeline reads them as any other record, so that each runs only if its
// key is not done. It returns where each is now, and what kept it from it:
// pipeline.ErrNotParked if it was settled meanwhile.
//
// It blocks until ctx ends at the most, and ten seconds more to note what was written
// until then. A message that was written and not noted, or by two calls at once, comes
// twice, which its key absorbs.
func (l *DeadLetterTopic) Redrive(ctx context.Context, list []*pipeline.Parked, actor string) ([]semel.Origin, []error) {
	places, errs := make([]semel.Origin, len(list)), make([]error, len(list))
	err := l.log.refresh(ctx)
	if err == nil && l.back.client == nil && len(l.opts.Inputs) > 0 && len(l.opts.Source) > 0 {
		err = l.back.open(ctx)
	}
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return places, errs
	}
	var records []*kgo.Record
	index := map[*kgo.Record]int{}
	for i, p := range list {
		if l.log.has(p.ID) {
			errs[i] = fmt.Errorf("%s: %w", p.ID, pipeline.ErrNotParked)
			continue
		}
		r, err := l.original(p)
		if err != nil {
			errs[i] = err
			continue
		}
		index[r] = i
		records = append(records, r)
	}
	if len(records) == 0 {
		return places, errs
	}
	var written []int
	for _, result := range l.back.client.ProduceSync(ctx, records...) {
		i, r := index[result.Record], result.Record
		if result.Err != nil {
			errs[i] = fmt.Errorf("kafka: write to %s/%d: %w", r.Topic, r.Partition, result.Err)
			continue
		}
		places[i] = semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset}
		written = append(written, i)
	}
	slices.Sort(written)
	var settled []*pipeline.Parked
	for _, i := range written {
		settled = append(settled, list[i])
	}
	if len(settled) == 0 {
		return places, errs
	}
	noting, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteLast) // they are written, whoever gave up meanwhile
	defer cancel()
	if err := l.log.add(noting, settled, pipeline.Settlement{How: pipeline.HowRedriven, Actor: actor, Reason: "written back to its topic"}); err != nil {
		for _, i := range written {
			errs[i] = fmt.Errorf("it was written to %s/%d at %d, and stays listed: %w", places[i].Source, places[i].Partition, places[i].Offset, err)
		}
	}
	return places, errs
}

// original returns the record that a message was, marked as one that comes again.
func (l *DeadLetterTopic) original(p *pipeline.Parked) (*kgo.Record, error) {
	if err := l.Redrivable(p); err != nil {
		return nil, err
	}
	r := recordOf(&p.Message, p.Message.Origin.Source)
	r.Partition = p.Message.Origin.Partition
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: pipeline.RedriveHeader, Value: strconv.AppendInt(nil, int64(p.Redrives+1), 10)})
	if err := l.back.takes(r); err != nil {
		return nil, err
	}
	return r, nil
}
