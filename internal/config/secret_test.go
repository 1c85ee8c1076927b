package config_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
)

const canary = "canary-7f3a"

// TestErrorsOfAConfigurationHoldNoSecret breaks a configuration with secrets in
// many ways: it is cut at every byte, and every byte is replaced.
func TestErrorsOfAConfigurationHoldNoSecret(t *testing.T) {
	t.Parallel()
	env := func(name string) string { return map[string]string{"SECRET": canary}[name] }
	const whole = `
stores:
  a: { redis: { url: "redis://app:` + canary + `@h:1/0" } }
  b:
    redis: { cluster: ["h:1"], password: ` + canary + ` }
  c: { postgres: { dsn: "host=h password='` + canary + `'", schema: x } }
  d: { postgres: { dsn: "postgres://a:${env:SECRET}@h/d", partitions: "${env:SECRET}" } }
  e: { memory: { max_keys: "${env:SECRET}", keep_ids: "${env:SECRET}" } }
  f: { embedded: { path: x, fsync: "${env:SECRET}" } }
  g: { redis: { url: "${env:SECRET}" } }
  h: { filter: { rate: "${env:SECRET}" } }
  i: { postgres: { dsn: "` + canary + `" } }
  j: { redis: { url: ["` + canary + `"], password: { x: ` + canary + ` } } }
`
	check := func(text string) {
		if !strings.Contains(text, canary) {
			return // the change broke the canary itself
		}
		_, err := kind.All().Parse("c.yaml", []byte(text), env)
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("the secret is in the error:\n%v\nof:\n%s", err, text)
		}
	}
	check(whole)
	for i := range len(whole) {
		check(whole[:i])
		for _, c := range []string{"", "'", "\"", "\n", "\t", ":", "*", "[", "}", "\xff"} {
			check(whole[:i] + c + whole[i+1:])
		}
	}
}

func TestSecretsAreHiddenInErrorsThatKeepTheirCause(t *testing.T) {
	t.Parallel()
	f, err := kind.All().Parse("c.yaml", []byte(`stores: { a: { postgres: { dsn: "postgres://app:${env:SECRET}@${env:HOST}/db" } }, b: { redis: { url: "redis://h", prefix: "p" } } }`),
		func(name string) string { return map[string]string{"SECRET": canary, "HOST": "db.internal"}[name] })
	if err != nil {
		t.Fatal(err)
	}
	wrapped := f.RedactError(fmt.Errorf("connect: %w: user app, password %s at db.internal", os.ErrClosed, canary))
	if want := "connect: file already closed: user app, password [hidden] at db.internal"; wrapped.Error() != want || !errors.Is(wrapped, os.ErrClosed) {
		t.Errorf("%v, want %s", wrapped, want)
	}
	if (&config.File{}).Redact("x") != "x" || (&config.File{}).RedactError(nil) != nil {
		t.Error("a file without secrets changes texts")
	}
}
