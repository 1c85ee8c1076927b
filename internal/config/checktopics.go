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
			if at, written := c.places[field]; written {
				c.at(at, field, "%s, %s already: %s: name another topic", topic, first.what, second.mixed)
				break
			}
			field = path + "." + first.field
			at, written := c.places[field]
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
		changelog := topicUse{sink.Brokers, nil, "transaction.changelog", "which holds the keys", "keys would pass for messages"}
		name := cmp.Or(p.Transaction.Changelog, source.Group+"-keys")
		if len(source.Topics) == 1 || source.Repartition != nil {
			changelog.topics = []string{name}
		} else {
			for _, topic := range source.Topics {
				changelog.topics = append(changelog.topics, name+"-"+topic)
			}
		}
		uses = append(uses, changelog)
	}
	return uses
}
