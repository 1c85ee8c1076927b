package kafka

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// DeadLetterTopicOptions are the options of OpenDeadLetterTopic. Client, Topic, Name and Key are
// required.
type DeadLetterTopicOptions struct {
	// Client configures how to reach the Kafka cluster of Topic.
	Client []kgo.Opt
	// Topic is the dead-letter topic.
	Topic string
	// Name is the pipeline's name, and Group the consumer group that reads its Inputs.
	// They identify its messages in a topic that other pipelines share.
	Name, Group string
	// Source configures how to reach the Kafka cluster of Inputs, the topics that the
	// pipeline reads. Messages are redriven there. Defaults to none: nothing can be
	// redriven. Pattern is set instead of Inputs if all topics that match are read.
	Source  []kgo.Opt
	Inputs  []string
	Pattern *Pattern
	// Reset is where the pipeline starts to read. Repartition says that its first stage
	// reads Inputs, in the group named Group and "-repartition".
	Reset       Reset
	Repartition bool
	// Key, Scope and OnMissing determine the key of a message that does not carry it.
	Key       *key.Rule
	Scope     string
	OnMissing pipeline.Missing
	// Unwrap is that of the pipeline: see pipeline.Options. Defaults to nil.
	Unwrap pipeline.Unwrapper
	// Transactional says that a Transactor parked the messages, which do not carry
	// their keys.
	Transactional bool
}

// DeadLetterTopic holds the messages that a pipeline parked, and how they were settled.
// One goroutine uses it; several processes may use one topic concurrently.
//
// The id of a message is topic/partition/offset. Its record stays in the topic until
// its retention ends. A second topic, named with the suffix "-settled", logs which
// messages are settled. They are no longer listed. See Settle.
type DeadLetterTopic struct {
	opts   DeadLetterTopicOptions
	client *kgo.Client // only reads metadata
	adm    *kadm.Client
	reader *key.Reader
	found  map[string]*pipeline.Parked // messages that were read
	log    settledLog
	back   returner
}

var _ pipeline.DeadLetters = (*DeadLetterTopic)(nil)

// ErrNoTopic says that the topic does not exist.
var ErrNoTopic = errors.New("there is no such topic")

// OpenDeadLetterTopic connects. It blocks until a broker has answered. The error wraps
// ErrNoTopic if the topic does not exist.
func OpenDeadLetterTopic(ctx context.Context, opts *DeadLetterTopicOptions) (*DeadLetterTopic, error) {
	if opts == nil || len(opts.Client) == 0 || opts.Topic == "" || opts.Name == "" || opts.Key == nil {
		return nil, fmt.Errorf("kafka: DeadLetterTopicOptions: Client, Topic, Name and Key are required: %w", semel.ErrInvalidRequest)
	}
	client, err := kgo.NewClient(opts.Client...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w: %w", semel.ErrInvalidRequest, err)
	}
	l := &DeadLetterTopic{opts: *opts, client: client, adm: kadm.NewClient(client), reader: opts.Key.Reader(nil), found: map[string]*pipeline.Parked{}}
	if err := l.begin(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return l, nil
}

func (l *DeadLetterTopic) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := cluster.Reach(ctx, l.client); err != nil {
		return err
	}
	topics, err := l.adm.ListTopics(ctx, l.opts.Topic)
	if err == nil {
		err = topics[l.opts.Topic].Err
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		err = ErrNoTopic
	}
	if err != nil {
		return fmt.Errorf("kafka: topic %s: %w", l.opts.Topic, err)
	}
	l.log = newSettledLog(l.opts.Client, l.adm, l.opts.Topic, topics[l.opts.Topic].ID.String())
	l.back = returner{source: l.opts.Source, compacted: map[string]bool{}, keeps: map[string]time.Duration{}}
	if l.opts.Reset == ResetEnd {
		l.back.group = l.opts.Group
		if l.opts.Repartition {
			l.back.group += cluster.RepartitionSuffix
		}
	}
	return nil
}

// Close ends the connections.
func (l *DeadLetterTopic) Close() error {
	l.client.Close()
	l.log.close()
	l.back.close()
	return nil
}

// List lists the parked messages that are not settled, oldest first, until fn returns
// false. "" means this pipeline; any other name has no messages. It blocks until the
// whole topic is read, and keeps the messages in memory.
func (l *DeadLetterTopic) List(ctx context.Context, name string, fn func(*pipeline.Parked) bool) error {
	if name != "" && name != l.opts.Name {
		return nil
	}
	if err := l.log.refresh(ctx); err != nil {
		return err
	}
	var list []*pipeline.Parked
	err := ReadAll(ctx, l.opts.Client, []string{l.opts.Topic}, func(r *kgo.Record) bool {
		if l.log.has(l.idOf(r)) {
			return true
		}
		if p := l.parked(r); p != nil {
			list = append(list, p)
		}
		return true
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(list, func(a, b *pipeline.Parked) int { return a.At.Compare(b.At) })
	for _, p := range list {
		l.found[p.ID] = p
	}
	for _, p := range list {
		if !fn(p) {
			break
		}
	}
	return nil
}

// Get returns one message. The error wraps pipeline.ErrNotParked if the message belongs
// to another pipeline, was settled, or its record no longer exists.
func (l *DeadLetterTopic) Get(ctx context.Context, id string) (*pipeline.Parked, error) {
	missing := fmt.Errorf("%s: %w", id, pipeline.ErrNotParked)
	partition, offset, ok := l.parseID(id)
	if !ok {
		return nil, missing
	}
	if err := l.log.refresh(ctx); err != nil {
		return nil, err
	}
	if l.log.has(id) {
		return nil, missing
	}
	if p := l.found[id]; p != nil {
		return p, nil
	}
	first, last, err := cluster.CommittedOffsets(ctx, l.adm, l.opts.Topic)
	if err != nil {
		return nil, fmt.Errorf("kafka: offsets of %s: %w", l.opts.Topic, err)
	}
	start, ok := first.Lookup(l.opts.Topic, partition)
	end, ok2 := last.Lookup(l.opts.Topic, partition)
	if !ok || !ok2 || offset < start.Offset || offset >= end.Offset {
		return nil, missing
	}
	var p *pipeline.Parked
	one := cluster.Extent{}
	from := map[string]map[int32]kgo.Offset{}
	end.Offset = offset + 1
	one.Add(from, end, offset)
	if err := one.ReadFrom(ctx, l.opts.Client, from, func(r *kgo.Record) { p = l.parked(r) }); err != nil {
		return nil, err
	}
	if p == nil {
		return nil, missing
	}
	l.found[id] = p
	return p, nil
}

// Settle logs how a message was settled. It blocks until that is durable. If two
// concurrent calls settle one message, both may succeed, and both are logged. The error
// wraps pipeline.ErrNotParked if the message is settled already.
func (l *DeadLetterTopic) Settle(ctx context.Context, p *pipeline.Parked, how pipeline.Settlement) error {
	p, err := l.Get(ctx, p.ID)
	if err != nil {
		return err
	}
	return l.log.add(ctx, []*pipeline.Parked{p}, how)
}

// Audit implements pipeline.DeadLetters. The line goes into the log of settled messages.
func (l *DeadLetterTopic) Audit(ctx context.Context, line []byte) error {
	return l.log.produce(ctx, &kgo.Record{Topic: l.log.topic, Value: line})
}

// Settled returns how a message was settled, as far as the log was read. It reports
// false if the message is not settled. It does not block.
func (l *DeadLetterTopic) Settled(id string) (pipeline.Settlement, bool) {
	s, ok := l.log.settled[id]
	return s, ok
}

func (l *DeadLetterTopic) idOf(r *kgo.Record) string {
	return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset)
}

// parseID is the reverse of idOf.
func (l *DeadLetterTopic) parseID(id string) (partition int32, offset int64, ok bool) {
	place, ours := strings.CutPrefix(id, l.opts.Topic+"/")
	left, right, cut := strings.Cut(place, "/")
	number, err := strconv.ParseInt(left, 10, 32)
	offset, err2 := strconv.ParseInt(right, 10, 64)
	ok = ours && cut && err == nil && err2 == nil && number >= 0 && offset >= 0
	return int32(number), offset, ok && id == fmt.Sprintf("%s/%d/%d", l.opts.Topic, number, offset)
}

// readsKafka reports whether the pipeline reads Kafka, and reads whether it reads a topic.
func (l *DeadLetterTopic) readsKafka() bool { return len(l.opts.Inputs) > 0 || l.opts.Pattern != nil }

func (l *DeadLetterTopic) reads(topic string) bool {
	return slices.Contains(l.opts.Inputs, topic) || l.opts.Pattern != nil && l.opts.Pattern.Matches(topic)
}

// parked returns the message of a record, or nil if another pipeline parked it. Records
// of other programs, such as Kafka Connect, have no reason. They belong to the pipeline
// that reads their original topic.
func (l *DeadLetterTopic) parked(r *kgo.Record) *pipeline.Parked {
	var m semel.Message
	record.Fill(&m, r)
	by, reason := record.Header(&m, record.ConnectName), record.Header(&m, record.HeaderReason)
	from, known := record.ParkedOrigin(&m)
	switch {
	case reason != "" && by != l.opts.Name && by != l.opts.Group:
		return nil
	case reason == "" && known && l.readsKafka() && !l.reads(from.Source):
		return nil
	}
	p := &pipeline.Parked{
		ID: l.idOf(r), Pipeline: l.opts.Name, Reason: pipeline.Reason(reason), At: m.Time,
		Error: cmp.Or(record.Header(&m, record.HeaderError), record.Header(&m, record.ConnectError), record.Header(&m, record.SpringError)),
		Message: semel.Message{
			RecordKey: r.Key, Body: r.Value, Time: m.Time, Origin: from, Headers: without(m.Headers, record.IsParking),
		},
	}
	_, p.Message.CaselessHeaders = m.Header(record.HeaderCaseless)
	p.Attempts, _ = strconv.Atoi(record.Header(&m, header.Attempt)) // 0, unknown, for records of other programs
	p.Redrives = max(header.Redrives(&m)-1, 0)
	if at, err := time.Parse(time.RFC3339Nano, record.Header(&m, record.HeaderParkedAt)); err == nil {
		p.At = at
	}
	if at := record.Header(&m, record.SpringTime); len(at) == 8 {
		p.Message.Time = record.TimeOf(int64(binary.BigEndian.Uint64([]byte(at))))
	}
	if reason != "" && !l.opts.Transactional && by == record.Header(&m, header.Pipeline) {
		p.Key = keyOf(&m)
		bare := p.Message
		bare.Headers = without(bare.Headers, header.IsKey)
		// Key headers are not part of the message, unless its key is in them.
		if id, _ := l.identify(&bare); id == p.Key.ID || p.Key.ID == "" {
			p.Message = bare
		}
		return p
	}
	id, err := l.identify(&p.Message)
	if err != nil && l.opts.OnMissing == pipeline.MissingHash {
		id = string(record.ContentID(nil, r.Value))
	}
	if id != "" {
		p.Key = semel.Key{Scope: l.opts.Scope, ID: id}
	}
	return p
}

// identify returns the id that the pipeline's rule finds in a message, or an error if
// no id can be a key.
func (l *DeadLetterTopic) identify(m *semel.Message) (string, error) {
	if l.opts.Unwrap != nil {
		inner, err := l.opts.Unwrap.Unwrap(*m)
		if err != nil {
			return "", err
		}
		m = &inner
	}
	id, err := l.reader.AppendID(nil, m)
	if err == nil && (len(id) == 0 || len(id) > semel.MaxKeyBytes) {
		err = key.ErrMissing
	}
	if err != nil {
		return "", err
	}
	return string(id), nil
}

// keyOf returns the key in a message's headers.
func keyOf(m *semel.Message) semel.Key {
	id := record.Header(m, header.Key)
	if encoded, ok := m.Header(header.KeyBase64); ok {
		if data, err := base64.StdEncoding.DecodeString(string(encoded)); err == nil {
			id = string(data)
		}
	}
	if id == "" {
		return semel.Key{}
	}
	scope := header.Scope
	if _, ok := m.Header(scope); !ok {
		scope = header.Pipeline // omitted if it would repeat the same name
	}
	return semel.Key{Scope: record.Header(m, scope), ID: id}
}

// without returns a copy of headers without those of a kind.
func without(headers []semel.Header, kind func(name string) bool) []semel.Header {
	var kept []semel.Header
	for _, h := range headers {
		if !kind(h.Name) {
			kept = append(kept, h)
		}
	}
	return kept
}

// noteLast is how long logging the written messages may take after ctx ended.
const noteLast = 10 * time.Second

// returner writes messages back to their original topics.
type returner struct {
	source []kgo.Opt
	// group reads the inputs and starts at their ends; otherwise "".
	group  string
	begun  kadm.OffsetResponses
	client *kgo.Client // nil until the first write
	// limits are those of the topics that are known. The client reads them, too.
	limits atomic.Pointer[cluster.Limits]
	// compacted are topics that keep the newest record of each key alone.
	compacted map[string]bool
	keeps     map[string]time.Duration // by topic, if records expire by their own times
}

func (b *returner) close() {
	if b.client != nil {
		b.client.Close()
	}
}

// open connects to the cluster of the inputs.
func (b *returner) open(ctx context.Context) error {
	b.limits.Store(&cluster.Limits{})
	client, err := cluster.Dial(ctx, append(b.source[:len(b.source):len(b.source)],
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return b.limits.Load().Client(topic) }))...) // called for the first record
	if err != nil {
		return err
	}
	if b.group != "" {
		b.begun, err = kadm.NewClient(client).FetchOffsets(ctx, b.group)
		if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			client.Close()
			return fmt.Errorf("kafka: offsets of group %s, without which it may begin behind what is written back: %w", b.group, err)
		}
	}
	b.client = client
	return nil
}

// know reads the limits, the retention and the clean-up policy of a topic, unless they are known.
// Settings that the user may not see are unknown.
func (b *returner) know(ctx context.Context, topic string) error {
	if _, known := b.compacted[topic]; known {
		return nil
	}
	adm := kadm.NewClient(b.client)
	more, err := cluster.ReadLimits(ctx, adm, topic)
	if err != nil {
		return err
	}
	configs, err := cluster.TopicSettings(ctx, adm, topic)
	if err != nil {
		return err
	}
	limits := maps.Clone(*b.limits.Load())
	maps.Copy(limits, more)
	b.limits.Store(&limits)
	b.compacted[topic] = strings.Contains(cluster.Setting(configs, topic, "cleanup.policy"), "compact")
	ms, err := strconv.ParseInt(cluster.Setting(configs, topic, "retention.ms"), 10, 64)
	if err == nil && ms >= 0 && strings.Contains(cluster.Setting(configs, topic, "cleanup.policy"), "delete") && cluster.Setting(configs, topic, "message.timestamp.type") != "LogAppendTime" {
		b.keeps[topic] = time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	}
	return nil
}

// takes returns the reason why a record cannot go back, or nil. Kafka deletes records
// by their own times: a record that is deleted before it is read would be lost. In a
// compacted topic an old record would replace a newer one with its key. A group that
// starts at the end would not read earlier records.
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
	if age := time.Since(r.Timestamp); ok && !r.Timestamp.IsZero() && age >= keep { // without a time it gets the current one
		return fmt.Errorf("it is %v old, and %s keeps records for %v, so that Kafka may delete it before it is read: raise retention.ms of the topic until it is delivered: %w",
			age.Round(time.Second), r.Topic, keep, semel.ErrInvalidRequest)
	}
	return b.limits.Load().Check(r.Topic, r)
}

// Redrivable returns the reason why a message cannot be redriven, or nil.
func (l *DeadLetterTopic) Redrivable(p *pipeline.Parked) error {
	o := &p.Message.Origin
	switch {
	case !l.readsKafka() || len(l.opts.Source) == 0:
		return fmt.Errorf("pipeline %s reads no Kafka to which it could go back: send it to the source again, and skip it here: %w", l.opts.Name, semel.ErrInvalidRequest)
	case o.Source == "":
		return fmt.Errorf("its headers do not say where it came from: send it to the topic again in which it belongs, and skip it here: %w", semel.ErrInvalidRequest)
	case !l.reads(o.Source):
		return fmt.Errorf("it came from %s, which pipeline %s does not read: %w", o.Source, l.opts.Name, semel.ErrInvalidRequest)
	}
	if l.ofPlace(&p.Message) {
		return fmt.Errorf("its key is made of its place, and it would get another one, under which it could have a second effect: %s: %w", byHand, semel.ErrInvalidRequest)
	}
	if p.Key.ID == "" {
		return nil
	}
	return l.keepsKey(p)
}

const byHand = "look at the target: if it had no effect, send it to its topic again by hand, and skip it here"

// ofPlace reports whether the rule makes the key of a message of its place.
func (l *DeadLetterTopic) ofPlace(m *semel.Message) bool {
	here, there := *m, *m
	here.Origin.Identity, there.Origin.Identity = "here", "there"
	one, err := l.identify(&here)
	other, err2 := l.identify(&there)
	return err == nil && err2 == nil && one != other
}

// keepsKey returns the reason why a redriven message would have another key, or nil.
func (l *DeadLetterTopic) keepsKey(p *pipeline.Parked) error {
	if p.Key.Scope != l.opts.Scope {
		return fmt.Errorf("its key has the scope %q, and pipeline %s now has %q, under which it could have a second effect: write the old key.scope until it is delivered, or %s: %w",
			p.Key.Scope, l.opts.Name, l.opts.Scope, byHand, semel.ErrInvalidRequest)
	}
	id, err := l.identify(&p.Message)
	switch {
	case err != nil && l.opts.OnMissing == pipeline.MissingPass:
		return fmt.Errorf("its key is its place (on_missing: pass), and it would get another place, under which it could have a second effect: %s: %w", byHand, semel.ErrInvalidRequest)
	case err != nil:
		return nil // it is parked again, or its key is its content
	case id != p.Key.ID:
		return fmt.Errorf("the rule of pipeline %s now finds another key in it, under which it could have a second effect: write the old rule until it is delivered, or %s: %w", l.opts.Name, byHand, semel.ErrInvalidRequest)
	}
	return nil
}

// Redrive writes messages back to their original topics and partitions, unchanged
// except for pipeline.RedriveHeader, and then logs them as settled. The pipeline reads
// them as any other record, so each takes effect only if its key is not done. It
// returns the new place of each message, and its error: pipeline.ErrNotParked if it was
// settled before.
//
// It blocks until ctx ends at most, and ten seconds more to log the written messages. A
// message that was written and not logged, or that two concurrent calls wrote, is read
// twice. Its key absorbs the second copy.
func (l *DeadLetterTopic) Redrive(ctx context.Context, list []*pipeline.Parked, actor string) ([]semel.Origin, []error) {
	places, errs := make([]semel.Origin, len(list)), make([]error, len(list))
	err := l.log.refresh(ctx)
	if err == nil && l.back.client == nil && l.readsKafka() && len(l.opts.Source) > 0 {
		err = l.back.open(ctx)
	}
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return places, errs
	}
	var records []*kgo.Record
	index, unknown := map[*kgo.Record]int{}, map[string]error{}
	for i, p := range list {
		if l.log.has(p.ID) {
			errs[i] = fmt.Errorf("%s: %w", p.ID, pipeline.ErrNotParked)
			continue
		}
		r, err := l.original(ctx, p, unknown)
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
	noting, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteLast) // they are written, even if the caller gave up
	defer cancel()
	if err := l.log.add(noting, settled, pipeline.Settlement{How: pipeline.HowRedriven, Actor: actor, Reason: "written back to its topic"}); err != nil {
		for _, i := range written {
			errs[i] = fmt.Errorf("it was written to %s/%d at %d, and stays listed: %w", places[i].Source, places[i].Partition, places[i].Offset, err)
		}
	}
	return places, errs
}

// original returns the original record of a message, with a redrive header. unknown has the topics
// whose settings could not be read.
func (l *DeadLetterTopic) original(ctx context.Context, p *pipeline.Parked, unknown map[string]error) (*kgo.Record, error) {
	if err := l.Redrivable(p); err != nil {
		return nil, err
	}
	topic := p.Message.Origin.Source
	err := unknown[topic]
	if err == nil {
		err = l.back.know(ctx, topic)
	}
	if err != nil {
		unknown[topic] = err
		return nil, err
	}
	r := record.Of(&p.Message, p.Message.Origin.Source)
	r.Partition = p.Message.Origin.Partition
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: pipeline.RedriveHeader, Value: strconv.AppendInt(nil, int64(p.Redrives+1), 10)})
	if err := l.back.takes(r); err != nil {
		return nil, err
	}
	return r, nil
}

// settledSuffix is the suffix of the topic that logs settled messages.
const settledSuffix = "-settled"

// settledLog is the topic that logs settled messages, which is the audit log too. Each
// message has a JSON record with its id as the key. Records are only appended, so no
// process undoes another's. Committed offsets would not do: the brokers forget those of
// an idle group after a week.
type settledLog struct {
	opts  []kgo.Opt
	adm   *kadm.Client
	topic string
	of    string // the topic id of the dead-letter topic
	read  map[int32]int64
	// settled has the last settlement of each message by id.
	settled map[string]pipeline.Settlement
	write   *kgo.Client // nil until the first settlement
}

func newSettledLog(opts []kgo.Opt, adm *kadm.Client, parked, id string) settledLog {
	return settledLog{opts: opts, adm: adm, topic: parked + settledSuffix, of: id, read: map[int32]int64{}, settled: map[string]pipeline.Settlement{}}
}

func (s *settledLog) close() {
	if s.write != nil {
		s.write.Close()
	}
}

func (s *settledLog) has(id string) bool {
	_, ok := s.settled[id]
	return ok
}

// settlement is a record of the log. A recreated topic has other messages at the same
// offsets, and another TopicID.
type settlement struct {
	At       time.Time `json:"at"`
	Pipeline string    `json:"pipeline"`
	TopicID  string    `json:"topic_id"`
	Scope    string    `json:"scope"`
	Key      string    `json:"key"`
	pipeline.Settlement
	ParkedFor string `json:"parked_for"`
}

// exists reports whether the log's topic exists.
func (s *settledLog) exists(ctx context.Context) (bool, error) {
	// The client caches for seconds that a topic is missing, even if another process
	// has created it since. A request with authorized operations bypasses the cache.
	topics, err := s.adm.ListTopics(kadm.WithAuthorizedOps(ctx), s.topic)
	if err == nil {
		err = topics[s.topic].Err
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("kafka: topic %s: %w", s.topic, s.allow(err))
	}
	return true, nil
}

// allow adds the rights that the user needs to an authorization error. Kafka does not
// show whether a topic exists to a user who may not see it.
func (s *settledLog) allow(err error) error {
	if !errors.Is(err, kerr.TopicAuthorizationFailed) {
		return err
	}
	return fmt.Errorf("%w: allow the user Describe and Read on %s, which says what is settled, and to settle Create and Write too", err, s.topic)
}

// refresh reads the log's new records.
func (s *settledLog) refresh(ctx context.Context) error {
	if ok, err := s.exists(ctx); err != nil || !ok {
		return err
	}
	first, last, err := cluster.CommittedOffsets(ctx, s.adm, s.topic)
	if err != nil {
		return fmt.Errorf("kafka: offsets of %s: %w", s.topic, s.allow(err))
	}
	more, from := cluster.Extent{}, map[string]map[int32]kgo.Offset{}
	last.Each(func(end kadm.ListedOffset) {
		start, _ := first.Lookup(end.Topic, end.Partition)
		if at := max(start.Offset, s.read[end.Partition]); at < end.Offset {
			more.Add(from, end, at)
		}
	})
	if len(more) == 0 {
		return nil
	}
	err = more.ReadFrom(ctx, s.opts, from, func(r *kgo.Record) {
		var one settlement
		if json.Unmarshal(r.Value, &one) == nil && one.TopicID == s.of {
			s.settled[one.ID] = one.Settlement
		}
	})
	if err != nil {
		return err
	}
	last.Each(func(end kadm.ListedOffset) { s.read[end.Partition] = end.Offset })
	return nil
}

// maxAuditText bounds a key in the log, so that no record is too large.
const maxAuditText = 4 << 10

// add logs settled messages. It blocks until that is durable. After an error some may
// be logged.
func (s *settledLog) add(ctx context.Context, list []*pipeline.Parked, how pipeline.Settlement) error {
	records := make([]*kgo.Record, len(list))
	for i, p := range list {
		how.ID = p.ID
		value, err := json.Marshal(settlement{
			At: time.Now().UTC(), Pipeline: p.Pipeline, TopicID: s.of, Scope: shorten(p.Key.Scope), Key: shorten(p.Key.ID),
			Settlement: how, ParkedFor: string(p.Reason),
		})
		if err != nil {
			return fmt.Errorf("kafka: note %s as settled: %w", p.ID, err)
		}
		records[i] = &kgo.Record{Topic: s.topic, Key: []byte(p.ID), Value: value}
	}
	if err := s.produce(ctx, records...); err != nil {
		return err
	}
	for _, p := range list {
		how.ID = p.ID
		s.settled[p.ID] = how
	}
	return nil
}

// produce writes records. It blocks until they are durable.
func (s *settledLog) produce(ctx context.Context, records ...*kgo.Record) error {
	if s.write == nil {
		if err := s.open(ctx); err != nil {
			return err
		}
	}
	if err := s.write.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("kafka: note in %s what was settled: %w", s.topic, s.allow(err))
	}
	return nil
}

func shorten(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxAuditText)], "\uFFFD")
}

// open creates the topic if it is missing, and a producer for it. Its records never
// expire: otherwise settled messages would be listed again.
func (s *settledLog) open(ctx context.Context) error {
	there, err := s.exists(ctx)
	if err != nil {
		return err
	}
	if !there {
		settings := map[string]*string{"cleanup.policy": kadm.StringPtr("delete"), "retention.ms": kadm.StringPtr("-1"), "retention.bytes": kadm.StringPtr("-1")}
		if _, err := s.adm.CreateTopic(ctx, 1, -1, settings, s.topic); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("kafka: create topic %s, the log of settled messages: %w", s.topic, s.allow(err))
		}
	}
	to, err := producer(ctx, s.opts, s.topic, false)
	if err != nil {
		return err
	}
	s.write = to.client
	return nil
}
