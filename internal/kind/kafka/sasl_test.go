package kafka

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/semel-dev/semel/internal/bearer"
)

// tokenOf returns a token with claims, as a file has it.
func tokenOf(t *testing.T, text string) (*OAuth, bearer.Token) {
	t.Helper()
	o := &OAuth{File: filepath.Join(t.TempDir(), "token")}
	if err := os.WriteFile(o.File, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	token, err := o.cache().Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return o, token
}

func TestATokenWithoutAClaimLacksWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	claims := func(text string) string { return "e30." + base64.RawURLEncoding.EncodeToString([]byte(text)) + ".c2ln" }
	for text, want := range map[string]string{
		"opaque":                    "", // nothing is known of it
		claims(`{}`):                "scope kafka",
		claims(`{"scope":"other"}`): "scope kafka",
		claims(`{"scope":"kafka"}`): "audience broker",
		claims(`{"scp":["kafka"],"aud":"broker"}`): "",
	} {
		_, token := tokenOf(t, text)
		if got := (&OAuth{Scope: "kafka", Audience: "broker"}).lacks(&token); got != want {
			t.Errorf("%s lacks %q, want %q", text, got, want)
		}
	}
}

func TestTheIssuerIsNotBlamedWhileATokenCanBeUsed(t *testing.T) {
	t.Parallel()
	o, _ := tokenOf(t, "opaque")
	if err := os.Remove(o.File); err != nil {
		t.Fatal(err)
	}
	if _, err := o.cache().Token(t.Context()); err != nil || o.cache().Trouble() == nil {
		t.Fatalf("a renewal that failed: %v, %v", err, o.cache().Trouble())
	}
	said := fmt.Errorf("no broker answers: %w", context.DeadlineExceeded)
	if got := (&SASL{OAuth: o}).explain("source.kafka", said); got != nil {
		t.Errorf("a login has a token, and the issuer is blamed: %v", got)
	}
	none := &OAuth{File: o.File}
	if _, err := none.cache().Token(t.Context()); err == nil {
		t.Fatal("a token of a file that is not there")
	}
	if got := (&SASL{OAuth: none}).explain("source.kafka", said); got == nil {
		t.Error("a login waits for a token, and nothing says so")
	}
}
