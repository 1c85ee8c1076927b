package redis_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/redis"
)

func TestKind(t *testing.T) {
	kindtest.Store(t, redis.NewStore, kindtest.Case{
		Least:   `{ url: "redis://localhost" }`,
		Secrets: `{ url: "redis://u:` + kindtest.Secret + `@localhost" }`,
	})
}
