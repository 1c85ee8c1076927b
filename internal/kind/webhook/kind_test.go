package webhook_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/webhook"
)

func TestKind(t *testing.T) {
	kindtest.Sink(t, webhook.NewSink, kindtest.Case{
		Least:   `{ url: "https://example.org/" }`,
		Secrets: []string{`{ url: "https://u:` + kindtest.Secret + `@example.org/", headers: { X-Key: ` + kindtest.Secret + ` } }`},
	})
}
