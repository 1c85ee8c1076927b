package kafka

import (
	"context"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

// Pattern is a regular expression, as package regexp has it. A topic matches if its whole name
// does. A source skips internal topics of Kafka that match, such as __consumer_offsets. It reads
// those of other tools, whose names often begin with _. A Pattern is immutable.
type Pattern struct {
	text, prefix string
	whole        *regexp.Regexp
}

// NewPattern returns a pattern. The error wraps semel.ErrInvalidRequest.
func NewPattern(text string) (*Pattern, error) {
	// "a)|(b" would be valid within parentheses, and \Q would quote the last one. A parsed
	// expression can be written without both.
	alone, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("kafka: pattern of topics: %w: %w", err, semel.ErrInvalidRequest)
	}
	whole, err := regexp.Compile("^(?:" + alone.String() + ")$")
	if err != nil {
		return nil, fmt.Errorf("kafka: pattern of topics: %w: %w", err, semel.ErrInvalidRequest)
	}
	p := &Pattern{text: text, whole: whole}
	p.prefix, _ = regexp.MustCompile(alone.String()).LiteralPrefix() // it is valid within parentheses
	return p, nil
}

// String returns the pattern as it was given.
func (p *Pattern) String() string { return p.text }

// Matches reports whether a topic with a name is read.
func (p *Pattern) Matches(topic string) bool { return p.whole.MatchString(topic) }

// Prefix returns what all names begin with that match; it may be empty.
func (p *Pattern) Prefix() string { return p.prefix }

// foundWithin is the longest time after which a Source reads a new topic that matches its
// pattern, if brokers answer.
const foundWithin = time.Minute

// lookEvery is how often a client asks for all topics. A group also needs some seconds to assign
// the partitions of a new one.
const lookEvery = 15 * time.Second

// options return the options of a client that reads the topics that match.
func (p *Pattern) options() []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumeRegex(), kgo.ConsumeTopics(p.whole.String()), kgo.MetadataMaxAge(lookEvery),
		// With an exclusion the client and not the broker looks for topics in a group that the
		// broker divides (KIP-848). The broker would find internal topics too.
		kgo.ConsumeExcludeTopics("^$"),
	}
}

// MatchingTopics returns the topics that exist now and match a pattern, in their order. Topics
// that the user may not describe are missing. It blocks until the brokers have answered.
func MatchingTopics(ctx context.Context, client []kgo.Opt, pattern *Pattern) ([]string, error) {
	c, err := cluster.Dial(ctx, client...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list, err := matching(ctx, kadm.NewClient(c), pattern)
	if err != nil {
		return nil, fmt.Errorf("kafka: list topics: %w", err)
	}
	return list, nil
}

func matching(ctx context.Context, admin *kadm.Client, pattern *Pattern) ([]string, error) {
	all, err := admin.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all.Names(), func(topic string) bool {
		return all[topic].Err != nil || all[topic].IsInternal || !pattern.Matches(topic)
	}), nil
}
