package cli

import (
	"encoding/json"
	"testing"
)

// An id in JSON is read back as the same id, whatever its bytes, so that an
// export never makes two ids equal.
func FuzzJSONIDsReadBack(f *testing.F) {
	for _, id := range []string{
		"plain", "42", "\x00n42", "\x00s\x00", "\xff", "\x00t", "\x00c\x01a\x04\x00n-1", "\x00c\x03\x00c\x01\x01a",
		"quote\"\\ \n\u202e\u2028", "\x00u\"\\ud800\"", "\x00", "\x00n1 ", "\x00u1", "\u007f\u0080😀", "\xed\xa0\x80",
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		text, ok := formatJSONID(id)
		if !ok {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("%q becomes %s, which is not JSON", id, text)
		}
		if again, err := newIDParser().id(text); err != nil || again != id {
			t.Errorf("%q becomes %s and then %q, %v", id, text, again, err)
		}
	})
}
