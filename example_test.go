package semel_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/store/memstore"
)

func Example() {
	store, _ := memstore.New(nil) // or logstore.Open("./seen", nil): durable
	guard, _ := semel.NewGuard(store, nil)

	charge := func(ctx context.Context) error {
		fmt.Println("charging the card")
		return nil
	}
	for range 2 { // the message is delivered twice
		err := guard.Run(context.Background(), semel.Key{Scope: "payments", ID: "order-42"}, charge)
		fmt.Println(err)
	}
	// Output:
	// charging the card
	// <nil>
	// <nil>
}

func ExampleGuard_Do() {
	store, _ := memstore.New(nil)
	guard, _ := semel.NewGuard(store, nil)

	charge := func(ctx context.Context, claim semel.Claim) ([]byte, error) {
		fmt.Println("charging the card, attempt", claim.Attempt)
		return []byte("receipt 17"), nil
	}
	for range 2 {
		out, err := guard.Do(context.Background(), semel.Key{Scope: "payments", ID: "order-42"}, charge)
		fmt.Println(out.Decision, string(out.Result.Data), err)
	}
	// Output:
	// charging the card, attempt 1
	// fresh receipt 17 <nil>
	// duplicate receipt 17 <nil>
}

func ExampleDo() {
	store, _ := memstore.New(nil)
	guard, _ := semel.NewGuard(store, nil)
	type receipt struct{ Number int }
	for range 2 {
		got, duplicate, err := semel.Do(context.Background(), guard, semel.Key{Scope: "payments", ID: "order-42"},
			func(context.Context) (receipt, error) { return receipt{17}, nil })
		fmt.Println(got.Number, duplicate, err)
	}
	// Output:
	// 17 false <nil>
	// 17 true <nil>
}

func ExampleBindScope() {
	store, _ := memstore.New(nil)
	for _, text := range []string{".order_id", ".order_id", ".customer_id"} { // three starts of a program
		rule, err := key.ParseRule(text)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(semel.BindScope(context.Background(), store, "payments", semel.ScopeOwner{Rule: rule.String()}))
	}
	// Output:
	// <nil>
	// <nil>
	// semel: scope "payments" has ids found by the rule .order_id, and ids found by .customer_id could be equal to them by chance: use another scope
}

func ExampleMayAck() {
	store, _ := memstore.New(nil)
	guard, _ := semel.NewGuard(store, nil)
	deliver := func(id string, failure error) {
		_, err := guard.Do(context.Background(), semel.Key{Scope: "payments", ID: id},
			func(context.Context, semel.Claim) ([]byte, error) { return nil, failure })
		var permanent *semel.PermanentError
		switch {
		case !semel.MayAck(err):
			fmt.Println(id, "comes again:", err)
		case errors.As(err, &permanent):
			fmt.Println(id, "is parked and acknowledged:", err)
		default:
			fmt.Println(id, "is acknowledged")
		}
	}
	deliver("order-1", nil)
	deliver("order-2", errors.New("the bank does not answer"))
	deliver("order-3", semel.Permanent(errors.New("no such account")))
	// Output:
	// order-1 is acknowledged
	// order-2 comes again: the bank does not answer
	// order-3 is parked and acknowledged: no such account
}

func ExampleGuard_DoBatch() {
	store, _ := memstore.New(nil)
	guard, _ := semel.NewGuard(store, nil)
	calls := []semel.Call{{Key: semel.Key{ID: "a"}}, {Key: semel.Key{ID: "b"}}, {Key: semel.Key{ID: "a"}}}
	for i, out := range guard.DoBatch(context.Background(), calls, func(_ context.Context, fresh []*semel.BatchItem) error {
		fmt.Println("writing", len(fresh), "rows")
		return nil
	}) {
		fmt.Println(calls[i].Key.ID, out.Decision, out.Err)
	}
	// Output:
	// writing 2 rows
	// a fresh <nil>
	// b fresh <nil>
	// a duplicate <nil>
}
