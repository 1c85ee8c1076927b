package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
)

var _ semel.Doctor = (*Transactor)(nil)

// Examine connects with a client of its own and says how well the brokers and
// topics keep the promise. It changes nothing and may be called at any time.
func (t *Transactor) Examine(ctx context.Context) ([]semel.Finding, error) {
	client, err := kgo.NewClient(t.clientOptions()...)
	if err != nil {
		return nil, fmt.Errorf("kafkaio: %w", err)
	}
	defer client.Close()
	answer, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("kafkaio: ask for versions: %w", err)
	}
	list := []semel.Finding{fencing(answer), transactionVersion(answer)}
	adm := kadm.NewClient(client)
	names := append([]string{t.opts.Output}, t.opts.Inputs...)
	kept := []string{t.opts.Output} // what must outlive a broker
	for _, topic := range t.opts.reads() {
		kept = append(kept, t.opts.changelogOf(topic))
	}
	if t.opts.Repartition != nil {
		kept = append(kept, t.opts.Repartition.Topic)
	}
	names = append(names, kept[1:]...)
	topics, err := adm.ListTopics(ctx, names...)
	if err != nil {
		return list, fmt.Errorf("kafkaio: list topics: %w", err)
	}
	configs, err := adm.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return list, fmt.Errorf("kafkaio: describe topics: %w", err)
	}
	for _, topic := range t.opts.reads() {
		changelog := t.opts.changelogOf(topic)
		switch between := t.opts.Repartition != nil; {
		case between && errors.Is(topics[topic].Err, kerr.UnknownTopicOrPartition):
			list = append(list, semel.Finding{Severity: semel.Notice, Subject: topic, Found: "is not there yet", Cost: "none", Remedy: "none: it is made when it is needed"})
		case between:
			list = append(list, repartitionTopic(topic, len(topics[topic].Partitions), changelog, len(topics[changelog].Partitions), settings(configs, topic))...)
		default:
			list = append(list, partitionCounts(topics[topic], topics[changelog], topic, changelog))
		}
	}
	for _, name := range kept {
		if topics[name].Err == nil {
			list = append(list, replication(name, topics[name], setting(configs, name, "min.insync.replicas")))
		}
	}
	return list, nil
}

// fencing says whether a member that was replaced is kept from committing.
func fencing(answer *kmsg.ApiVersionsResponse) semel.Finding {
	for _, k := range answer.ApiKeys {
		if k.ApiKey == int16(kmsg.TxnOffsetCommit) && k.MaxVersion >= 3 {
			return semel.Finding{Subject: "TxnOffsetCommit", Found: "version " + strconv.Itoa(int(k.MaxVersion))}
		}
	}
	return semel.Finding{
		Severity: semel.Broken, Subject: "TxnOffsetCommit", Found: "below version 3",
		Cost: "a member that was replaced can still commit", Remedy: "Kafka 2.5 or later",
	}
}

func transactionVersion(answer *kmsg.ApiVersionsResponse) semel.Finding {
	f := semel.Finding{Subject: "transaction.version", Found: "not set"}
	for _, feature := range answer.FinalizedFeatures {
		if feature.Name == "transaction.version" {
			f.Found = strconv.Itoa(int(feature.MaxVersionLevel))
			if feature.MaxVersionLevel >= 2 {
				return f
			}
		}
	}
	f.Severity = semel.Warning
	f.Cost = "a write of an earlier transaction that comes late may become part of a later one, or leave one open for readers to wait at"
	f.Remedy = "Kafka 4.0 or later, and kafka-features upgrade --feature transaction.version=2"
	return f
}

func partitionCounts(input, changelog kadm.TopicDetail, name, changelogName string) semel.Finding {
	f := semel.Finding{Subject: "partitions of " + name, Found: fmt.Sprintf("%d, and %d of %s", len(input.Partitions), len(changelog.Partitions), changelogName)}
	switch {
	case input.Err != nil:
		f.Found, f.Severity, f.Cost, f.Remedy = input.Err.Error(), semel.Broken, "nothing can be read", "make the topic"
	case changelog.Err != nil:
		f.Found = fmt.Sprintf("%d; %s will be made", len(input.Partitions), changelogName)
	case len(input.Partitions) != len(changelog.Partitions):
		f.Severity, f.Cost, f.Remedy = semel.Broken, "keys would be looked for where they are not", "begin with a new changelog, or with a new input of the old count"
	}
	return f
}

// replication says whether a record outlives a broker.
func replication(name string, topic kadm.TopicDetail, insync string) semel.Finding {
	replicas := topic.Partitions.NumReplicas()
	f := semel.Finding{Subject: "replication of " + name, Found: fmt.Sprintf("%d, min.insync.replicas %s", replicas, insync)}
	if replicas < 2 || insync == "1" || insync == "" {
		f.Severity, f.Cost, f.Remedy = semel.Warning, "what was committed may be lost with one broker", "replication of 3 and min.insync.replicas=2"
	}
	return f
}

// settings returns all settings of a topic that may be seen.
func settings(configs kadm.ResourceConfigs, topic string) map[string]string {
	all := map[string]string{}
	config, err := configs.On(topic, nil)
	if err != nil || config.Err != nil {
		return all
	}
	for _, c := range config.Configs {
		all[c.Key] = c.MaybeValue()
	}
	return all
}

// setting returns a topic's setting, or "".
func setting(configs kadm.ResourceConfigs, topic, name string) string {
	return settings(configs, topic)[name]
}
