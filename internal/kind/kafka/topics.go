package kafka

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// topicsField is a list of topics, or a pattern of their names.
func topicsField(list *[]string, pattern **kafka.Pattern) schema.Field {
	members := func() schema.Mapping {
		return schema.Mapping{Fields: []schema.Field{
			{Name: "pattern", Doc: "Regular expression (RE2) for whole names, such as `orders-.*`. A new topic that matches is read from its start, within a minute.", Required: true, Form: schema.Form{Scalar: schema.ScalarText}, Read: func(v schema.Value) {
				var text string
				if v.Text(&text); text == "" {
					return
				}
				if strings.Contains(text, "${") { // a reference that is not resolved yet
					text = regexp.QuoteMeta(text)
				}
				found, err := kafka.NewPattern(text)
				if err != nil {
					v.Wrong("%q is no regular expression: %s", text, expressionError(err))
					return
				}
				*pattern = found
			}},
		}}
	}
	field := schema.TextsField("topics", list, "Topics to read: a list of names, or a pattern of names.")
	texts := field.Read
	field.Form = schema.Form{Either: []schema.Form{field.Form, {Members: members, Title: "Topics by pattern"}}}
	field.Read = func(v schema.Value) {
		if v.IsMapping() {
			v.Mapping(members())
			return
		}
		texts(v)
	}
	return field
}

// expressionError says what is wrong with a regular expression, without repeating it.
func expressionError(err error) string {
	if of, ok := errors.AsType[*syntax.Error](err); ok {
		return of.Code.String()
	}
	return "look at its syntax"
}

// has reports whether the source reads a topic.
func (s *Source) has(topic string) bool {
	return slices.Contains(s.Topics, topic) || s.Pattern != nil && s.Pattern.Matches(topic)
}

// reads names the topics for people.
func (s *Source) reads() string {
	if s.Pattern != nil {
		return "every topic that matches " + s.Pattern.String() + " (a new one from its start, within a minute)"
	}
	return strings.Join(s.Topics, ", ")
}

// topicsNow returns the topics that the source reads now.
func (s *Source) topicsNow(ctx context.Context) ([]string, error) {
	if s.Pattern == nil {
		return s.Topics, nil
	}
	opts, err := s.options()
	if err != nil {
		return nil, err
	}
	return kafka.MatchingTopics(ctx, opts, s.Pattern)
}

// checkPattern refuses what a source cannot promise for topics that come later.
func (s *Source) checkPattern(c *config.Checker, p *config.Pipeline) {
	if s.Pattern == nil {
		return
	}
	path := "pipelines." + p.Name
	if at := path + ".source.kafka.start"; s.Start == "latest" {
		c.Report(c.Places[at], at, "latest is not possible with a pattern: records that are written to a new topic before it is found would never be read: leave it out")
	}
	s.checkInner(c, p)
	sink, ok := p.Sink.(*Sink)
	if !ok || sink.Topic.Route == nil || !sameBrokers(s.Brokers, sink.Brokers) {
		return
	}
	for _, prefix := range sink.Topic.Route.Prefixes() {
		if begins := s.Pattern.Prefix(); strings.HasPrefix(prefix, begins) || strings.HasPrefix(begins, prefix) {
			at := path + ".sink.kafka.topic"
			c.Report(c.Places[at], at, "a message may name a topic with the beginning %q, which may match the pattern %s that the pipeline reads, so the pipeline would read its own output: write another pattern or other names", prefix, s.Pattern)
			return
		}
	}
}

// ownTopics returns the topics of a pipeline that have other records than the messages of pipelines,
// and those of its sink.
func ownTopics(f *config.File, p *config.Pipeline) []topicUse {
	uses := slices.DeleteFunc(topicUses(f, p), func(use topicUse) bool { return use.field == "source.kafka.topics" || use.what == rowsTopic })
	if from, ok := p.Source.(*Source); ok && from.Repartition {
		uses = append(uses, topicUse{brokers: from.Brokers, topics: []string{from.RepartitionTopic()}, what: "between its two stages"})
	}
	return uses
}

// checkInner refuses a pattern that matches what another pipeline keeps in topics of its own.
func (s *Source) checkInner(c *config.Checker, p *config.Pipeline) {
	at := "pipelines." + p.Name + ".source.kafka.topics"
	for _, other := range c.File.Pipelines {
		if other == p {
			continue
		}
		for _, use := range ownTopics(c.File, other) {
			i := slices.IndexFunc(use.topics, s.Pattern.Matches)
			if i < 0 || use.field == "sink.kafka.topic" || !sameBrokers(s.Brokers, use.brokers) {
				continue
			}
			c.Report(c.Places[at], at, "the pattern %s matches %s, the topic of pipeline %s %s, so this pipeline would take what is in it for messages: write another pattern", s.Pattern, use.topics[i], other.Name, use.what)
			return
		}
	}
}

// topicUse is one use of Kafka topics by a pipeline.
type topicUse struct {
	brokers, topics []string
	pattern         *kafka.Pattern // of further topics, or nil
	field           string         // the pipeline's field that names the topics
	what            string         // what happens to the topics
	mixed           string         // the consequence of using such a topic for something else too
}

// Check implements config.Source.
func (s *Source) Check(c *config.Checker, p *config.Pipeline) {
	checkNames(c, p)
	checkUses(c, p)
	s.checkPattern(c, p)
	s.checkChangelogs(c, p)
}

// Check implements config.Sink. If the source is Kafka too, it has checked both.
func (s *Sink) Check(c *config.Checker, p *config.Pipeline) {
	if _, ok := p.Source.(*Source); !ok {
		checkNames(c, p)
		checkUses(c, p)
	}
}

// checkNames refuses names that no topic has, such as patterns. The brokers would refuse
// them when the pipeline starts, without the place in the file.
func checkNames(c *config.Checker, p *config.Pipeline) {
	uses := topicUses(c.File, p)
	if sink, ok := p.Sink.(*Sink); ok && sink.Topic.Route != nil {
		var written []string
		for _, prefix := range sink.Topic.Route.Prefixes() {
			written = append(written, prefix+"a") // any name that it allows
		}
		uses = append(uses, topicUse{topics: written, field: "sink.kafka.topic"})
	}
	if source, ok := p.Source.(*Source); ok && source.RepartitionTopic() != "" {
		uses = append(uses, topicUse{topics: []string{source.RepartitionTopic()}, field: "source.kafka.repartition"})
	}
	said := map[string]bool{}
	for _, use := range uses {
		for _, topic := range use.topics {
			why := notTopic(topic, use.field == "source.kafka.topics")
			if why == "" || said[topic] || strings.Contains(topic, "${") { // a reference that is not resolved yet
				continue
			}
			said[topic] = true
			path := "pipelines." + p.Name + "." + use.field
			at, written := c.Places[path]
			if !written {
				at = p.At
			}
			c.Report(at, path, "%q is not the name of a topic: %s", topic, why)
		}
	}
}

// notTopic says why a text is not the name of a topic. It returns "" if it is one. found says that
// topics may also be found by a pattern.
func notTopic(name string, found bool) string {
	switch {
	case name == "" || name == "." || name == "..":
		return "write letters, digits, '.', '_' and '-'"
	case len(name) > 249:
		return "it is longer than 249 characters"
	case strings.ContainsAny(name, `*^$?+[](){}|\`) && found:
		return "it looks like a pattern: write topics: { pattern: '" + asPattern(name) + "' } to read all topics whose whole name matches, or list them by name"
	case strings.ContainsAny(name, `*^$?+[](){}|\`):
		return "it looks like a pattern, and these topics are not found by patterns: list them by name"
	case strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "":
		return "it has other characters than letters, digits, '.', '_' and '-'"
	}
	return ""
}

// loneStar is a * that stands for any characters, as in names of files.
var loneStar = regexp.MustCompile(`(^|[A-Za-z0-9_-])\*`)

// asPattern returns what a text in a list of topics probably means, as a pattern for whole names.
func asPattern(text string) string {
	meant := loneStar.ReplaceAllString(text, "$1.*")
	if rest, begins := strings.CutPrefix(meant, "^"); begins {
		var ends bool
		if meant, ends = strings.CutSuffix(rest, "$"); !ends && !strings.HasSuffix(meant, ".*") {
			meant += ".*"
		}
	}
	if _, err := kafka.NewPattern(meant); err != nil || strings.Contains(meant, "'") {
		return "orders-.*"
	}
	return meant
}

// checkUses refuses a topic that a pipeline uses for two purposes, at the place
// of the second one.
func checkUses(c *config.Checker, p *config.Pipeline) {
	path := "pipelines." + p.Name
	uses := topicUses(c.File, p)
	for i, second := range uses {
		for _, first := range uses[:i] {
			twice := slices.IndexFunc(second.topics, func(topic string) bool {
				return slices.Contains(first.topics, topic) || first.pattern != nil && first.pattern.Matches(topic)
			})
			if twice < 0 || !sameBrokers(first.brokers, second.brokers) {
				continue
			}
			topic, field := second.topics[twice], path+"."+second.field
			if at, written := c.Places[field]; written {
				c.Report(at, field, "%s is already the topic %s, so %s: write another topic", topic, first.what, second.mixed)
				break
			}
			field = path + "." + first.field
			at, written := c.Places[field]
			if !written {
				at = p.At
			}
			c.Report(at, field, "%s is also the topic %s unless %s names another, so %s: write another topic in one of the two", topic, second.what, second.field, second.mixed)
			break
		}
	}
}

// topicUses returns the topic uses of a pipeline, except the repartition topic,
// which Lint checks.
func topicUses(f *config.File, p *config.Pipeline) []topicUse {
	source, fromKafka := p.Source.(*Source)
	sink, toKafka := p.Sink.(*Sink)
	var uses []topicUse
	var end []string // brokers of the cluster in which messages are parked
	if fromKafka {
		uses = append(uses, topicUse{source.Brokers, source.Topics, source.Pattern, "source.kafka.topics", "that the pipeline reads", ""})
		end = source.Brokers
	}
	if toKafka {
		written := sink.Topic.Names()
		for _, use := range uses { // messages may name these too
			written = append(written, slices.DeleteFunc(slices.Clone(use.topics), func(topic string) bool { return !sink.Topic.Has(topic) })...)
		}
		if p.Parked.Topic != "" && sink.Topic.Has(p.Parked.Topic) {
			written = append(written, p.Parked.Topic)
		}
		uses = append(uses, topicUse{sink.Brokers, written, nil, "sink.kafka.topic", "that the sink writes", "the pipeline would read its own output"})
		end = sink.Brokers
	}
	if p.Parked.Topic != "" {
		uses = append(uses, topicUse{end, []string{p.Parked.Topic}, nil, "parked.topic", "for parked messages", "parked messages would be read again, or look delivered"})
	}
	if f.Mode(p) == config.SourceIsSink && fromKafka && toKafka {
		uses = append(uses, topicUse{sink.Brokers, source.Changelogs(p), nil, "transaction.changelog", "that holds the keys", "keys would look like messages"})
		for _, t := range p.Tables {
			if !slices.ContainsFunc(uses, func(u topicUse) bool { return u.what == rowsTopic && slices.Contains(u.topics, t.Topic) }) {
				uses = append(uses, topicUse{sink.Brokers, []string{t.Topic}, nil, "tables." + t.Name + ".topic", rowsTopic, "its rows would be mixed up with other records"})
			}
		}
		field, has := "aggregate", "windows"
		if p.Key.Keep != nil {
			field, has = "key.keep", "held records or versions"
		}
		uses = append(uses, topicUse{sink.Brokers, source.States(p), nil, field, "that has the " + has, has + " would look like messages"})
	}
	return uses
}

const rowsTopic = "that has the rows of a table"

// checkChangelogs refuses a topic that already holds the keys of an earlier
// pipeline.
func (s *Source) checkChangelogs(c *config.Checker, p *config.Pipeline) {
	if c.File.Mode(p) != config.SourceIsSink {
		return
	}
	for _, other := range c.File.Pipelines {
		if other == p {
			return
		}
		first, ok := other.Source.(*Source)
		if !ok || c.File.Mode(other) != config.SourceIsSink || !sameBrokers(s.Brokers, first.Brokers) {
			continue
		}
		twice := slices.IndexFunc(s.Changelogs(p), func(topic string) bool { return slices.Contains(first.Changelogs(other), topic) })
		if twice < 0 {
			continue
		}
		path := "pipelines." + p.Name
		at := p.At
		if named, written := c.Places[path+".transaction.changelog"]; written {
			at, path = named, path+".transaction.changelog"
		}
		c.Report(at, path, "its keys are in the topic of pipeline %s, %s (line %d), so each would drop messages that the other delivered: use another group or transaction.changelog",
			other.Name, s.Changelogs(p)[twice], other.At.Line)
		return
	}
}

// Joins implements config.TransactionalSource.
func (s *Source) Joins(sink config.Sink) (why string) {
	switch to, ok := sink.(*Sink); {
	case ok && s.Pattern != nil:
		return "source.kafka.topics is a pattern, and a Kafka transaction needs the list of its topics: each has a changelog of keys that is made before its first record is decided. Write store: NAME, the store of the keys, or list the topics"
	case ok && to.Topic.Route != nil:
		return "each message names its topic, and a Kafka transaction writes to one: write store: NAME, the store of the keys, or one topic"
	case !ok:
		return "write store: NAME, the store of the keys"
	case !sameBrokers(s.Brokers, to.Brokers):
		return "source and sink are two Kafka clusters, which have no transaction in common: write store: NAME, the store of the keys"
	}
	return ""
}

// ParkedTopic implements config.TransactionalSource.
func (s *Source) ParkedTopic() string {
	if len(s.Topics) == 0 {
		return "" // already reported, or a pattern, which no transaction reads
	}
	return s.Topics[0] + "-parked"
}

// States implements config.TransactionalSource.
func (s *Source) States(p *config.Pipeline) []string {
	switch {
	case p.Aggregate == nil && p.Key.Keep == nil:
		return nil
	case len(s.Topics) == 1 || s.Repartition:
		return []string{s.Group + "-state"}
	}
	var list []string
	for _, topic := range s.Topics {
		list = append(list, s.Group+"-state-"+topic)
	}
	return list
}

// CheckTable implements config.TransactionalSource.
func (s *Source) CheckTable(p *config.Pipeline, t *stream.Table, v schema.Value) {
	switch {
	case !s.Repartition:
	case t.Local:
		v.Wrong("read: local is not possible with repartition: true, which moves records to other partitions: write read: global")
	case p.Aggregate != nil:
		v.Wrong("a pipeline with aggregate and repartition: true has no tables: a record goes to the partition of its group key before it is joined. Let one pipeline join the records, and aggregate its output with another")
	}
}

// lintKeep looks for records that keep loses or holds for too long.
func lintKeep(l *config.Linter) {
	p := l.Pipeline
	keep := p.Key.Keep
	switch {
	case keep == nil:
		return
	case !keep.Holds():
		if p.Window < semel.Forever {
			l.Notice(l.At("key.keep.newest"), keep.Newest.String(), "an old version takes effect if it comes when its key was forgotten, "+schema.Duration(p.Window)+" after the newest one", "set window to longer than old records can come, or to forever")
		}
		return
	}
	if keep.Late == pipeline.Drop {
		l.Add(doctor.Warning, config.Loss, l.At("key.keep.late"), "drop", "a record that is too old to be held is lost, also if no other one of its key took effect", "write late: park")
	}
	if keep.Grace == 0 {
		l.Notice(l.At("key.keep.grace"), "0s", "a record that comes after a newer one of its partition may be late", "set grace to how far records of a partition are out of order, such as 30s")
	}
	if keep.Idle == semel.Forever {
		l.Notice(l.At("key.keep.idle"), "forever", "the last records are held until "+newer(p), "write idle: 1m, unless records never stop")
	}
}

// newer says which records end a wait.
func newer(p *config.Pipeline) string {
	if Repartitions(p) {
		return "newer records come in every partition of the input, also in one that never had any"
	}
	return "newer records of their partition come"
}

// lintAggregate looks for what makes results incomplete.
func lintAggregate(l *config.Linter) {
	p := l.Pipeline
	agg := p.Aggregate
	if agg == nil {
		return
	}
	if agg.Late == pipeline.Drop {
		l.Add(doctor.Warning, config.Loss, l.At("aggregate.late"), "drop", "a record whose window is closed is lost", "write late: park")
	}
	if whole := agg.Over.Size() + agg.Over.Most() + agg.Over.Gap() + agg.Grace + agg.Correct; p.Window < whole {
		l.Add(doctor.Warning, config.Repeat, l.At("window"), schema.Duration(p.Window)+", but a window takes records for up to "+schema.Duration(whole),
			"a record that comes again after its key was forgotten counts twice in a result", "write window: "+schema.Duration(whole)+" or more")
	}
	if agg.Grace == 0 {
		l.Notice(l.At("aggregate.grace"), "0s", "a record that comes after a newer one of the next window is late", "set grace to how far records of a partition are out of order, such as 30s")
	}
	if agg.Idle == semel.Forever {
		l.Notice(l.At("aggregate.idle"), "forever", "the last windows stay open until "+newer(p), "write idle: 1m, unless records never stop")
	}
}

// Repartitions reports whether a pipeline brings the records of a key to one partition
// before it decides them. A key is then always decided in that partition, and all partitions
// of the input decide which windows are closed.
func Repartitions(p *config.Pipeline) bool {
	source, ok := p.Source.(*Source)
	return ok && source.Repartition
}

// Changelogs implements config.TransactionalSource.
func (s *Source) Changelogs(p *config.Pipeline) []string {
	name := cmp.Or(p.Transaction.Changelog, s.Group+"-keys")
	if len(s.Topics) == 1 || s.Repartition {
		return []string{name}
	}
	var list []string
	for _, topic := range s.Topics {
		list = append(list, name+"-"+topic)
	}
	return list
}
