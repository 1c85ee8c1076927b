package kafka_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestRedriveRefusesMessagesThatWouldGetAnotherKey has messages that carry their keys.
func TestRedriveRefusesMessagesThatWouldGetAnotherKey(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		rule, scope, id string
		missing         pipeline.Missing
		want            string // "" redrives it
	}{
		"the same key":      {"record-key", "s", "k", pipeline.MissingPass, ""},
		"another scope":     {"record-key", "old", "k", pipeline.MissingPark, `its key has the scope "old", and pipeline p now has "s"`},
		"its place":         {".id", "s", "of its place", pipeline.MissingPass, "its key is its place (on_missing: pass)"},
		"its content":       {".id", "s", "of its content", pipeline.MissingHash, ""},
		"no key any more":   {".id", "s", "k", pipeline.MissingPark, ""},
		"the rule offset":   {"offset", "s", "", pipeline.MissingPark, "its key is made of its place"},
		"the rule origin":   {"origin", "s", "", pipeline.MissingPass, "its key is made of its place"},
		"a key that it had": {"offset", "s", "k", pipeline.MissingPark, "its key is made of its place"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule, err := key.ParseRule(one.rule)
			if unstable, ok := errors.AsType[*key.UnstableError](err); ok {
				rule, err = unstable.Insist(), nil
			}
			kafkatest.Must(t, err)
			inBubble(t, 1, func(b *bubble) {
				m := semel.Message{RecordKey: []byte("k"), Body: []byte(`{"other":1}`), Origin: semel.Origin{Source: "in", Identity: "in-1", Offset: 7}}
				if one.id == "" {
					id, err := rule.Reader(nil).AppendID(nil, &m)
					kafkatest.Must(t, err)
					one.id = string(id)
				}
				parker, err := kafka.OpenParker(b.Context(), b.Reach(), "aside")
				kafkatest.Must(t, err)
				defer parker.Close()
				kafkatest.Must(t, parker.Park(b.Context(), []pipeline.Parked{{Pipeline: "p", Key: semel.Key{Scope: one.scope, ID: one.id}, Reason: "attempts", Message: m}}))
				letters := b.topicLot(b.options(), func(o *kafka.DeadLetterTopicOptions) { o.Key, o.OnMissing, o.Transactional = rule, one.missing, false })
				list := b.listed(letters)
				if len(list) != 1 || list[0].Key.ID != one.id {
					t.Fatalf("listed: %+v", list)
				}
				_, errs := letters.Redrive(b.Context(), list, "ann")
				back := len(b.Read("in"))
				if one.want == "" {
					if errs[0] != nil || back != 1 {
						t.Errorf("%v, and %d came back", errs[0], back)
					}
					return
				}
				if !errors.Is(errs[0], semel.ErrInvalidRequest) || !strings.Contains(errs[0].Error(), one.want) || !strings.Contains(errs[0].Error(), "by hand") || back != 0 {
					t.Errorf("%v, and %d came back", errs[0], back)
				}
				if left := b.listed(letters); len(left) != 1 {
					t.Errorf("%d are left", len(left))
				}
			})
		})
	}
}

func TestAnOldRecordDoesNotReplaceANewerOne(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Inputs, opts.Key.OnMissing = []string{"tables"}, pipeline.MissingPark
		kafkatest.Must(t, b.Cluster.CreateTopic("tables", 1, map[string]string{"cleanup.policy": "compact,delete"}))
		for _, k := range [][]byte{[]byte("k"), nil} {
			b.Write(&kgo.Record{Topic: "aside", Key: k, Value: []byte("v"), Headers: []kgo.RecordHeader{
				{Key: record.ConnectTopic, Value: []byte("tables")}, {Key: record.ConnectPartition, Value: []byte("0")}, {Key: record.ConnectOffset, Value: []byte("7")},
			}})
		}
		letters := b.topicLot(opts, nil)
		list := b.listed(letters)
		if len(list) != 2 {
			t.Fatalf("%d are listed", len(list))
		}
		_, errs := letters.Redrive(b.Context(), list, "ann")
		for i, err := range errs {
			if keyed := list[i].Message.RecordKey != nil; keyed != (err != nil) || keyed && !strings.Contains(err.Error(), "tables is compacted") {
				t.Errorf("key %q: %v", list[i].Message.RecordKey, err)
			}
		}
		if back := b.Read("tables"); len(back) != 1 || back[0].Key != nil {
			t.Errorf("%d came back", len(back))
		}
	})
}

// TestRedriveRefusesMessagesOfTopicsThatNobodyReads has a group that begins at the end, and has read
// one of two partitions.
func TestRedriveRefusesMessagesOfTopicsThatNobodyReads(t *testing.T) {
	t.Parallel()
	for name, group := range map[string]string{"a group": "g", "the group of a first stage": "g-repartition", "no group": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.options()
				if group != "" {
					var read kadm.Offsets
					read.AddOffset("in", 1, 0, -1)
					kafkatest.Must(t, kadm.NewClient(b.Client).CommitAllOffsets(b.Context(), group, read))
				}
				for partition := range 2 {
					b.Write(&kgo.Record{Topic: "aside", Key: []byte("k"), Headers: []kgo.RecordHeader{
						{Key: record.ConnectTopic, Value: []byte("in")}, {Key: record.ConnectPartition, Value: strconv.AppendInt(nil, int64(partition), 10)}, {Key: record.ConnectOffset, Value: []byte("7")},
					}})
				}
				letters := b.topicLot(opts, func(o *kafka.DeadLetterTopicOptions) {
					o.Reset, o.Repartition = kafka.ResetEnd, group == "g-repartition"
				})
				list := b.listed(letters)
				if len(list) != 2 {
					t.Fatalf("%d are listed", len(list))
				}
				_, errs := letters.Redrive(b.Context(), list, "ann")
				for i, err := range errs {
					unread := group == "" || list[i].Message.Origin.Partition == 0
					if unread != (err != nil) || unread && !strings.Contains(err.Error(), "start the pipeline first") {
						t.Errorf("partition %d: %v", list[i].Message.Origin.Partition, err)
					}
				}
			})
		})
	}
}

// TestARedrivenRecordIsLoggedAlthoughItsCallerLeft gives up between the two.
func TestARedrivenRecordIsLoggedAlthoughItsCallerLeft(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Transform = failing
		b.Write(kafkatest.Record(0, "bad", "v"))
		p := b.start(opts)
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		b.Cluster.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
			cancel()
			return nil, nil, false
		})
		letters := b.topicLot(opts, nil)
		_, errs := letters.Redrive(ctx, b.listed(letters), "ann")
		if left := b.listed(letters); errs[0] != nil || len(left) != 0 || ctx.Err() == nil {
			t.Errorf("%v, and %d are listed", errs[0], len(left))
		}
	})
}

func TestAMissingRightOnTheLogOfSettledMessagesIsNamed(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		letters := b.topicLot(b.options(), nil)
		b.Cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			asked := req.(*kmsg.MetadataRequest)
			if len(asked.Topics) != 1 || asked.Topics[0].Topic == nil || *asked.Topics[0].Topic != "aside-settled" {
				return nil, nil, false
			}
			resp := asked.ResponseKind().(*kmsg.MetadataResponse)
			topic := kmsg.NewMetadataResponseTopic()
			topic.Topic, topic.ErrorCode = asked.Topics[0].Topic, kerr.TopicAuthorizationFailed.Code
			resp.Topics = append(resp.Topics, topic)
			return resp, nil, true
		})
		err := letters.List(b.Context(), "p", func(*pipeline.Parked) bool { return true })
		if !errors.Is(err, kerr.TopicAuthorizationFailed) || !strings.Contains(err.Error(), "allow the user Describe and Read on aside-settled") {
			t.Errorf("%v", err)
		}
	})
}
