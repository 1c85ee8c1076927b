package key

import (
	"errors"
	"fmt"
	"strconv"
)

// Sentinels to branch on with errors.Is. All of them are permanent: the same
// message and the same rule give the same error again.
var (
	// ErrMissing: a part of the id is absent, null or empty. See [*MissingError].
	ErrMissing = errors.New("the id is missing")
	// ErrNotScalar: an object or an array is not an id. See [*NotScalarError].
	ErrNotScalar = errors.New("an object or array is not an id")
	// ErrSyntax: the document is not JSON. See [*SyntaxError].
	ErrSyntax = errors.New("invalid JSON")
	// ErrDuplicateName: an object has two members of one name and therefore no
	// canonical form. See [*DuplicateNameError].
	ErrDuplicateName = errors.New("duplicate member name")
	// ErrRule: the text of a rule, path or template is wrong. See [*RuleError].
	ErrRule = errors.New("invalid key rule")
	// ErrUnstable: the rule gives two deliveries of one message two keys. See
	// [*UnstableError].
	ErrUnstable = errors.New("unstable key rule")
)

// Reason says in which way an id is missing.
type Reason uint8

const (
	// Absent: there is no such member, element, header or body.
	Absent Reason = iota
	// IsNull: the value is null.
	IsNull
	// IsEmpty: the value is the empty string.
	IsEmpty
)

// String returns the reason as it is used in messages: "missing", "null" or
// "empty".
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

// MissingError says which part of an id is missing and how.
type MissingError struct {
	// Rule is the text of the path or rule that found nothing.
	Rule   string
	Reason Reason
}

// Error implements error.
func (e *MissingError) Error() string { return "key: " + e.Rule + " is " + e.Reason.String() }

// Is reports that the error is an ErrMissing.
func (e *MissingError) Is(target error) bool { return target == ErrMissing }

// NotScalarError says which part of an id is an object or an array.
type NotScalarError struct {
	// Rule is the text of the path that found it.
	Rule string
	// Kind is Object or Array.
	Kind Kind
}

// Error implements error.
func (e *NotScalarError) Error() string {
	return "key: " + e.Rule + " is an " + e.Kind.String() + ", which is not an id: use hash(" + e.Rule + ")"
}

// Is reports that the error is an ErrNotScalar.
func (e *NotScalarError) Is(target error) bool { return target == ErrNotScalar }

// SyntaxError says where a document stops being JSON.
type SyntaxError struct {
	// Offset is the number of bytes before the first one that is wrong.
	Offset int
	// Problem is what is wrong there.
	Problem string
}

// Error implements error.
func (e *SyntaxError) Error() string {
	return "key: invalid JSON: " + e.Problem + " at byte " + strconv.Itoa(e.Offset)
}

// Is reports that the error is an ErrSyntax.
func (e *SyntaxError) Is(target error) bool { return target == ErrSyntax }

// DuplicateNameError refuses a canonical form to an object in which a member
// name occurs twice: readers disagree on which of the two counts.
type DuplicateNameError struct {
	// Name is the name after escapes.
	Name string
	// Offset is where the object begins.
	Offset int
}

// Error implements error.
func (e *DuplicateNameError) Error() string {
	return fmt.Sprintf("key: no canonical form: the object at byte %d has two members %q", e.Offset, e.Name)
}

// Is reports that the error is an ErrDuplicateName.
func (e *DuplicateNameError) Is(target error) bool { return target == ErrDuplicateName }

// RuleError says where the text of a rule, path or template is wrong.
type RuleError struct {
	// Text is the whole text, Column the byte in it, counted from 1.
	Text    string
	Column  int
	Problem string
}

// Error implements error.
func (e *RuleError) Error() string {
	return fmt.Sprintf("key: rule %q, column %d: %s", e.Text, e.Column, e.Problem)
}

// Is reports that the error is an ErrRule.
func (e *RuleError) Is(target error) bool { return target == ErrRule }

// UnstableError refuses a rule that does not give every delivery of a message
// the same key.
type UnstableError struct {
	// Rule is the rule's text, Why what goes wrong with it.
	Rule, Why string
}

// Error implements error.
func (e *UnstableError) Error() string {
	return "key: rule " + e.Rule + " is not stable: " + e.Why
}

// Is reports that the error is an ErrUnstable.
func (e *UnstableError) Is(target error) bool { return target == ErrUnstable }
