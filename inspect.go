package semel

import (
	"context"
	"errors"
	"fmt"
)

// Look returns the record of a key without claiming it. State is Absent if there
// is no record. Look blocks for one store call. If the store is not an
// [Inspector], the error wraps errors.ErrUnsupported.
func (g *Guard) Look(ctx context.Context, key Key) (Record, error) {
	inspector, ok := As[Inspector](g.store)
	if !ok {
		return Record{}, g.unsupported("look keys up")
	}
	records := make([]Record, 1)
	if err := inspector.Look(ctx, []Key{key}, records); err != nil {
		return Record{}, fmt.Errorf("semel: look %s up: %w", key, err)
	}
	return records[0], nil
}

// Resolve ends the Unknown state of a key by an operator's decision; see
// [Resolver]. The key becomes Absent, or Done with this result for the guard's
// window. Resolve blocks for one store call. If the store is not a Resolver, the
// error wraps errors.ErrUnsupported.
func (g *Guard) Resolve(ctx context.Context, key Key, as State, result Result) error {
	resolver, ok := As[Resolver](g.store)
	if !ok {
		return g.unsupported("resolve keys")
	}
	if err := resolver.Resolve(ctx, ResolveRequest{Key: key, As: as, Result: result, Window: g.opts.Window}); err != nil {
		return fmt.Errorf("semel: resolve %s: %w", key, err)
	}
	return nil
}

func (g *Guard) unsupported(what string) error {
	store, _ := As[*joined](g.store)
	return fmt.Errorf("semel: the store %T cannot %s: %w", store.Unwrap(), what, errors.ErrUnsupported)
}
