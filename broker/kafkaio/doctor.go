package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
)

// ExamineOptions say what Examine looks at: what a pipeline reads and writes.
type ExamineOptions struct {
	// Group reads Inputs. "" and none are no source.
	Group  string
	Inputs []string
	// Output and Parked are topics that are written; "" is none.
	Output, Parked string
	// Changelogs hold the keys, of one input each. They may not be there yet.
	Changelogs []string
	// Repartition is the topic between the stages of a pipeline that has two; ""
	// is none. It may not be there yet.
	Repartition string
	// Transactional: outputs, keys and offsets are one transaction.
	Transactional bool
	// Window is how long keys are remembered; 0 is for ever.
	Window time.Duration
	// Latest: the group begins at the end where it has committed nothing.
	Latest bool
}

// examination is one call of Examine.
type examination struct {
	*kadm.Client
	client   *kgo.Client
	opts     ExamineOptions
	findings []semel.Finding
	meta     kadm.Metadata
	configs  map[string]map[string]string
	divides  bool // the brokers divide groups (KIP-848)
}

// Examine says what of the brokers' set-up keeps the promise of a pipeline and
// what does not. It changes nothing, and blocks until the brokers have answered.
func Examine(ctx context.Context, client []kgo.Opt, opts *ExamineOptions) ([]semel.Finding, error) {
	c, err := kgo.NewClient(client...)
	if err != nil {
		return nil, fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	}
	defer c.Close()
	if err := reach(ctx, c); err != nil {
		return nil, err
	}
	e := &examination{Client: kadm.NewClient(c), client: c, opts: *opts, configs: map[string]map[string]string{}}
	for _, look := range []func(context.Context) error{e.versions, e.read, e.topics, e.retention, e.sizes, e.between, e.groups, e.positions, e.hanging} {
		if err := look(ctx); err != nil {
			return e.findings, fmt.Errorf("kafka: %w", err)
		}
	}
	return e.findings, nil
}

func (e *examination) note(severity semel.Severity, subject, found, cost, remedy string) {
	e.findings = append(e.findings, semel.Finding{Severity: severity, Subject: subject, Found: found, Cost: cost, Remedy: remedy})
}

// versions looks at the brokers' versions and features.
func (e *examination) versions(ctx context.Context) error {
	all, err := e.ApiVersions(ctx)
	if err != nil {
		return err
	}
	var names []string
	transactions := int16(-1)
	for _, v := range all.Sorted() {
		if v.Err != nil {
			e.note(semel.Warning, "broker "+strconv.Itoa(int(v.NodeID)), v.Err.Error(), "what it leads cannot be read or written", "look at that broker")
			continue
		}
		if _, ok := v.KeyMaxVersion(int16(kmsg.ConsumerGroupDescribe)); ok {
			e.divides = true
		}
		if name := v.VersionGuess(); !slices.Contains(names, name) {
			names = append(names, name)
		}
		for _, f := range v.Raw().FinalizedFeatures {
			if f.Name == "transaction.version" {
				transactions = f.MaxVersionLevel
			}
		}
	}
	e.note(semel.Fine, "brokers", fmt.Sprintf("%d, %s", len(all), strings.Join(names, ", ")), "", "")
	switch {
	case !e.opts.Transactional:
	case transactions < 2:
		found := "not set"
		if transactions >= 0 {
			found = strconv.Itoa(int(transactions))
		}
		e.note(semel.Warning, "transaction.version", found, "a write that is late by a crash can fall into a later transaction (before KIP-890)",
			"brokers of version 4.0 or later, and kafka-features.sh upgrade --feature transaction.version=2")
	default:
		e.note(semel.Fine, "transaction.version", strconv.Itoa(int(transactions)), "", "")
	}
	return nil
}

// written returns the topics that must not lose what was written.
func (e *examination) written() []string {
	list := slices.Clone(e.opts.Inputs)
	for _, topic := range append([]string{e.opts.Output, e.opts.Parked, e.opts.Repartition}, e.opts.Changelogs...) {
		if topic != "" && !slices.Contains(list, topic) {
			list = append(list, topic)
		}
	}
	if len(e.opts.Inputs) > 0 {
		list = append(list, "__consumer_offsets")
	}
	if e.opts.Transactional {
		list = append(list, "__transaction_state")
	}
	return list
}

// read reads what is known of the topics.
func (e *examination) read(ctx context.Context) error {
	var err error
	if e.meta, err = e.Metadata(ctx, e.written()...); err != nil {
		return err
	}
	var there []string
	for _, topic := range e.written() {
		if t, ok := e.meta.Topics[topic]; ok && t.Err == nil {
			there = append(there, topic)
		}
	}
	list, err := e.DescribeTopicConfigs(ctx, there...)
	if err != nil {
		return err
	}
	for _, r := range list {
		e.configs[r.Name] = map[string]string{}
		for _, c := range r.Configs {
			e.configs[r.Name][c.Key] = c.MaybeValue()
		}
	}
	return nil
}

// isMade reports whether a topic that is not there is made when it is needed.
func (e *examination) isMade(topic string) bool {
	return strings.HasPrefix(topic, "__") || slices.Contains(e.opts.Changelogs, topic) || topic == e.opts.Repartition || e.opts.Transactional && topic == e.opts.Parked
}

// topics looks at how safe the topics are.
func (e *examination) topics(context.Context) error {
	for _, topic := range e.written() {
		t := e.meta.Topics[topic]
		switch {
		case errors.Is(t.Err, kerr.UnknownTopicOrPartition) && e.isMade(topic):
			e.note(semel.Notice, topic, "is not there yet", "", "none: it is made when it is needed")
		case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
			e.note(semel.Broken, topic, "is not there", "nothing is read from it or written to it", "kafka-topics.sh --create --topic "+topic)
		case t.Err != nil:
			e.note(semel.Broken, topic, t.Err.Error(), "nothing is read from it or written to it", "what it says")
		default:
			e.topic(topic, &t)
		}
	}
	return nil
}

func (e *examination) topic(topic string, t *kadm.TopicDetail) {
	replicas, leaderless, behind := 1<<30, 0, 0
	for _, p := range t.Partitions {
		replicas = min(replicas, len(p.Replicas))
		if p.Leader < 0 {
			leaderless++
		}
		if len(p.ISR) < len(p.Replicas) {
			behind++
		}
	}
	least, _ := strconv.Atoi(e.configs[topic]["min.insync.replicas"])
	found := fmt.Sprintf("%d partitions, %d replicas, min.insync.replicas %d", len(t.Partitions), replicas, least)
	switch {
	case leaderless > 0:
		e.note(semel.Broken, topic, fmt.Sprintf("%d of %d partitions have no leader", leaderless, len(t.Partitions)), "they cannot be read or written", "bring their brokers back")
	case least > replicas:
		e.note(semel.Broken, topic, found, "every write is refused", "min.insync.replicas below the number of replicas")
	case replicas == 1:
		e.note(semel.Warning, topic, found, "what was acknowledged is lost with one disk", "three replicas with min.insync.replicas 2")
	case least < 2:
		e.note(semel.Warning, topic, found, "acks=all is content with one replica, whose loss loses what was acknowledged", "min.insync.replicas 2")
	case least == replicas:
		e.note(semel.Warning, topic, found, "one broker that is away stops all writes", "one replica more than min.insync.replicas")
	default:
		e.note(semel.Fine, topic, found, "", "")
	}
	if behind > 0 {
		e.note(semel.Notice, topic, fmt.Sprintf("%d partitions have replicas that are behind", behind), "less may fail than it seems", "wait, or look at the brokers that are away")
	}
	if e.configs[topic]["unclean.leader.election.enable"] == "true" {
		e.note(semel.Warning, topic+" unclean.leader.election.enable", "true", "a replica that is behind may lead: what was acknowledged is lost", "unclean.leader.election.enable=false")
	}
}

// kept returns how long a topic keeps a record; 0 is for ever.
func (e *examination) kept(topic string) (time.Duration, bool) {
	c := e.configs[topic]
	if c == nil {
		return 0, false
	}
	ms, err := strconv.ParseInt(c["retention.ms"], 10, 64)
	if err != nil {
		return 0, false
	}
	if ms < 0 || !strings.Contains(c["cleanup.policy"], "delete") {
		return 0, true
	}
	return time.Duration(min(ms, int64(1<<63-1)/int64(time.Millisecond))) * time.Millisecond, true
}

// retention compares how long records are kept with how long keys are.
func (e *examination) retention(context.Context) error {
	for _, topic := range e.opts.Inputs {
		kept, ok := e.kept(topic)
		switch {
		case !ok:
		case e.opts.Window == 0 || kept > 0 && kept <= e.opts.Window:
			e.note(semel.Fine, topic+" retention.ms", forever(kept), "", "")
		default:
			e.note(semel.Warning, topic+" retention.ms", forever(kept), "records outlive their keys, which are remembered for "+forever(e.opts.Window)+": read again, they take effect again",
				"a window of "+forever(kept)+", or a shorter retention")
		}
	}
	for _, topic := range e.opts.Changelogs {
		if kept, ok := e.kept(topic); ok && kept > 0 && (e.opts.Window == 0 || kept < e.opts.Window) {
			e.note(semel.Broken, topic+" retention.ms", forever(kept), "keys are forgotten before their window of "+forever(e.opts.Window)+" is over", "retention.ms above the window")
		}
	}
	return nil
}

func forever(d time.Duration) string {
	if d == 0 {
		return "for ever"
	}
	return d.String()
}

// headroom is how much longer a record gets by the headers that say why it was
// put aside.
const headroom = 4 << 10

// sizes looks whether what can be read can be written and put aside.
func (e *examination) sizes(context.Context) error {
	limit := func(topic string) int {
		n, _ := strconv.Atoi(e.configs[topic]["max.message.bytes"])
		return n
	}
	most, out := limit(e.opts.Parked), limit(e.opts.Output)
	for _, topic := range e.opts.Inputs {
		if n := limit(topic); out > 0 && n > 0 && out < n {
			e.note(semel.Notice, e.opts.Output+" max.message.bytes", strconv.Itoa(out),
				fmt.Sprintf("a message of %s, which takes %d bytes, may be too large for it: it fails for good, and on_failure says what becomes of it", topic, n), fmt.Sprintf("max.message.bytes=%d", n))
		}
		if n := limit(topic); most > 0 && n > 0 && most < n+headroom {
			e.note(semel.Warning, e.opts.Parked+" max.message.bytes", strconv.Itoa(most),
				fmt.Sprintf("a message of %s that has nearly its %d bytes cannot be put aside, and stops its pipeline", topic, n), fmt.Sprintf("max.message.bytes=%d", n+headroom))
		}
	}
	return nil
}

// between looks at the topic between two stages.
func (e *examination) between(context.Context) error {
	topic := e.opts.Repartition
	if !e.there(topic) {
		return nil
	}
	for _, changelog := range e.opts.Changelogs { // of the one topic that is decided
		e.findings = append(e.findings, repartitionTopic(topic, len(e.meta.Topics[topic].Partitions), changelog, len(e.meta.Topics[changelog].Partitions), e.configs[topic])...)
	}
	return nil
}

// there reports whether a topic is.
func (e *examination) there(topic string) bool {
	t, ok := e.meta.Topics[topic]
	return ok && t.Err == nil
}

// readers returns the groups, and the topics that each reads.
func (e *examination) readers() map[string][]string {
	switch {
	case e.opts.Group == "":
		return nil
	case e.opts.Repartition != "":
		return map[string][]string{e.opts.Group + repartitionSuffix: e.opts.Inputs, e.opts.Group: {e.opts.Repartition}}
	}
	return map[string][]string{e.opts.Group: e.opts.Inputs}
}

// groups looks at who reads.
func (e *examination) groups(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(e.readers())) {
		if err := e.group(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (e *examination) group(ctx context.Context, name string) error {
	state, instances, err := e.members(ctx, name)
	if err != nil {
		return err
	}
	anonymous := 0
	for _, instance := range instances {
		if instance == nil {
			anonymous++
		}
	}
	subject := "group " + name
	switch {
	case len(instances) == 0:
		e.note(semel.Notice, subject, "nobody reads", "", "none, unless the pipeline is to run")
	case state != "Stable":
		e.note(semel.Notice, subject, state, "members come or go: for as long little is read", "wait; if it stays so, look for members that restart")
	case anonymous > 0:
		e.note(semel.Notice, subject, fmt.Sprintf("%d of %d members have no instance name", anonymous, len(instances)), "a restart takes their partitions from them and gives them back", "an instance for each process")
	default:
		e.note(semel.Fine, subject, fmt.Sprintf("%s, %d members", state, len(instances)), "", "")
	}
	return nil
}

// members returns the state of a group and the instance name of each member. One
// that the brokers divide (KIP-848) is no group to those who ask for one of the
// older kind, and the other way round.
func (e *examination) members(ctx context.Context, name string) (state string, instances []*string, err error) {
	groups, err := e.DescribeGroups(ctx, name)
	g := groups[name]
	if err = errors.Join(err, g.Err); err != nil && !errors.Is(err, kerr.GroupIDNotFound) && !e.untouched(err) {
		return "", nil, err
	}
	for _, m := range g.Members {
		instances = append(instances, m.InstanceID)
	}
	if len(instances) > 0 || !e.divides || e.untouched(err) {
		return g.State, instances, nil
	}
	divided, err := e.DescribeConsumerGroups(ctx, name)
	c := divided[name]
	if err = errors.Join(err, c.Err); err != nil && !errors.Is(err, kerr.GroupIDNotFound) && !errors.Is(err, kerr.UnsupportedVersion) {
		return "", nil, err
	}
	for _, m := range c.Members {
		instances = append(instances, m.InstanceID)
	}
	return c.State, instances, nil
}

// untouched reports whether an error means that the brokers never had a group.
func (e *examination) untouched(err error) bool {
	return errors.Is(err, kerr.CoordinatorNotAvailable) && e.meta.Topics["__consumer_offsets"].Err != nil
}

// positions looks whether what is committed is still there.
func (e *examination) positions(ctx context.Context) error {
	readers := e.readers()
	for _, group := range slices.Sorted(maps.Keys(readers)) {
		topics := readers[group]
		if len(topics) == 0 || topics[0] == e.opts.Repartition && !e.there(topics[0]) {
			continue
		}
		if err := e.positionsOf(ctx, group, topics); err != nil {
			return err
		}
	}
	return nil
}

func (e *examination) positionsOf(ctx context.Context, group string, topics []string) error {
	committed, err := e.FetchOffsets(ctx, group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) && !e.untouched(err) {
		return err
	}
	starts, err := e.ListStartOffsets(ctx, topics...)
	if err != nil {
		return err
	}
	none := 0
	starts.Each(func(o kadm.ListedOffset) {
		at, ok := committed.Lookup(o.Topic, o.Partition)
		switch {
		case o.Err != nil:
		case !ok || at.At < 0:
			none++
		case at.At < o.Offset:
			e.note(semel.Broken, fmt.Sprintf("%s/%d", o.Topic, o.Partition), fmt.Sprintf("offset %d is committed, the oldest record is %d", at.At, o.Offset),
				fmt.Sprintf("%d records were deleted before they were read", o.Offset-at.At), "a longer retention; they are lost here")
		}
	})
	if none > 0 && e.opts.Latest && topics[0] != e.opts.Repartition {
		e.note(semel.Warning, "auto.offset.reset", fmt.Sprintf("latest, and of %d partitions nothing is committed", none), "what is in them is never read", "start: earliest")
	}
	return nil
}

// hanging looks for transactions that hold readers up, in all that the pipeline
// reads and writes and in the offsets of its groups.
func (e *examination) hanging(ctx context.Context) error {
	if len(e.opts.Inputs) == 0 {
		return nil
	}
	a, in := &Admin{client: e.client, adm: e.Client}, Places{Groups: slices.Sorted(maps.Keys(e.readers()))}
	for _, topic := range e.written() {
		if e.there(topic) && !strings.HasPrefix(topic, "__") {
			in.Topics = append(in.Topics, topic)
		}
	}
	list, err := a.Open(ctx, in)
	for _, o := range list {
		if !o.Hanging {
			continue
		}
		cost := "what was written behind it is never read"
		if o.Topic == offsetsTopic {
			cost = fmt.Sprintf("a member of %s that starts waits for the offsets without end", strings.Join(in.Groups, " or "))
		}
		e.note(semel.Broken, fmt.Sprintf("%s/%d", o.Topic, o.Partition), fmt.Sprintf("a transaction of producer %d is open since offset %d, and no coordinator will end it", o.ProducerID, o.Start),
			cost, o.abortCommand(reachFlags(e.client)))
	}
	if errors.Is(err, kerr.UnsupportedVersion) || errors.Is(err, kerr.ClusterAuthorizationFailed) || errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, ErrOffsetsHidden) {
		e.note(semel.Notice, "transactions", "not checked: "+err.Error(), "one that hangs would not be seen", "allow Describe and Read on the topic")
		return nil
	}
	return err
}
