package httpidem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"mime"
	"strconv"
	"strings"

	"github.com/semel-dev/semel/internal/jsontext"
)

// maxDepth is the longest JSON pointer, and how deep a canonical form goes. Values below
// are compared as they are written.
const maxDepth = 32

// pointer returns the names in a JSON pointer (RFC 6901).
func pointer(text string) ([]string, error) {
	if !strings.HasPrefix(text, "/") {
		return nil, fmt.Errorf("%q is no JSON pointer: it begins with a slash, as in /order/id", text)
	}
	names := strings.Split(text[1:], "/")
	if len(names) > maxDepth {
		return nil, fmt.Errorf("%q has %d names, more than %d", text, len(names), maxDepth)
	}
	for i, name := range names {
		if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(name), "~") {
			return nil, fmt.Errorf("%q is no JSON pointer: a ~ is written ~0, and a slash in a name ~1", text)
		}
		names[i] = strings.NewReplacer("~0", "~", "~1", "/").Replace(name)
	}
	return names, nil
}

var errNotJSON = errors.New("the body is not valid JSON")

// isJSON reports whether a content type says that the body is JSON.
func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json"))
}

// valueAt returns the value at a pointer, as it is written, or nil. A name that comes
// twice on the way is an error: it is not known which one counts.
func valueAt(body []byte, path []string) ([]byte, error) {
	if !json.Valid(body) {
		return nil, errNotJSON
	}
	return valueBelow(jsontext.Trim(body), path)
}

// valueBelow is valueAt for a value of a valid text.
func valueBelow(value []byte, path []string) ([]byte, error) {
	for _, want := range path {
		var below []byte
		for name, v := range children(value) {
			if name.decoded != want {
				continue
			}
			if below != nil {
				return nil, fmt.Errorf("the name %q comes twice", want)
			}
			below = v
		}
		if value = below; value == nil {
			return nil, nil
		}
	}
	return value, nil
}

// childName is the name of a member of an object, or the index of an element of an array.
type childName struct {
	decoded string
	literal []byte // as it is written; nil for an element
}

// children yields the members of an object and the elements of an array, and nothing for
// other values. The value is valid JSON and begins with its first character.
func children(value []byte) iter.Seq2[childName, []byte] {
	return func(yield func(childName, []byte) bool) {
		n := 0
		for literal, child, at := jsontext.Next(value, 0); child != nil; literal, child, at = jsontext.Next(value, at) {
			name := childName{literal: literal}
			if literal != nil {
				name.decoded = unquote(literal)
			} else {
				name.decoded = strconv.Itoa(n)
				n++
			}
			if !yield(name, child) {
				return
			}
		}
	}
}

// unquote returns the text of a string.
func unquote(literal []byte) string {
	if bytes.IndexByte(literal, '\\') < 0 {
		return string(literal[1 : len(literal)-1])
	}
	var text string
	if err := json.Unmarshal(literal, &text); err != nil {
		return string(literal) // it is valid
	}
	return text
}

// tree is a set of JSON pointers. A nil tree is empty.
type tree struct {
	below map[string]*tree
	ends  bool // a pointer ends here
}

func (t *tree) add(path []string) {
	for _, name := range path {
		if t.below == nil {
			t.below = map[string]*tree{}
		}
		if t.below[name] == nil {
			t.below[name] = &tree{}
		}
		t = t.below[name]
	}
	t.ends = true
}

func (t *tree) at(name string) *tree {
	if t == nil {
		return nil
	}
	return t.below[name]
}
