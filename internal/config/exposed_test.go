package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/kind"
)

// TestLintNamesSecretsInPlainText reads each text as a value of the file, and expects a
// finding at the path or none.
func TestLintNamesSecretsInPlainText(t *testing.T) {
	t.Parallel()
	env := func(name string) string {
		return map[string]string{"PW": "canary", "DSN": "postgres://app:canary@db/x", "QUERY": "password=canary"}[name]
	}
	const store = "stores: { s: { embedded: { path: k } } }\n"
	const webhook = "pipelines: { p: { key: { id: .a }, store: s, source: { http: { listen: '127.0.0.1:80'%SOURCE } }, sink: { webhook: { url: 'https://1.1.1.1/', headers: { %SINK } } } } }"
	pipeline := func(source, sink string) string {
		return store + strings.NewReplacer("%SOURCE", source, "%SINK", sink).Replace(webhook)
	}
	for _, c := range []struct{ text, path string }{
		{"stores: { s: { postgres: { dsn: 'postgres://app:canary@db/x' } } }", "stores.s.postgres.dsn"},
		{"stores: { s: { postgres: { dsn: 'host=db user=app password=canary' } } }", "stores.s.postgres.dsn"},
		{"stores: { s: { postgres: { dsn: 'postgres://db/x?user=app&password=canary' } } }", "stores.s.postgres.dsn"},
		{"stores: { s: { postgres: { dsn: 'postgres://${env:PW}:canary@db/x' } } }", "stores.s.postgres.dsn"},
		{"stores: { s: { postgres: { dsn: 'postgres://app:${env:PW}@db/x' } } }", ""},
		{"stores: { s: { postgres: { dsn: 'postgres://app:x${env:PW}@db/x' } } }", ""},
		{"stores: { s: { postgres: { dsn: 'postgres://db/x?${env:QUERY}' } } }", ""},
		{"stores: { s: { postgres: { dsn: '${env:DSN}' } } }", ""},
		{"stores: { s: { postgres: { dsn: '${env:NONE:-postgres://app:canary@db/x}' } } }", ""},
		{"stores: { s: { postgres: { dsn: 'postgres://app@db/x?passfile=/p' } } }", ""},
		{"stores: { s: { redis: { url: 'redis://:canary@db/0' } } }", "stores.s.redis.url"},
		{"stores: { s: { redis: { cluster: ['h:1'], password: canary } } }", "stores.s.redis.password"},
		{"stores: { s: { redis: { cluster: ['h:1'], password: '${env:PW}' } } }", ""},
		{store + "admin: { auth: { username: a, password: canary } }", "admin.auth.password"},
		{store + "admin: { auth: { token: canary } }", "admin.auth.token"},
		{store + "x-pw: &pw canary\nadmin: { auth: { username: a, password: *pw } }", "admin.auth.password"},
		{pipeline(", token: canary", ""), "pipelines.p.source.http.token"},
		{pipeline("", "Authorization: 'Bearer canary'"), "pipelines.p.sink.webhook.headers.Authorization"},
		{pipeline(", token: '${env:PW}'", "Authorization: 'Bearer ${env:PW}', Content-Type: application/json"), ""},
	} {
		f, err := kind.All().Parse("c.yaml", []byte(c.text), env)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		var paths []string
		for _, x := range f.Lint() {
			if x.Found == "a secret as plain text" {
				paths = append(paths, x.Subject)
				if of := strings.Contains(x.Subject, "pipelines.p."); of != (x.Pipeline == "p") || x.Place.Line == 0 || !strings.Contains(x.Remedy, "${env:NAME}") {
					t.Errorf("%s: %+v", c.text, x)
				}
			}
		}
		if want := slices.DeleteFunc([]string{c.path}, func(path string) bool { return path == "" }); !slices.Equal(paths, want) {
			t.Errorf("%s: found %q, want %q", c.text, paths, want)
		}
	}
}
