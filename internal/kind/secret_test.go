package kind_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/schema"
)

const canary = "canary-7f3a"

func TestSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	type hidden struct {
		Public  schema.Secret
		private schema.Secret
	}
	secret := schema.NewSecret(canary)
	if secret.Reveal() != canary || secret.IsZero() || !(schema.Secret{}).IsZero() || (schema.Secret{}).Reveal() != "" {
		t.Error("the secret itself is lost")
	}
	var log strings.Builder
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	logger.Info("x", "secret", secret, "within", hidden{secret, secret})
	asJSON, err := json.Marshal(hidden{secret, secret})
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Marshal(hidden{secret, secret})
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{log.String(), string(asJSON), string(asYAML), secret.String(), errors.Join(fmt.Errorf("%w", errors.New(secret.String()))).Error()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
		shown = append(shown, fmt.Sprintf(verb, secret), fmt.Sprintf(verb, &secret), fmt.Sprintf(verb, hidden{secret, secret}), fmt.Sprintf(verb, []schema.Secret{secret}), fmt.Sprintf(verb, map[string]any{"a": secret}))
	}
	for _, text := range shown {
		if strings.Contains(text, canary) || strings.Contains(text, fmt.Sprintf("%x", canary)) {
			t.Errorf("the secret is shown: %s", text)
		}
	}
}

func TestAddressesAreShownWithoutPasswords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ address, shown string }{
		{"redis://localhost:6379/0", "redis://localhost:6379/0"},
		{"redis://:" + canary + "@localhost", "redis://:[hidden]@localhost"},
		{"rediss://app:" + canary + "@h1:1/2?client_name=x", "rediss://app:[hidden]@h1:1/2?client_name=x"},
		{"postgres://app:" + canary + "@h1:5432,h2:5433/db?sslmode=require", "postgres://app:[hidden]@h1:5432,h2:5433/db?sslmode=require"},
		{"postgres://app:a@" + canary + "@h/db", "postgres://app:[hidden]@h/db"},
		{"postgres://app@h/db?password=" + canary + "&sslpassword=" + canary + "&x=y", "postgres://app@h/db?password=[hidden]&sslpassword=[hidden]&x=y"},
		{"postgres://app:a/" + canary + "@h/db", "[hidden]"},
		{"postgres://app:12?" + canary + "@h/db", "[hidden]"},
		{"postgres://app:a#" + canary + "@h/db", "[hidden]"},
		{"host=h password=" + canary + " dbname=d", "host=h password=[hidden] dbname=d"},
		{"host=h password = 'it\\'s " + canary + "' dbname = d", "host=h password = [hidden] dbname = d"},
		{"host=h password='" + canary, "[hidden]"},
		{"host=h password=x " + canary + " dbname=d", "[hidden]"},
		{"password=" + canary, "password=[hidden]"},
		{canary, "[hidden]"},
		{"host=h passfile=/x", "host=h passfile=/x"},
	} {
		secret := schema.NewAddress(c.address)
		if secret.String() != c.shown || secret.Reveal() != c.address {
			t.Errorf("%s is shown as %s, want %s", c.address, secret, c.shown)
		}
	}
}

// TestSecretsAreHiddenInTextsOfOthers has configurations with the canary as a
// secret, and texts as drivers write them.
func TestSecretsAreHiddenInTextsOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(name string) string {
		return map[string]string{"SECRET": canary, "URL": "redis://app:" + canary + "@h", "HOST": "db.internal"}[name]
	}
	for _, text := range []string{
		`redis: { url: "redis://:` + canary + `@h" }`,
		`redis: { url: "redis://:${env:SECRET}@h" }`,
		`redis: { url: "redis://:${file:secret}@h" }`,
		`redis: { url: "${env:URL}" }`,
		`redis: { cluster: ["h:1"], password: "` + canary + `" }`,
		`redis: { cluster: ["h:1"], password: "${env:SECRET}" }`,
		`redis: { sentinel: { addresses: ["h:1"], master: m, password: "${env:SECRET}" } }`,
		`redis: { url: "redis://h", prefix: "${file:secret}" }`,
		`postgres: { dsn: "postgres://app:${env:SECRET}@${env:HOST}/db" }`,
		`postgres: { dsn: "host=h user=app password='${env:SECRET}'" }`,
		`postgres: { dsn: "postgres://h/db?password=${file:secret}" }`,
		`postgres: { dsn: "postgres://app:${env:SECRET:-x}@h/db?sslcert=a" }`,
	} {
		f, err := kind.All().Parse(filepath.Join(dir, "c.yaml"), []byte("stores: { a: { "+text+" } }"), env)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for _, said := range []string{
			"parse \"redis://:" + canary + "@h\": it is bad", "user app, password " + canary, "AUTH failed for " + canary,
			fmt.Sprintf("%+v", f.Stores[0].Spec),
		} {
			wrapped := f.RedactError(fmt.Errorf("connect: %w: %s", os.ErrClosed, said))
			if got := f.Redact(said) + wrapped.Error(); strings.Contains(got, canary) {
				t.Errorf("%s: the secret is in %s", text, got)
			} else if !errors.Is(wrapped, os.ErrClosed) {
				t.Error("the cause is lost")
			}
		}
		if strings.Contains(text, "HOST") && f.Redact("dial db.internal: refused") != "dial db.internal: refused" {
			t.Error("what is no secret is hidden")
		}
	}
	odd := canary + "\"/ ü\n"
	f, err := kind.All().Parse("c.yaml", []byte("stores: { a: { redis: { cluster: ['h:1'], password: '${env:ODD}' } } }"), func(string) string { return odd })
	if err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{odd, fmt.Sprintf("%q", odd), url.PathEscape(odd), url.QueryEscape(odd), url.UserPassword("a", odd).String()} {
		if got := f.Redact(said); strings.Contains(got, canary) {
			t.Errorf("the secret is in %s", got)
		}
	}
	if (&config.File{}).Redact("x") != "x" || (&config.File{}).RedactError(nil) != nil {
		t.Error("without secrets nothing is to be changed")
	}
}

// TestPartsOfAWebhooksSecretsAreHidden: a target may quote a token without its
// scheme, or the password of a URL as it is sent, and a URL may have secrets behind
// its host.
func TestPartsOfAWebhooksSecretsAreHidden(t *testing.T) {
	t.Parallel()
	basic := base64.StdEncoding.EncodeToString([]byte("bob:" + canary))
	env := func(name string) string {
		return map[string]string{"SECRET": canary, "BASIC": basic, "URL": "https://example.org/services/" + canary, "HOST": "example.org"}[name]
	}
	for _, c := range []struct{ written, shown string }{
		{`{ url: "https://example.org/", headers: { Authorization: "Bearer ${env:SECRET}" } }`, "https://example.org/"},
		{`{ url: "https://example.org/", headers: { Authorization: "bearer ` + canary + `" } }`, "https://example.org/"},
		{`{ url: "https://example.org/", headers: { Authorization: "Basic ${env:BASIC}" } }`, "https://example.org/"},
		{`{ url: "https://example.org/", headers: { X-Key: "v1=${env:SECRET};" } }`, "https://example.org/"},
		{`{ url: "https://bob:${env:SECRET}@${env:HOST}/x" }`, "https://[hidden]@example.org/x"},
		{`{ url: "https://bob:` + canary + `@example.org/x" }`, "https://bob:[hidden]@example.org/x"},
		{`{ url: "https://${env:SECRET}@example.org/x" }`, "https://[hidden]@example.org/x"},
		{`{ url: "https://${env:HOST}/services/${env:SECRET}/${env:SECRET}/x" }`, "https://example.org/services/[hidden]/[hidden]/x"},
		{`{ url: "${env:URL}" }`, "https://example.org/[hidden]"},
		{`{ url: "https://example.org/x?api_key=${env:SECRET}&a=b" }`, "https://example.org/x?[hidden]"},
		{`{ url: "https://example.org?api_key=` + canary + `" }`, "https://example.org?[hidden]"},
	} {
		f, err := kind.All().Parse("c.yaml", []byte("pipelines: { p: { source: { file: { paths: [in] } }, key: { id: .id }, store: s, sink: { webhook: "+c.written+" } } }\nstores: { s: { memory: {} } }"), env)
		if err != nil {
			t.Fatalf("%s: %v", c.written, err)
		}
		said := []string{"token " + canary + " expired", "api_key=" + canary, "services/" + canary, "got " + basic, "Basic " + basic}
		if strings.Contains(c.written, "?api_key="+canary) {
			said = said[1:2]
		}
		if strings.Contains(c.written, "URL") {
			said = said[2:3]
		}
		if !strings.Contains(c.written, "bob") && !strings.Contains(c.written, "BASIC") {
			said = said[:min(3, len(said))]
		}
		for _, text := range append(said, explain.Explain(f, f.Pipelines[0]).Text()) {
			if got := f.Redact(text); strings.Contains(got, canary) || strings.Contains(got, basic) {
				t.Errorf("%s: the secret is in %s", c.written, got)
			}
		}
		if got := f.Pipelines[0].Sink.About().Name; got != "webhook POST "+c.shown {
			t.Errorf("%s is shown as %s, want %s", c.written, got, c.shown)
		}
		if got := f.Redact("example.org/ a=b"); got != "example.org/ a=b" {
			t.Errorf("%s: %s", c.written, got)
		}
	}
}

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
