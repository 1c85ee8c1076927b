package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/kafkatest"
)

// inBubble runs fn in a synctest bubble with a broker.
func inBubble(t *testing.T, fn func(b *kafkatest.Rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { kafkatest.Virtual(t, 1, fn) })
}

func TestUnauthorizedTopicDoesNotHideOtherTopics(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *kafkatest.Rig) {
		t := b.T
		kafkatest.Takes(t, b.Client, 10*kafkatest.Megabyte, "first", "secret", "last")
		b.Hide("secret", kerr.TopicAuthorizationFailed, -1)
		l, err := ReadLimits(t.Context(), kadm.NewClient(b.Client), "first", "secret", "last")
		kafkatest.Must(t, err)
		if l.Of("first") != 10*kafkatest.Megabyte || l.Of("secret") != unknownLimit || l.Of("last") != 10*kafkatest.Megabyte {
			t.Errorf("the limits are %v", l)
		}
	})
}

func TestTheClientAcceptsRecordsWithinTheLimits(t *testing.T) {
	t.Parallel()
	for _, most := range []int{600, 16_000, 16_384, 1_048_588, 2<<20 + 100} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(b *kafkatest.Rig) {
				t := b.T
				kafkatest.Takes(t, b.Client, most, "t")
				above := 100 // bytes that are left for the form of a batch, which needs fewer
				if most > kafkatest.Megabyte {
					above = 40 // each record passes a broker
				}
				for _, headers := range []int{0, 3} {
					fits := 0
					for left := above; left >= -20; left-- {
						l := Limits{"t": {Bytes: most}}
						client, err := kgo.NewClient(append(b.Reach(), kgo.DefaultProduceTopic("t"), kgo.ProducerBatchMaxBytesFn(l.Client), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
						kafkatest.Must(t, err)
						r := &kgo.Record{Value: make([]byte, most-left-61)}
						for range headers {
							r.Headers = append(r.Headers, kgo.RecordHeader{Key: "k", Value: []byte("v")})
						}
						said := l.Check("t", r)
						done := client.ProduceSync(t.Context(), r).FirstErr()
						client.Close()
						if said == nil && done != nil {
							t.Fatalf("%d bytes: %v", len(r.Value), done)
						}
						if said == nil {
							fits = max(fits, batchSize(r))
						}
					}
					if fits < most-2 {
						t.Errorf("at most %d bytes fit, of %d", fits, most)
					}
				}
			})
		})
	}
}

func TestAcceptedTimestampRangeOfATopicIsComputed(t *testing.T) {
	t.Parallel()
	settings := func(more ...string) map[string]string {
		all := map[string]string{"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "9223372036854775807", "message.timestamp.after.max.ms": "3600000"}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	now := time.Now()
	for name, c := range map[string]struct {
		settings map[string]string
		at       time.Time
		want     string // in the error
	}{
		"an hour ahead":         {settings(), now.Add(time.Hour), ""},
		"further ahead":         {settings(), now.Add(time.Hour + 1), "raise its message.timestamp.after.max.ms"},
		"very far ahead":        {settings(), now.AddDate(1000, 0, 0), "raise its message.timestamp.after.max.ms"},
		"very old":              {settings(), now.AddDate(-1000, 0, 0), ""},
		"too old":               {settings("message.timestamp.before.max.ms", "1000"), now.Add(-time.Second - 1), "raise its message.timestamp.before.max.ms"},
		"very much too old":     {settings("message.timestamp.before.max.ms", "1000"), now.AddDate(-1000, 0, 0), "raise its message.timestamp.before.max.ms"},
		"old":                   {settings("message.timestamp.before.max.ms", "1000"), now.Add(-time.Second), ""},
		"nothing ahead":         {settings("message.timestamp.after.max.ms", "0"), now.Add(time.Second), "raise its message.timestamp.after.max.ms"},
		"the time of the topic": {settings("message.timestamp.type", "LogAppendTime"), now.AddDate(1, 0, 0), ""},
		"an old broker":         {nil, now.AddDate(1, 0, 0), ""},
		"no time":               {settings(), time.Time{}, ""},
	} {
		l := Limits{"t": {Bytes: 1000, before: timeLimit(c.settings, "before"), after: timeLimit(c.settings, "after")}}
		err := l.CheckTime("t", &kgo.Record{Timestamp: c.at}, now)
		permanent := (*semel.PermanentError)(nil)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (!errors.Is(err, kerr.InvalidTimestamp) || !errors.As(err, &permanent) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestErrorOfATooLargeRecordNamesTheSettingToRaise(t *testing.T) {
	t.Parallel()
	large := func(n int) *kgo.Record { return &kgo.Record{Value: make([]byte, n)} }
	for name, c := range map[string]struct {
		l    Limits
		size int
		want string
	}{
		"its setting":              {Limits{"t": {Bytes: 1000}}, 1000, "which takes 1000 (max.message.bytes of it, before compression; raise it, and redrive the message or start again)"},
		"hidden settings":          {Limits{}, unknownLimit, "(what is assumed, because its settings may not be seen; allow DescribeConfigs on it)"},
		"a topic that was missing": {nil, unknownLimit, "(what is assumed, because it was not there; start again when it is)"},
		"the most of the client":   {Limits{"t": {Bytes: 1 << 30}}, mostLimit, "(the most that is written)"},
	} {
		err := c.l.Check("t", large(c.size))
		if !IsTooLarge(err) || !errors.As(err, new(*semel.PermanentError)) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if err := c.l.Check("t", large(100)); err != nil {
			t.Errorf("%s: a small record: %v", name, err)
		}
	}
}
