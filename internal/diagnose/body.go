package diagnose

import (
	"bytes"
	"errors"
	"strings"

	"github.com/semel-dev/semel/key"
)

// Body says why no JSON document with an id stands in a body, if the body shows it: it is
// compressed, in another encoding, CSV, an array, or a part of a document that spans lines.
// err is what a key rule found. Body returns "" if it finds no such cause. It shows nothing
// of the body.
func Body(body []byte, err error) string {
	syntax, isSyntax := errors.AsType[*key.SyntaxError](err)
	missing, isMissing := errors.AsType[*key.MissingError](err)
	text := bytes.TrimSpace(body)
	switch {
	case len(text) == 0 || !isSyntax && !(isMissing && missing.Reason == key.Absent):
		return ""
	case text[0] == '[' && isMissing:
		return "the body is an array, and not an object: if each element is a message, write each on a line of its own"
	case !isSyntax:
		return ""
	}
	for _, begin := range []struct{ magic, what string }{
		{"\x1f\x8b", "compressed with gzip"}, {"\x28\xb5\x2f\xfd", "compressed with zstd"}, {"\xff\xfe", "in UTF-16, and JSON is in UTF-8"},
		{"\xfe\xff", "in UTF-16, and JSON is in UTF-8"}, {"\xef\xbb\xbf", "text behind a byte order mark, which JSON has not"},
	} {
		if bytes.HasPrefix(body, []byte(begin.magic)) {
			return "the body is " + begin.what
		}
	}
	rest := bytes.TrimSpace(body[min(syntax.Offset, len(body)):])
	switch {
	case (text[0] == '{' || text[0] == '[') && len(rest) == 0, string(text) == "]" || string(text) == "}" || string(text) == "],":
		return "the body is a part of a document that spans lines: write each document on a line of its own, for example with jq -c"
	case text[0] == '{' && string(rest) == ",":
		return "the body is an element of an array that spans lines: write each on a line of its own, for example with jq -c '.[]'"
	}
	for _, c := range []struct{ sign, name string }{{",", "CSV"}, {"\t", "TSV"}, {";", "CSV"}} {
		if fields := strings.Split(string(text), c.sign); len(fields) > 1 && !strings.ContainsAny(string(text), "{}[]:") && !strings.Contains(string(text), c.sign+" ") {
			return "the body looks like " + c.name
		}
	}
	return ""
}
