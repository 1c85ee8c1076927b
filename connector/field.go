package connector

import (
	"fmt"
	"log/slog"
)

// Field is a field of a kind. Parser, error messages, JSON Schema and completion follow from it.
type Field struct {
	// Name is the name in a configuration, in letters, digits, - and _. No other field has it.
	Name string
	// Value is a pointer to where the value goes, and says what can be written:
	//
	//   - *string, *[]string: a text, or a list of texts
	//   - *Path: a file or directory. One that is written relative to the configuration is
	//     changed so that it can be opened. The kind creates what is not there.
	//   - *int: a whole number from Least to Most
	//   - *Size: a number of bytes, as in 64MiB
	//   - *time.Duration: a time above 0, as in 1m30s or 7d
	//   - *bool: true or false
	//   - *Secret: a secret, which a file names by a reference, as in ${env:NAME} or ${file:PATH}.
	//     One that is written out is read too, and semel lint warns of it.
	Value any
	// Doc is one or two sentences about the field.
	Doc string
	// Words are the only values of a *string. Defaults to nil: any.
	Words []string
	// Least and Most are the limits of an *int. It must have them.
	Least, Most int64
	// Set one of the three at most. Required means that the field must be there. Default is the
	// value of an absent one, as a user would write it. Without these two, Value stays as it is if
	// the field is absent, and Absent says what that means.
	Required        bool
	Default, Absent string
}

// Path is the path of a file or directory.
type Path string

// Size is a number of bytes.
type Size int64

// Secret is a text that no output shows: fmt, encoding/json and log/slog write a placeholder.
type Secret struct{ text *string }

// NewSecret returns a Secret with a text.
func NewSecret(text string) Secret { return Secret{&text} }

const hidden = "[hidden]"

// Reveal returns the text, or "" for the zero Secret.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// String returns a placeholder.
func (Secret) String() string { return hidden }

// Format implements fmt.Formatter. Every verb prints the placeholder.
func (Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, hidden) }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
