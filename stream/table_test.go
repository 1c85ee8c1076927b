package stream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// A FilterMap adds the row of a customer to each order. The test of such a function needs
// no broker.
func ExampleTable() {
	by, err := key.ParseRule(".customer")
	if err != nil {
		panic(err)
	}
	customers := &stream.Table{Topic: "customers", By: by}
	join := func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
		row, err := customers.Row(&d.Message)
		return fmt.Appendf(nil, `{"order":%s,"customer":%s}`, d.Body, row), true, err
	}
	// In a program: kafkatxn.TransactorOptions{Tables: []*stream.Table{customers}, FilterMap: join, …}

	customers.Attach(func(key []byte, _ *semel.Message) ([]byte, error) {
		return map[string][]byte{"ann": []byte(`{"tier":"gold"}`)}[string(key)], nil
	})
	for _, body := range []string{`{"id":1,"customer":"ann"}`, `{"id":2,"customer":"eve"}`} {
		out, _, err := join(context.Background(), pipeline.Delivery{Message: semel.Message{Body: []byte(body)}})
		if row, ok := errors.AsType[*stream.RowError](err); ok {
			fmt.Println(row)
			continue
		}
		fmt.Println(string(out))
	}
	// Output:
	// {"order":{"id":1,"customer":"ann"},"customer":{"tier":"gold"}}
	// table customers has no row with the key "eve"
}

func TestTableFindsTheRowByTheKeyInTheMessage(t *testing.T) {
	t.Parallel()
	by, err := key.ParseRule(".c")
	if err != nil {
		t.Fatal(err)
	}
	late := fmt.Errorf("too old: %w", semel.ErrLate)
	for _, policy := range []stream.Missing{stream.MissingPark, stream.MissingPass} {
		table := &stream.Table{Name: "people", Topic: "t", By: by, Missing: policy}
		if _, err := table.Row(&semel.Message{Body: []byte(`{"c":1}`)}); err == nil || !strings.Contains(err.Error(), "table people has no rows") {
			t.Errorf("without rows: %v", err)
		}
		table.Attach(func(key []byte, m *semel.Message) ([]byte, error) {
			switch string(key) {
			case "late":
				return nil, late
			case "broken":
				return nil, errors.New("oh")
			case "none":
				return nil, nil
			}
			return append([]byte("row "), key...), nil
		})
		for body, want := range map[string]string{
			`{"c":"ann"}`:    "row ann",
			`{"c":42}`:       "row 42",
			`{"c":true}`:     "row true",
			`{"c":""}`:       "no row",
			`{}`:             "no row",
			`{"c":"none"}`:   "no row",
			`{"c":"late"}`:   "late",
			`{"c":"broken"}`: "table people: oh",
			`no`:             "the key for table people (.c)",
		} {
			row, err := table.Row(&semel.Message{Body: []byte(body)})
			none, isNone := errors.AsType[*stream.RowError](err)
			got := string(row)
			switch {
			case isNone && errors.Is(err, semel.ErrLate):
				got = "late"
			case isNone && none.Table == table && policy == stream.MissingPark, err == nil && row == nil && policy == stream.MissingPass:
				got = "no row"
			case err != nil:
				got = err.Error()
			}
			if !strings.HasPrefix(got, want) {
				t.Errorf("policy %d: the row of %s is %q, want %q", policy, body, got, want)
			}
		}
	}
}

func TestTablesAreValidated(t *testing.T) {
	t.Parallel()
	err := (&stream.Table{History: -time.Second, Missing: 9}).Validate()
	for _, want := range []string{"Topic is missing", "By is missing", "History: -1s is negative", "Missing: 9"} {
		if err == nil || !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
