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
		"id,n": "CSV", "1,a": "CSV", "1;a;2": "CSV", "1\ta": "TSV", `"x","y"`: "CSV",
		"\x1f\x8b\x08": "gzip", "\x28\xb5\x2f\xfd": "zstd", "\xff\xfe{\x00": "UTF-16", "\xef\xbb\xbf{}": "byte order mark",
		`[{"id":1}]`: "is an array", "[": "spans lines", `{`: "spans lines", ` {"id":1,`: "spans lines", "]": "spans lines", `{"id":1},`: "element of an array",
		"": "", "{}": "", "Hello, world": "", "plain": "", `{"id":null}`: "", `{"id":1}}`: "", `{"a":"b,c"`: "spans lines",
	} {
		_, err := rule.Key("", &semel.Message{Body: []byte(body)})
		if got := Body([]byte(body), err); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
}
