package kafkaio

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// DeadLetterTopicOptions are the options of OpenDeadLetterTopic. Client, Topic, Name and Key are
// required.
type DeadLetterTopicOptions struct {
	// Client is how to reach the Kafka that has Topic.
	Client []kgo.Opt
	// Topic is where messages are put aside.
	Topic string
	// Name is the pipeline's name, and Group the consumer group that reads its
	// Inputs. By them its messages are known in a topic that others use too.
	Name, Group string
	// Source is how to reach the Kafka that has Inputs, which are the topics that
	// the pipeline reads: messages go back there. Defaults to none: nothing can be
	// redriven.
	Source []kgo.Opt
	Inputs []string
	// Reset is where the pipeline begins to read, and Repartition says that its first
	// stage reads Inputs, in the group named Group and "-repartition".
	Reset       Reset
	Repartition bool
	// Key, Scope and OnMissing say which key a message has that does not carry it.
	Key       *key.Rule
	Scope     string
	OnMissing pipeline.Missing
	// Transactional: a Transactor put the messages aside, which do not carry their
	// keys.
	Transactional bool
}

// DeadLetterTopic is what a pipeline put aside in a topic, and what became of it. One
// goroutine uses it; processes may use one topic at once.
//
// The id of a message is topic/partition/offset. Its records stay in the topic
// until its retention ends. What was settled is noted in a second topic, the name
// of which is that of the first with "-settled" behind it, and is not listed any
// more: see Settle.
type DeadLetterTopic struct {
	opts   DeadLetterTopicOptions
	client *kgo.Client // only asks
	adm    *kadm.Client
	reader *key.Reader
	found  map[string]*pipeline.Parked // what was read
	log    settledLog
	back   returner
}

var _ pipeline.DeadLetters = (*DeadLetterTopic)(nil)

// ErrNoTopic: there is no such topic.
var ErrNoTopic = errors.New("there is no such topic")

// OpenDeadLetterTopic connects. It blocks until a broker has answered. The error wraps
// ErrNoTopic if the topic is not there.
func OpenDeadLetterTopic(ctx context.Context, opts *DeadLetterTopicOptions) (*DeadLetterTopic, error) {
	if opts == nil || len(opts.Client) == 0 || opts.Topic == "" || opts.Name == "" || opts.Key == nil {
		return nil, fmt.Errorf("kafkaio: DeadLetterTopicOptions: Client, Topic, Name and Key are wanted: %w", semel.ErrInvalidRequest)
	}
	client, err := kgo.NewClient(opts.Client...)
	if err != nil {
		return nil, fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	}
	l := &DeadLetterTopic{opts: *opts, client: client, adm: kadm.NewClient(client), reader: opts.Key.Reader(nil), found: map[string]*pipeline.Parked{}}
	if err := l.begin(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return l, nil
}

func (l *DeadLetterTopic) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookFirst)
	defer cancel()
	if err := reach(ctx, l.client); err != nil {
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
		return fmt.Errorf("kafkaio: topic %s: %w", l.opts.Topic, err)
	}
	l.log = newSettledLog(l.opts.Client, l.adm, l.opts.Topic, topics[l.opts.Topic].ID.String())
	l.back = returner{source: l.opts.Source, inputs: l.opts.Inputs}
	if l.opts.Reset == ResetEnd {
		l.back.group = l.opts.Group
		if l.opts.Repartition {
			l.back.group += repartitionSuffix
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

// Parked lists what the pipeline put aside and nobody has settled, oldest first,
// until fn returns false. "" is the pipeline too; of any other there is nothing. It
// blocks until all of the topic was read, and holds all that it lists.
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

// Get returns one message. The error wraps pipeline.ErrNotParked if it is none of
// the pipeline's, was settled, or its record is not there any more.
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
	first, last, err := committedOffsets(ctx, l.adm, l.opts.Topic)
	if err != nil {
		return nil, fmt.Errorf("kafkaio: offsets of %s: %w", l.opts.Topic, err)
	}
	start, ok := first.Lookup(l.opts.Topic, partition)
	end, ok2 := last.Lookup(l.opts.Topic, partition)
	if !ok || !ok2 || offset < start.Offset || offset >= end.Offset {
		return nil, missing
	}
	var p *pipeline.Parked
	one := extent{}
	from := map[string]map[int32]kgo.Offset{}
	end.Offset = offset + 1
	one.add(from, end, offset)
	if err := one.readFrom(ctx, l.opts.Client, from, func(r *kgo.Record) { p = l.parked(r) }); err != nil {
		return nil, err
	}
	if p == nil {
		return nil, missing
	}
	l.found[id] = p
	return p, nil
}

// Settle notes how a message was settled. It blocks until that is durable. Of two
// calls at once for one message both may succeed, and both are noted. The error
// wraps pipeline.ErrNotParked if the message is settled already.
func (l *DeadLetterTopic) Settle(ctx context.Context, p *pipeline.Parked, how pipeline.Settlement) error {
	p, err := l.Get(ctx, p.ID)
	if err != nil {
		return err
	}
	return l.log.add(ctx, []*pipeline.Parked{p}, how)
}

// Settled returns how a message was settled, by what was read of the topic that
// says so. It reports false if the message is not settled. It does not block.
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

// parked returns the message of a record, or nil if another pipeline put it aside.
// What a program of others put aside, as Kafka Connect, has no reason, and belongs
// to whoever reads the topic from which it came.
func (l *DeadLetterTopic) parked(r *kgo.Record) *pipeline.Parked {
	var m semel.Message
	fill(&m, r)
	by, reason := header(&m, connectName), header(&m, headerReason)
	from, known := ParkedOrigin(&m)
	switch {
	case reason != "" && by != l.opts.Name && by != l.opts.Group:
		return nil
	case reason == "" && known && len(l.opts.Inputs) > 0 && !slices.Contains(l.opts.Inputs, from.Source):
		return nil
	}
	p := &pipeline.Parked{
		ID: l.idOf(r), Pipeline: l.opts.Name, Reason: pipeline.Reason(reason), At: m.Time,
		Error: cmp.Or(header(&m, headerError), header(&m, connectError), header(&m, springError)),
		Message: semel.Message{
			RecordKey: r.Key, Body: r.Value, Time: m.Time, Origin: from, Headers: without(m.Headers, isParking),
		},
	}
	p.Attempts, _ = strconv.Atoi(header(&m, headerAttempt)) // 0, not known, of what others put aside
	p.Redrives = max(redrivesOf(&m)-1, 0)
	if at, err := time.Parse(time.RFC3339Nano, header(&m, headerParkedAt)); err == nil {
		p.At = at
	}
	if at := header(&m, springTime); len(at) == 8 {
		p.Message.Time = time.UnixMilli(int64(binary.BigEndian.Uint64([]byte(at))))
	}
	if reason != "" && !l.opts.Transactional && by == header(&m, headerPipeline) {
		p.Key = keyOf(&m)
		bare := p.Message
		bare.Headers = without(bare.Headers, isKeyHeader)
		// The key's headers are not the message's own, unless its key is in them.
		if id, _ := l.identify(&bare); id == p.Key.ID || p.Key.ID == "" {
			p.Message = bare
		}
		return p
	}
	id, err := l.identify(&p.Message)
	if err != nil && l.opts.OnMissing == pipeline.MissingHash {
		id = string(contentID(nil, r.Value))
	}
	if id != "" {
		p.Key = semel.Key{Scope: l.opts.Scope, ID: id}
	}
	return p
}

// identify returns the id that the pipeline's rule finds in a message, and an error
// if there is none that can be a key.
func (l *DeadLetterTopic) identify(m *semel.Message) (string, error) {
	id, err := l.reader.AppendID(nil, m)
	if err == nil && (len(id) == 0 || len(id) > semel.MaxKeyBytes) {
		err = key.ErrMissing
	}
	if err != nil {
		return "", err
	}
	return string(id), nil
}

// keyOf returns the key that the headers of a message name.
func keyOf(m *semel.Message) semel.Key {
	id := header(m, headerKey)
	if encoded, ok := m.Header(headerKeyBase64); ok {
		if data, err := base64.StdEncoding.DecodeString(string(encoded)); err == nil {
			id = string(data)
		}
	}
	if id == "" {
		return semel.Key{}
	}
	scope := headerScope
	if _, ok := m.Header(scope); !ok {
		scope = headerPipeline // it is left out where it would say the same
	}
	return semel.Key{Scope: header(m, scope), ID: id}
}

// without returns a copy of headers without those that have a name of a kind.
func without(headers []semel.Header, kind func(name string) bool) []semel.Header {
	var kept []semel.Header
	for _, h := range headers {
		if !kind(h.Name) {
			kept = append(kept, h)
		}
	}
	return kept
}
