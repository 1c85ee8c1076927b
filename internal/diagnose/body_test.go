package diagnose

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

func TestABodyThatIsNotJSONIsExplained(t *testing.T) {
	t.Parallel()
	rule, err := key.ParseRule(".id")
	if err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{
		"id,n": "CSV: a file source reads it with format: csv", "1,a": "CSV", "1;a;2": "CSV", "1\ta": "TSV", `"x","y"`: "CSV",
		"\x1f\x8b\x08": "gzip", "\x28\xb5\x2f\xfd": "zstd", "BZh9": "bzip2", "PAR1\x15": "Parquet", "PK\x03\x04": "zip", "Obj\x01\x04": "Avro",
		"\x00\x00\x00\x00\x2a\x06o-1": "schema registry", "\x00\x00\x01\x86\xa1\x02\x08": "schema registry", "\x00\x00\x00\x00*{\"id\":1}": "schema registry", "\x00\x00\x00\x00{{\"id\":1}": "schema registry",
		"\x08\x96\x01\x12\x04test": "binary formats", "\n\x07order-1": "binary formats", "\"\x05hello": "binary formats", "\x06o-1": "binary formats", "\x81\xa2id\x01": "binary formats", "1\x01a": "binary formats", "{\xff\x00\x01": "binary formats",
		"\x00\x00\x00\x00\x00\x00{\"id\":1}": "NUL at byte 0",
		"\xff\xfe{\x00":                      "UTF-16", "{\x00\"\x00i\x00": "UTF-16", "\x00{\x00\"": "UTF-16", "\xef\xbb\xbf{}": "byte order mark",
		`[{"id":1}]`: "is an array", "[": "spans lines", `{`: "spans lines", ` {"id":1,`: "spans lines", "]": "spans lines", `{"id":1},`: "element of an array",
		`{"id":1}{"id":2}`: "two documents", "{\"id\":1}\n{\"id\":2}\n": "an http source with split: lines", `{"id":1} {"id":2}`: "two documents", `[1][2]`: "two documents",
		"{\"id\":1}\ufeff{\"id\":2}": "byte order mark at byte 8", "\x1e{\"id\":1}": "record separator (RS) at byte 0", "{\"id\":1}\x00\x00": "NUL at byte 8",
		"{\u00a0\"id\":1}": "U+00A0 at byte 1", "{\"id\":\u200b1}": "U+200B at byte 6", "{\"id\":1}\x1a": "U+001A at byte 8",
		`{'id': 1}`: "what Python prints", `{"id": True}`: "what Python prints (True", `{"id": None}`: "what Python prints (None", `{"x":NaN,"id":1}`: "NaN at byte 5", `{"x":-Infinity}`: "Infinity", `{"x":nan}`: "nan",
		"{\"id\":1}\r{\"id\":2}\r": "carriage return (CR) alone", `"{\"id\":1}"`: "unwrap: [json]", `7`: "single value", `"text"`: "single value",
		"": "", "{}": "", "Hello, world": "", "plain": "", `{"id":null}`: "", `{"id":1}}`: "", `{"a":"b,c"`: "spans lines",
	} {
		_, err := rule.Key("", &semel.Message{Body: []byte(body)})
		if got := Body([]byte(body), err); strings.Contains(want, "binary") && strings.Contains(got, "remove") || (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q (%v)", body, got, want, err)
		}
	}
}

func TestAForeignFileIsKnownByItsFirstBytes(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]string{
		"id,n\n1,a\n": "", "\ufeffid\n": "", "PAR1,BZh\n": "", "BZh9,n\n": "", "a\tb\n": "", "\xc4rzte;n\n": "", "": "", "\x1e{}": "", "\x01": "", strings.Repeat("x", 63) + "ä": "",
		"PAR1\x15\x04": "Parquet", "Obj\x01\x04": "Avro", "PK\x03\x04\n": "zip", "\x1f\x8b\x08": "gzip", "BZh91AY&SY\x00\x17": "bzip2", "\xff\xfei\x00": "UTF-16", "i\x00d\x00": "UTF-16", "\x00i\x00d\x00": "UTF-16",
	} {
		if got := ForeignFile([]byte(head)); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", head, got, want)
		}
	}
}
