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

// Look returns the records of keys of a pipeline whose keys live in Kafka,
// whether or not a process runs the pipeline; see kafkatxn.Transactor.Look. It
// writes nothing. It gives up if no broker answers within ten seconds.
func Look(ctx context.Context, f *config.File, p *config.Pipeline, keys []semel.Key) ([]kafkatxn.KnownKey, error) {
	source, err := sourceOf(p)
	if err != nil {
		return nil, err
	}
	t, err := source.newTransactor(&config.Env{File: f, Pipeline: p}, "") // no instance name: it joins no group
	if err != nil {
		return nil, f.RedactError(err)
	}
	known, err := t.Look(ctx, keys)
	return known, f.RedactError(err)
}

// Try returns a trial of a pipeline whose keys live in Kafka, from a time on. Its input has a
// number of partitions. It connects to no broker.
func Try(f *config.File, p *config.Pipeline, now time.Time, partitions int32) (*kafkatxn.Trial, error) {
	source, err := sourceOf(p)
	if err != nil {
		return nil, err
	}
	opts, err := source.transactorOptions(&config.Env{File: f, Pipeline: p}, "")
	if err != nil {
		return nil, f.RedactError(err)
	}
	t, err := kafkatxn.NewTrial(opts, now, partitions)
	return t, f.RedactError(err)
}

// ReadRows passes the records of the pipeline's tables to fn, up to the ends that their topics
// have at the call, or until ctx ends. It joins no group.
func ReadRows(ctx context.Context, f *config.File, p *config.Pipeline, fn func(*semel.Message)) error {
	source, err := sourceOf(p)
	if err != nil {
		return err
	}
	opts, err := source.options()
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

func sourceOf(p *config.Pipeline) (*Source, error) {
	if source, ok := p.Source.(*Source); ok {
		return source, nil
	}
	return nil, fmt.Errorf("pipeline %s does not read from Kafka: %w", p.Name, semel.ErrInvalidRequest)
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
		State:     kafkatxn.State{Changelog: t.Changelog, Dir: stateDir(t.State, p.Name), Standby: t.Standby},
		Key:       kafkatxn.Key{Rule: o.Key, Scope: kafkatxn.Scope{Name: o.Scope, Same: o.SameScope}, OnMissing: o.OnMissing},
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
