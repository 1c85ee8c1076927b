package semel_test

import (
	"errors"
	"testing"

	"github.com/semel-dev/semel"
)

func TestInvalidRequestsAreRefused(t *testing.T) {
	t.Parallel()
	key := semel.Key{ID: "a"}
	for name, c := range map[string]struct{ got, want error }{
		"claim without lease":      {(&semel.ClaimRequest{Key: key, Window: 1}).Validate(), semel.ErrInvalidRequest},
		"claim without window":     {(&semel.ClaimRequest{Key: key, Lease: 1}).Validate(), semel.ErrInvalidRequest},
		"claim without id":         {(&semel.ClaimRequest{Lease: 1, Window: 1}).Validate(), semel.ErrInvalidKey},
		"claim of a done effect":   {(&semel.ClaimRequest{Key: key, Window: 1, Done: true}).Validate(), nil},
		"complete without window":  {(&semel.CompleteRequest{Key: key}).Validate(0), semel.ErrInvalidRequest},
		"complete with odd result": {(&semel.CompleteRequest{Key: key, Window: 1, Result: semel.Result{Kind: 99}}).Validate(0), semel.ErrInvalidRequest},
		"complete with long result": {(&semel.CompleteRequest{Key: key, Window: 1, Result: semel.Result{
			Kind: semel.Value, Data: make([]byte, 11)}}).Validate(10), semel.ErrResultTooLarge},
		"complete without limit": {(&semel.CompleteRequest{Key: key, Window: 1, Result: semel.Result{Kind: semel.Value, Data: make([]byte, 11)}}).Validate(0), nil},
		"release without id":     {(&semel.ReleaseRequest{}).Validate(), semel.ErrInvalidKey},
		"extend without lease":   {(&semel.ExtendRequest{Key: key}).Validate(), semel.ErrInvalidRequest},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", name, c.got, c.want)
		}
	}
}
