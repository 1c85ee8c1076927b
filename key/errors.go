package key

import (
	"errors"
	"fmt"
	"strconv"
)

// These are sentinels for errors.Is: the message has no id, for one of three
// reasons. All errors of this package are permanent: the same message and the
// same rule give the same error again.
var (
	// ErrMissing means that a part of the id is absent, null or empty. See
	// [*MissingError].
	ErrMissing = errors.New("the id is missing")
	// ErrNotScalar means that an object or an array was found instead of an id.
	// See [*NotScalarError].
	ErrNotScalar = errors.New("an object or array is not an id")
	// ErrSyntax means that the document is not JSON. See [*SyntaxError].
	ErrSyntax = errors.New("invalid JSON")
)

// Reason says why an id is missing.
type Reason uint8

const (
	// Absent means that there is no such member, element, header or body.
	Absent Reason = iota
	// IsNull means that the value is null.
	IsNull
	// IsEmpty means that the value is the empty string.
	IsEmpty
)

// String returns the reason as messages show it: "missing", "null" or "empty".
func (r Reason) String() string {
	switch r {
	case Absent:
		return "missing"
	case IsNull:
		return "null"
	case IsEmpty:
		return "empty"
	}
	return "invalid"
}

// MissingError says which part of an id is missing, and why.
type MissingError struct {
	// Rule is the text of the path or rule that found no id.
	Rule   string
	Reason Reason
}

// Error implements error.
func (e *MissingError) Error() string { return "key: " + e.Rule + " is " + e.Reason.String() }

// Is reports whether target is ErrMissing.
func (e *MissingError) Is(target error) bool { return target == ErrMissing }

// NotScalarError says which part of an id is an object or an array.
type NotScalarError struct {
	// Rule is the text of the path that found the value.
	Rule string
	// Kind is Object or Array.
	Kind Kind
}

// Error implements error.
func (e *NotScalarError) Error() string {
	return "key: " + e.Rule + " is an " + e.Kind.String() + ", which is not an id: use hash(" + e.Rule + ")"
}

// Is reports whether target is ErrNotScalar.
func (e *NotScalarError) Is(target error) bool { return target == ErrNotScalar }

// SyntaxError says where a document stops being JSON.
type SyntaxError struct {
	// Offset is the number of bytes before the first wrong byte.
	Offset int
	// Problem describes the error at this byte.
	Problem string
}

// Error implements error.
func (e *SyntaxError) Error() string {
	return "key: invalid JSON: " + e.Problem + " at byte " + strconv.Itoa(e.Offset)
}

// Is reports whether target is ErrSyntax.
func (e *SyntaxError) Is(target error) bool { return target == ErrSyntax }

// DuplicateNameError says that an object has no canonical form because a member
// name occurs twice. JSON readers disagree on which of the two counts.
type DuplicateNameError struct {
	// Name is the name after escapes.
	Name string
	// Offset is the position of the object in bytes.
	Offset int
}

// Error implements error.
func (e *DuplicateNameError) Error() string {
	return fmt.Sprintf("key: no canonical form: the object at byte %d has two members %q", e.Offset, e.Name)
}

// RuleError says where the text of a rule, path or template is wrong.
type RuleError struct {
	// Text is the whole text. Column is the wrong byte in it, counted from 1.
	Text    string
	Column  int
	Problem string
}

// Error implements error.
func (e *RuleError) Error() string {
	return fmt.Sprintf("key: rule %q, column %d: %s", e.Text, e.Column, e.Problem)
}

// UnstableError refuses a rule that does not give all deliveries of a message
// the same key.
type UnstableError struct {
	// Rule is the text of the rule. Why is the reason.
	Rule, Why string

	rule *Rule
}

// Insist returns the rule, for callers who want it nevertheless. offset and origin are then
// the identity of the topic, queue or file, partition, offset, and a digest of the body. They
// are missing if the source has no positions. delivery-id adds the delivery count. timestamp
// and time are the time of the message. random and uuid are a new UUID.
func (e *UnstableError) Insist() *Rule { return e.rule }

// Error implements error.
func (e *UnstableError) Error() string {
	return "key: rule " + e.Rule + " is not stable: " + e.Why
}
