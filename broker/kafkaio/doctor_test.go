package kafkaio

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/services/servicestest"
	"github.com/semel-dev/semel/pipeline"
)

// found returns findings as lines: severity, subject, what is there.
func found(findings []semel.Finding) (lines []string) {
	for _, f := range findings {
		if (f.Severity == semel.Fine) != (f.Cost == "" && f.Remedy == "") && f.Severity != semel.Notice {
			lines = append(lines, "half a finding: "+f.Subject)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", f.Severity, f.Subject, f.Found))
	}
	return lines
}

func has(t *testing.T, lines []string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("nothing says %q:\n%s", want, strings.Join(lines, "\n"))
		}
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "half") {
			t.Error(line)
		}
	}
}

func TestTheDoctorSeesWhatWeakensThePromise(t *testing.T) {
	t.Parallel()
	inRealTime(t, 2, func(b *bubble) {
		must(t, b.cluster.CreateTopic("keys", 2, map[string]string{"retention.ms": "60000", "cleanup.policy": "delete"}))
		must(t, b.cluster.CreateTopic("short", 1, map[string]string{"retention.ms": "60000", "unclean.leader.election.enable": "true"}))
		b.write(numbered(0, 20, 2)...)
		m := b.join(nil)
		m.ack(of(m.get(20), 0)...)
		b.becomes(0, 10)
		findings, err := Examine(b.Context(), b.reach(), &ExamineOptions{
			Group: "g", Inputs: []string{"in", "short"}, Output: "none", Changelogs: []string{"keys"}, Transactional: true, Window: time.Hour, Latest: true,
		})
		must(t, err)
		has(t, found(findings), "fine brokers: 1, ", "broken none: is not there", "warning in retention.ms: 168h0m0s", "fine short retention.ms: 1m0s",
			"broken keys retention.ms: 1m0s", "warning short unclean.leader.election.enable", "notice group g: 1 of 1 members have no instance name",
			"warning auto.offset.reset: latest, and of 1 partitions nothing")
		m.leave()
		must(t, b.cluster.DeleteRecords("in", 0, 10))
		m = b.join(func(o *SourceOptions) { o.Instance = "one" })
		m.get(10)
		must(t, b.cluster.DeleteRecords("in", 1, 4))
		findings, err = Examine(b.Context(), b.reach(), &ExamineOptions{Group: "g", Inputs: []string{"in"}})
		must(t, err)
		has(t, found(findings), "broken in/1: offset 0 is committed, the oldest record is 4", "fine group g: Stable, 1 members", "fine in retention.ms")
		m.leave()
	})
}

func TestTheDoctorSeesARealBroker(t *testing.T) {
	t.Parallel()
	server := servicestest.StartKafka(t, nil)
	client, err := kgo.NewClient(quick(server.Addr())...)
	must(t, err)
	defer client.Close()
	small, minimum := "10000", "2"
	adm := kadm.NewClient(client)
	_, err = adm.CreateTopic(t.Context(), 2, 1, nil, "in")
	must(t, err)
	_, err = adm.CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &small}, "aside")
	must(t, err)
	_, err = adm.CreateTopic(t.Context(), 1, 1, map[string]*string{"min.insync.replicas": &minimum}, "out")
	must(t, err)
	look := func() []string {
		findings, err := Examine(t.Context(), quick(server.Addr()), &ExamineOptions{
			Group: "g", Inputs: []string{"in"}, Output: "out", Parked: "aside", Changelogs: []string{"keys"}, Transactional: true, Window: time.Hour,
		})
		must(t, err)
		return found(findings)
	}
	var lines []string
	within(time.Minute, func() bool { // a topic that was made is not known at once
		lines = look()
		return !slices.ContainsFunc([]string{"in", "out", "aside"}, func(topic string) bool { return slices.Contains(lines, "broken "+topic+": is not there") })
	})
	has(t, lines, "fine brokers: 1, v4.", "fine transaction.version: 2", "warning in: 2 partitions, 1 replicas", "broken out: 1 partitions, 1 replicas, min.insync.replicas 2",
		"warning aside max.message.bytes: 10000", "notice keys: is not there yet", "notice group g: nobody reads")
	for transactional, want := range map[bool]string{true: "notice parked: is not there yet", false: "broken parked: is not there"} {
		findings, err := Examine(t.Context(), quick(server.Addr()), &ExamineOptions{Inputs: []string{"in"}, Output: "out", Parked: "parked", Transactional: transactional})
		must(t, err)
		has(t, found(findings), want)
	}
	for _, of := range []struct {
		instance string
		divided  bool
		want     string
	}{
		{"one", false, "fine group g: Stable, 1 members"}, {"", false, "notice group g: 1 of 1 members have no instance name"},
		{"one", true, "fine group g: Stable, 1 members"}, {"", true, "notice group g: 1 of 1 members have no instance name"},
	} {
		source, err := OpenSource(t.Context(), &SourceOptions{Group: "g", Topics: []string{"in"}, Instance: of.instance, ServerSide: of.divided, SessionTimeout: time.Second, Client: quick(server.Addr())})
		must(t, err)
		within(time.Minute, func() bool {
			lines = look()
			return slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, of.want) })
		})
		has(t, lines, of.want)
		var lag []pipeline.Lag
		if !within(time.Minute, func() bool { // with nothing committed all is behind
			lag, err = source.Lag(t.Context())
			return err == nil && len(lag) == 2
		}) {
			t.Errorf("divided %v: it lags by %v, %v", of.divided, lag, err)
		}
		must(t, source.Close(t.Context()))
		within(time.Minute, func() bool { return slices.Contains(look(), "notice group g: nobody reads") })
	}
}

// TestOffsetsThatMayNotBeReadHideNothingElse has a transaction that hangs in the input,
// and brokers that do not let the user look at the offsets.
func TestOffsetsThatMayNotBeReadHideNothingElse(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		must(b.T, b.cluster.CreateTopic(offsetsTopic, 4, nil))
		other := b.other("other", "in", time.Hour)
		defer other.Close()
		b.forget(other, "CompleteCommit")
		b.cluster.ControlKey(int16(kmsg.DescribeProducers), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.cluster.KeepControl()
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
		admin, err := OpenAdmin(b.Context(), b.reach())
		must(b.T, err)
		defer admin.Close()
		list, err := admin.Open(b.Context(), Places{Topics: []string{"in", "none"}, Groups: []string{"g"}})
		if !errors.Is(err, ErrOffsetsHidden) || len(list) != 1 || !list[0].Hanging || list[0].Topic != "in" {
			b.Errorf("%+v, %v", list, err)
		}
		findings, err := Examine(b.Context(), b.reach(), &ExamineOptions{Group: "g", Inputs: []string{"in"}, Output: "out", Transactional: true})
		must(b.T, err)
		has(b.T, found(findings), "broken in/0: a transaction of producer", "notice transactions: not checked: kafka: the offsets of g were not checked")
	}, longTransactions)
}
