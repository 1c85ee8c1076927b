package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

// ExamineOptions name the topics and groups of a pipeline.
type ExamineOptions struct {
	// Group reads Inputs. Without them, the pipeline does not read from Kafka.
	Group  string
	Inputs []string
	// Pattern is set instead of Inputs if all topics that match are read.
	Pattern *Pattern
	// Output and Parked are written; "" means no such topic.
	Output, Parked string
	// Route is set instead of Output if messages name their topics.
	Route *pipeline.Route
	// Changelogs hold the keys, in the order of Inputs. They may not exist yet.
	Changelogs []string
	// States hold the states of operators: open windows, held records or versions. They may not
	// exist yet.
	States []string
	// Repartition is the topic between the stages of a pipeline with two stages, or "".
	// It may not exist yet.
	Repartition string
	// Tables have rows with which records are joined.
	Tables []ExaminedTable
	// Transactional says that outputs, keys and offsets are one transaction.
	Transactional bool
	// TransactionalID is one of the ids of its producers, which begin with the group and a
	// slash. "" is not checked.
	TransactionalID string
	// EventTime says that records of Changelogs are deleted when their keys have expired.
	EventTime bool
	// Window is how long keys are remembered; 0 is forever.
	Window time.Duration
	// Latest says that the group starts at the end of partitions without a committed
	// offset.
	Latest bool
}

// ExaminedTable is a topic with rows; see stream.Table.
type ExaminedTable struct {
	Name, Topic string
	Local       bool
	History     time.Duration
}

// examination is one call of Examine.
type examination struct {
	*kadm.Client
	client   *kgo.Client
	opts     ExamineOptions
	outputs  []string // the topics that are written: Output, or those of Route
	findings []doctor.Finding
	meta     kadm.Metadata
	configs  map[string]map[string]string
	divides  bool // the brokers assign partitions (KIP-848)
	shows    bool // the brokers show transactions (KIP-664)
}

// Examine reports which settings of the brokers and topics support the promise of a
// pipeline, and which do not. It changes nothing, and blocks until the brokers have
// answered.
func Examine(ctx context.Context, client []kgo.Opt, opts *ExamineOptions) ([]doctor.Finding, error) {
	c, err := cluster.Dial(ctx, client...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	e := &examination{Client: kadm.NewClient(c), client: c, opts: *opts, configs: map[string]map[string]string{}}
	for _, look := range []struct {
		what string
		at   func(context.Context) error
	}{
		{"versions", e.versions}, {"topics", e.read}, {"rights", e.rights}, {"topics", e.topics}, {"retention", e.retention}, {"sizes", e.sizes},
		{"partitions", e.partitions}, {"tables", e.tables}, {"groups", e.groups}, {"positions", e.positions}, {"transactions", e.hanging},
	} {
		switch err := look.at(ctx); {
		case isDenied(err): // a right that the pipeline needs is reported by rights
			e.note(doctor.Notice, look.what, "not checked: "+err.Error(), "problems of them are not noticed", "")
		case err != nil:
			return e.summed(), fmt.Errorf("kafka: %w", err)
		}
	}
	return e.summed(), nil
}

// ClusterID returns the id of a cluster, or "" if its brokers have none. It blocks until a broker has
// answered.
func ClusterID(ctx context.Context, client []kgo.Opt) (string, error) {
	c, err := cluster.Dial(ctx, client...)
	if err != nil {
		return "", err
	}
	defer c.Close()
	about, err := kadm.NewClient(c).BrokerMetadata(ctx)
	if err != nil {
		return "", fmt.Errorf("kafka: %w", err)
	}
	return about.Cluster, nil
}

func (e *examination) note(severity doctor.Severity, subject, found, cost, remedy string) {
	e.findings = append(e.findings, doctor.Finding{Severity: severity, Subject: subject, Found: found, Cost: cost, Remedy: remedy})
}

// versions checks the brokers' versions and features.
func (e *examination) versions(ctx context.Context) error {
	all, err := e.ApiVersions(ctx)
	if err != nil {
		return err
	}
	var names []string
	transactions, proven, fences, identified := "not set", false, true, true
	for _, v := range all.Sorted() {
		if v.Err != nil {
			e.note(doctor.Warning, "broker "+strconv.Itoa(int(v.NodeID)), v.Err.Error(), "the partitions that it leads cannot be read or written", "look at the log of that broker")
			continue
		}
		if _, ok := v.KeyMaxVersion(int16(kmsg.ConsumerGroupDescribe)); ok {
			e.divides = true
		}
		if name := v.VersionGuess(); !slices.Contains(names, name) {
			names = append(names, name)
		}
		if _, ok := v.KeyMaxVersion(int16(kmsg.DescribeProducers)); ok {
			e.shows = true
		}
		fetches, _ := v.KeyMaxVersion(int16(kmsg.Fetch))
		identified = identified && fetches >= cluster.IdentifiesFrom
		commits, _ := v.KeyMaxVersion(int16(kmsg.TxnOffsetCommit))
		fences = fences && commits >= cluster.FencesFrom
		transactions, proven = cluster.TransactionVersion(v.Raw().FinalizedFeatures)
	}
	e.note(doctor.Fine, "brokers", fmt.Sprintf("%d, %s", len(all), strings.Join(names, ", ")), "", "")
	if !identified && e.opts.Group != "" {
		e.note(doctor.Warning, "topic ids", "the brokers send none with records", "if a topic is deleted and created again, offsets and keys of the earlier one may count, and records are skipped", "give a topic that is created again a new name, or use Kafka 3.1 or later")
	}
	if !e.opts.Transactional {
		return nil
	}
	if !fences {
		e.note(doctor.Broken, "TxnOffsetCommit", fmt.Sprintf("below version %d", cluster.FencesFrom), "a member that was replaced can still commit", "Kafka 2.5 or later")
	}
	if proven {
		e.note(doctor.Fine, "transaction.version", transactions, "", "")
	} else {
		e.note(doctor.Warning, "transaction.version", transactions, cluster.LateWrites, "brokers of version 4.0 or later, and kafka-features.sh upgrade --feature transaction.version=2")
	}
	return nil
}

// written returns the topics that must not lose records.
func (e *examination) written() []string {
	list := slices.Clone(e.opts.Inputs)
	for _, topic := range slices.Concat(e.outputs, []string{e.opts.Parked, e.opts.Repartition}, e.opts.Changelogs, e.opts.States) {
		if topic != "" && !slices.Contains(list, topic) {
			list = append(list, topic)
		}
	}
	for i := range e.opts.Tables {
		if topic := e.opts.Tables[i].Topic; !slices.Contains(list, topic) {
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

// read reads the topics' metadata and settings.
func (e *examination) read(ctx context.Context) error {
	if err := e.route(ctx); err != nil {
		return err
	}
	if err := e.match(ctx); err != nil {
		return err
	}
	var hidden []string
	e.meta.Topics = kadm.TopicDetails{}
	for _, topic := range e.written() {
		// One by one: a topic that the user may not see hides all others of a request.
		found, err := e.ListTopics(kadm.WithAuthorizedOps(ctx), topic)
		switch {
		case isDenied(err):
			e.meta.Topics[topic] = kadm.TopicDetail{Topic: topic, Err: kerr.TopicAuthorizationFailed}
		case err != nil:
			return err
		default:
			e.meta.Topics[topic] = found[topic]
		}
		if !e.there(topic) {
			continue
		}
		settings, err := cluster.TopicSettings(ctx, e.Client, topic)
		if err != nil {
			return err
		}
		if e.configs[topic] = cluster.Settings(settings, topic); settings == nil {
			delete(e.configs, topic)
			if !strings.HasPrefix(topic, "__") {
				hidden = append(hidden, topic)
			}
		}
	}
	if len(hidden) > 0 {
		e.note(doctor.Notice, "settings of "+strings.Join(hidden, ", "), "not checked: the user lacks the right DescribeConfigs", "settings that lose records are not noticed, neither here nor by run", "grant DescribeConfigs on these topics")
	}
	return nil
}

// match finds the topics that a pattern stands for.
func (e *examination) match(ctx context.Context) error {
	if e.opts.Pattern == nil {
		return nil
	}
	var err error
	if e.opts.Inputs, err = matching(ctx, e.Client, e.opts.Pattern); err != nil {
		return err
	}
	subject, list := "topics that match "+e.opts.Pattern.String(), e.opts.Inputs
	switch n := len(list); {
	case n == 0:
		e.note(doctor.Warning, subject, "none now", "nothing is read until there is one", "create it, correct the pattern, which must match the whole name, or grant the user Describe and Read: "+patternRights(e.opts.Pattern))
	default:
		e.note(doctor.Fine, subject, fmt.Sprintf("%d now: %s", n, some(list)), "", "")
	}
	if of := slices.DeleteFunc(slices.Clone(list), func(topic string) bool { return !strings.HasPrefix(topic, "_") }); len(of) > 0 && !strings.HasPrefix(e.opts.Pattern.Prefix(), "_") {
		e.note(doctor.Warning, subject, "also "+some(of), "names that begin with _ are mostly those of tools, such as a schema registry, and the pipeline takes their records for messages", "write a pattern that does not match them, such as '[^_].*'")
	}
	return nil
}

// mostShown is how many topics of a pattern are shown.
const mostShown = 10

// some shows topics.
func some(topics []string) string {
	if len(topics) > mostShown {
		return strings.Join(topics[:mostShown], ", ") + " and others"
	}
	return strings.Join(topics, ", ")
}

// summed returns the findings. If many topics match a pattern, those that several of them have in
// common are one.
func (e *examination) summed() []doctor.Finding {
	if e.opts.Pattern == nil || len(e.opts.Inputs) <= mostShown {
		return e.findings
	}
	of, topics := map[doctor.Finding]int{}, map[int][]string{}
	var list []doctor.Finding
	for _, f := range e.findings {
		topic, setting, _ := strings.Cut(strings.TrimPrefix(f.Subject, "topic "), " ")
		if _, found := slices.BinarySearch(e.opts.Inputs, topic); !found {
			list = append(list, f)
			continue
		}
		same := f
		same.Subject, same.Remedy = setting, strings.ReplaceAll(f.Remedy, "--topic "+topic, "--topic NAME")
		n, again := of[same]
		if !again {
			n = len(list)
			of[same] = n
			list = append(list, f)
		}
		topics[n] = append(topics[n], topic)
	}
	for same, n := range of {
		if len(topics[n]) > 1 {
			list[n] = same
			list[n].Subject = strings.TrimSpace(fmt.Sprintf("%d topics: %s %s", len(topics[n]), some(topics[n]), same.Subject))
		}
	}
	return list
}

// patternRights returns the command that grants the rights to read what matches.
func patternRights(p *Pattern) string {
	command := "kafka-acls.sh --bootstrap-server ADDRESS --add --allow-principal User:NAME --operation Read --topic "
	if p.Prefix() == "" {
		return command + "'*'"
	}
	return command + p.Prefix() + " --resource-pattern-type prefixed"
}

// route finds the topics that are written. A beginning of names stands for the topics that
// exist.
func (e *examination) route(ctx context.Context) error {
	if e.opts.Route == nil {
		e.outputs = []string{e.opts.Output}
		return nil
	}
	e.outputs = slices.Clone(e.opts.Route.Names())
	there, err := routed(ctx, e.Client, e.opts.Route)
	if err != nil {
		return err
	}
	for _, prefix := range e.opts.Route.Prefixes() {
		n := 0
		for _, topic := range there {
			if strings.HasPrefix(topic, prefix) {
				n++
			}
		}
		severity, cost, remedy := doctor.Fine, "", ""
		if n == 0 {
			severity, cost, remedy = doctor.Warning, "a message that names one fails, and is parked", "create the topics, or correct allow"
		}
		e.note(severity, "topics "+prefix+"*", fmt.Sprintf("%d exist", n), cost, remedy)
	}
	for _, topic := range there {
		if !slices.Contains(e.outputs, topic) {
			e.outputs = append(e.outputs, topic)
		}
	}
	return nil
}

// RoutedTopics returns the topics that exist and that a route allows, in their order. It
// blocks until the brokers have answered.
func RoutedTopics(ctx context.Context, client []kgo.Opt, route *pipeline.Route) ([]string, error) {
	c, err := cluster.Dial(ctx, client...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list, err := routed(ctx, kadm.NewClient(c), route)
	if err != nil {
		return nil, fmt.Errorf("kafka: list topics: %w", err)
	}
	return list, nil
}

func routed(ctx context.Context, admin *kadm.Client, route *pipeline.Route) ([]string, error) {
	all, err := admin.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all.Names(), func(topic string) bool { return all[topic].Err != nil || !route.Allows(topic) }), nil
}

// isMade reports whether a missing topic is created when it is needed.
func (e *examination) isMade(topic string) bool {
	return strings.HasPrefix(topic, "__") || slices.Contains(e.opts.Changelogs, topic) || slices.Contains(e.opts.States, topic) || topic == e.opts.Repartition || e.opts.Transactional && topic == e.opts.Parked
}

// topics checks how safe the topics are.
func (e *examination) topics(context.Context) error {
	for _, topic := range e.written() {
		t := e.meta.Topics[topic]
		switch {
		case errors.Is(t.Err, kerr.UnknownTopicOrPartition) && e.isMade(topic):
			e.note(doctor.Notice, topic, "does not exist yet", "", "nothing: it is created when it is needed")
		case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
			remedy := "kafka-topics.sh --create --topic " + topic + " --bootstrap-server ADDRESS"
			if topic == e.opts.Parked {
				remedy += " --config retention.ms=-1" // the broker must not delete parked messages
			}
			e.note(doctor.Broken, topic, "does not exist", "nothing is read from it or written to it", remedy)
		case errors.Is(t.Err, kerr.TopicAuthorizationFailed) && strings.HasPrefix(topic, "__"):
			e.note(doctor.Notice, topic, "not checked: the user lacks the right Describe", "too few replicas of it are not noticed", "grant Describe on the topic, or check it as another user")
		case errors.Is(t.Err, kerr.TopicAuthorizationFailed): // reported by rights
		case t.Err != nil:
			e.note(doctor.Broken, topic, t.Err.Error(), "nothing is read from it or written to it", "look at the brokers' logs, and allow the user to describe the topic")
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
	least, err := strconv.Atoi(e.configs[topic]["min.insync.replicas"])
	found := fmt.Sprintf("%d partitions, %d replicas, min.insync.replicas %d", len(t.Partitions), replicas, least)
	if err != nil { // the user may not see it
		found, least = fmt.Sprintf("%d partitions, %d replicas", len(t.Partitions), replicas), 2
	}
	switch {
	case leaderless > 0:
		e.note(doctor.Broken, topic, fmt.Sprintf("%d of %d partitions have no leader", leaderless, len(t.Partitions)), "they cannot be read or written", "start their brokers")
	case least > replicas && err == nil:
		e.note(doctor.Broken, topic, found, "every write is refused", "set min.insync.replicas below the number of replicas")
	case replicas == 1:
		e.note(doctor.Warning, topic, found, "the loss of one disk loses acknowledged records", "use three replicas, with min.insync.replicas=2")
	case least < 2:
		e.note(doctor.Warning, topic, found, "acks=all waits for one replica only, and its loss loses acknowledged records", "set min.insync.replicas=2")
	case least == replicas && err == nil:
		e.note(doctor.Warning, topic, found, "one stopped broker stops all writes", "use one replica more than min.insync.replicas")
	default:
		e.note(doctor.Fine, topic, found, "", "")
	}
	if behind > 0 {
		e.note(doctor.Notice, topic, fmt.Sprintf("%d partitions have replicas that are behind", behind), "fewer brokers may fail than the number of replicas says", "wait, or start the missing brokers")
	}
	if e.configs[topic]["unclean.leader.election.enable"] == "true" {
		e.note(doctor.Warning, topic+" unclean.leader.election.enable", "true", "a replica that is behind may become the leader, and acknowledged records are lost", "set unclean.leader.election.enable=false")
	}
	const oldest = "message.timestamp.before.max.ms" // without a bound it is the greatest number
	if ms, err := strconv.ParseInt(e.configs[topic][oldest], 10, 64); err == nil && ms < math.MaxInt64 && topic == e.opts.Parked {
		e.note(doctor.Warning, topic+" "+oldest, strconv.FormatInt(ms, 10), "a message that is older cannot be parked, and the pipeline waits at it", "remove the setting")
	}
}

// kept returns how long a topic keeps a record; 0 is forever.
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

// retention compares the retention of records with the window of keys.
func (e *examination) retention(context.Context) error {
	for _, topic := range e.opts.Inputs {
		kept, ok := e.kept(topic)
		switch {
		case !ok:
		case e.opts.Window == 0 || kept > 0 && kept <= e.opts.Window:
			e.note(doctor.Fine, topic+" retention.ms", forever(kept), "", "")
		default:
			e.note(doctor.Warning, topic+" retention.ms", forever(kept), "records outlive their keys, which are remembered for "+forever(e.opts.Window)+": read again, they take effect again",
				"a window of "+forever(kept)+", or a shorter retention")
		}
	}
	for _, topic := range e.opts.Changelogs {
		if kept, ok := e.kept(topic); ok && kept > 0 && (e.opts.Window == 0 || kept < e.opts.Window) {
			e.note(doctor.Broken, topic+" retention.ms", forever(kept), "keys are forgotten before their window of "+forever(e.opts.Window)+" is over", "set retention.ms above the window")
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

// headroom is how much longer the headers make a parked record.
const headroom = 4 << 10

// sizes checks whether records that can be read can be written and parked.
func (e *examination) sizes(context.Context) error {
	limit := func(topic string) int {
		n, _ := strconv.Atoi(e.configs[topic]["max.message.bytes"])
		return n
	}
	largest := func(a, b string) int { return cmp.Compare(limit(a), limit(b)) }
	if len(e.opts.Inputs) == 0 {
		return nil
	}
	topic := slices.MaxFunc(e.opts.Inputs, largest)
	n, most := limit(topic), limit(e.opts.Parked)
	for _, output := range e.outputs {
		if out := limit(output); out > 0 && out < n {
			e.note(doctor.Notice, output+" max.message.bytes", strconv.Itoa(out),
				fmt.Sprintf("a message of %s, which takes %d bytes, may be too large for it: it fails permanently, and on_failure is its policy", topic, n), fmt.Sprintf("max.message.bytes=%d", n))
		}
	}
	if most > 0 && n > 0 && most < n+headroom {
		e.note(doctor.Warning, e.opts.Parked+" max.message.bytes", strconv.Itoa(most),
			fmt.Sprintf("a message of %s that has nearly its %d bytes cannot be parked, and stops its pipeline", topic, n), fmt.Sprintf("max.message.bytes=%d", n+headroom))
	}
	return nil
}

// partitions compares the partitions of each topic with those of its changelog, and
// checks the topic between two stages.
func (e *examination) partitions(context.Context) error {
	decided, remedy := e.opts.Inputs, "use a new changelog, or a new input with the old number of partitions"
	if e.opts.Repartition != "" {
		decided, remedy = []string{e.opts.Repartition}, "use a new group, repartition topic and changelog"
	}
	for i, changelog := range e.opts.Changelogs {
		if i >= len(decided) || !e.there(decided[i]) {
			continue
		}
		topic := decided[i]
		subject, n := "partitions of "+topic, len(e.meta.Topics[topic].Partitions)
		keys := len(e.meta.Topics[changelog].Partitions)
		found := fmt.Sprintf("%d, and %d of %s", n, keys, changelog)
		switch {
		case keys == 0:
			e.note(doctor.Fine, subject, fmt.Sprintf("%d; %s will be created", n, changelog), "", "")
		case keys != n:
			e.note(doctor.Broken, subject, found, "keys would not be found, and duplicates would pass", remedy)
		default:
			e.note(doctor.Fine, subject, found, "", "")
		}
	}
	if topic := e.opts.Repartition; e.there(topic) {
		if policy := e.configs[topic]["cleanup.policy"]; strings.Contains(policy, "compact") {
			e.note(doctor.Broken, topic+" cleanup.policy", policy, "all records of an id but the last would be lost", "set cleanup.policy=delete")
		}
		switch kept, ok := e.kept(topic); {
		case !ok: // the user may not see it
		case kept > 0:
			e.note(doctor.Warning, topic+" retention.ms", forever(kept), "copies that are not decided within that time are lost", "set retention.ms=-1: Semel deletes decided copies itself")
		default:
			e.note(doctor.Fine, topic+" retention.ms", forever(kept), "", "")
		}
	}
	return nil
}

// tables checks whether the topics of tables keep their rows, may be read, and have the
// partitions of the inputs.
func (e *examination) tables(context.Context) error {
	for i := range e.opts.Tables {
		t := &e.opts.Tables[i]
		if !e.there(t.Topic) {
			continue // already reported
		}
		subject := "table " + t.Name
		if found, cost, remedy := cluster.TableProblem(e.configs[t.Topic], t.History); found != "" {
			e.note(doctor.Broken, subject, t.Topic+" has "+found, cost, remedy)
			continue
		}
		rows, different := len(e.meta.Topics[t.Topic].Partitions), false
		for _, input := range e.opts.Inputs {
			if n := len(e.meta.Topics[input].Partitions); t.Local && e.there(input) && n != rows {
				different = true
				e.note(doctor.Broken, subject, fmt.Sprintf("%d partitions, and %d of %s", rows, n, input), "rows and records are not in the same partitions", "write read: global, or create a topic with as many partitions")
			}
		}
		if !different {
			found := fmt.Sprintf("%s, %d partitions", t.Topic, rows)
			if policy, visible := e.configs[t.Topic]["cleanup.policy"]; visible {
				found += ", cleanup.policy " + policy
			}
			e.note(doctor.Fine, subject, found, "", "")
		}
	}
	return nil
}

// there reports whether a topic exists.
func (e *examination) there(topic string) bool {
	t, ok := e.meta.Topics[topic]
	return ok && t.Err == nil
}

// readers returns the topics of each group.
func (e *examination) readers() map[string][]string {
	switch {
	case e.opts.Group == "":
		return nil
	case e.opts.Repartition != "":
		return map[string][]string{e.opts.Group + cluster.RepartitionSuffix: e.opts.Inputs, e.opts.Group: {e.opts.Repartition}}
	}
	return map[string][]string{e.opts.Group: e.opts.Inputs}
}

// groups checks the groups' members.
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
		e.note(doctor.Notice, subject, "the group has no members", "", "nothing, unless the pipeline should run")
	case state != "Stable":
		e.note(doctor.Notice, subject, state, "members join or leave, and little is read until that ends", "wait; if it lasts, look for members that restart")
	case anonymous > 0:
		e.note(doctor.Notice, subject, fmt.Sprintf("%d of %d members have no instance name", anonymous, len(instances)), "a restart moves their partitions to other members and back", "write an instance for each process")
	default:
		e.note(doctor.Fine, subject, fmt.Sprintf("%s, %d members", state, len(instances)), "", "")
	}
	return nil
}

// members returns the state of a group and the instance name of each member. Groups of
// the two protocols (KIP-848) are only visible to their own kind of request.
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

// positions checks whether the committed offsets still exist.
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
			e.note(doctor.Broken, fmt.Sprintf("%s/%d", o.Topic, o.Partition), fmt.Sprintf("offset %d is committed, the oldest record is %d", at.At, o.Offset),
				fmt.Sprintf("%d records were deleted before they were read", o.Offset-at.At), "a longer retention; they are lost here")
		}
	})
	if none > 0 && e.opts.Latest && topics[0] != e.opts.Repartition {
		e.note(doctor.Warning, "auto.offset.reset", fmt.Sprintf("latest, and of %d partitions nothing is committed", none), "their present records are never read", "write start: earliest")
	}
	return nil
}

// hanging looks for transactions that block readers, in all topics of the pipeline and
// in the offsets of its groups.
func (e *examination) hanging(ctx context.Context) error {
	if len(e.opts.Inputs) == 0 {
		return nil
	}
	if !e.shows {
		e.note(doctor.Notice, "transactions", "not checked: the brokers are older than Kafka 3.0", "a hanging transaction is not detected", "upgrade the brokers")
		return nil
	}
	a, in := &Admin{client: e.client, adm: e.Client}, Places{Groups: slices.Sorted(maps.Keys(e.readers()))}
	var hidden []string
	for _, topic := range e.written() {
		switch {
		case !e.there(topic) || strings.HasPrefix(topic, "__"):
		case e.may(topic, kadm.OpRead):
			in.Topics = append(in.Topics, topic)
		default:
			hidden = append(hidden, topic)
		}
	}
	if len(hidden) > 0 {
		e.note(doctor.Notice, "transactions in "+strings.Join(hidden, ", "), "not checked: the user lacks the right Read", "a hanging transaction there, which holds up readers, is not detected", "grant Read on these topics, or check them as another user")
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
		e.note(doctor.Broken, fmt.Sprintf("%s/%d", o.Topic, o.Partition), fmt.Sprintf("a transaction of producer %d is open since offset %d, and no coordinator will end it", o.ProducerID, o.Start),
			cost, o.abortCommand(reachFlags(e.client)))
	}
	if isHidden(err) {
		e.note(doctor.Notice, "transactions", "not checked: "+err.Error(), "a hanging transaction is not detected", "allow Describe and Read on the topic")
		return nil
	}
	return err
}
