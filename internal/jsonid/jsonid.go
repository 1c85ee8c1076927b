// Package jsonid reads and writes the ids and scopes of keys as JSON has them. It uses the
// finder that reads ids of messages, so that an id that a person or a program writes is the
// id that a message has.
package jsonid

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/semel-dev/semel/key"
)

// Parser reads ids from JSON. It uses the finder that reads message ids, so
// that a manual lookup makes the same id as a message.
type Parser struct{ finder *key.Finder }

// NewParser returns a parser of ids. It is not safe for concurrent use.
func NewParser() Parser {
	finder, err := key.NewFinder([]key.Path{{}}, nil)
	if err != nil {
		panic(err) // the path to the whole document is valid
	}
	return Parser{finder}
}

// ID reads an id: a string, a number, true or false, or an array of them, which
// is a composite.
func (p Parser) ID(text []byte) (string, error) {
	var elements []json.RawMessage
	if len(text) == 0 || text[0] != '[' {
		return p.scalar(text)
	}
	if err := json.Unmarshal(text, &elements); err != nil {
		return "", err
	}
	if len(elements) == 0 {
		return "", errors.New("it is an empty array")
	}
	parts := make([]string, len(elements))
	for i, element := range elements {
		part, err := p.scalar(element)
		if err != nil {
			return "", fmt.Errorf("part %d: %w", i+1, err)
		}
		parts[i] = part
	}
	return string(key.AppendComposite(nil, parts...)), nil
}

func (p Parser) scalar(text []byte) (string, error) {
	if err := p.finder.Find(text); err != nil {
		return "", explainID(err)
	}
	id, err := p.finder.AppendID(nil)
	return string(id), explainID(err)
}

// explainID says why a JSON value is not an id. It removes the finder's text for
// the place.
func explainID(err error) error {
	var (
		missing   *key.MissingError
		notScalar *key.NotScalarError
		syntax    *key.SyntaxError
	)
	switch {
	case errors.As(err, &missing):
		return fmt.Errorf("it is %s", missing.Reason)
	case errors.As(err, &notScalar):
		return fmt.Errorf("it is an %s: expected a string, a number, true or false, or one array of these", notScalar.Kind)
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON: %s at byte %d", syntax.Problem, syntax.Offset+1)
	}
	return err
}

// Scope reads a scope from a JSON string.
func (p Parser) Scope(text []byte) (string, error) {
	scope, err := p.String(text)
	switch {
	case errors.Is(err, errHalf):
		return "", fmt.Errorf(`scope: %w: write it as "scope_base64"`, err)
	case err != nil:
		return "", fmt.Errorf("scope: %w", err)
	}
	return scope, nil
}

var errHalf = errors.New("it has half of a surrogate pair")

// String reads a text from a JSON string. It does not use encoding/json, which replaces
// half a surrogate pair and would make two texts equal.
func (p Parser) String(text []byte) (string, error) {
	if string(text) == `""` {
		return "", nil
	}
	id, err := p.scalar(text)
	switch {
	case err != nil:
		return "", err
	case text[0] != '"':
		return "", errors.New("expected a string")
	case strings.HasPrefix(id, "\x00u"):
		return "", errHalf
	}
	return strings.TrimPrefix(id, "\x00s"), nil
}

// Format returns the JSON from which idParser reads the id. It returns
// false if no JSON does, as for a content hash.
func Format(id string) (json.RawMessage, bool) {
	text, ok := decodeID(id)
	if !ok || id[0] != mark {
		return text, ok
	}
	// A program may use any bytes as an id. Return JSON only if it reads back the
	// same.
	if again, err := NewParser().ID(text); err != nil || again != id {
		return nil, false
	}
	return text, true
}

// mark is the first byte of every id that is not a plain string.
const mark = 0

func decodeID(id string) ([]byte, bool) {
	if id == "" || id[0] != mark {
		return quoteID(id)
	}
	if len(id) < 2 {
		return nil, false
	}
	body := id[2:]
	switch id[1] {
	case 's':
		return quoteID(body)
	case 'n', 'u':
		return []byte(body), json.Valid([]byte(body))
	case 't':
		return []byte("true"), true
	case 'f':
		return []byte("false"), true
	case 'c':
		return decodeComposite(id)
	}
	return nil, false
}

func decodeComposite(id string) ([]byte, bool) {
	text := []byte{'['}
	for _, own := range Parts(id) {
		part, ok := decodeID(own)
		if !ok {
			return nil, false
		}
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = append(text, part...)
	}
	return append(text, ']'), len(text) > 1
}

func quoteID(text string) ([]byte, bool) {
	if text == "" || !utf8.ValidString(text) {
		return nil, false
	}
	return appendJSONString(nil, text), true
}

// appendJSONString quotes valid UTF-8 as readable JSON. It escapes only what JSON
// requires and characters that do not show.
func appendJSONString(dst []byte, text string) []byte {
	dst = append(dst, '"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case Shows(r):
			dst = utf8.AppendRune(dst, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, high, low)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
	}
	return append(dst, '"')
}

// Text represents arbitrary bytes in JSON. Valid UTF-8 becomes text. Other
// bytes become base64 in a second member, because replacement characters would
// make two ids equal.
func Text(value string) (text *string, encoded []byte) {
	if utf8.ValidString(value) {
		return &value, nil
	}
	return nil, []byte(value)
}

var errNotBase64 = errors.New("not base64")

// ParseBase64 returns the bytes of a base64 text.
func ParseBase64(text string) (string, error) {
	value, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", errNotBase64
	}
	return string(value), nil
}

// Parts returns the parts of a composite id, or nil for another id.
func Parts(id string) (parts []string) {
	rest, ok := strings.CutPrefix(id, "\x00c")
	for ok && rest != "" {
		length, n := binary.Uvarint([]byte(rest))
		if n <= 0 || length > uint64(len(rest)-n) {
			return nil
		}
		parts, rest = append(parts, rest[n:n+int(length)]), rest[n+int(length):]
	}
	return parts
}

// Shows reports whether a character is seen where it is printed. Two texts that differ
// in others look the same.
func Shows(r rune) bool {
	switch r {
	case 0x034f, 0x115f, 0x1160, 0x2800, 0x3164, 0xffa0: // they print, but are blank
		return false
	}
	return unicode.IsPrint(r) || r > 0xffff && !unicode.Is(unicode.Cf, r) // Go's tables lack new emoji
}
