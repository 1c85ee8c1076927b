package fields

import (
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/key"
)

func TestAllReturnsTheGroupKeyOfEachRecord(t *testing.T) {
	t.Parallel()
	rule, err := key.ParseRule(".group")
	if err != nil {
		t.Fatal(err)
	}
	long := `{"group":"` + strings.Repeat("x", semel.MaxKeyBytes+1) + `"}`
	var records []*kgo.Record
	for _, body := range []string{`{"group":"a"}`, "", `{}`, `{"group":"bb"}`, long, `{"group":[]}`, "no JSON", `{"group":"c"}`} {
		records = append(records, &kgo.Record{Value: []byte(body)})
	}
	k := NewGroupKeys(rule)
	for range 2 { // the second time with the memory of the first
		k.Begin()
		for _, r := range records {
			var m semel.Message
			record.Fill(&m, r)
			k.Next(&m)
		}
		var got []string
		for _, id := range k.All() {
			got = append(got, string(id))
		}
		found := 0
		for i, r := range records {
			var m semel.Message
			record.Fill(&m, r)
			want, err := k.Of(&m)
			if got[i] != string(want) || (err == nil) != (len(want) > 0) {
				t.Errorf("%.20s: %.20q, want %.20q", r.Value, got[i], want)
			}
			if err != nil && (semel.Classify(err) != semel.ClassPermanent || !strings.Contains(err.Error(), "group key .group")) {
				t.Errorf("%.20s: %.80v", r.Value, err)
			}
			found += len(want)
		}
		if found != len("abbc") {
			t.Errorf("the keys have %d bytes", found)
		}
	}
	if _, err := k.Of(&semel.Message{Body: []byte("{}")}); !errors.Is(err, key.ErrMissing) {
		t.Error(err)
	}
}
