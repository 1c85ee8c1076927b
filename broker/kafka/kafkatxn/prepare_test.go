package kafkatxn

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/test/kafkatest"
)

func TestIDsInSeveralPartitionsAreRefused(t *testing.T) {
	t.Parallel()
	rule, err := key.ParseRule(".id")
	kafkatest.Must(t, err)
	body := func(partition int32, recordKey string, id int) *kgo.Record {
		return kafkatest.Record(partition, recordKey, fmt.Sprintf(`{"id":%d}`, id))
	}
	for name, c := range map[string]struct {
		records []*kgo.Record
		want    string
	}{
		"apart":           {[]*kgo.Record{body(0, "a", 1), body(1, "b", 2), body(0, "a", 1)}, ""},
		"in two":          {[]*kgo.Record{body(0, "a", 1), body(0, "a", 2), body(1, "a", 1)}, "have one id: duplicates in several partitions are not found"},
		"two record keys": {[]*kgo.Record{body(0, "a", 1), body(0, "b", 1), body(1, "c", 2)}, "one id and two record keys"},
		"without ids":     {[]*kgo.Record{kafkatest.Record(0, "a", "{}"), kafkatest.Record(1, "a", "{}")}, ""},
		"one partition":   {[]*kgo.Record{body(0, "a", 1), body(0, "b", 1)}, ""},
		"none":            {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(b *bubble) {
				opts := b.options()
				opts.Key.Rule = rule
				opts.skipSample = false
				if len(c.records) > 0 {
					b.Write(c.records...)
				}
				p := b.start(opts)
				if c.want == "" {
					p.Wait(len(c.records), kafkatest.Settled)
					p.Stop()
					return
				}
				<-p.Done
				if p.Err == nil || !strings.Contains(p.Err.Error(), c.want) || !errors.Is(p.Err, semel.ErrInvalidRequest) {
					t.Errorf("it ended with %v, want %q", p.Err, c.want)
				}
				opts.skipSample = true
				p = b.start(opts)
				p.Wait(len(c.records), kafkatest.Settled)
				p.Stop()
			})
		})
	}
}
