package diagnose

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/semel-dev/semel/key"
)

// Flaw is why a text is no JSON document with an id.
type Flaw uint8

const (
	// NoFlaw: none of the others shows.
	NoFlaw Flaw = iota
	// Array is one JSON array, or a part of it on a line of its own.
	Array
	// SpansLines is a part of a document that spans lines.
	SpansLines
	// Several are documents behind each other.
	Several
	// Separated are the columns of a row, such as one of CSV.
	Separated
	// JSONInText is a JSON string that has a document.
	JSONInText
	// Foreign is another format or encoding, or signs that JSON has not. Its description has the
	// remedy.
	Foreign
)

// remedies are those of a message. A command line has others.
var remedies = map[Flaw]string{
	Array:      ": write each element as a message of its own; a file source reads arrays with format: json, and an http source with split: array",
	SpansLines: ": write each document on a line of its own, for example with jq -c; a file source reads such documents with format: json",
	Several:    ": write each as a message of its own; a file source reads them with format: json, and an http source with split: lines if each has a line",
	Separated:  ": a file source reads it with format: csv or tsv",
	JSONInText: ": write unwrap: [json]",
}

// Body says why no JSON document with an id stands in a body, and what to do, if the body shows it.
// err is what a key rule found. Body returns "" if it finds no such cause. It shows nothing of the
// body but single signs.
func Body(body []byte, err error) string {
	flaw, is := FlawOf(body, err)
	if flaw == NoFlaw {
		return ""
	}
	return "the body " + is + remedies[flaw]
}

// NoKey adds to the error of a message without a key what its body is instead of a JSON document,
// or the closest path that it has.
func NoKey(body []byte, err error) error {
	if is := Body(body, err); is != "" {
		return fmt.Errorf("%w: %s", err, is)
	}
	missing, ok := errors.AsType[*key.MissingError](err)
	if !ok || missing.Reason != key.Absent {
		return err
	}
	if _, near := Member(body, missing.Rule); near != "" {
		return fmt.Errorf("%w: did you mean %s?", err, near)
	}
	return err
}

// FlawOf returns the flaw of a text, and a phrase about the text, as in "is one JSON array".
func FlawOf(text []byte, err error) (flaw Flaw, is string) {
	syntax, isSyntax := errors.AsType[*key.SyntaxError](err)
	missing, isMissing := errors.AsType[*key.MissingError](err)
	trimmed := bytes.TrimSpace(text)
	switch {
	case len(trimmed) == 0:
		return NoFlaw, ""
	case isMissing && missing.Reason == key.Absent:
		return flawOfJSON(trimmed)
	case !isSyntax:
		return NoFlaw, ""
	}
	if is := foreign(text); is != "" {
		return Foreign, is
	}
	at := min(syntax.Offset, len(text))
	for at < len(text) && bytes.IndexByte([]byte(" \t\r\n"), text[at]) >= 0 {
		at++
	}
	if is := sign(text, at); is != "" {
		return Foreign, is
	}
	before, rest := bytes.TrimSpace(text[:at]), bytes.TrimSpace(text[at:])
	switch opens := trimmed[0] == '{' || trimmed[0] == '['; {
	case opens && len(rest) == 0, len(trimmed) == 1 && bytes.ContainsAny(trimmed, "]}"), string(trimmed) == "],":
		return SpansLines, "is a part of a document that spans lines"
	case opens && string(rest) == ",":
		return Array, "is an element of an array that spans lines"
	case opens && len(before) > 0 && bytes.IndexByte([]byte(`}]`), before[len(before)-1]) >= 0 && bytes.IndexByte([]byte(`{["`), rest[0]) >= 0 && isWhole(before):
		return Several, "has two documents"
	}
	if name := separator(string(trimmed)); name != "" {
		return Separated, "looks like " + name
	}
	return NoFlaw, ""
}

// flawOfJSON is FlawOf for a document in which the rule finds nothing.
func flawOfJSON(document []byte) (flaw Flaw, is string) {
	switch c := document[0]; {
	case c == '[':
		return Array, "is an array, and not an object"
	case c == '"' && len(document) > 1 && (document[1] == '{' || document[1] == '['):
		return JSONInText, "is JSON in a text, as of a producer that encodes twice"
	case c != '{':
		return Foreign, "is a single value, and not an object"
	}
	return NoFlaw, ""
}

// isWhole reports whether a text is one document.
func isWhole(text []byte) bool {
	finder, err := key.NewFinder(nil, nil)
	return err == nil && finder.Find(text) == nil
}

// ForeignFile names the format or the encoding of a file by its first bytes, as in "is in UTF-16", with
// a remedy. It returns "" if they may be text.
func ForeignFile(head []byte) string {
	const enough = 64
	head = head[:min(len(head), enough)]
	for at := 0; at < len(head); {
		c, size := utf8.DecodeRune(head[at:])
		if isControl(c) || c == utf8.RuneError && size == 1 && utf8.FullRune(head[at:]) {
			return byMagic(head)
		}
		at += size
	}
	return ""
}

// byMagic names a format or an encoding by its first bytes.
func byMagic(text []byte) string {
	for _, begin := range []struct{ magic, is string }{
		{"\x1f\x8b", "is compressed with gzip"}, {"\x28\xb5\x2f\xfd", "is compressed with zstd"}, {"BZh", "is compressed with bzip2"}, {"\xfd7zXZ\x00", "is compressed with xz"},
		{"PK\x03\x04", "is a zip archive, as XLSX files are"}, {"PAR1", "is Parquet, which Semel does not read: convert it to JSON lines or CSV"}, {"Obj\x01", "is Avro" + unread},
		{"\xff\xfe", utf16}, {"\xfe\xff", utf16},
	} {
		if bytes.HasPrefix(text, []byte(begin.magic)) {
			return begin.is
		}
	}
	if zero := bytes.IndexByte(text, 0); zero == 0 || zero == 1 { // without a byte order mark: every other byte is 0
		for i, c := range text[:min(len(text), 4)] {
			if (c == 0) != (i%2 == zero) || c != 0 && (isControl(rune(c)) || c >= utf8.RuneSelf) {
				return ""
			}
		}
		return utf16
	}
	return ""
}

// foreign names a format or an encoding by signs that JSON has not. It never advises to remove bytes
// from what may be binary.
func foreign(text []byte) string {
	if is := byMagic(text); is != "" {
		return is
	}
	if bytes.HasPrefix(text, []byte("\ufeff")) {
		return "begins with a byte order mark, which JSON has not: write UTF-8 without it"
	}
	const frame = 5 // 0x00 and the id of the schema
	if zeros := len(text) - len(bytes.TrimLeft(text, "\x00")); 0 < zeros && zeros < frame && len(text) > frame {
		return "begins with 0x00 and four bytes, as Avro, Protobuf and JSON of a schema registry do" + unread
	}
	if isBinary(text) {
		return "has bytes that no text has, as Avro, Protobuf and other binary formats do" + unread
	}
	if at := bytes.IndexByte(text, 0); at >= 0 {
		return fmt.Sprintf("has a NUL at byte %d: the writer padded it, or lost data in a crash; remove NULs with tr -d '\\000'", at)
	}
	return ""
}

const unread = ", which Semel does not read: take the key from a header or the record key, or convert it to JSON"

// isBinary reports whether a text with control characters is binary: it does not open as JSON, or
// it is not UTF-8.
func isBinary(text []byte) bool {
	text = bytes.TrimSuffix(bytes.TrimRight(text, "\r\n"), []byte("\x1a")) // of DOS
	opens := bytes.TrimLeftFunc(text, func(c rune) bool { return c == 0 || c == 0x1e || unicode.IsSpace(c) || unicode.Is(unicode.Cf, c) })
	isJSON := len(opens) == 0 || opens[0] == '{' || opens[0] == '['
	return bytes.ContainsFunc(text, isControl) && !(isJSON && utf8.Valid(text))
}

// isControl reports whether no text has a character. Record separators stand between JSON texts.
func isControl(c rune) bool {
	return c < ' ' && c != '\t' && c != '\n' && c != '\r' && c != 0x1e
}

const utf16 = "is in UTF-16, and Semel reads UTF-8: convert it with iconv -f UTF-16 -t UTF-8"

// sign says what stands at a place where JSON has nothing like it.
func sign(text []byte, at int) string {
	if at == len(text) {
		return ""
	}
	rest := text[at:]
	c, _ := utf8.DecodeRune(rest)
	switch {
	case c == 0x1e:
		return fmt.Sprintf("has a record separator (RS) at byte %d, as JSON text sequences (RFC 7464) have: remove it with tr -d '\\036', or read a file with format: json", at)
	case c == '\ufeff':
		return fmt.Sprintf("has a byte order mark at byte %d, as joined files have: remove it with sed 's/\\xEF\\xBB\\xBF//g'", at)
	case c != utf8.RuneError && (unicode.IsControl(c) || unicode.Is(unicode.Cf, c) || unicode.IsSpace(c)):
		return fmt.Sprintf("has the invisible character %U at byte %d: remove it", c, at)
	}
	for _, word := range []string{"NaN", "nan", "Infinity", "-Infinity", "inf", "-inf"} {
		if bytes.HasPrefix(rest, []byte(word)) || word[0] == '-' && at > 0 && bytes.HasPrefix(text[at-1:], []byte(word)) {
			return fmt.Sprintf("has %s at byte %d, and JSON has no such number: let the producer write null (in Python, json.dumps(…, allow_nan=False) finds it)", word, at)
		}
	}
	for _, word := range []string{"True", "False", "None", "'", "b'", "u'", "datetime.", "Decimal("} {
		if bytes.HasPrefix(rest, []byte(word)) && (word != "'" || at > 0) {
			return fmt.Sprintf("is what Python prints (%s at byte %d), and not JSON: write it with json.dumps", strings.TrimRight(word, ".("), at)
		}
	}
	if i := bytes.IndexByte(text, '\r'); i >= 0 && i < len(text)-1 && bytes.IndexByte(text, '\n') < 0 {
		return "has lines that end with a carriage return (CR) alone: pass the input through tr '\\r' '\\n'"
	}
	return ""
}

// separator returns the format of a row, or "".
func separator(text string) string {
	for _, c := range []struct{ sign, name string }{{",", "CSV"}, {"\t", "TSV"}, {";", "CSV"}} {
		if fields := strings.Split(text, c.sign); len(fields) > 1 && !strings.ContainsAny(text, "{}[]:") && !strings.Contains(text, c.sign+" ") {
			return c.name
		}
	}
	return ""
}
