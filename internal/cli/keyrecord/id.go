package keyrecord

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/key"
)

// maxIDParts limits a composite id on the command line. Each part may have two
// readings, and every combination is looked up.
const maxIDParts = 8

// IDReadings returns the ids that command-line words may mean, the most literal
// first. A word is a string. If it reads as a JSON number, true or false, it may
// also mean that. Several words are the parts of one composite id.
func IDReadings(words []string) ([]string, error) {
	if len(words) > maxIDParts {
		return nil, term.Usagef("a composite of %d ids: at most %d are supported", len(words), maxIDParts)
	}
	parts := [][]string{nil} // every combination so far
	for _, word := range words {
		if word == "" {
			return nil, term.Usagef("the id is empty: empty ids are never stored")
		}
		var next [][]string
		for _, reading := range wordReadings(word) {
			for _, begun := range parts {
				next = append(next, append(begun[:len(begun):len(begun)], reading))
			}
		}
		parts = next
	}
	ids := make([]string, len(parts))
	for i, combination := range parts {
		ids[i] = string(key.AppendComposite(nil, combination...))
	}
	return ids, nil
}

// Shaped returns the ids that the functions of a rule, such as lower(), make of ids. Those that
// stay the same are not among them.
func Shaped(rule *key.Rule, ids []string) (list []string) {
	if rule == nil {
		return nil // its value is not known on this machine
	}
	for _, id := range ids {
		if rule.Form() == key.FormFirst {
			for _, part := range rule.Rules() {
				list = append(list, Shaped(part, []string{id})...)
			}
		} else if shaped, err := shapedBy(rule, id); err == nil && shaped != id {
			list = append(list, shaped)
		}
	}
	return list
}

// shapedBy returns the id that a rule makes of an id, or of each part of it.
func shapedBy(rule *key.Rule, id string) (string, error) {
	switch rule.Form() {
	case key.FormShaped:
		shaped, err := rule.AppendShaped(nil, []byte(id))
		return string(shaped), err
	case key.FormAll:
		parts := compositeParts(id)
		if len(parts) != len(rule.Rules()) {
			return id, nil
		}
		for i, part := range rule.Rules() {
			var err error
			if parts[i], err = shapedBy(part, parts[i]); err != nil {
				return "", err
			}
		}
		return string(key.AppendComposite(nil, parts...)), nil
	}
	return id, nil
}

// compositeParts returns the parts of a composite, or nil for another id.
func compositeParts(id string) (parts []string) {
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

func wordReadings(word string) []string {
	readings := []string{string(key.AppendString(nil, word))}
	if c := word[0]; c == '-' || c >= '0' && c <= '9' || word == "true" || word == "false" {
		if id, err := NewIDParser().scalar([]byte(word)); err == nil {
			readings = append(readings, id)
		}
	}
	return readings
}

// IDParser reads ids from JSON. It uses the finder that reads message ids, so
// that a manual lookup makes the same id as a message.
type IDParser struct{ finder *key.Finder }

// NewIDParser returns a parser of ids. It is not safe for concurrent use.
func NewIDParser() IDParser {
	finder, err := key.NewFinder([]key.Path{{}}, nil)
	if err != nil {
		panic(err) // the path to the whole document is valid
	}
	return IDParser{finder}
}

// ID reads an id: a string, a number, true or false, or an array of them, which
// is a composite.
func (p IDParser) ID(text []byte) (string, error) {
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

func (p IDParser) scalar(text []byte) (string, error) {
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

// Scope reads a scope from a JSON string. It does not use encoding/json, which
// replaces half a surrogate pair and would make two scopes equal.
func (p IDParser) Scope(text []byte) (string, error) {
	if string(text) == `""` {
		return "", nil
	}
	id, err := p.scalar(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("scope: %w", err)
	case text[0] != '"':
		return "", errors.New("scope: expected a string")
	case strings.HasPrefix(id, "\x00u"):
		return "", errors.New(`scope: it has half of a surrogate pair: write it as "scope_base64"`)
	}
	return strings.TrimPrefix(id, "\x00s"), nil
}

// FormatJSONID returns the JSON from which idParser reads the id. It returns
// false if no JSON does, as for a content hash.
func FormatJSONID(id string) (json.RawMessage, bool) {
	text, ok := decodeID(id)
	if !ok || id[0] != mark {
		return text, ok
	}
	// A program may use any bytes as an id. Return JSON only if it reads back the
	// same.
	if again, err := NewIDParser().ID(text); err != nil || again != id {
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
	for _, own := range compositeParts(id) {
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
		case term.Shows(r):
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

// DisplayID shows an id to people: as the words that find it if they are
// unambiguous, and as JSON otherwise.
func DisplayID(id string) string {
	text, ok := FormatJSONID(id)
	if !ok {
		if len(id) > 2 && id[0] == mark && (id[1] == 'h' || id[1] == 'b') {
			return fmt.Sprintf("sha256:%x", id[2:])
		}
		return fmt.Sprintf("%q", id)
	}
	plain := text[0] == '"' && string(text[1:len(text)-1]) == id
	if !plain || id[0] == '[' || strings.TrimSpace(id) != id || len(wordReadings(id)) > 1 {
		return string(text)
	}
	return id
}

// JSONText represents arbitrary bytes in JSON. Valid UTF-8 becomes text. Other
// bytes become base64 in a second member, because replacement characters would
// make two ids equal.
func JSONText(value string) (text *string, encoded []byte) {
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
