package storeapi

import (
	"encoding/json"
	"reflect"
	"testing"
)

// TestAppendWritesWhatEncodingJSONDoes fills each member of the answers that write themselves, so a
// member that is added later is not forgotten.
func TestAppendWritesWhatEncodingJSONDoes(t *testing.T) {
	t.Parallel()
	texts := []string{"", "plain", `a "quoted" \ text`, "ünï", "<&>", "\u2028\n", "half \xff"}
	answers := []interface{ Append([]byte) []byte }{&Claimed{}, &Settled{}, &Items{Items: []json.RawMessage{}}}
	for _, text := range texts {
		claimed, settled, items := &Claimed{}, &Settled{}, &Items{}
		fill(t, reflect.ValueOf(claimed).Elem(), text)
		fill(t, reflect.ValueOf(settled).Elem(), text)
		fill(t, reflect.ValueOf(items).Elem(), text)
		items.Items = []json.RawMessage{[]byte(`{"state":"done"}`), []byte(`{"decision":"fresh"}`)}
		answers = append(answers, claimed, settled, items)
	}
	for _, answer := range answers {
		want, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Append([]byte("before")); string(got) != "before"+string(want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// fill sets each field of a struct.
func fill(t *testing.T, of reflect.Value, text string) {
	t.Helper()
	for i := range of.NumField() {
		switch field := of.Field(i).Addr().Interface().(type) {
		case *string:
			*field = text
		case *int:
			*field = 17
		case **int64:
			number := int64(1) << 40
			*field = &number
		case **bool:
			truth := text == "plain"
			*field = &truth
		case **Result:
			*field = &Result{Kind: "value", Text: &text}
		case **Counts:
			*field = &Counts{Claimed: text}
		case *[]json.RawMessage:
		default:
			t.Fatalf("no value for a %T", field)
		}
	}
}
