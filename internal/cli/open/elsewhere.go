package open

import (
	"context"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
)

// Elsewhere looks for ids in scopes that a verb has not looked in. It begins with likely
// scopes. Then it looks, for a second at most, in scopes with a rule in the store, and among the
// keys with a readable scope. These two steps are a hint: an error ends them. Quick leaves the
// last step out.
func (f *StoreFlags) Elsewhere(ctx context.Context, store semel.Store, ids, likely []string) ([]semel.Record, error) {
	found, err := f.LookUp(ctx, store, InEach(likely, ids))
	if err != nil || len(found) > 0 {
		return found, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if bound, ok := semel.As[admin.ScopeLister](store); ok {
		scopes, err := bound.BoundScopes(ctx)
		if err == nil {
			found, err = f.LookUp(ctx, store, InEach(scopes, ids))
		}
		if err == nil && len(found) > 0 {
			return found, nil
		}
	}
	lister, ok := semel.As[semel.Inspector](store)
	if !ok || f.Quick {
		return nil, nil
	}
	found = nil
	for record, err := range lister.List(ctx, semel.ListOptions{}) {
		if err != nil || ctx.Err() != nil {
			break
		}
		if slices.Contains(ids, record.Key.ID) {
			found = append(found, record)
		}
	}
	return found, nil
}

// InEach returns the keys with the ids in each scope.
func InEach(scopes, ids []string) []semel.Key {
	var list []semel.Key
	for _, scope := range scopes {
		for _, id := range ids {
			list = append(list, semel.Key{Scope: scope, ID: id})
		}
	}
	return list
}
