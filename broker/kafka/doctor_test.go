package kafka

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestDoctorWarnsOfSettingsThatWeakenThePromise(t *testing.T) {
	t.Parallel()
	inRealTime(t, 2, func(b *bubble) {
		kafkatest.Must(t, b.Cluster.CreateTopic("keys", 2, map[string]string{"retention.ms": "60000", "cleanup.policy": "delete"}))
		kafkatest.Must(t, b.Cluster.CreateTopic("short", 1, map[string]string{"retention.ms": "60000", "unclean.leader.election.enable": "true"}))
		b.Write(kafkatest.Numbered(0, 20, 2)...)
		m := b.join(patiently)
		m.ack(of(m.get(20), 0)...)
		b.becomes(0, 10)
		findings, err := Examine(b.Context(), b.Reach(), &ExamineOptions{
			Group: "g", Inputs: []string{"in", "short"}, Output: "none", Changelogs: []string{"keys"}, Transactional: true, Window: time.Hour, Latest: true,
		})
		kafkatest.Must(t, err)
		kafkatest.Has(t, kafkatest.Found(findings), "fine brokers: 1, ", "broken none: does not exist", "warning in retention.ms: 168h0m0s", "fine short retention.ms: 1m0s",
			"broken keys retention.ms: 1m0s", "warning short unclean.leader.election.enable", "notice group g: 1 of 1 members have no instance name",
			"warning auto.offset.reset: latest, and of 1 partitions nothing")
		m.leave()
		kafkatest.Must(t, b.Cluster.DeleteRecords("in", 0, 10))
		m = b.join(func(o *SourceOptions) { patiently(o); o.Instance = "one" })
		m.get(10)
		kafkatest.Must(t, b.Cluster.DeleteRecords("in", 1, 4))
		findings, err = Examine(b.Context(), b.Reach(), &ExamineOptions{Group: "g", Inputs: []string{"in"}})
		kafkatest.Must(t, err)
		kafkatest.Has(t, kafkatest.Found(findings), "broken in/1: offset 0 is committed, the oldest record is 4", "fine group g: Stable, 1 members", "fine in retention.ms")
		m.leave()
	})
}

func TestTheDoctorSeesARealBroker(t *testing.T) {
	t.Parallel()
	// The broker decides when a static member that left is gone, by default after 45 s.
	server := servicestest.StartKafka(t, &services.KafkaOptions{Properties: map[string]string{"group.consumer.session.timeout.ms": "1000"}})
	client, err := kgo.NewClient(kafkatest.Quick(server.Addr())...)
	kafkatest.Must(t, err)
	defer client.Close()
	small, minimum := "10000", "2"
	adm := kadm.NewClient(client)
	_, err = adm.CreateTopic(t.Context(), 2, 1, nil, "in")
	kafkatest.Must(t, err)
	_, err = adm.CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &small, "message.timestamp.before.max.ms": &small}, "aside")
	kafkatest.Must(t, err)
	_, err = adm.CreateTopic(t.Context(), 1, 1, map[string]*string{"min.insync.replicas": &minimum}, "out")
	kafkatest.Must(t, err)
	examine := func(opts *ExamineOptions) []string {
		t.Helper()
		var findings []doctor.Finding
		kafkatest.Within(time.Minute, func() bool { // a broker that stood still leads no partition for a moment
			findings, err = Examine(t.Context(), kafkatest.Quick(server.Addr()), opts)
			return err == nil
		})
		kafkatest.Must(t, err)
		return kafkatest.Found(findings)
	}
	look := func() []string {
		return examine(&ExamineOptions{
			Group: "g", Inputs: []string{"in"}, Output: "out", Parked: "aside", Changelogs: []string{"keys"}, Transactional: true, Window: time.Hour,
		})
	}
	var lines []string
	kafkatest.Within(time.Minute, func() bool { // a new topic is not known immediately
		lines = look()
		return !slices.ContainsFunc([]string{"in", "out", "aside"}, func(topic string) bool { return slices.Contains(lines, "broken "+topic+": does not exist") })
	})
	kafkatest.Has(t, lines, "fine brokers: 1, v4.", "fine transaction.version: 2", "warning in: 2 partitions, 1 replicas", "broken out: 1 partitions, 1 replicas, min.insync.replicas 2",
		"warning aside max.message.bytes: 10000", "warning aside message.timestamp.before.max.ms: 10000", "notice keys: does not exist yet", "notice group g: the group has no members")
	policy, keeps := "compact,delete", "60000"
	_, err = adm.CreateTopic(t.Context(), 3, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "min.compaction.lag.ms": &keeps}, "people")
	kafkatest.Must(t, err)
	_, err = adm.CreateTopic(t.Context(), 2, 1, map[string]*string{"cleanup.policy": &policy, "retention.ms": &keeps}, "prices")
	kafkatest.Must(t, err)
	kafkatest.Within(time.Minute, func() bool {
		lines = examine(&ExamineOptions{Group: "g", Inputs: []string{"in"}, Output: "out", Transactional: true, Window: time.Hour, Tables: []ExaminedTable{
			{Name: "all", Topic: "people"}, {Name: "own", Topic: "people", Local: true}, {Name: "then", Topic: "people", History: time.Hour}, {Name: "short", Topic: "prices"}, {Name: "none", Topic: "nowhere"},
		}})
		return !slices.ContainsFunc(lines, func(line string) bool {
			return strings.HasPrefix(line, "broken people: ") || strings.HasPrefix(line, "broken prices: ")
		})
	})
	kafkatest.Has(t, lines, "fine table all: people, 3 partitions, cleanup.policy compact", "broken table own: 3 partitions, and 2 of in", "broken table then: people has min.compaction.lag.ms 60000",
		"broken table short: prices has cleanup.policy compact,delete and retention.ms 60000", "broken nowhere: does not exist")
	for transactional, want := range map[bool]string{true: "notice parked: does not exist yet", false: "broken parked: does not exist"} {
		kafkatest.Has(t, examine(&ExamineOptions{Inputs: []string{"in"}, Output: "out", Parked: "parked", Transactional: transactional}), want)
	}
	for _, of := range []struct {
		instance string
		divided  bool
		want     string
	}{
		{"one", false, "fine group g: Stable, 1 members"}, {"", false, "notice group g: 1 of 1 members have no instance name"},
		{"one", true, "fine group g: Stable, 1 members"}, {"", true, "notice group g: 1 of 1 members have no instance name"},
	} {
		source, err := OpenSource(t.Context(), &SourceOptions{Group: "g", Topics: []string{"in"}, Instance: of.instance, ServerSide: of.divided, SessionTimeout: time.Second, Client: kafkatest.Quick(server.Addr())})
		kafkatest.Must(t, err)
		kafkatest.Within(time.Minute, func() bool {
			lines = look()
			return slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, of.want) })
		})
		kafkatest.Has(t, lines, of.want)
		var lag []pipeline.Lag
		if !kafkatest.Within(time.Minute, func() bool { // with nothing committed all is behind
			lag, err = source.Lag(t.Context())
			return err == nil && len(lag) == 2
		}) {
			t.Errorf("divided %v: it lags by %v, %v", of.divided, lag, err)
		}
		kafkatest.Must(t, source.Close(t.Context()))
		kafkatest.Within(time.Minute, func() bool { return slices.Contains(look(), "notice group g: the group has no members") })
	}
}

// TestUnauthorizedOffsetsTopicHidesNoOtherFinding has a transaction that hangs in the input,
// and brokers that do not let the user look at the offsets.
func TestUnauthorizedOffsetsTopicHidesNoOtherFinding(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		kafkatest.Must(b.T, b.Cluster.CreateTopic(offsetsTopic, 4, nil))
		other := b.Other("other", "in", time.Hour)
		defer other.Close()
		b.Forget(other, "CompleteCommit")
		b.Cluster.ControlKey(int16(kmsg.DescribeProducers), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			asked := req.(*kmsg.DescribeProducersRequest).Topics
			if len(asked) != 1 || asked[0].Topic != offsetsTopic {
				return nil, nil, false
			}
			if want := []int32{offsetsPartition("g", 4)}; !slices.Equal(asked[0].Partitions, want) {
				b.Errorf("asked for partitions %v, want %v", asked[0].Partitions, want)
			}
			answer := req.ResponseKind().(*kmsg.DescribeProducersResponse)
			answer.Topics = []kmsg.DescribeProducersResponseTopic{{Topic: offsetsTopic, Partitions: []kmsg.DescribeProducersResponseTopicPartition{{
				Partition: asked[0].Partitions[0], ErrorCode: kerr.TopicAuthorizationFailed.Code,
			}}}}
			return answer, nil, true
		})
		admin, err := OpenAdmin(b.Context(), b.Reach())
		kafkatest.Must(b.T, err)
		defer admin.Close()
		list, err := admin.Open(b.Context(), Places{Topics: []string{"in", "none"}, Groups: []string{"g"}})
		if !errors.Is(err, ErrOffsetsHidden) || len(list) != 1 || !list[0].Hanging || list[0].Topic != "in" {
			b.Errorf("%+v, %v", list, err)
		}
		findings, err := Examine(b.Context(), b.Reach(), &ExamineOptions{Group: "g", Inputs: []string{"in"}, Output: "out", Transactional: true})
		kafkatest.Must(b.T, err)
		kafkatest.Has(b.T, kafkatest.Found(findings), "broken in/0: a transaction of producer", "notice transactions: not checked: kafka: the offsets of g were not checked")
	}, kafkatest.LongTransactions)
}

func TestTheDoctorSeesWhetherTransactionsAreSafe(t *testing.T) {
	t.Parallel()
	check := func(b *bubble, wants ...string) {
		t.Helper()
		findings, err := Examine(b.Context(), b.Reach(), &ExamineOptions{
			Group: "g", Inputs: []string{"in"}, Output: "out", Changelogs: []string{"g-keys"}, Transactional: true, Window: time.Hour,
		})
		kafkatest.Must(t, err)
		kafkatest.Has(t, kafkatest.Found(findings), wants...)
	}
	t.Run("new", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 2, func(b *bubble) {
			check(b, "fine transaction.version: 2", "fine partitions of in: 2; g-keys will be created")
			kafkatest.Must(t, b.Cluster.CreateTopic("g-keys", 3, map[string]string{"min.insync.replicas": "1"}))
			check(b, "broken partitions of in: 2, and 3 of g-keys", "warning g-keys: 3 partitions, 1 replicas, min.insync.replicas 1")
		})
	})
	t.Run("old", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 2, func(b *bubble) {
			check(b, "warning transaction.version: not set", "broken TxnOffsetCommit: below version 3")
		}, kfake.MaxVersions(kversion.V2_4_0()))
	})
}
