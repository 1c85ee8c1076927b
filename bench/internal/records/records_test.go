package records

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestGeneratedInputHasItsShareOfDuplicates(t *testing.T) {
	t.Parallel()
	in := Input{Seed: 1, Records: 200_000}
	seen := map[string]int{}
	fresh := 0
	for i := range in.Records {
		key, value := in.Append(nil, nil, i)
		var event struct {
			ID  string `json:"event_id"`
			Seq int
		}
		if err := json.Unmarshal(value, &event); err != nil || event.ID != string(key) || event.Seq != i || len(value) != ValueBytes {
			t.Fatalf("record %d: key %q, value %q, %v", i, key, value, err)
		}
		at, known := seen[string(key)]
		if known == in.Fresh(i) {
			t.Fatalf("record %d: known %t, fresh %t", i, known, in.Fresh(i))
		}
		if known && i-at > near+1 {
			t.Fatalf("record %d repeats the id of %d", i, at)
		}
		if !known {
			seen[string(key)] = i
			fresh++
		}
	}
	if fresh != in.FreshRecords() {
		t.Errorf("%d keys, want %d", fresh, in.FreshRecords())
	}
}

func TestCheckerRefusesWrongOutputs(t *testing.T) {
	t.Parallel()
	in := Input{Seed: 1, Records: 20}
	record := func(i int) *kgo.Record {
		key, value := in.Append(nil, nil, i)
		return &kgo.Record{Key: key, Value: value}
	}
	changed := record(1)
	changed.Value = bytes.Replace(changed.Value, []byte("created"), []byte("deleted"), 1)
	for name, wrong := range map[string]*kgo.Record{
		"twice": record(0), "duplicate": record(9), "changed": changed, "foreign": {Value: []byte(`{"seq":20,}`)}, "empty": {},
	} {
		c := checker{Input: in, distinct: true, seen: make([]bool, in.Records)}
		if err := c.check(record(0)); err != nil {
			t.Fatal(err)
		}
		if err := c.check(wrong); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
