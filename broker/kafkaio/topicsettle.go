package kafkaio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// settledSuffix is behind the name of a topic of messages that were put aside: the
// topic that says which were settled.
const settledSuffix = "-settled"

// settledLog is the topic that says what became of messages: a record of JSON for
// each that was settled, with its id as the key. It is the audit log too. It is only
// added to, so that nobody undoes what another notes; a group's offsets would be
// forgotten after a week.
type settledLog struct {
	opts  []kgo.Opt
	adm   *kadm.Client
	topic string
	of    string // the id of the topic whose messages they are
	read  map[int32]int64
	// settled has by id how each message was settled last.
	settled map[string]pipeline.Settlement
	write   *kgo.Client // nil until something is settled
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

// settlement is a record of the log. A topic that was deleted and made anew has
// other messages at the same offsets, and another TopicID.
type settlement struct {
	At       time.Time `json:"at"`
	Pipeline string    `json:"pipeline"`
	TopicID  string    `json:"topic_id"`
	Scope    string    `json:"scope"`
	Key      string    `json:"key"`
	pipeline.Settlement
	ParkedFor string `json:"parked_for"`
}

// exists reports whether the log's topic is there.
func (s *settledLog) exists(ctx context.Context) (bool, error) {
	// The client remembers for seconds that a topic is missing, also when another
	// process has created it since. A request with authorized operations asks anew.
	topics, err := s.adm.ListTopics(kadm.WithAuthorizedOps(ctx), s.topic)
	if err == nil {
		err = topics[s.topic].Err
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("kafkaio: topic %s: %w", s.topic, s.allow(err))
	}
	return true, nil
}

// allow adds to an error for want of a right what the user needs. Kafka does not
// tell whether a topic is there to one who may not see it.
func (s *settledLog) allow(err error) error {
	if !errors.Is(err, kerr.TopicAuthorizationFailed) {
		return err
	}
	return fmt.Errorf("%w: allow the user Describe and Read on %s, which says what is settled, and to settle Create and Write too", err, s.topic)
}

// refresh reads what was noted since the last time.
func (s *settledLog) refresh(ctx context.Context) error {
	if ok, err := s.exists(ctx); err != nil || !ok {
		return err
	}
	first, last, err := committedOffsets(ctx, s.adm, s.topic)
	if err != nil {
		return fmt.Errorf("kafkaio: offsets of %s: %w", s.topic, s.allow(err))
	}
	more, from := extent{}, map[string]map[int32]kgo.Offset{}
	last.Each(func(end kadm.ListedOffset) {
		start, _ := first.Lookup(end.Topic, end.Partition)
		if at := max(start.Offset, s.read[end.Partition]); at < end.Offset {
			more.add(from, end, at)
		}
	})
	if len(more) == 0 {
		return nil
	}
	err = more.readFrom(ctx, s.opts, from, func(r *kgo.Record) {
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

// readFrom hands the committed records between offsets and ends to fn.
func (e extent) readFrom(ctx context.Context, opts []kgo.Opt, from map[string]map[int32]kgo.Offset, fn func(*kgo.Record)) error {
	c, err := kgo.NewClient(append(opts[:len(opts):len(opts)], readOptions()...)...)
	if err != nil {
		return fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	}
	defer c.Close()
	c.AddConsumePartitions(from)
	return e.read(ctx, c, func(r *kgo.Record) (bool, error) {
		fn(r)
		return true, nil
	})
}

// maxAuditText bounds a key in the log, so that no record is too large for it.
const maxAuditText = 4 << 10

// add notes that messages were settled. It blocks until that is durable; after an
// error some may be noted.
func (s *settledLog) add(ctx context.Context, list []*pipeline.Parked, how pipeline.Settlement) error {
	if s.write == nil {
		if err := s.open(ctx); err != nil {
			return err
		}
	}
	records := make([]*kgo.Record, len(list))
	for i, p := range list {
		how.ID = p.ID
		value, err := json.Marshal(settlement{
			At: time.Now().UTC(), Pipeline: p.Pipeline, TopicID: s.of, Scope: cut(p.Key.Scope), Key: cut(p.Key.ID),
			Settlement: how, ParkedFor: string(p.Reason),
		})
		if err != nil {
			return fmt.Errorf("kafkaio: note %s as settled: %w", p.ID, err)
		}
		records[i] = &kgo.Record{Topic: s.topic, Key: []byte(p.ID), Value: value}
	}
	if err := s.write.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("kafkaio: note in %s what was settled: %w", s.topic, s.allow(err))
	}
	for _, p := range list {
		how.ID = p.ID
		s.settled[p.ID] = how
	}
	return nil
}

func cut(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxAuditText)], "\uFFFD")
}

// open makes the topic if it is missing, and a producer for it. It is never deleted
// from by itself: without it, messages that were settled would be listed again.
func (s *settledLog) open(ctx context.Context) error {
	there, err := s.exists(ctx)
	if err != nil {
		return err
	}
	if !there {
		settings := map[string]*string{"cleanup.policy": kadm.StringPtr("delete"), "retention.ms": kadm.StringPtr("-1"), "retention.bytes": kadm.StringPtr("-1")}
		if _, err := s.adm.CreateTopic(ctx, 1, -1, settings, s.topic); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("kafkaio: make topic %s, for what is settled: %w", s.topic, s.allow(err))
		}
	}
	client, _, err := producer(ctx, s.opts, s.topic, false)
	if err != nil {
		return err
	}
	s.write = client
	return nil
}
