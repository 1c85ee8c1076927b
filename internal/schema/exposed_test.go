package schema_test

import (
	"strings"
	"testing"
)

// TestSecretsInPlainTextAreExposed reads each text, and expects the path of the field or
// none.
func TestSecretsInPlainTextAreExposed(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PW": "canary", "DSN": "postgres://app:canary@db/x", "QUERY": "password=canary"}
	for _, c := range []struct{ text, path string }{
		{"token: canary", "shop.token"},
		{"token: '${env:PW}'", ""},
		{"token: 'Bearer ${env:PW}'", ""},
		{"url: 'postgres://app:canary@db/x'", "shop.url"},
		{"url: 'host=db user=app password=canary'", "shop.url"},
		{"url: 'postgres://db/x?user=app&password=canary'", "shop.url"},
		{"url: 'postgres://${env:PW}:canary@db/x'", "shop.url"},
		{"url: 'postgres://app:${env:PW}@db/x'", ""},
		{"url: 'postgres://app:x${env:PW}@db/x'", ""},
		{"url: 'postgres://db/x?${env:QUERY}'", ""},
		{"url: '${env:DSN}'", ""},
		{"url: 'postgres://app@db/x?passfile=/p'", ""},
		{"hook: 'https://u:canary@h/'", "shop.hook"},
		{"hook: 'https://h/canary'", ""},
	} {
		_, doc := read(t, "name: n\n"+c.text, env)
		if err := doc.Err(); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
		var paths []string
		for _, x := range doc.Exposed {
			paths = append(paths, x.Path)
			if x.At.Line != 2 || x.File != "" || x.Mode != 0 {
				t.Errorf("%s: %+v", c.text, x)
			}
		}
		if got := strings.Join(paths, " "); got != c.path {
			t.Errorf("%s: exposed %q, want %q", c.text, got, c.path)
		}
	}
}
