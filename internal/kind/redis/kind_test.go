package redis_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/redis"
)

func TestKind(t *testing.T) {
	kindtest.Store(t, redis.NewStore, kindtest.Case{
		Least: `{ url: "redis://localhost" }`,
		Secrets: []string{
			`{ url: "redis://u:` + kindtest.Secret + `@localhost" }`,
			`{ cluster: ["h:7000"], password: ` + kindtest.Secret + ` }`,
			`{ sentinel: { addresses: ["h:26379"], master: m, username: u, password: ` + kindtest.Secret + ` } }`,
		},
	})
}
