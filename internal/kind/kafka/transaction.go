package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// OpenTransaction implements config.TransactionalSource. Outputs, keys and
// offsets commit in one transaction.
func (s *Source) OpenTransaction(env *config.Env) (config.Runnable, error) {
	instance, lock, err := s.member(env.Pipeline.Name, membersDir())
	if err != nil {
		return nil, err
	}
	t, err := s.newTransactor(env, instance)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lockedTransactor{t, lock}, nil
}

// look returns the records of keys, whether or not a process runs the pipeline; see
// kafkatxn.Transactor.Look. It writes nothing. It gives up if no broker answers within ten
// seconds.
func (s *Source) look(ctx context.Context, f *config.File, p *config.Pipeline, keys []semel.Key) ([]kafkatxn.KnownKey, error) {
	t, err := s.newTransactor(&config.Env{File: f, Pipeline: p}, "") // no instance name: it joins no group
	if err != nil {
		return nil, f.RedactError(err)
	}
	known, err := t.Look(ctx, keys)
	return known, f.RedactError(err)
}

// Records implements config.TransactionalSource. After a repartition stage a key has one
// partition, whatever its records had.
func (s *Source) Records(ctx context.Context, f *config.File, p *config.Pipeline, keys []config.OriginKey) ([]semel.Record, error) {
	var ids []semel.Key
	for _, k := range keys {
		if !slices.Contains(ids, k.Key) {
			ids = append(ids, k.Key)
		}
	}
	records := make([]semel.Record, len(keys))
	known, err := s.look(ctx, f, p, ids)
	if errors.Is(err, kafkatxn.ErrNoChangelog) {
		return records, nil
	}
	for i, k := range keys {
		for _, n := range known {
			if n.Key == k.Key && (s.Repartition || n.Topic == k.Source && n.Partition == k.Partition) {
				records[i] = recordOf(&n)
			}
		}
	}
	return records, err
}

// recordOf returns the record of a known key.
func recordOf(k *kafkatxn.KnownKey) semel.Record {
	return semel.Record{
		Key: k.Key, Digest: k.Digest, State: semel.Done, FirstSeen: k.FirstSeen, Expires: k.Expires,
		Origin: fmt.Sprintf("%s %d/%d", k.Topic, k.Partition, k.Offset),
	}
}

// Try implements config.TransactionalSource.
func (s *Source) Try(f *config.File, p *config.Pipeline, now time.Time, partitions int32) (config.Trial, error) {
	opts, err := s.transactorOptions(&config.Env{File: f, Pipeline: p}, "")
	if err != nil {
		return nil, f.RedactError(err)
	}
	t, err := kafkatxn.NewTrial(opts, now, partitions)
	if err != nil {
		return nil, f.RedactError(err)
	}
	return trial{t}, nil
}

// trial is a kafkatxn.Trial whose results are values.
type trial struct{ *kafkatxn.Trial }

// Send implements config.Trial.
func (t trial) Send(ctx context.Context, now time.Time, m *semel.Message) (config.TrialOutcome, error) {
	o, err := t.Trial.Send(ctx, now, m)
	return config.TrialOutcome{
		Key: o.Key, Decision: o.Decision, Held: o.Held, Filtered: o.Filtered, Reason: o.Reason, Err: o.Err, Body: o.Body,
	}, err
}

// Pass implements config.Trial.
func (t trial) Pass(ctx context.Context, now time.Time) (results [][]byte, err error) {
	released, err := t.Trial.Pass(ctx, now)
	for _, r := range released {
		results = append(results, r.Value)
	}
	return results, err
}

// ReadRows implements config.TransactionalSource.
func (s *Source) ReadRows(ctx context.Context, f *config.File, p *config.Pipeline, fn func(*semel.Message)) error {
	opts, err := s.options()
	if err != nil {
		return f.RedactError(err)
	}
	var topics []string
	for _, t := range p.Tables {
		if !slices.Contains(topics, t.Topic) {
			topics = append(topics, t.Topic)
		}
	}
	return f.RedactError(kafka.ReadAll(ctx, opts, topics, func(r *kgo.Record) bool {
		fn(messageOf(r, nil))
		return true
	}))
}

func (s *Source) newTransactor(env *config.Env, instance string) (*kafkatxn.Transactor, error) {
	opts, err := s.transactorOptions(env, instance)
	if err == nil {
		opts.Client, err = s.options()
	}
	if err != nil {
		return nil, err
	}
	return kafkatxn.NewTransactor(opts)
}

// transactorOptions returns the options of a pipeline but for those of the client.
func (s *Source) transactorOptions(env *config.Env, instance string) (*kafkatxn.TransactorOptions, error) {
	p := env.Pipeline
	sink, ok := p.Sink.(*Sink)
	if !ok {
		return nil, fmt.Errorf("the sink is not of the kind kafka: %w", semel.ErrInvalidRequest)
	}
	t, o := &p.Transaction, env.Options()
	var between *kafkatxn.Repartition
	if s.Repartition {
		between = &kafkatxn.Repartition{Topic: s.RepartitionTopic()}
	}
	var eventTime *kafkatxn.EventTime
	if t.Time == "event" {
		eventTime = &kafkatxn.EventTime{Grace: t.Grace, OnLate: o.OnLate, DeliverLate: p.OnLate == "run"}
	}
	return &kafkatxn.TransactorOptions{
		Name: p.Name, Group: s.Group,
		Member: kafkatxn.Member{Instance: instance, TransactionalID: s.transactionalID(instance), Sessions: p.Parallel},
		Inputs: s.Topics, Repartition: between, Parked: p.Parked.Topic,
		Output: kafkatxn.Output{
			Topic: sink.Topic.Name, Compression: compression(sink.Compression),
			SamePartition: sink.Partition == "same", KeyHeaders: sink.KeyHeaders && p.Aggregate == nil,
		},
		State:     kafkatxn.StateOptions{Changelog: t.Changelog, Dir: stateDir(t.State, p.Name), Standby: t.Standby},
		Unwrap:    o.Unwrap,
		Key:       kafkatxn.KeyOptions{Rule: o.Key, Scope: o.Scope, SameScope: o.SameScope, OnMissing: o.OnMissing},
		Aggregate: p.Aggregate, Keep: p.Key.Keep, Tables: p.Tables, Window: o.Window, EventTime: eventTime, FilterMap: p.FilterMap, Failure: pipeline.Failure{Then: o.Failure.Then},
		Limits:   kafkatxn.Limits{Interval: t.Interval, Records: int(p.InFlight.Max), Bytes: p.InFlight.Bytes},
		Timeouts: kafkatxn.Timeouts{Session: s.SessionTimeout, Shutdown: o.Shutdown},
		Reset:    reset(s.Start), Observer: o.Observer,
	}, nil
}

// transactionalID returns the prefix of the transactional ids of a process. A
// slash separates its parts. Host and pipeline names contain no slash, so two
// groups never share a prefix.
func (s *Source) transactionalID(instance string) string {
	return s.Group + "/" + instance
}

func stateDir(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// lockedTransactor releases its member name after it has run.
type lockedTransactor struct {
	*kafkatxn.Transactor
	lock io.Closer
}

func (l lockedTransactor) Run(ctx context.Context) error {
	return errors.Join(fenced(l.Transactor.Run(ctx)), l.lock.Close())
}
