package schema_test

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

// TestSecretsAreHiddenInDriverErrors has fields with the canary as a secret, and texts
// as drivers write them.
func TestSecretsAreHiddenInDriverErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	odd := canary + "\"/ ü\n"
	basic := base64.StdEncoding.EncodeToString([]byte("bob:" + canary))
	env := map[string]string{"SECRET": canary, "URL": "redis://app:" + canary + "@h", "HOST": "db.internal", "ODD": odd, "BASIC": basic}
	drivers := []string{"parse \"redis://:" + canary + "@h\": it is bad", "user app, password " + canary, "AUTH failed for " + canary}
	for _, c := range []struct {
		text string
		said []string
	}{
		{`url: "redis://:` + canary + `@h"`, drivers},
		{`url: "redis://:${env:SECRET}@h"`, drivers},
		{`url: "redis://:${file:secret}@h"`, drivers},
		{`url: "${env:URL}"`, drivers},
		{`url: "postgres://app:${env:SECRET}@${env:HOST}/db"`, drivers},
		{`url: "host=h user=app password='${env:SECRET}'"`, drivers},
		{`url: "postgres://h/db?password=${file:secret}"`, drivers},
		{`url: "postgres://app:${env:SECRET:-x}@h/db?sslcert=a"`, drivers},
		{`token: "` + canary + `"`, drivers},
		{`token: "${env:SECRET}"`, drivers},
		{`table: "${file:secret}"`, drivers}, // the content of a file is a secret in any field
		{`token: "Bearer ${env:SECRET}"`, drivers},
		{`token: "bearer ` + canary + `"`, drivers},
		{`token: "v1=${env:SECRET};"`, drivers},
		{`token: "Basic ${env:BASIC}"`, []string{basic, "Basic " + basic, canary}},
		{`token: "${env:ODD}"`, []string{odd, fmt.Sprintf("%q", odd), url.PathEscape(odd), url.QueryEscape(odd), url.UserPassword("a", odd).String()}},
		{`hook: "https://bob:${env:SECRET}@${env:HOST}/x"`, []string{canary, "Basic " + basic}},
		{`hook: "https://${env:HOST}/services/${env:SECRET}"`, []string{"services/" + canary}},
		{`hook: "https://${env:HOST}/x?api_key=` + canary + `"`, []string{"api_key=" + canary}},
	} {
		doc, err := schema.Parse(filepath.Join(dir, "c.yaml"), []byte("name: n\n"+c.text), func(name string) string { return env[name] })
		if err != nil {
			t.Fatal(err)
		}
		s := &shop{}
		doc.Root().Mapping(s.mapping())
		for _, said := range append(c.said, fmt.Sprintf("%+v", s)) {
			if strings.Contains(c.text, "table") && strings.HasPrefix(said, "&{") {
				continue // the value of a field that holds no secrets is shown
			}
			if got := doc.Hidden.Text(said); strings.Contains(got, canary) || strings.Contains(got, basic) {
				t.Errorf("%s: the secret is in %s", c.text, got)
			}
		}
		if strings.Contains(c.text, "HOST") && doc.Hidden.Text("dial db.internal: refused") != "dial db.internal: refused" {
			t.Errorf("%s: the host is hidden", c.text)
		}
	}
	if none := (&schema.Redactor{}); none.Text("x") != "x" {
		t.Error("a redactor without secrets changes texts")
	}
}

// TestURLsOfTargetsShowNoReferences has URLs to which messages are sent: their paths and
// queries may be secret.
func TestURLsOfTargetsShowNoReferences(t *testing.T) {
	t.Parallel()
	env := map[string]string{"SECRET": canary, "URL": "https://example.org/services/" + canary, "HOST": "example.org"}
	for _, c := range []struct{ written, shown string }{
		{"https://example.org/", "https://example.org/"},
		{"https://bob:${env:SECRET}@${env:HOST}/x", "https://[hidden]@example.org/x"},
		{"https://bob:" + canary + "@example.org/x", "https://bob:[hidden]@example.org/x"},
		{"https://${env:SECRET}@example.org/x", "https://[hidden]@example.org/x"},
		{"https://${env:HOST}/services/${env:SECRET}/${env:SECRET}/x", "https://example.org/services/[hidden]/[hidden]/x"},
		{"${env:URL}", "https://example.org/[hidden]"},
		{"https://example.org/x?api_key=${env:SECRET}&a=b", "https://example.org/x?[hidden]"},
		{"https://example.org?api_key=" + canary, "https://example.org?[hidden]"},
		{"${env:SECRET}", "[hidden]"},
	} {
		s, doc := read(t, "name: n\nhook: \""+c.written+"\"", env)
		if err := doc.Err(); err != nil || s.Hook.String() != c.shown {
			t.Errorf("%s is shown as %s (%v), want %s", c.written, s.Hook, err, c.shown)
		}
	}
}

// TestErrorsHoldNoSecret breaks a text with secrets in many ways: it is cut at every
// byte, and every byte is replaced.
func TestErrorsHoldNoSecret(t *testing.T) {
	t.Parallel()
	const whole = `
name: n
url: "host=h password='` + canary + `'"
token: ` + canary + `
hook: "https://u:${env:SECRET}@h/${env:SECRET}"
wait: "${env:SECRET}"
rate: "${env:SECRET}"
level: "${env:SECRET}"
open: "${env:SECRET}"
pay: { card: ["` + canary + `"], invoice: { within: 1d } }
`
	check := func(text string) (refused bool) {
		doc, err := schema.Parse("c.yaml", []byte(text), func(name string) string { return map[string]string{"SECRET": canary}[name] })
		if err == nil {
			doc.Root().Mapping((&shop{}).mapping())
			err = doc.Err()
		}
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("the secret is in the error:\n%v\nof:\n%s", err, text)
		}
		return err != nil
	}
	if !check(whole) {
		t.Error("the whole text is valid")
	}
	for i := range len(whole) {
		check(whole[:i])
		for _, c := range []string{"", "'", "\"", "\n", "\t", ":", "*", "[", "}", "\xff"} {
			check(whole[:i] + c + whole[i+1:])
		}
	}
}
