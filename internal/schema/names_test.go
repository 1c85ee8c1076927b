package schema_test

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/schema"
)

func TestNamesHaveLettersDigitsDashesAndUnderscores(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"orders": true, "Orders_2-b": true, "7": true, strings.Repeat("x", 64): true,
		"": false, "a b": false, "a.b": false, "é": false, "a/b": false, strings.Repeat("x", 65): false,
	} {
		if got := schema.IsName(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

func TestIdentifiersNeedNoQuotesInSQL(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"orders": true, "_o1": true, "orders12": true, // eight letters
		"": false, "1o": false, "Orders": false, "o-b": false, "o b": false, "orders123": false,
	} {
		if got := schema.IsIdentifier(name, 8); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

func TestAddressesToListenOn(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		":80": true, "127.0.0.1:0": true, "[::1]:8080": true, "localhost:65535": true,
		"80": false, "h:": false, "h:http": false, "h:65536": false, "http://h:80": false, "u@h:80": false, "a b:80": false,
	} {
		got, err := schema.ParseListen(address)
		if (err == nil) != want || want && got != address || !want && !strings.Contains(err.Error(), "write it like 127.0.0.1:8080") {
			t.Errorf("%s: %q, %v; want %v", address, got, err, want)
		}
	}
}

func TestURLSchemesAreComparedExactly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"redis://h": true, "rediss://h": true, "redisx://h": false, "redis:h": false, "redis": false} {
		if got := schema.HasScheme(text, "redis", "rediss"); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
