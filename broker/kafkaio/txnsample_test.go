package kafkaio

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

func TestIDsInSeveralPartitionsAreRefused(t *testing.T) {
	t.Parallel()
	rule, err := key.ParseRule(".id")
	must(t, err)
	body := func(partition int32, recordKey string, id int) *kgo.Record {
		return record(partition, recordKey, fmt.Sprintf(`{"id":%d}`, id))
	}
	for name, c := range map[string]struct {
		records []*kgo.Record
		want    string
	}{
		"apart":           {[]*kgo.Record{body(0, "a", 1), body(1, "b", 2), body(0, "a", 1)}, ""},
		"in two":          {[]*kgo.Record{body(0, "a", 1), body(0, "a", 2), body(1, "a", 1)}, "have one id: copies in several partitions never meet"},
		"two record keys": {[]*kgo.Record{body(0, "a", 1), body(0, "b", 1), body(1, "c", 2)}, "one id and two record keys"},
		"without ids":     {[]*kgo.Record{record(0, "a", "{}"), record(1, "a", "{}")}, ""},
		"one partition":   {[]*kgo.Record{body(0, "a", 1), body(0, "b", 1)}, ""},
		"none":            {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(b *bubble) {
				opts := b.options()
				opts.Key = rule
				opts.SkipSample = false
				if len(c.records) > 0 {
					b.write(c.records...)
				}
				p := b.start(opts)
				if c.want == "" {
					p.wait(len(c.records), settled)
					p.stop()
					return
				}
				<-p.done
				if p.err == nil || !strings.Contains(p.err.Error(), c.want) || !errors.Is(p.err, semel.ErrInvalidRequest) {
					t.Errorf("it ended with %v, want %q", p.err, c.want)
				}
				opts.SkipSample = true
				p = b.start(opts)
				p.wait(len(c.records), settled)
				p.stop()
			})
		})
	}
}

func TestBrokersAndTopicsAreExamined(t *testing.T) {
	t.Parallel()
	found := func(b *bubble, opts TransactorOptions) string {
		tr, err := NewTransactor(&opts)
		must(t, err)
		list, err := tr.Examine(b.Context())
		must(t, err)
		var text []string
		for _, f := range list {
			if (f.Severity == semel.Fine) != (f.Cost == "") {
				t.Errorf("%s has severity %v and cost %q", f.Subject, f.Severity, f.Cost)
			}
			text = append(text, fmt.Sprintf("%s: %s (%v)", f.Subject, f.Found, f.Severity))
		}
		return strings.Join(text, "\n")
	}
	check := func(b *bubble, opts TransactorOptions, want ...string) {
		t.Helper()
		got := found(b, opts)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("it found\n%s\nand not %q", got, w)
			}
		}
	}
	t.Run("new", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 2, func(b *bubble) {
			check(b, b.options(), "transaction.version: 2 (fine)", "partitions of in: 2; g-keys will be made (fine)")
			must(t, b.cluster.CreateTopic("g-keys", 3, map[string]string{"min.insync.replicas": "1"}))
			check(b, b.options(), "partitions of in: 2, and 3 of g-keys (broken)", "min.insync.replicas 1 (warning)")
		})
	})
	t.Run("old", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 2, func(b *bubble) {
			check(b, b.options(), "transaction.version: not set (warning)", "TxnOffsetCommit: below version 3 (broken)")
		}, kfake.MaxVersions(kversion.V2_4_0()))
	})
}
