package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/tables"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

func (o *TransactorOptions) validateTables(wrong *invalid.List) {
	if len(o.Tables) > 0 && o.FilterMap == nil && o.Transform == nil {
		wrong.Add("Tables: there is no FilterMap or Transform that uses them")
	}
	for i, t := range o.Tables {
		if t == nil {
			wrong.Add("Tables: number %d is nil", i)
			continue
		}
		wrong.Join(t.Validate())
		for _, other := range o.Tables[:i] {
			switch {
			case other == nil:
			case other.Title() == t.Title():
				wrong.Add("Tables: two have the name %s", t.Title())
			case other.Topic == t.Topic && (other.Local != t.Local || other.History != t.History):
				wrong.Add("Tables: %s and %s have one topic, so Local and History must be the same", other.Title(), t.Title())
			}
		}
		if t.Topic != "" && slices.Contains(append([]string{o.Output.Topic, o.Parked}, o.Inputs...), t.Topic) {
			wrong.Add("Tables: %s is another topic of the pipeline", t.Topic)
		}
		if t.Local && o.Repartition != nil {
			wrong.Add("Tables: %s cannot be Local with Repartition, which moves messages to other partitions", t.Title())
		}
	}
}

// parksWithoutRow reports whether a table parks messages.
func (o *TransactorOptions) parksWithoutRow() bool {
	return slices.ContainsFunc(o.Tables, func(t *stream.Table) bool {
		return t != nil && (t.History > 0 || t.Missing == stream.MissingPark || t.Missing == stream.MissingWait)
	})
}

// checkTables refuses unsuitable topics of tables, and returns them. inputs are the topics
// that are read.
func (t *Transactor) checkTables(ctx context.Context, adm *kadm.Client, inputs kadm.TopicDetails) (kadm.TopicDetails, error) {
	all := kadm.TopicDetails{}
	for _, table := range t.opts.Tables {
		name := table.Topic
		if all.Has(name) {
			continue
		}
		topics, err := adm.ListTopics(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("kafka: list topics: %w", err)
		}
		topic := topics[name]
		if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
			return nil, fmt.Errorf("kafka: table %s: %w", table.Title(), &cluster.MissingTopicError{Topic: name})
		} else if topic.Err != nil {
			return nil, fmt.Errorf("kafka: table topic %s: %w", name, topic.Err)
		}
		all[name] = topic
		for _, input := range t.opts.Inputs {
			if have, need := len(topic.Partitions), len(inputs[input].Partitions); table.Local && have != need {
				return nil, fmt.Errorf("kafka: table topic %s has %d partitions and %s %d, so rows and messages are not in the same partitions: write read: global (Local: false): %w", name, have, input, need, semel.ErrInvalidRequest)
			}
		}
		configs, err := cluster.TopicSettings(ctx, adm, name)
		if err != nil {
			return nil, err
		}
		if found, cost, remedy := cluster.TableProblem(cluster.Settings(configs, name), table.History); found != "" {
			return nil, fmt.Errorf("kafka: table topic %s has %s: %s: %s: %w", name, found, cost, remedy, semel.ErrInvalidRequest)
		}
	}
	return all, nil
}

// openTables begins to read the topics of the tables.
func (t *Transactor) openTables() error {
	if len(t.opts.Tables) == 0 {
		return nil
	}
	r, err := tables.New(tables.Options{
		Tables: t.opts.Tables, Topics: t.tableTopics, Admin: t.adm(), Now: t.now,
		Client: func(more ...kgo.Opt) []kgo.Opt { return t.clientOptions(more...) },
		Observe: func(reason string, err error) {
			t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: reason, Err: err})
		},
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tables = r
	return err
}

// readTables waits until all rows are there that are in the topics now. An earlier owner of
// the parts has seen no later ones, so no join goes back in time.
func (t *Transactor) readTables(ctx context.Context, s *session, parts []*part) error {
	if t.tables == nil {
		return nil
	}
	var numbers []int32
	for _, p := range parts {
		numbers = append(numbers, p.id.Number)
	}
	return t.tables.ReadToEnd(ctx, numbers, func(text string) { s.restores.Store(&text) })
}

// withoutRow applies the policy of a table to a record that has no row there.
func (w *worker) withoutRow(ctx context.Context, r *kgo.Record, row *stream.RowError, attempts int) error {
	switch {
	case errors.Is(row, semel.ErrLate):
		if e := w.opts.EventTime; e == nil || !e.DeliverLate { // it was counted as fresh
			w.counts.fresh--
			w.counts.late++
		}
		return w.park(ctx, r, pipeline.Park, pipeline.ReasonLate, attempts, row)
	case row.Table.Missing == stream.MissingDrop:
		return w.park(ctx, r, pipeline.Drop, pipeline.ReasonRowMissing, attempts, row)
	}
	return w.park(ctx, r, pipeline.Park, pipeline.ReasonRowMissing, attempts, row)
}

// tableGauges returns the number of rows of each table, and how many records of its topic
// are not read yet.
func (t *Transactor) tableGauges(ctx context.Context) (list []pipeline.Gauge) {
	t.mu.Lock()
	r := t.tables
	t.mu.Unlock()
	if r == nil {
		return nil
	}
	for _, size := range r.Sizes(ctx) {
		list = append(list, pipeline.Gauge{Name: "dedup.table.rows", Labels: []string{size.Table}, Value: float64(size.Rows)})
		if size.Lag >= 0 {
			list = append(list, pipeline.Gauge{Name: "dedup.table.lag", Labels: []string{size.Table}, Value: float64(size.Lag)})
		}
	}
	return list
}
