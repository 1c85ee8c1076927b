package kafkatxn

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

// checkTables refuses unsuitable topics of tables, and returns them. inputs are the topics
// that are read.
func (t checks) checkTables(ctx context.Context, adm *kadm.Client, inputs kadm.TopicDetails) (kadm.TopicDetails, error) {
	all := kadm.TopicDetails{}
	for _, table := range t.chain.Tables {
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
		for _, input := range t.inputs {
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
