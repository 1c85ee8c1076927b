package kafkatxn

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
)

// changelog is a topic with one of the states of a topic that is decided: its keys, or what an
// operator keeps.
type changelog struct {
	name string
	of   string   // the topic that is decided
	id   state.ID // set before members start
	// created is the retention with which it is created, in milliseconds. retention is how long
	// its records count, or -1 if their times do not show that: then only a Transactor deletes them.
	created, retention int64
	*contents
}

// contents is what a changelog holds. The texts are parts of errors.
type contents struct {
	what    string // the topic
	early   string // what happens if brokers delete records early
	lost    string // what is lost with the records
	other   string // what to use instead of a topic with a loss
	suffix  string // of the copy on disk
	segment string // its segment.bytes, if not the default
	// differs is the error of a changelog with another number of partitions than its topic.
	differs func(t *Transactor, c *changelog, partitions, has int) error
	// missing is the error of a changelog that is missing although the group has read a topic.
	// create is the command that creates it.
	missing func(ctx context.Context, t checks, c *changelog, create, read string) error
	// foreign is the error of a changelog with the state of another topic.
	foreign func(c *changelog, other string) error
}

// keyContents is that of the changelog of keys. Its records are deleted by their times if those
// show how long they count.
var keyContents = contents{
	what: "changelog", early: "keys would be forgotten early", suffix: ".keys",
	lost: "keys are lost, and repeated records would take effect again", other: "another changelog (transaction.changelog)",
	differs: func(t *Transactor, c *changelog, partitions, has int) error {
		return t.source.differs(c.of, partitions, c.name, has)
	},
	missing: func(ctx context.Context, t checks, c *changelog, create, read string) error {
		return t.keysLost(ctx, c, create, read)
	},
	foreign: func(c *changelog, other string) error {
		return fmt.Errorf("kafka: changelog %s holds keys of %s: records of %s with one of them would be dropped as duplicates, and be lost. Give this pipeline a new group, or a changelog of its own (transaction.changelog): %w",
			c.name, other, c.of, semel.ErrInvalidRequest)
	},
}

// stateContents is that of the topic with the state of an operator, which says what that is and what
// follows if it is lost. Brokers free whole segments, so its segments are small.
func stateContents(holds, loss string) *contents {
	return &contents{
		what: "topic", early: holds + " would be lost", suffix: ".state", segment: strconv.Itoa(smallSegment),
		lost: holds + " are lost, and " + loss, other: "a new group",
		differs: func(_ *Transactor, c *changelog, partitions, has int) error {
			return fmt.Errorf("kafka: %s has %d partitions, and topic %s, which holds its %s, has %d: use a new group, or a new input with the old number of partitions: %w",
				c.of, partitions, c.name, holds, has, semel.ErrInvalidRequest)
		},
		missing: func(_ context.Context, t checks, c *changelog, create, read string) error {
			return fmt.Errorf("kafka: group %s has read %s, and topic %s, which holds its %s, %w: they would lack the messages that were read. Use a new group, or, to begin without them, create it: %s; and %s",
				t.chain.Group, read, c.name, holds, errNoTopic, create, losses(t).acceptLoss(c.of))
		},
		foreign: func(c *changelog, _ string) error {
			return fmt.Errorf("the topic holds the %s of another topic than %s: use a new group: %w", holds, c.of, semel.ErrInvalidRequest)
		},
	}
}

// smallSegment is the segment size of topics whose records are soon deleted.
const smallSegment = 50 << 20

// changelogs are those of each topic that is decided: that of its keys, and that of the state of an
// operator if there is one.
type changelogs map[string][]*changelog

// newChangelogs returns the changelogs with these names. Those of keys are created with a retention
// in milliseconds, or with -1 if only a Transactor deletes their records. A key counts for a time.
func newChangelogs(names map[string][]string, states *contents, created int64, counts time.Duration) changelogs {
	all := changelogs{}
	for topic, list := range names {
		for i, name := range list {
			c := &changelog{name: name, of: topic, created: -1, retention: -1, contents: states}
			if i == 0 {
				c.contents, c.created = &keyContents, created
			}
			if c.created >= 0 {
				c.retention = counts.Milliseconds()
			}
			all[topic] = append(all[topic], c)
		}
	}
	return all
}

// names returns the names of the changelogs of topics that are decided.
func (l changelogs) names(topics ...string) (names []string) {
	for _, topic := range topics {
		for _, c := range l[topic] {
			names = append(names, c.name)
		}
	}
	return names
}
