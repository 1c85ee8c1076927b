package http_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/http"
	"github.com/semel-dev/semel/internal/kind/kindtest"
)

func TestKind(t *testing.T) {
	kindtest.Source(t, http.NewSource, kindtest.Case{
		Least:   `{ listen: "127.0.0.1:8080" }`,
		Secrets: []string{`{ listen: "127.0.0.1:8080", token: ` + kindtest.Secret + ` }`},
	})
}
