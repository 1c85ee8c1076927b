package postgres_test

import (
	"context"
	"testing"

	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

func TestDeadLetterStorePassesTheSuite(t *testing.T) {
	t.Parallel()
	brokertest.RunDeadLetters(t, func(tb testing.TB) func() pipeline.DeadLetterStore {
		address := servers.Database(tb)
		if _, err := pgstore.Migrate(tb.Context(), open(tb, address), nil); err != nil {
			tb.Fatal(err)
		}
		return func() pipeline.DeadLetterStore {
			letters, err := postgres.OpenDeadLetters(context.Background(), address, pgstore.Names{})
			if err != nil {
				tb.Fatal(err)
			}
			return letters
		}
	})
}
