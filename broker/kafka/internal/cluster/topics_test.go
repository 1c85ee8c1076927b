package cluster

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/kafkatest"
)

func TestAMissingTopicIsNamed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *kafkatest.Rig) {
		kafkatest.Must(b.T, HaveTopics(b.Context(), b.Client, "in", "out"))
		err := HaveTopics(b.Context(), b.Client, "in", "orders")
		missing := new(MissingTopicError)
		if !errors.As(err, &missing) || missing.Topic != "orders" || !errors.Is(err, semel.ErrStoreUnavailable) ||
			err.Error() != "kafka: topic orders does not exist: create it: kafka-topics.sh --create --topic orders" {
			b.Errorf("%v", err)
		}
		b.Hide("out", kerr.TopicAuthorizationFailed, 1)
		if err := HaveTopics(b.Context(), b.Client, "out"); err != nil && !errors.Is(err, kerr.TopicAuthorizationFailed) {
			b.Errorf("%v", err)
		}
		b.Cluster.Close()
		if err := HaveTopics(b.Context(), b.Client, "in"); !errors.As(err, new(*NoBrokerError)) {
			b.Errorf("without brokers: %v", err)
		}
	})
}

func TestATopicIsKnownByItsIdentityUntilItIsDeleted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *kafkatest.Rig) {
		adm := kadm.NewClient(b.Client)
		first, err := Identities(b.Context(), b.Client, "in", "out")
		kafkatest.Must(b.T, err)
		if len(first) != 2 || first["in"] == "" || first["in"] == first["out"] {
			b.Errorf("%v", first)
		}
		topics, err := adm.ListTopics(b.Context(), "in")
		kafkatest.Must(b.T, err)
		id := topics["in"].ID
		for _, byID := range []bool{true, false} {
			if name, err := TopicOf(b.Context(), b.Client, id, byID); err != nil || name != "in" {
				b.Errorf("by id: %v: the topic with the id is %q, %v", byID, name, err)
			}
		}
		_, err = adm.DeleteTopics(b.Context(), "in")
		kafkatest.Must(b.T, err)
		time.Sleep(time.Minute) // in a bubble: the client keeps what it knows of topics for a while
		for _, byID := range []bool{true, false} {
			if name, err := TopicOf(b.Context(), b.Client, id, byID); err != nil || name != "" {
				b.Errorf("by id: %v: the deleted topic is %q, %v", byID, name, err)
			}
		}
		if _, err := Identities(b.Context(), b.Client, "none"); err == nil {
			b.Error("a topic that does not exist has an identity")
		}
	})
	if got := Identity(kadm.TopicID{}); got != "" {
		t.Errorf("without ids, the identity is %q", got)
	}
}

func TestTopicAuthorizationErrorIsConfirmed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *kafkatest.Rig) {
		adm := kadm.NewClient(b.Client)
		if err := AskTopic(b.Context(), adm, "in", kerr.TopicAuthorizationFailed); err != nil {
			b.Errorf("a topic that may be written: %v", err)
		}
		if err := AskTopic(b.Context(), adm, "none", kerr.UnknownTopicOrPartition); !SaysTopic(err) {
			b.Errorf("a topic that does not exist: %v", err)
		}
	})
	for err, want := range map[error]bool{kerr.UnknownTopicOrPartition: true, kerr.InvalidTopicException: true, kerr.TopicAuthorizationFailed: true, kerr.MessageTooLarge: false, io.EOF: false} {
		if got := SaysTopic(err); got != want {
			t.Errorf("%v is a verdict on a topic: %v, want %v", err, got, want)
		}
	}
}

func TestWriteErrorNamesThePartitionAndTheRemedyForTimestamps(t *testing.T) {
	t.Parallel()
	r := &kgo.Record{Topic: "out", Partition: 2, Timestamp: time.Unix(0, 0)}
	if err := WriteError(r, io.EOF); err.Error() != "write out/2: EOF" {
		t.Errorf("%v", err)
	}
	if err := WriteError(r, kerr.InvalidTimestamp); !errors.Is(err, kerr.InvalidTimestamp) || !strings.HasPrefix(err.Error(), "write out/2: ") ||
		!strings.HasSuffix(err.Error(), "the topic does not take the time 1970-01-01T00:00:00Z of a record: raise its message.timestamp.after.max.ms or message.timestamp.before.max.ms") {
		t.Errorf("%v", err)
	}
}

// TestTopicsOfTablesMustKeepTheirRows has settings with which the broker deletes rows.
func TestTopicsOfTablesMustKeepTheirRows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		settings map[string]string
		history  time.Duration
		found    string
		remedy   string
	}{
		{nil, time.Hour, "", ""}, // they are not visible
		{map[string]string{"cleanup.policy": "compact"}, 0, "", ""},
		{map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}, 0, "", ""},
		{map[string]string{"cleanup.policy": "delete", "retention.ms": "1000"}, 0, "cleanup.policy delete and retention.ms 1000", "set cleanup.policy=compact"},
		{map[string]string{"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "5"}, 0, "cleanup.policy compact,delete and retention.bytes 5", "set cleanup.policy=compact"},
		{map[string]string{"cleanup.policy": "compact", "min.compaction.lag.ms": "0", "delete.retention.ms": "86400000"}, time.Hour, "min.compaction.lag.ms 0", "set min.compaction.lag.ms=3600000"},
		{map[string]string{"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000", "delete.retention.ms": "1"}, time.Hour, "delete.retention.ms 1", "set delete.retention.ms=3600000"},
		{map[string]string{"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000", "delete.retention.ms": "3600000"}, time.Hour, "", ""},
	} {
		if found, cost, remedy := TableProblem(c.settings, c.history); found != c.found || remedy != c.remedy || (cost == "") != (found == "") {
			t.Errorf("%v, %v: %q, %q, %q; want %q, %q", c.settings, c.history, found, cost, remedy, c.found, c.remedy)
		}
	}
}
