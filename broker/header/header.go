// Package header names the headers by which a message keeps its key from one
// broker to the next. A sink delivers those of [Output], and a key rule finds the key again,
// see [KeyOf].
package header

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Names of the headers of an output.
const (
	Key       = "semel-key"
	KeyBase64 = "semel-key-base64" // instead of Key, if the id is not printable, or has a space at an end
	Scope     = "semel-scope"      // if it is not the pipeline's name
	Attempt   = "semel-attempt"    // from the second attempt on
	Token     = "semel-token"
	Pipeline  = "semel-pipeline"

	// The first pipeline sets these, and the following ones keep them.
	FirstSeen = "semel-first-seen" // RFC 3339
	Origin    = "semel-origin"     // the place in the source of that pipeline
)

// IsKey reports whether a name is one of these names. An output replaces such
// headers of its input.
func IsKey(name string) bool {
	switch name {
	case Key, KeyBase64, Scope, Attempt, Token, Pipeline:
		return true
	}
	return false
}

// OfKey returns the header that names an id, and its value.
func OfKey(id string) (name, value string) {
	if printable(id) {
		return Key, id
	}
	return KeyBase64, base64.StdEncoding.EncodeToString([]byte(id))
}

// KeyOf returns the id that the headers of a message name.
func KeyOf(m *semel.Message) (id string, ok bool) {
	if value, ok := m.Header(Key); ok {
		return string(value), true
	}
	if value, ok := m.Header(KeyBase64); ok {
		text, err := base64.StdEncoding.DecodeString(string(value))
		return string(text), err == nil
	}
	return "", false
}

// AppendTime appends a time as FirstSeen has it.
func AppendTime(dst []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z07:00")
}

// Output returns the headers of an item's output: those of its message, and those
// that name its key, attempt, redrive and first place. name is the pipeline's name.
func Output(it *pipeline.Item, name string) []semel.Header {
	list := make([]semel.Header, 0, len(it.Message.Headers)+8)
	for _, h := range it.Message.Headers {
		if !IsKey(h.Name) && h.Name != pipeline.RedriveHeader {
			list = append(list, h)
		}
	}
	add := func(name, value string) { list = append(list, semel.Header{Name: name, Value: []byte(value)}) }
	add(OfKey(it.Call.Key.ID))
	if it.Call.Key.Scope != name {
		add(Scope, it.Call.Key.Scope)
	}
	if name != "" {
		add(Pipeline, name)
	}
	if it.Attempt > 1 {
		add(Attempt, strconv.Itoa(it.Attempt))
	}
	if it.Token > 0 {
		add(Token, strconv.FormatUint(uint64(it.Token), 10))
	}
	if it.Redrive > 0 {
		add(pipeline.RedriveHeader, strconv.Itoa(it.Redrive))
	}
	if _, later := it.Message.Header(Origin); !later && !it.Seen.IsZero() {
		add(FirstSeen, string(AppendTime(nil, it.Seen)))
		add(Origin, string(it.AppendPlace(nil)))
	}
	return list
}

// Redrives returns how often a message was redriven, by its header.
func Redrives(m *semel.Message) int {
	value, ok := m.Header(pipeline.RedriveHeader)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(string(value))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// printable reports whether an id can be shown as text, and arrives in a header as it is.
// Some protocols remove spaces at the ends of a header.
func printable(id string) bool {
	if strings.TrimSpace(id) != id {
		return false
	}
	if isPlain(id) {
		return true
	}
	if !utf8.ValidString(id) {
		return false
	}
	for _, c := range id {
		if !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}

// isPlain reports whether an id is printable ASCII, as most are.
func isPlain(id string) bool {
	for i := range len(id) {
		if id[i] < ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}
