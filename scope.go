package semel

import (
	"context"
	"fmt"
	"strings"
)

// maxScopeOwner is the maximum length in bytes of the text of a ScopeOwner.
const maxScopeOwner = 4096

// ScopeOwner is what a scope belongs to. Under equal owners, equal ids mean the same
// message.
type ScopeOwner struct {
	// Rule is the text of the rule that finds the ids, such as that of a key.Rule. Ids
	// of different rules may be equal by chance: order 7 and customer 7.
	Rule string
	// Pipeline is the name of the pipeline whose effects the keys stand for. Another
	// pipeline has other effects, and would drop the messages of the first as
	// duplicates. It is empty for a scope that pipelines and programs may share.
	Pipeline string
}

// ownerMark separates rule and pipeline. Names of pipelines do not contain it.
const ownerMark = "\npipeline "

// String returns the text that stores keep.
func (o ScopeOwner) String() string {
	if o.Pipeline == "" {
		return o.Rule
	}
	return o.Rule + ownerMark + o.Pipeline
}

// Parse sets the owner to that with a text of String. A text without a pipeline is a rule.
func (o *ScopeOwner) Parse(text string) {
	*o = ScopeOwner{Rule: text}
	if i := strings.LastIndex(text, ownerMark); i >= 0 {
		*o = ScopeOwner{Rule: text[:i], Pipeline: text[i+len(ownerMark):]}
	}
}

// Validate returns an error that wraps ErrInvalidRequest if the owner has no rule, or its
// text is too long.
func (o ScopeOwner) Validate() error {
	if n := len(o.String()); o.Rule == "" || n > maxScopeOwner {
		return fmt.Errorf("the rule has %d bytes, want 1 to %d: %w", n, maxScopeOwner, ErrInvalidRequest)
	}
	return nil
}

// Shares reports whether two owners may use one scope: their rules are equal, and so are
// their pipelines, if both have one.
func (o ScopeOwner) Shares(other ScopeOwner) bool {
	return o.Rule == other.Rule && (o.Pipeline == other.Pipeline || o.Pipeline == "" || other.Pipeline == "")
}

// BindScope makes sure that a scope has one owner, so that equal ids there mean the same message.
// Otherwise a message would be dropped as a duplicate of another one.
//
// The first call for a scope binds the scope to the owner, as durably as the store keeps
// keys. If the scope is bound to an owner that does not share it, BindScope returns a
// [*ScopeError]. The caller may ignore that error if equal ids mean the same message
// under both. A scope that was used before it was bound is bound by the next call.
//
// Call it before the first claim. It blocks for one store call. It does nothing if
// the store is not a [ScopeBinder].
func BindScope(ctx context.Context, store Store, scope string, owner ScopeOwner) error {
	return scopeIs(ctx, store, scope, owner, owner.String())
}

// CheckScope returns the error that [BindScope] would return, and binds nothing. It
// blocks for one store call.
func CheckScope(ctx context.Context, store Store, scope string, owner ScopeOwner) error {
	return scopeIs(ctx, store, scope, owner, "")
}

// scopeIs binds a scope to the text bind, unless this is empty, and checks that every owner of
// the scope shares it with owner.
func scopeIs(ctx context.Context, store Store, scope string, owner ScopeOwner, bind string) error {
	binder, ok := As[ScopeBinder](store)
	if !ok {
		return nil
	}
	if err := owner.Validate(); err != nil {
		return fmt.Errorf("semel: bind scope %q: %w", scope, err)
	}
	if err := (Key{Scope: scope, ID: "x"}).Validate(); err != nil {
		return err
	}
	text, err := binder.BindScope(ctx, scope, bind)
	if err != nil {
		return fmt.Errorf("semel: bind scope %q: %w", scope, err)
	}
	var bound ScopeOwner
	if bound.Parse(text); !bound.Shares(owner) && (text != "" || bind != "") {
		return &ScopeError{Scope: scope, Owner: owner, Bound: bound}
	}
	return nil
}

// ScopeError says that a scope is bound to another owner. See [BindScope].
type ScopeError struct {
	Scope string
	// Owner is the refused owner, and Bound the one to which the scope is bound. Bound
	// is empty if the store cannot name it.
	Owner, Bound ScopeOwner
}

// Error implements error.
func (e *ScopeError) Error() string {
	if e.Bound.Rule == e.Owner.Rule {
		return fmt.Sprintf("semel: scope %q belongs to the pipeline %s, so the pipeline %s would drop the messages of that pipeline as duplicates: use another scope", e.Scope, e.Bound.Pipeline, e.Owner.Pipeline)
	}
	bound := "another rule"
	if e.Bound.Rule != "" {
		bound = "the rule " + e.Bound.Rule
	}
	return fmt.Sprintf("semel: scope %q has ids found by %s, and ids found by %s could be equal to them by chance: use another scope", e.Scope, bound, e.Owner.Rule)
}

// Is reports whether target is ErrInvalidRequest.
func (e *ScopeError) Is(target error) bool { return target == ErrInvalidRequest }
