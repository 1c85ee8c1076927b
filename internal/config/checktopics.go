package config

import (
	"cmp"
	"slices"
)

// topicUse is one of the things that a pipeline has topics of Kafka for.
type topicUse struct {
	brokers, topics []string
	field           string // of the pipeline, which names them
	what            string // happens to them
	mixed           string // what follows if such a topic is used otherwise too
}

// topics refuses a topic that a pipeline uses for two things, where the file
// names the second one.
func (c *checker) topics(p *Pipeline, path string) {
	uses := c.file.topicUses(p)
	for i, second := range uses {
		for _, first := range uses[:i] {
			twice := slices.IndexFunc(second.topics, func(topic string) bool { return slices.Contains(first.topics, topic) })
			if twice < 0 || !sameBrokers(first.brokers, second.brokers) {
				continue
			}
			topic, field := second.topics[twice], path+"."+second.field
			if at, written := c.Places[field]; written {
				c.at(at, field, "%s, %s already: %s: name another topic", topic, first.what, second.mixed)
				break
			}
			field = path + "." + first.field
			at, written := c.Places[field]
			if !written {
				at = p.At
			}
			c.at(at, field, "%s, %s too unless %s names another topic: %s: name another topic in one of the two", topic, second.what, second.field, second.mixed)
			break
		}
	}
}

// topicUses returns what a pipeline has topics for. That of its repartition stage
// is for Lint.
func (f *File) topicUses(p *Pipeline) []topicUse {
	source, fromKafka := p.Source.(*KafkaSource)
	sink, toKafka := p.Sink.(*KafkaSink)
	var uses []topicUse
	var end []string // brokers of the Kafka in which messages are parked
	if fromKafka {
		uses = append(uses, topicUse{source.Brokers, source.Topics, "source.kafka.topics", "which the pipeline reads", ""})
		end = source.Brokers
	}
	if toKafka {
		uses = append(uses, topicUse{sink.Brokers, []string{sink.Topic}, "sink.kafka.topic", "which the sink writes", "the pipeline would read what it wrote"})
		end = sink.Brokers
	}
	if p.Parked.Topic != "" {
		uses = append(uses, topicUse{end, []string{p.Parked.Topic}, "parked.topic", "where messages are parked", "what is parked would come back, or pass for delivered"})
	}
	if f.Mode(p) == SourceIsSink && fromKafka && toKafka {
		uses = append(uses, topicUse{sink.Brokers, p.Changelogs(), "transaction.changelog", "which holds the keys", "keys would pass for messages"})
	}
	return uses
}

// changelogs refuses a topic that holds the keys of two pipelines.
func (c *checker) changelogs() {
	for i, p := range c.file.Pipelines {
		if c.file.Mode(p) != SourceIsSink {
			continue
		}
		for _, other := range c.file.Pipelines[:i] {
			twice := slices.IndexFunc(p.Changelogs(), func(topic string) bool { return slices.Contains(other.Changelogs(), topic) })
			if twice < 0 || c.file.Mode(other) != SourceIsSink || !sameBrokers(p.Source.(*KafkaSource).Brokers, other.Source.(*KafkaSource).Brokers) {
				continue
			}
			path := "pipelines." + p.Name
			at := p.At
			if named, written := c.Places[path+".transaction.changelog"]; written {
				at, path = named, path+".transaction.changelog"
			}
			c.at(at, path, "the keys are in the topic of those of %s, %s (line %d): what one has delivered would pass for a duplicate in the other, and be lost: give it a group, or a transaction.changelog, of its own",
				other.Name, p.Changelogs()[twice], other.At.Line)
			break
		}
	}
}

// Changelogs returns the topics that hold the keys of a pipeline from Kafka to
// Kafka without a store, nil for one that does not read Kafka.
func (p *Pipeline) Changelogs() []string {
	source, ok := p.Source.(*KafkaSource)
	if !ok {
		return nil
	}
	name := cmp.Or(p.Transaction.Changelog, source.Group+"-keys")
	if len(source.Topics) == 1 || source.Repartition != nil {
		return []string{name}
	}
	var list []string
	for _, topic := range source.Topics {
		list = append(list, name+"-"+topic)
	}
	return list
}
