package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafkaio"
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
// whether or not a process runs the pipeline; see kafkaio.Transactor.Look. It
// writes nothing. It gives up if no broker answers within ten seconds.
func Look(ctx context.Context, f *config.File, p *config.Pipeline, keys []semel.Key) ([]kafkaio.KnownKey, error) {
	source, ok := p.Source.(*Source)
	if !ok {
		return nil, fmt.Errorf("pipeline %s has no keys in Kafka: %w", p.Name, semel.ErrInvalidRequest)
	}
	t, err := source.newTransactor(&config.Env{File: f, Pipeline: p}, "") // no instance name: it joins no group
	if err != nil {
		return nil, f.RedactError(err)
	}
	known, err := t.Look(ctx, keys)
	return known, f.RedactError(err)
}

// OnePartition reports whether a key of the pipeline is always decided in one
// partition, regardless of record keys.
func OnePartition(p *config.Pipeline) bool {
	source, ok := p.Source.(*Source)
	return ok && source.Repartition != nil
}

func (s *Source) newTransactor(env *config.Env, instance string) (*kafkaio.Transactor, error) {
	p := env.Pipeline
	sink, ok := p.Sink.(*Sink)
	if !ok {
		return nil, fmt.Errorf("the sink is not of the kind kafka: %w", semel.ErrInvalidRequest)
	}
	client, err := s.options()
	if err != nil {
		return nil, err
	}
	t, o := &p.Transaction, env.Options()
	var between *kafkaio.Repartition
	if s.Repartition != nil {
		between = &kafkaio.Repartition{Topic: s.RepartitionTopic(), Partitions: s.Repartition.Partitions}
	}
	return kafkaio.NewTransactor(&kafkaio.TransactorOptions{
		Name: p.Name, Client: client, Compression: compression(sink.Compression), Group: s.Group, Instance: instance,
		TransactionalID: s.transactionalID(t, instance), Inputs: s.Topics, Repartition: between, Output: sink.Topic, SamePartition: sink.Partition == "same",
		Changelog: t.Changelog, Parked: p.Parked.Topic, Key: o.Key, Scope: o.Scope, KeyHeaders: sink.KeyHeaders,
		Window: o.Window, EventTime: t.Time == "event", Grace: t.Grace, OnLate: o.OnLate, DeliverLate: p.OnLate == "run", OnMissing: o.OnMissing, Failure: pipeline.Failure{Then: o.Failure.Then},
		Interval: t.Interval, MaxRecords: int(t.MaxRecords), MaxBytes: t.MaxBytes, SessionTimeout: s.SessionTimeout,
		Sessions: t.Sessions, Standby: t.Standby, Reset: reset(s.Start), StateDir: stateDir(t.State, p.Name), Shutdown: o.Shutdown, Observer: o.Observer,
	})
}

// transactionalID returns the prefix of the transactional ids of a process. A
// slash separates its parts. Host and pipeline names contain no slash, so two
// groups never share a prefix.
func (s *Source) transactionalID(t *config.Transaction, instance string) string {
	return cmp.Or(t.ID, s.Group) + "/" + instance
}

func stateDir(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// lockedTransactor releases its member name after it has run.
type lockedTransactor struct {
	*kafkaio.Transactor
	lock io.Closer
}

func (l lockedTransactor) Run(ctx context.Context) error {
	return errors.Join(fenced(l.Transactor.Run(ctx)), l.lock.Close())
}
