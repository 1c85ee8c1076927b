package semel

import (
	"context"
	"fmt"
)

// MaxScopeRule is the maximum length in bytes of the rule of a scope.
const MaxScopeRule = 4096

// BindScope makes sure that the ids of a scope are all found by one rule, such as
// the text of a key.Rule. Ids of different rules may be equal by chance: order 7 and
// customer 7. Under one scope the second message would be dropped as a duplicate of
// the first.
//
// The first call for a scope binds the scope to the rule, as durably as the store
// keeps keys. If the scope is bound to another rule, BindScope returns a
// [*ScopeError]. The caller may ignore that error if both rules find the same ids.
// A scope that was used before it was bound is bound by the next call.
//
// Call it before the first claim. It blocks for one store call. It does nothing if
// the store is not a [ScopeBinder].
func BindScope(ctx context.Context, store Store, scope, rule string) error {
	return scopeIs(ctx, store, scope, rule, rule)
}

// CheckScope returns the error that [BindScope] would return, and binds nothing. It
// blocks for one store call.
func CheckScope(ctx context.Context, store Store, scope, rule string) error {
	return scopeIs(ctx, store, scope, rule, "")
}

// scopeIs binds a scope to the rule bind, unless that is empty, and checks that it is
// bound to no other rule than rule.
func scopeIs(ctx context.Context, store Store, scope, rule, bind string) error {
	binder, ok := As[ScopeBinder](store)
	if !ok {
		return nil
	}
	if rule == "" || len(rule) > MaxScopeRule {
		return fmt.Errorf("semel: bind scope %q: the rule has %d bytes, want 1 to %d: %w", scope, len(rule), MaxScopeRule, ErrInvalidRequest)
	}
	if err := (Key{Scope: scope, ID: "x"}).Validate(); err != nil {
		return err
	}
	bound, err := binder.BindScope(ctx, scope, bind)
	if err != nil {
		return fmt.Errorf("semel: bind scope %q: %w", scope, err)
	}
	if bound != rule && (bound != "" || bind != "") {
		return &ScopeError{Scope: scope, Rule: rule, Bound: bound}
	}
	return nil
}

// ScopeError says that a scope is bound to another rule. See [BindScope].
type ScopeError struct {
	Scope string
	// Rule is the refused rule, and Bound the rule to which the scope is bound, or
	// empty if the store cannot name it.
	Rule, Bound string
}

// Error implements error.
func (e *ScopeError) Error() string {
	bound := "another rule"
	if e.Bound != "" {
		bound = "the rule " + e.Bound
	}
	return fmt.Sprintf("semel: scope %q has ids found by %s, and ids found by %s could be equal to them by chance: use another scope", e.Scope, bound, e.Rule)
}

// Is reports whether target is ErrInvalidRequest.
func (e *ScopeError) Is(target error) bool { return target == ErrInvalidRequest }
